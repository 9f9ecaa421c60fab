"""Functions of maps (N, C, H, W) with backward passes in closed form.

Most layers are

    mean, var = group_moments(x, groups)                                   (N, G)
    factor, offset, gain, shift = ...                                      (N, C)
    y = f(x, factor * x + offset) * gain + shift                           `apply_map`

Autograd would save a map for nearly every operation, and read and write several in backward. These
functions save only their inputs, compute the rest again, and work in place. What lies between, of
shape (N, C) or smaller, is left to autograd.

The first dimension of every tensor is the images, so that `torch.vmap` can lay its batch out as
further images. Further derivatives differentiate the formula by autograd. There is no forward mode.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.base.activations import activation
from normbench.norms.base.tensors import per_channel, upcast

MaybeTensor = Tensor | None
_aten = torch.ops.aten


class ClosedForm(NamedTuple):
    """A function of an option and of tensors, some of which may be None.

    Attributes:
        value: option and tensors -> one tensor or several.
        backward: option, gradients of the outputs, and tensors -> a gradient for each tensor.
        formula: `value` by operations that autograd can record.
    """

    value: Callable[..., Any]
    backward: Callable[..., Sequence[MaybeTensor]]
    formula: Callable[..., Any]


#: By name, because torch.compile takes no functions as arguments of a function.
CLOSED_FORMS: dict[str, ClosedForm] = {}
#: Values of the smallest map for which closed forms pay: below, calls take longer than passes.
SMALLEST = 2**15


def evaluate(name: str, option: Any, x: Tensor, *tensors: MaybeTensor) -> Any:
    """Return the value of one of `CLOSED_FORMS` for the maps `x`, with its backward pass."""
    if pays_for(x):
        return _Evaluate.apply(name, option, x, *tensors)
    return CLOSED_FORMS[name].formula(option, x, *tensors)


def pays_for(x: Tensor) -> bool:
    """Return True if closed forms save time for the maps `x`, False if formulas do."""
    return torch.compiler.is_compiling() or x.numel() >= SMALLEST


class _Evaluate(torch.autograd.Function):
    """The value of a closed form, which saves only its inputs for the backward pass."""

    @staticmethod
    def forward(name: str, option: Any, *tensors: MaybeTensor) -> Any:
        return CLOSED_FORMS[name].value(option, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.form, ctx.option, *tensors = inputs
        ctx.outputs = len(output) if isinstance(output, tuple) else 1
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[MaybeTensor, ...]:
        tensors = ctx.saved_tensors
        # torch.compile (torch 2.14) takes no function with a `vmap` here.
        differentiable = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        differentiate = _Backward.apply if differentiable else _Backward.forward
        of_tensors = iter(differentiate(ctx.form, ctx.option, ctx.outputs, *gradients, *tensors))
        return None, None, *(each if each is None else next(of_tensors) for each in tensors)

    @staticmethod
    def vmap(
        info: Any, in_dims: Sequence[Any], name: str, option: Any, *tensors: MaybeTensor
    ) -> tuple[Any, Any]:
        output = _Evaluate.apply(name, option, *_fold(info.batch_size, in_dims[2:], tensors))
        return _unfold(info.batch_size, output)


class _Backward(torch.autograd.Function):
    """The backward pass of a closed form: gradients of the tensors that are not None."""

    @staticmethod
    def forward(name: str, option: Any, outputs: int, *tensors: MaybeTensor) -> tuple[Tensor, ...]:
        gradients, inputs = tensors[:outputs], tensors[outputs:]
        of_inputs = CLOSED_FORMS[name].backward(option, gradients, *inputs)
        return tuple(each for each in of_inputs if each is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.form, ctx.option, ctx.outputs, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[MaybeTensor, ...]:
        again = torch.is_grad_enabled()  # a further derivative may follow
        with torch.enable_grad():
            # Views, as one of the inputs may be computed from another.
            tensors = [each if each is None else each.view_as(each) for each in ctx.saved_tensors]
            leaves = [each for each in tensors if each is not None]
            for each in leaves:
                if not each.requires_grad:
                    each.requires_grad_()
            inputs = tensors[ctx.outputs :]
            value = CLOSED_FORMS[ctx.form].formula(ctx.option, *inputs)
            wanted = [each for each in inputs if each is not None]
            first = torch.autograd.grad(value, wanted, tensors[: ctx.outputs], create_graph=True)
            second = iter(
                torch.autograd.grad(first, leaves, gradients, create_graph=again, allow_unused=True)
            )
        return None, None, None, *(each if each is None else next(second) for each in tensors)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Sequence[Any],
        name: str,
        option: Any,
        outputs: int,
        *tensors: MaybeTensor,
    ) -> tuple[Any, Any]:
        folded = _fold(info.batch_size, in_dims[3:], tensors)
        return _unfold(info.batch_size, _Backward.apply(name, option, outputs, *folded))


def _fold(batch: int, in_dims: Sequence[Any], tensors: Sequence[MaybeTensor]) -> list[MaybeTensor]:
    """Lay the batch of `torch.vmap` out as further images: (B, N, ...) -> (B * N, ...)."""
    folded: list[MaybeTensor] = []
    for tensor, dim in zip(tensors, in_dims, strict=True):
        if tensor is None:
            folded.append(None)
        elif dim is None:
            folded.append(tensor.expand(batch, *tensor.shape).flatten(0, 1))
        else:
            folded.append(tensor.movedim(dim, 0).flatten(0, 1))
    return folded


def _unfold(batch: int, output: Any) -> tuple[Any, Any]:
    """Undo `_fold`; return what `torch.vmap` expects, the tensors and their batch dimensions."""
    if isinstance(output, tuple):
        return tuple(each.unflatten(0, (batch, -1)) for each in output), (0,) * len(output)
    return output.unflatten(0, (batch, -1)), 0


def apply_map(
    function: str | None,
    x: Tensor,
    factor: MaybeTensor = None,
    offset: MaybeTensor = None,
    gain: MaybeTensor = None,
    shift: MaybeTensor = None,
) -> Tensor:
    """Return f(x, u) * gain + shift in the dtype of `x`, with u = factor * x + offset.

    Args:
        function: f. gated: x * sigmoid(u); bounded: x / max(u, 1); else the name of an activation
            of u, or None. Of the activations relu and silu have closed forms.
        x: the maps (N, C, H, W).
        factor: this and the following broadcast to (N, C); None: 1.
        offset: None: 0, as for `shift`.
        gain: None: 1, as for `factor`.
        shift: see `offset`.
    """
    coefficients = [
        None if each is None else upcast(each).expand(x.shape[:2])
        for each in (factor, offset, gain, shift)
    ]
    if function in CLOSED_FORMS:
        output: Tensor = evaluate(function, function, x, *coefficients)
    else:
        output = _map_formula(function, x, *coefficients)
    return output


def _map(function: str, x: Tensor, *coefficients: MaybeTensor) -> Tensor:
    factor, offset, gain, shift = coefficients
    u = _linear(x, factor, offset)
    u = u.clone() if u is x else u
    if function == "gated":
        y = u.sigmoid_().mul_(x)
    elif function == "bounded":
        y = x / u.clamp_min_(1)
    else:
        y = {"relu": F.relu, "silu": F.silu}[function](u, inplace=True)
    if gain is not None:
        y.mul_(per_channel(gain))
    if shift is not None:
        y.add_(per_channel(shift))
    return y.to(x.dtype)


def _map_formula(function: str | None, x: Tensor, *coefficients: MaybeTensor) -> Tensor:
    """Compute a map by operations that autograd records."""
    factor, offset, gain, shift = coefficients
    u = upcast(x) if factor is None else x * per_channel(factor)
    if offset is not None:
        u = u + per_channel(offset)
    if function == "gated":
        y = torch.sigmoid(u) * x
    elif function == "bounded":
        y = x / u.clamp_min(1)
    else:
        y = activation(function)(u)
    if gain is not None:
        y = y * per_channel(gain)
    if shift is not None:
        y = y + per_channel(shift)
    return y.to(x.dtype)


def _map_backward(
    function: str, gradients: Sequence[Tensor], x: Tensor, *coefficients: MaybeTensor
) -> list[MaybeTensor]:
    factor, offset, gain, shift = coefficients
    g = upcast(gradients[0])
    to_shift = None if shift is None else _sum(g)
    u = _linear(x, factor, offset)
    memory = None if u is x else u
    if function in ("gated", "bounded"):
        to_u, direct, to_gain = _gate_backward(function, g, x, u, gain)
    else:
        to_u, to_gain = _activation_backward(function, g, u, gain)
        direct = None
    # Nothing reads u any more, so its memory takes the product.
    to_factor = None if factor is None else _sum(torch.mul(to_u, x, out=memory))
    to_offset = None if offset is None else _sum(to_u)
    if factor is not None:
        to_u.mul_(per_channel(factor))
    if direct is not None:
        to_u.add_(direct)
    return [to_u.to(x.dtype), to_factor, to_offset, to_gain, to_shift]


def _activation_backward(
    function: str, g: Tensor, u: Tensor, gain: MaybeTensor
) -> tuple[Tensor, MaybeTensor]:
    """Return the gradients at u and at the gain of an activation."""
    to_gain = None
    if gain is not None:
        y = activation(function)(u).mul_(g)
        to_gain = _sum(y)
        g = torch.mul(g, per_channel(gain), out=y)
    if function == "relu":
        return _aten.threshold_backward(g, u, 0), to_gain
    return _aten.silu_backward(g, u), to_gain


def _gate_backward(
    function: str, g: Tensor, x: Tensor, u: Tensor, gain: MaybeTensor
) -> tuple[Tensor, Tensor, MaybeTensor]:
    """Return the gradients at u, at x where u is held, and at the gain, of x * gate(u)."""
    gate = torch.sigmoid(u) if function == "gated" else u.clamp_min(1).reciprocal_()
    product = (gate * x).mul_(g)
    to_gain = None
    if gain is not None:
        to_gain = _sum(product)
        product.mul_(per_channel(gain))
    if function == "gated":  # slope: gate * (1 - gate)
        to_u = product.addcmul_(product, gate, value=-1)
    else:  # slope: -gate^2, but 0 up to the bound
        to_u = _aten.threshold_backward(product.mul_(gate).neg_(), u, 1)
    direct = gate.mul_(g)
    if gain is not None:
        direct.mul_(per_channel(gain))
    return to_u, direct, to_gain


def _linear(x: Tensor, factor: MaybeTensor, offset: MaybeTensor) -> Tensor:
    """Return factor * x + offset, at least in fp32: `x` itself if that changes nothing."""
    if factor is None:
        return upcast(x) if offset is None else x + per_channel(offset)
    u = x * per_channel(factor)
    return u if offset is None else u.add_(per_channel(offset))


def _sum(x: Tensor) -> Tensor:
    return x.sum((2, 3))


CLOSED_FORMS |= dict.fromkeys(
    ("relu", "silu", "gated", "bounded"), ClosedForm(_map, _map_backward, _map_formula)
)
