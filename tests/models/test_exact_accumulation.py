"""Gradient accumulation with statistics of all passes equals one pass over all images."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import model, models, normalizer
from normbench.data.counter_rng import Draws
from normbench.errors import Impossible
from normbench.models.exact_accumulation import ExactAccumulation
from normbench.models.random_layers import random_layers, set_draws
from normbench.norms.base.layer import NormAct
from normbench.norms.channels_last import ChannelsLast
from normbench.norms.whole_step import WholeStep
from support.networks import noise
from support.slow import slow_except

IMAGES, SIDE = 8, 32
SYNC = normalizer("sync_bn")
LAYERS = {
    "sync_bn": SYNC,
    "sn": normalizer("sn", sync=True),
    "unbiased": normalizer("sn", sync=True, unbiased=True),
    "tied": normalizer("sn", sync=True, tied=True, mix="std"),
    "ssn": normalizer("ssn", sync=True),
}
#: Both orders of blocks, depthwise convolutions, squeeze-excite, dropped paths, networks of timm.
NETWORKS = [
    "resnet20_v2", "resnet18_cifar", "mobilenetv2_cifar", "efficientnet_b0", "timm/resnet18",
]  # fmt: skip


def network_of(name: str, norm: Any) -> nn.Module:
    torch.manual_seed(0)
    drops: dict[str, Any] = (
        {"dropout": 0.2, "stochastic_depth": 0.3} if name == "resnet18_cifar" else {}
    )
    return model(name, norm=norm, num_classes=10, **drops).double().train()


def run_at_once(network: nn.Module, x: Tensor, y: Tensor) -> None:
    set_draws(random_layers(network), Draws(0, 0, torch.arange(len(x))))
    F.cross_entropy(network(x), y).backward()


def run_in_passes(network: nn.Module, x: Tensor, y: Tensor, passes: int) -> None:
    """Take image k in pass k mod `passes`, as a plan does."""
    layers, indices = random_layers(network), torch.arange(len(x))
    ExactAccumulation(network).backward(
        [x[number::passes] for number in range(passes)],
        lambda logits, number: F.cross_entropy(logits, y[number::passes]) / passes,
        before_segment=lambda number: set_draws(layers, Draws(0, 0, indices[number::passes])),
    )


def assert_same(network: nn.Module, other: nn.Module) -> None:
    """Gradients and running statistics agree to rounding in double precision."""
    gradients = [each.grad for each in network.parameters() if each.grad is not None]
    # Some gradients are rounding errors, as of a shift that the next normalization removes.
    rounding = 1e-12 * max(float(each.abs().max()) for each in gradients)
    others = [each.grad for each in other.parameters() if each.grad is not None]
    torch.testing.assert_close(others, gradients, rtol=1e-10, atol=rounding)
    torch.testing.assert_close([*other.buffers()], [*network.buffers()], rtol=1e-12, atol=1e-12)


def compare(network: nn.Module, shape: tuple[int, ...], passes: int) -> nn.Module:
    """Assert that `passes` compute what one pass does; return the network that ran them."""
    other = copy.deepcopy(network)
    x, y = noise(*shape).double(), torch.arange(shape[0])
    run_at_once(network, x, y)
    run_in_passes(other, x, y, passes)
    assert_same(network, other)
    return other


@pytest.mark.parametrize(
    ("name", "layer", "passes"),
    slow_except(
        [
            *((name, "sync_bn", passes) for name in NETWORKS for passes in (1, 2, 8)),
            *(("resnet18_cifar", layer, 4) for layer in LAYERS),
        ],
        [
            ("resnet20_v2", "sync_bn", 8),
            ("timm/resnet18", "sync_bn", 2),
            ("resnet18_cifar", "unbiased", 4),
        ],
    ),
)
def test_passes_compute_what_one_pass_does(name: str, layer: str, passes: int) -> None:
    network = network_of(name, LAYERS[layer])
    other = compare(network, (IMAGES, 3, SIDE, SIDE), passes)
    assert all(
        each.shared_moments is None for each in other.modules() if isinstance(each, WholeStep)
    )


@pytest.mark.parametrize("name", slow_except([*models()], ["resnet50", "nf_regnet_b0"]))
def test_every_network_can_be_split(name: str) -> None:
    with torch.device("meta"):
        network = model("timm/resnet50" if name == "timm" else name, norm=SYNC, num_classes=10)
    layers = [each for each in network.modules() if isinstance(each, NormAct)]
    accumulation = ExactAccumulation(network)
    accumulation.check((3, 96, 96))
    assert len(accumulation.segments) == len(layers) + 1


class Named(nn.Module):
    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


def test_layers_with_statistics_of_one_pass_are_refused() -> None:
    with pytest.raises(Impossible, match="BatchNormAct has statistics of one pass"):
        ExactAccumulation(network_of("resnet18_cifar", "bn"))
    with pytest.raises(Impossible, match="bn: BatchNorm2d has statistics of one pass"):
        ExactAccumulation(nn.Sequential(SYNC.layer(3), Named(bn=nn.BatchNorm2d(3))))
    with pytest.raises(Impossible, match="not those inside of ChannelsLast"):
        ExactAccumulation(nn.Sequential(ChannelsLast(SYNC.layer(3))))
    frozen = nn.Sequential(nn.Conv2d(3, 3, 1), SYNC.layer(3).eval())
    with pytest.raises(Impossible, match="in training, not those"):
        ExactAccumulation(frozen)


class Branched(nn.Module):
    """Two branches with a normalization each, in an order of calls that `kind` chooses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem, self.branch = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
        self.first, self.norm, self.other = SYNC.layer(3), SYNC.layer(8, None), SYNC.layer(8, None)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "begins with a normalization":
            x = self.first(x)
        x = self.stem(x)
        parts = x.chunk(2, 1)
        if self.kind == "both convolutions first":
            branch = self.branch(x)
            return self.logits(self.norm(x) + self.other(branch))
        y = self.norm(x)
        if self.kind == "a list":
            y = y + torch.cat([parts[1], parts[0]], 1)
        if self.kind == "a whole list":
            y = y + torch.cat(parts, 1)
        if self.kind == "cropped as a later map":
            y = y + x[:, :, : y.shape[2]]
        if self.kind == "changed in place and used":
            x.mul_(2.0)
        z = self.other(self.branch(x))
        y.add_(z)  # a result of an earlier segment, which no later one uses
        y.mul_(2.0)
        if self.kind == "changed in place and used":
            y = y + x
        return self.logits(y)

    def logits(self, maps: Tensor) -> Tensor:
        logits: Tensor = maps.flatten(1)[:, :10]
        return logits


@pytest.mark.parametrize(
    "kind",
    [
        "in place", "a list", "both convolutions first", "begins with a normalization",
        "cropped as a later map",
    ],
)  # fmt: skip
def test_passes_of_branches_compute_what_one_pass_does(kind: str) -> None:
    torch.manual_seed(0)
    network = Branched(kind).double()
    compare(network, (4, 3, 9, 9), 2)


def test_a_list_that_several_segments_use_is_refused() -> None:
    says = "a list of tensors is used beyond the next synchronized"
    accumulation = ExactAccumulation(Branched("a whole list"))
    with pytest.raises(Impossible, match=says):
        accumulation.check((3, 9, 9))
    with pytest.raises(Impossible, match=says):
        run_in_passes(Branched("a whole list"), noise(4, 3, 9, 9), torch.arange(4), 2)


def test_a_change_in_place_that_several_segments_see_is_refused() -> None:
    with pytest.raises(Impossible, match="stem is changed in place"):
        ExactAccumulation(Branched("changed in place and used"))


def test_passes_that_cannot_be_merged_are_refused() -> None:
    accumulation = ExactAccumulation(
        nn.Sequential(nn.Conv2d(3, 10, 1), SYNC.layer(10), nn.Flatten())
    )
    with pytest.raises(ValueError, match=r"passes of \[2, 1\] images"):
        accumulation.backward([noise(2, 3, 1, 1), noise(1, 3, 1, 1)], lambda y, _: y.sum())
    with pytest.raises(ValueError, match=r"passes of \[\] images"):
        accumulation.backward([], lambda y, _: y.sum())
    with pytest.raises(Impossible, match="a single value per channel"):
        accumulation.backward([noise(1, 3, 1, 1)], lambda y, _: y.sum())


def test_a_network_with_two_inputs_is_refused() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x * mask

    with pytest.raises(Impossible, match="another input than images, mask"):
        ExactAccumulation(Masked())


def test_optional_inputs_have_their_defaults() -> None:
    class Scaled(nn.Sequential):
        def forward(self, x: Tensor, factor: float = 2.0) -> Tensor:
            logits: Tensor = super().forward(x * factor)  # type: ignore[no-untyped-call]
            return logits * factor

    torch.manual_seed(0)
    network = Scaled(nn.Conv2d(3, 10, 3), SYNC.layer(10), nn.Flatten()).double()
    compare(network, (4, 3, 3, 3), 2)


def test_mixed_precision_gives_every_parameter_a_gradient() -> None:
    torch.manual_seed(0)
    network = model("resnet18_cifar", norm=SYNC, num_classes=10, width=8)
    x, y = noise(IMAGES, 3, SIDE, SIDE), torch.arange(IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        run_in_passes(network, x, y, 4)
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["res2net50_14w_8s", "skresnet18", "fastvit_t8", "lambda_resnet26t"]
)
def test_networks_of_timm_with_lists_and_branches(name: str) -> None:
    torch.manual_seed(0)
    network = model(f"timm/{name}", norm=SYNC, num_classes=10).double().train()
    # skresnet18 normalizes maps of 1x1, and the statistics of two values enlarge rounding errors.
    images, side = (2, 256) if name.startswith("lambda") else (6, 64)
    compare(network, (images, 3, side, side), 2)


def test_dropout_of_torch_draws_the_same_mask_in_both_computations() -> None:
    """Each pass has numbers of its own, and the generator moves on."""
    torch.manual_seed(0)
    dropout = nn.Dropout(0.5)
    seen: list[Tensor] = []
    dropout.register_forward_hook(lambda _layer, _inputs, output: seen.append(output == 0))
    parts = (nn.Conv2d(3, 8, 3), SYNC.layer(8, None), dropout, nn.Conv2d(8, 10, 7), SYNC.layer(10))
    network = nn.Sequential(*parts, nn.Flatten())
    x, y = noise(4, 3, 9, 9), torch.arange(4)
    run_in_passes(network, x, y, 2)
    first, second, again_first, again_second = seen
    assert torch.equal(first, again_first)
    assert torch.equal(second, again_second)
    assert not torch.equal(first, second)
    seen.clear()
    run_in_passes(network, x, y, 2)
    assert not torch.equal(seen[0], first)
