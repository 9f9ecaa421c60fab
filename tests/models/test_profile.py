"""Operations of layers and networks, counted by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from normbench.catalog import model, normalizer, normalizers
from normbench.errors import Impossible
from normbench.models.fold import fold
from normbench.models.network_info import NetworkInfo
from normbench.models.profile import (
    PER_INPUT,
    POINTWISE,
    count_macs,
    count_operations,
    dry_run,
)
from normbench.norms.base.layer import NormAct
from normbench.norms.formulas import AGGREGATIONS, BINARY, UNARY
from support.cells import network_for
from support.slow import slow_except

#: What computes no floating-point number: views, copies, constants, choices.
FREE = {
    "arange", "cat", "clone", "constant_pad_nd", "copy_", "detach", "empty", "expand", "full",
    "index", "lift_fresh", "new_zeros", "ones", "ones_like", "permute", "repeat", "select", "slice",
    "stack", "t", "unbind", "unsqueeze", "view", "zeros", "_to_copy", "alias", "_unsafe_view",
    "squeeze",
}  # fmt: skip
#: Operations of sparse switchable normalization on the three ratios of a layer: too few to count.
OF_RATIOS = {"any", "bitwise_and", "cumsum", "gather", "gt", "lt", "scalar_tensor", "sort", "where"}
#: Formulas of norm=graph with one operation.
FORMULAS = {
    "neg": "-x", "add": "x+v0", "mul": "x*v0", "div": "x/v1", "max": "max(x,v0)",
    **{op: f"{op}(x)" for op in (*UNARY[1:], *AGGREGATIONS)},
}  # fmt: skip
COUNTED = {*POINTWISE, *PER_INPUT, "convolution", "addmm", "avg_pool2d", "max_pool2d_with_indices"}


class Recorder(TorchDispatchMode):
    """Collect the names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func.overloadpacket).partition(".")[2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", slow_except(normalizers(), ["evonorm_b0"]))
def test_every_operation_of_a_network_is_counted_or_free(norm: str) -> None:
    recorder = Recorder()
    # The larger ones have no operations of their own that depend on the normalizer.
    larger = ("efficientnet_cifar", "inception_v3") if norm in ("bn", "evonorm_b0") else ()
    for name in ("smallest", "mobilenetv2_cifar", *larger):
        options: dict[str, Any] = network_for(norm) if name == "smallest" else {"name": name}
        image = (1, 299, 299) if name == "inception_v3" else (1, 17, 17)
        try:
            with torch.device("meta"):
                network = model(norm=norm, num_classes=10, in_chans=1, **options).eval()
        except Impossible:
            continue
        for each in (network, fold(network, image)):
            with recorder:
                count_operations(each, image)
    names = {name.removesuffix("_") if name not in FREE else name for name in recorder.names}
    assert names <= FREE | COUNTED | (OF_RATIOS if norm == "ssn" else set())


@pytest.mark.parametrize("op", [*UNARY, *BINARY, *AGGREGATIONS])
def test_every_operation_of_a_formula_is_counted_or_free(op: str) -> None:
    with torch.device("meta"):
        layer = normalizer("graph", formula=FORMULAS[op]).layer(8).eval()
    recorder = Recorder()
    with recorder:
        counted = count_operations(layer, (8, 4, 4))
    per_value = 2 if op.endswith("bwh") else 3  # the operation, if it is not read; gain and shift
    assert counted >= per_value * 8 * 4 * 4
    assert {name.removesuffix("_") for name in recorder.names - FREE} <= COUNTED


@pytest.mark.parametrize(
    ("norm", "per_value"),
    [
        ("bn", 2 + 1),  # multiply and add, ReLU
        ("gn", 4 + 2 + 1),  # variance, multiply and add, ReLU
        ("none", 2 + 1),
        ("evonorm_b0", 4 + 2 + 1 + 3),  # variance, v * x + std, maximum, gain / divisor ... + shift
        ("evonorm_s0", 4 + 2 + 1 + 2),  # variance, sigmoid(v * x), * x, * gain + shift
        ("frn", 2 + 1 + 2 + 1),  # square and mean, division, multiply and add, maximum
    ],
)  # fmt: skip
def test_the_operations_of_a_layer(norm: str, per_value: int) -> None:
    with torch.device("meta"):
        layer = normalizer(norm).layer(8).eval()
    values = 8 * 40 * 40
    few = 9 * 8  # on channels alone
    assert 0 <= count_operations(layer, (8, 40, 40)) - per_value * values <= few


def test_a_dry_run_computes_equal_layers_on_maps_of_the_same_shape_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[tuple[object, ...]] = []
    compute = NormAct.compute

    def record(layer: NormAct, x: Tensor) -> Tensor:
        computed.append((*x.shape, layer.act))
        return compute(layer, x)

    monkeypatch.setattr(NormAct, "compute", record)
    with torch.device("meta"):
        network = model("resnet20", norm="gn", num_classes=10)
    dry_run(network, 4, (3, 32, 32))
    layers = sum(isinstance(layer, NormAct) for layer in network.modules())
    assert len(computed) == len(set(computed)) < layers / 2
    computed.clear()
    network(torch.empty(4, 3, 32, 32, device="meta"))
    assert len(computed) == layers  # elsewhere each layer computes


def test_a_dry_run_counts_the_same_as_an_evaluation_of_an_image() -> None:
    with torch.device("meta"):
        network = model("mobilenetv2_cifar", norm="bn", num_classes=10)
    assert dry_run(network, 4, (3, 32, 32)) == count_macs(network, (3, 32, 32))


def test_a_multiply_add_is_two_operations() -> None:
    with torch.device("meta"):
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, groups=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.AvgPool2d((3, 1)), nn.Flatten(), nn.Linear(24, 5, bias=False),
        ).eval()  # fmt: skip
    macs, _ = count_macs(network, (3, 13, 13))
    # Maps of 6x6, 3x3 and 1x3.
    others = 8 * 36 + 4 * 8 * 9 + 3 * 8 * 3
    assert macs == 8 * 36 * 27 + 24 * 5
    assert count_operations(network, (3, 13, 13)) == 2 * macs + others


def info(norm: str, **options: Any) -> NetworkInfo:
    layers = normalizer(norm)
    with torch.device("meta"):
        network = model("mobilenetv2_width", norm=layers, num_classes=1000, **options)
    return NetworkInfo(network, layers, (3, 224, 224), (3, 224, 224))


@pytest.mark.parametrize(("width", "head"), [(0.9, 1280), (1.0, 1280), (1.1, 1408)])
def test_inference_of_the_networks_of_evonorms_figure_10(width: float, head: int) -> None:
    """EvoNorm-B0 has 0.2 % more parameters than folded batch normalization and 8 % more work."""
    bn, b0 = (info(norm, width=width, head=head) for norm in ("bn", "evonorm_b0"))
    (bn_params, bn_work), (b0_params, b0_work) = bn.inference, b0.inference
    assert None not in (bn_params, bn_work, b0_params, b0_work)
    assert b0_params / bn_params == pytest.approx(1.002, abs=5e-4)  # type: ignore[operator]
    assert b0_work / bn_work == pytest.approx(1.077, abs=8e-3)  # type: ignore[operator]
    assert bn.macs < bn_work / 2 < 1.02 * bn.macs  # type: ignore[operator]
    fields = b0.row_fields()
    assert fields["inference_params"] == b0_params < fields["params"]
    assert fields["inference_operations"] == b0_work


NUMBERS = [(1, 1), (1, 2), (1, 6), (3, 3), (5, 20), (64, 128), (128, 128)]  # workers, images of all


def outcome(info: NetworkInfo, workers: int, images: int) -> str:
    """Return why the network of `info` cannot be trained so, or ""."""
    try:
        with torch.device("meta"):
            info.try_training(workers, images)
    except (Impossible, ValueError) as error:
        return str(error)
    return ""


def smallest_info(norm: str) -> NetworkInfo:
    """Return the properties of a network whose last maps are 1x1."""
    layers, image = normalizer(norm), (1, 4, 4)
    with torch.device("meta"):
        network = model(norm=layers, num_classes=10, in_chans=1, **network_for(norm))
    return NetworkInfo(network, layers, image, image)


#: Batch-independent normalizers refuse no number of images; GN stands for all.
REFUSING = ["gn", *(norm for norm in normalizers() if not normalizer(norm).worker_independent)]


@pytest.mark.parametrize("norm", slow_except(REFUSING, ["bn", "ghost_bn"]))
def test_a_network_refuses_the_same_numbers_of_images_whatever_it_was_asked_before(
    norm: str,
) -> None:
    alone = {numbers: outcome(smallest_info(norm), *numbers) for numbers in NUMBERS}
    info = smallest_info(norm)
    if not alone[128, 128]:
        assert info.macs > 0  # which counts without a dry run
    for numbers in (*NUMBERS, *NUMBERS[::-1]):
        assert outcome(info, *numbers) == alone[numbers]
    if norm == "bn":
        assert sum(map(bool, alone.values())) == 3


def test_a_normalizer_of_ones_own_is_run_for_each_number_of_images() -> None:
    class Choosy(NormAct):
        batch_independent = False

        def norm_act(self, x: Tensor) -> Tensor:
            if len(x) < 4:
                raise ValueError("at least 4 images")
            return self.activation(x)

    network = nn.Sequential(nn.Conv2d(1, 8, 3), Choosy(8, "relu"))
    info = NetworkInfo(network.to("meta"), normalizer("bn"), (1, 4, 4), (1, 4, 4))
    assert [outcome(info, 1, images) for images in (8, 2, 8)] == ["", "at least 4 images", ""]


def test_a_network_that_cannot_be_traced_has_no_sizes_at_inference() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x) if x.sum() > 0 else x

    network = Branching()
    found = NetworkInfo(network, normalizer("bn"), (3, 4, 4), (3, 4, 4))
    assert found.inference == (None, None)
