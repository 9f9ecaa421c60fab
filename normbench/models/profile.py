"""Multiply-accumulates of a network, and a dry run of a training step.

Multiply-accumulates are those of convolutions and matrix products, by torch's formulas, without
normalization, activation and sums, as in the tables of papers. `count_operations` counts these too.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from normbench.errors import Impossible
from normbench.norms.base.layer import NormAct

#: Operations of torch that compute each value of their output by one operation, a function such as
#: a sigmoid being one.
POINTWISE = (
    "add", "sub", "mul", "div", "pow", "neg", "abs", "sign", "exp", "log", "sqrt", "rsqrt",
    "reciprocal", "maximum", "minimum", "clamp", "clamp_min", "relu", "hardtanh", "sigmoid",
    "hardsigmoid", "silu", "gelu", "tanh", "elu", "leaky_relu", "softplus", "log_sigmoid_forward",
    "hardswish", "mish", "erf", "erfinv",
)  # fmt: skip
#: Operations per value of the input: a sum has one, a variance a sum, a difference, a square and a
#: sum; group and layer normalization compute a variance, multiply and add.
PER_INPUT = {
    "mean": 1, "sum": 1, "var": 4, "var_mean": 4, "native_group_norm": 6, "native_layer_norm": 6,
    "native_batch_norm": 2, "_native_batch_norm_legit": 6,
    "_native_batch_norm_legit_no_training": 2, "_softmax": 3,
}  # fmt: skip
#: Messages of torch for maps smaller than a kernel.
_TOO_SMALL = ("Kernel size can't be greater than actual input size", "Output size is too small")


def count_macs(
    model: nn.Module, image: tuple[int, int, int], images: int = 1, *, training: bool = False
) -> tuple[int, Counter[int]]:
    """Return multiply-accumulates for one image (C, H, W), and the share of grouped convolutions.

    The latter are counted by the input channels of a group, which is 1 in depthwise convolutions.
    The model runs once, with `images` images, so put it on the meta device.
    """
    device = next(model.parameters()).device
    convolution = torch.ops.aten.convolution
    in_groups: Counter[int] = Counter()

    def count_convolution(x: Tensor, weight: Tensor, *options: Any, out_val: Tensor) -> int:
        operations: int = flop_registry[convolution](x, weight, *options, out_val=out_val)
        if options[-1] > 1:  # groups; weight (O, I / groups, kH, kW)
            in_groups[weight.shape[1]] += operations
        return operations

    was_training = model.training
    counter = OperationCounter({**flop_registry, convolution: count_convolution})
    maps = torch.empty(images, *image, device=device)
    with counter, torch.no_grad(), equal_layers_once(model):
        model.train(training)(maps)
    model.train(was_training)
    each = 2 * images  # a multiply-add is two operations
    return counter.operations // each, Counter({w: n // each for w, n in in_groups.items()})


class OperationCounter(TorchDispatchMode):
    """Counts the operations of what runs inside it.

    Unlike torch's FlopCounterMode, it keeps no count of each module, which takes as long as the
    rest.

    Args:
        formulas: of each operator of torch that counts, the number of operations by its arguments
            and its result, `out_val`.
    """

    def __init__(self, formulas: Mapping[Any, Callable[..., int]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas = formulas
        self.operations = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        count = self.formulas.get(function.overloadpacket)
        if count is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=result)
        return result


def count_operations(model: nn.Module, image: tuple[int, int, int]) -> int:
    """Return the floating-point operations of an evaluation of one image (C, H, W).

    A multiply-add is two; all else that computes counts as in `POINTWISE` and `PER_INPUT`, and
    pooling as many as a kernel has positions for each output. The model runs once, so put it on the
    meta device.
    """
    aten, formulas = torch.ops.aten, dict(flop_registry)
    for name in POINTWISE:
        for variant in (name, f"{name}_"):  # some compute in place
            if hasattr(aten, variant):
                formulas[getattr(aten, variant)] = _count_outputs
    for name, operations in PER_INPUT.items():
        formulas[getattr(aten, name)] = partial(_count_inputs, operations)
    formulas[aten.avg_pool2d] = formulas[aten.max_pool2d_with_indices] = _count_pooling
    device, dtype = next((each.device, each.dtype) for each in model.parameters())
    counter = OperationCounter(formulas)
    with counter, torch.no_grad():
        model(torch.empty(1, *image, device=device, dtype=dtype))
    return counter.operations


def _count_outputs(*_: Any, out_val: Any, **__: Any) -> int:
    return _first(out_val).numel()


def _count_inputs(operations: int, x: Tensor, *_: Any, **__: Any) -> int:
    return operations * x.numel()


def _count_pooling(x: Tensor, kernel: Sequence[int], *_: Any, out_val: Any, **__: Any) -> int:  # noqa: ARG001
    sizes = kernel if len(kernel) == 2 else [kernel[0]] * 2
    return int(_first(out_val).numel() * math.prod(sizes))


def _first(results: Tensor | Sequence[Tensor]) -> Tensor:
    """Return a result, of several the first."""
    return results if isinstance(results, Tensor) else results[0]


@contextmanager
def equal_layers_once(model: nn.Module) -> Iterator[None]:
    """Let equal normalization layers compute maps of the same shape once on the meta device.

    Shapes alone take torch as long as small tensors, and a deep network repeats its layers: the
    second of two equal layers (by class, `repr` and shape of the input) returns an empty map of the
    shape of its input, which is that of its output.
    """
    computed: set[Hashable] = set()

    def skip_known(layer: NormAct, x: Tensor) -> Tensor | None:
        key = (type(layer), layer.extra_repr(), x.shape)
        if not x.is_meta or key not in computed:
            computed.add(key)
            return None
        return torch.empty_like(x)

    layers = [layer for layer in model.modules() if isinstance(layer, NormAct)]
    kernels = [layer.kernel for layer in layers]
    for layer in layers:
        layer.kernel = skip_known
    try:
        yield
    finally:
        for layer, kernel in zip(layers, kernels, strict=True):
            layer.kernel = kernel


def dry_run(model: nn.Module, images: int, image: tuple[int, int, int]) -> tuple[int, Counter[int]]:
    """Run one forward pass in training mode with `images` images (C, H, W); free on meta.

    Return what `count_macs` counts in it.

    Raises:
        Impossible: the images have a wrong size, or a normalizer refuses the maps.
    """
    try:
        return count_macs(model, image, images, training=True)
    except (RuntimeError, AssertionError) as error:
        _, height, width = image
        if any(message in str(error) for message in _TOO_SMALL):
            raise Impossible(f"images of {height}x{width} are too small for it") from error
        if isinstance(model, fx.GraphModule):  # networks of timm may need their own size
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise Impossible(f"it does not run on images of {height}x{width}: {reason}") from error
        raise
