"""Folding: the same outputs in evaluation, with fewer parameters and layers."""

from collections import Counter
from typing import Any

import pytest
import timm
import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn

from normbench.catalog import model, normalizer, normalizers
from normbench.catalog import swap as swap_by_name
from normbench.errors import Impossible
from normbench.models.backbone import backbone
from normbench.models.fold import fold
from normbench.norms.base.layer import Activation, Affine, NormAct
from normbench.norms.base.running import RunningStatistics
from normbench.norms.base.standardized_conv import StandardizedConv2d
from normbench.norms.evonorm import EvoNormAct
from normbench.norms.inference import set_example_weight
from normbench.norms.proxy import ProxyAct
from support.cells import network_for
from support.layers import norm_layers
from support.networks import unchanged
from support.slow import slow_except

IMAGE = (3, 17, 17)
#: Both orders of blocks, depthwise convolutions, squeeze-excite, networks of timm, its padding.
NETWORKS = [
    "smallest",
    "resnet14_v2",
    "mobilenetv2_cifar",
    "efficientnet_cifar",
    "nf_regnet_b0",
    "random_net",
    "timm/resnet18",
    "timm/legacy_seresnet18",
    "timm/tf_mobilenetv3_small_minimal_100",
]
EVERYDAY = [
    ("bn", "smallest"),
    ("bn_pn", "smallest"),
    ("nf", "smallest"),
    ("fixup", "smallest"),
    ("gn_pn", "resnet14_v2"),
    ("bn_ws", "mobilenetv2_cifar"),
    ("evonorm_b0", "mobilenetv2_cifar"),
    ("bgn", "efficientnet_cifar"),
]


#: Every normalizer in the smallest network and in another, and three of them in every network.
CASES = sorted(
    {*EVERYDAY}
    | {
        (norm, name)
        for place, norm in enumerate(normalizers())
        for number, name in enumerate(NETWORKS)
        if number in (0, 1 + place % (len(NETWORKS) - 1)) or norm in ("bn", "bn_ws", "gn_pn")
    }
)


def trained(network: nn.Module, image: tuple[int, int, int] = IMAGE) -> nn.Module:
    """Return `network` in double precision, with random gains, shifts and statistics."""
    generator = torch.Generator().manual_seed(1)
    network = network.double().train()
    for parameter in network.parameters():
        if parameter.dim() < 2:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
            parameter.data[torch.rand(parameter.shape, generator=generator) < 0.3] *= -1
        elif not parameter.any():  # classifiers and last convolutions of some networks
            parameter.data.normal_(0, 0.1, generator=generator)
    for layer in network.modules():
        if isinstance(layer, RunningStatistics):
            layer.momentum = 1.0
    network(torch.randn(16, *image, dtype=torch.float64, generator=generator))
    return network


def difference(network: nn.Module, folded: nn.Module, image: tuple[int, int, int]) -> float:
    """Return the largest difference of logits, relative to the largest logit."""
    x = torch.randn(3, *image, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected, logits = network.eval()(x), folded(x)
    return float((logits - expected).abs().max() / expected.abs().max())


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def chain(*layers: nn.Module) -> nn.Sequential:
    return trained(nn.Sequential(*layers), (4, 9, 9))  # type: ignore[return-value]


# The same numbers


@pytest.mark.parametrize(
    ("norm", "name"),
    slow_except(CASES, EVERYDAY),
)
def test_a_folded_network_equals_the_network_in_evaluation(norm: str, name: str) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = network_for(norm) if name == "smallest" else {"name": name}
    image = (3, 64, 64) if name.startswith(("timm", "nf_")) else IMAGE
    try:
        network = model(norm=normalizer(norm), num_classes=10, **options)
        trained(network, image)
    except Impossible as reason:
        pytest.skip(str(reason))
    with unchanged(network):
        folded = fold(network, image)
    assert not folded.training
    assert difference(network, folded, image) <= 1e-12
    assert not any(isinstance(each, StandardizedConv2d | ProxyAct) for each in folded.modules())


@pytest.mark.parametrize("norm", ["gn_ws", "nf"])
def test_dilated_convolutions_stay_dilated(norm: str) -> None:
    """Those of a backbone, where they pad by themselves and their weights are standardized."""
    torch.manual_seed(0)
    network = model("resnet50_v2", norm=norm, padding="same", width=16, num_classes=3)
    image = (3, 64, 64)
    dilated = backbone(network, image, 8).double().eval()
    folded = fold(dilated, image)
    x = torch.randn(2, *image).double()
    for expected, computed in zip(dilated(x), folded(x), strict=True):
        torch.testing.assert_close(computed, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["bn", "evonorm_b0", "gn_pn"])
def test_a_folded_network_takes_images_of_other_sizes_and_dtypes(norm: str) -> None:
    network = trained(model("mobilenetv2_cifar", norm=norm, num_classes=10))
    folded = fold(network, IMAGE)
    assert difference(network, folded, (3, 32, 40)) <= 1e-12
    single = fold(network.float(), IMAGE)
    x = torch.randn(2, *IMAGE)
    torch.testing.assert_close(single(x), network.eval()(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("norm", ["gn_pn", "gn_ws_pn"])
def test_strided_groups_stay_strided(norm: str) -> None:
    strided = normalizer(norm, groups=4, grouping="strided")
    network = trained(model("resnet14_v2", norm=strided, num_classes=10), IMAGE)
    assert difference(network, fold(network, IMAGE), IMAGE) <= 1e-12


@pytest.mark.parametrize("norm", ["bn", "evonorm_b0", "gn_pn", "nf"])
def test_padding_at_the_end_alone_stays(norm: str) -> None:
    network = model(
        "resnet50_v2", norm=norm, num_classes=10, padding="same", depths=(1, 2, 1, 1), width=8
    )
    trained(network, IMAGE)
    folded = fold(network, IMAGE)
    assert difference(network, folded, IMAGE) <= 1e-12
    assert count(folded) < count(network)


def test_dropout_and_stochastic_depth_are_absent() -> None:
    network = model("resnet14", norm="bn", num_classes=10, dropout=0.5, stochastic_depth=0.5)
    trained(network)
    assert difference(network, fold(network, IMAGE), IMAGE) <= 1e-12


def test_a_network_of_timm_that_was_swapped() -> None:
    network = trained(swap_by_name(timm.create_model("resnet18", num_classes=10), "evonorm_b0"))
    assert difference(network, fold(network, IMAGE), IMAGE) <= 1e-12


# What is folded, and what stays


@pytest.mark.parametrize("norm", ["bn", "sync_bn", "ghost_bn", "batch_renorm", "bgn", "none"])
def test_constants_behind_convolutions_vanish(norm: str) -> None:
    network = model("mobilenetv2_cifar", norm=norm, num_classes=10)
    folded = fold(network, IMAGE)
    assert norm_layers(folded) == []
    assert sum(isinstance(each, Activation) for each in folded.modules()) == 35
    gains_and_shifts = sum(2 * layer.channels for layer in norm_layers(network))
    assert count(network) - count(folded) == gains_and_shifts // 2  # a bias each


def test_what_stays_of_evonorm_b0() -> None:
    """Gain and shift vanish, but the shift stays before a padded (depthwise) convolution."""
    network = model("mobilenetv2_cifar", norm="evonorm_b0", num_classes=10)
    folded = fold(network, IMAGE)
    layers: list[Any] = norm_layers(folded)
    kinds = Counter(type(layer).__name__ for layer in layers)
    assert kinds == {"EvoNormBAct": 35, "Affine": 17}  # 17 blocks with a depthwise convolution
    for layer in layers:
        names = [name for name, _ in layer.named_parameters()]
        assert names == (["v"] if isinstance(layer, EvoNormAct) else ["bias"])
    bn = fold(model("mobilenetv2_cifar", norm="bn", num_classes=10), IMAGE)
    vectors = sum(layer.v.numel() for layer in layers if isinstance(layer, EvoNormAct))
    shifts = sum(layer.channels for layer in layers if isinstance(layer, Affine))
    convs = {name: each for name, each in bn.named_modules() if isinstance(each, nn.Conv2d)}
    biases = sum(
        conv.out_channels for name, conv in convs.items() if folded.get_submodule(name).bias is None
    )
    assert count(folded) == count(bn) + vectors + shifts - biases


@pytest.mark.parametrize(
    ("norm", "left"),
    [("gn", 52), ("frn", 52), ("sn", 52), ("dyt", 52), ("evonorm_s0", 35), ("bn_pn", 0)],
)
def test_statistics_of_images_stay(norm: str, left: int) -> None:
    folded = fold(model("mobilenetv2_cifar", norm=norm, num_classes=10), IMAGE)
    layers = norm_layers(folded)
    assert sum(not isinstance(layer, Affine) for layer in layers) == left


def test_a_pre_activation_block_keeps_its_first_normalization() -> None:
    folded = fold(model("resnet14_v2", norm="bn", num_classes=10), IMAGE)
    assert len(norm_layers(folded)) == 7  # of 6 blocks, and the last, which reads a sum


def test_a_normalization_between_activation_and_padded_convolution_leaves_a_shift() -> None:
    network = model("resnet50_v2", norm="bn", num_classes=10, order="act_norm_conv")
    folded = fold(network, (3, 64, 64))
    layers = norm_layers(folded)
    assert sum(layer.act is not None for layer in layers) == 1  # the last
    shifts = [layer for layer in layers if layer.act is None]
    assert len(shifts) == 16  # before the padded convolution of each block
    assert all(isinstance(each, Affine) and each.weight is None for each in shifts)


def test_example_weights_keep_their_statistics() -> None:
    network = model("resnet14", norm="bn", num_classes=10)
    trained(network)
    set_example_weight(network.eval(), 0.1)
    folded = fold(network, IMAGE)
    assert len(norm_layers(folded)) == len(norm_layers(network))
    assert difference(network, folded, IMAGE) <= 1e-12


def evonorm(channels: int = 8) -> NormAct:
    return normalizer("evonorm_s0").layer(channels)


def test_gain_and_shift_go_through_the_average_into_the_classifier() -> None:
    network = chain(
        nn.Conv2d(4, 8, 1), evonorm(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    folded = fold(network, (4, 9, 9))
    assert difference(network, folded, (4, 9, 9)) <= 1e-12
    (layer,) = norm_layers(folded)
    assert layer.weight is layer.bias is None


@pytest.mark.parametrize(
    "after",
    [
        nn.AdaptiveMaxPool2d(1),
        nn.AvgPool2d(3, padding=1),
        nn.Sigmoid(),
        nn.Dropout2d(),
        nn.Linear(9, 9),  # along a line of the map
        nn.Sequential(nn.Conv2d(8, 9, 1), evonorm(9), nn.Linear(9, 9), nn.Conv2d(9, 8, 1)),
    ],
)
def test_what_is_no_average_stays(after: nn.Module) -> None:
    network = chain(nn.Conv2d(4, 8, 1), evonorm(), after, nn.Conv2d(8, 5, 1))
    folded = fold(network, (4, 9, 9))
    assert difference(network, folded, (4, 9, 9)) <= 1e-12
    assert norm_layers(folded)[-1].bias is not None


@pytest.mark.parametrize(
    ("conv", "kinds"),
    [
        (nn.Conv2d(8, 6, 3), ["EvoNormSAct"]),
        (nn.Conv2d(8, 6, 3, padding="valid"), ["EvoNormSAct"]),
        (nn.Conv2d(8, 6, 3, padding=1, groups=2), ["EvoNormSAct", "Affine"]),
        (nn.Conv2d(8, 8, 3, padding="same", groups=8), ["EvoNormSAct", "Affine"]),
        (nn.Conv2d(8, 6, 3, padding=1, padding_mode="reflect"), ["EvoNormSAct"]),
        (Conv2dSame(8, 6, 3, stride=2), ["EvoNormSAct", "Affine"]),
    ],
)
def test_padding_decides_about_the_shift(conv: nn.Conv2d, kinds: list[str]) -> None:
    network = chain(nn.Conv2d(4, 8, 1), evonorm(), conv)
    folded = fold(network, (4, 9, 9))
    assert difference(network, folded, (4, 9, 9)) <= 1e-12
    assert [type(layer).__name__ for layer in norm_layers(folded)] == kinds
    assert norm_layers(folded)[0].weight is None


def test_a_gain_of_0_stays_before_padding() -> None:
    network = chain(nn.Conv2d(4, 8, 1), evonorm(), nn.Conv2d(8, 6, 3, padding=1))
    network[1].weight.data[2] = 0.0  # type: ignore[operator]
    folded = fold(network, (4, 9, 9))
    assert difference(network, folded, (4, 9, 9)) == 0
    (layer,) = norm_layers(folded)
    assert layer.weight is not None


def test_a_convolution_that_others_read_or_call_keeps_its_weights() -> None:
    class Twice(nn.Module):
        """A convolution with two readers, and one that is called in two places."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.shared = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
            self.first, self.second, self.third = (normalizer("bn").layer(4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x)
            h = h + self.first(h)
            return self.second(self.shared(self.third(self.shared(h))))  # type: ignore[no-any-return]

    network = trained(Twice(), (4, 9, 9))
    folded = fold(network, (4, 9, 9))
    assert difference(network, folded, (4, 9, 9)) <= 1e-12
    assert len(norm_layers(folded)) == 1


def test_other_convolutions_stay_as_they_are() -> None:
    class Doubled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2 + 1

    network = chain(Doubled(4, 8, 1), normalizer("bn").layer(8), evonorm(), Doubled(8, 4, 1))
    folded = fold(network, (4, 9, 9))
    assert difference(network, folded, (4, 9, 9)) == 0
    assert len(norm_layers(folded)) == 2


def test_a_network_on_the_meta_device_has_the_same_sizes() -> None:
    sizes = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            network = model("mobilenetv2_cifar", norm="evonorm_b0", num_classes=10)
            sizes.append(count(fold(network, IMAGE)))
    assert sizes[0] == sizes[1]


def test_a_network_that_cannot_be_traced_says_so() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(Impossible, match="cannot be traced"):
        fold(Branching(), (4, 9, 9))


def test_a_network_that_cannot_be_copied_says_so() -> None:
    network = nn.Sequential(nn.Conv2d(4, 8, 1))
    network[0].computed = network[0].weight * 2  # type: ignore[assignment, operator]
    with pytest.raises(Impossible, match="cannot be copied: Only Tensors created explicitly"):
        fold(network, (4, 9, 9))
