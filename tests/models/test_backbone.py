"""Backbones: the maps of timm and torchvision, with every normalizer, and dilated."""

from typing import Any

import pytest
import timm
import torch
from torch import nn
from torchvision.models import segmentation

from normbench.catalog import model, normalizer, normalizers
from normbench.catalog import swap as swap_by_name
from normbench.errors import Impossible
from normbench.models.backbone import backbone
from normbench.models.heads.depth import DepthHead, unpool
from normbench.models.heads.detection import box_head, feature_pyramid, mask_head
from normbench.models.heads.segmentation import AuxiliaryHead, DeepLabV2Head, FcnHead
from support.cells import network_for
from support.slow import slow_except

IMAGE = (3, 64, 64)
NETWORKS = [
    (name, output_stride)
    for name in ("resnet18", "resnet50", "mobilenetv2_050", "regnety_002")
    for output_stride in (32, 16, 8)
]


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "output_stride"), slow_except(NETWORKS, [("resnet50", 8), ("mobilenetv2_050", 16)])
)
def test_maps_are_those_of_timm(name: str, output_stride: int) -> None:
    network = timm.create_model(name, num_classes=10)
    theirs: Any = timm.create_model(name, features_only=True, output_stride=output_stride)
    theirs.load_state_dict(network.state_dict(), strict=False)
    ours = backbone(network, IMAGE, output_stride, undilated_first=True)
    assert ours.reductions == tuple(theirs.feature_info.reduction())
    x = noise(2, *IMAGE)
    with torch.no_grad():
        found, expected = ours.double().eval()(x), theirs.double().eval()(x)
    # Mobile networks of timm leave out the last 1x1 convolution, which the classifier reads.
    last = len(expected) - (name == "mobilenetv2_050")
    for one, other in list(zip(found, expected, strict=True))[:last]:
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_maps_are_those_of_torchvision() -> None:
    whole = segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=21)
    from torchvision.models import resnet50

    network = resnet50()
    network.load_state_dict(whole.backbone.state_dict(), strict=False)
    ours = backbone(network, IMAGE, 8, undilated_first=True).double().eval()
    x = noise(2, *IMAGE)
    with torch.no_grad():
        expected = whole.backbone.double().eval()(x)["out"]
        torch.testing.assert_close(ours(x)[-1], expected, rtol=1e-12, atol=1e-12)
    assert count(ours) == 23_508_032


@pytest.mark.parametrize("name", ["resnet50", "resnet50_v2"])
def test_every_convolution_of_a_dilated_stage_is_dilated(name: str) -> None:
    """Also the one that loses its stride (Brock et al. 2021, appendix H.1; MoCo)."""
    ours = backbone(model(name, norm="bn", num_classes=10), IMAGE, 16)
    dilations = [
        conv.dilation[0]
        for conv in ours.modules()
        if isinstance(conv, nn.Conv2d) and conv.kernel_size == (3, 3)
    ]
    assert dilations == [1] * 13 + [2] * 3
    assert ours.reductions == (2, 4, 8, 16, 16)
    assert ours.channels == (64, 256, 512, 1024, 2048)


@pytest.mark.parametrize("norm", slow_except(normalizers(), ["bn", "evonorm_b0", "gn_ws", "nf"]))
def test_every_normalizer_has_a_backbone_and_heads(norm: str) -> None:
    torch.manual_seed(0)
    chosen = normalizer(norm)
    network = model(norm=chosen, num_classes=10, in_chans=1, **network_for(norm))
    own = backbone(network, (1, 32, 32), 4)
    maps = own(torch.randn(8, 1, 32, 32))
    assert [each.shape[1] for each in maps] == [*own.channels]
    assert [32 // each.shape[2] for each in maps] == [*own.reductions]
    assert own.reductions[-1] == 4
    channels = own.channels[-1]
    heads = FcnHead(chosen, channels, 11, width=16), AuxiliaryHead(chosen, channels, 11)
    depth = DepthHead(chosen, channels)(maps[-1])
    logits, auxiliary = (head(maps[-1]) for head in heads)
    assert logits.shape == auxiliary.shape == (8, 11, 8, 8)
    assert depth.shape == (8, 1, 128, 128)
    (logits.sum() + auxiliary.sum() + depth.sum()).backward()
    assert all((each.grad is not None) == each.requires_grad for each in own.parameters())


def test_heads_are_those_of_the_papers() -> None:
    bn = normalizer("bn")
    backbone_parameters = 23_508_032
    assert backbone_parameters + count(FcnHead(bn, 2048, 21)) == 28_822_869
    assert backbone_parameters + count(FcnHead(bn, 2048, 21, width=512)) == 35_317_333
    deeplab = DeepLabV2Head(2048, 21)
    assert count(deeplab) == 4 * (9 * 2048 * 21 + 21)
    assert [branch.dilation[0] for branch in deeplab.branches if isinstance(branch, nn.Conv2d)] == [
        6,
        12,
        18,
        24,
    ]
    convs = [conv for conv in FcnHead(bn, 8, 2).modules() if isinstance(conv, nn.Conv2d)]
    assert [conv.dilation[0] for conv in convs] == [6, 6, 1]


def test_the_auxiliary_head_is_torchvisions() -> None:
    """Apart from its dropout, which drops whole maps in PSPNet's code."""
    theirs = segmentation.fcn_resnet50(
        weights=None, weights_backbone=None, num_classes=21, aux_loss=True
    ).aux_classifier
    ours = AuxiliaryHead(normalizer("bn"), 1024, 21)
    state = dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=False))
    assert count(ours) == count(theirs)
    for key, value in list(theirs.state_dict().items()):
        place, _, name = key.partition(".")
        mine = {"0": "0", "1": "1", "4": "3"}[place]
        if f"{mine}.{name}" in ours.state_dict():
            state[f"{mine}.{name}"] = value
    ours.load_state_dict({key: state[key] for key in ours.state_dict()})
    x = noise(2, 1024, 5, 5)
    with torch.no_grad():
        torch.testing.assert_close(ours.double().eval()(x), theirs.double().eval()(x))


def test_dilated_convolutions_sum_in_deeplab() -> None:
    head = DeepLabV2Head(4, 3).double()
    x = noise(1, 4, 9, 9)
    expected = torch.stack([branch(x) for branch in head.branches]).sum(0)
    torch.testing.assert_close(head(x), expected)


def test_unpooling_puts_zeros_between() -> None:
    found = unpool(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    expected = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 0], [3, 0, 4, 0], [0, 0, 0, 0]])
    assert torch.equal(found[0, 0], expected)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), "takes no mean"),
        (
            lambda: nn.Sequential(
                nn.Conv2d(3, 4, 3, 2, 1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
            ),
            "output_stride=2: 1 shrinks maps beyond it",
        ),
    ],
)
def test_what_has_no_such_maps_is_impossible(build: "type[nn.Module]", says: str) -> None:
    with pytest.raises(Impossible, match=says):
        backbone(build(), IMAGE, 2)


@pytest.mark.parametrize("name", ["efficientnet_b0", "resnet50"])
def test_images_whose_last_maps_have_one_position_are_too_small(name: str) -> None:
    """The means of squeeze-excite before it are not the classifier's."""
    network = timm.create_model(name, num_classes=2)
    with pytest.raises(Impossible, match="the images are too small"):
        backbone(network, (3, 32, 32))
    assert backbone(network, (3, 64, 64)).reductions[-1] == 32


def test_convolutions_without_normalization_have_biases_in_heads_too() -> None:
    norm = normalizer("skipinit")
    heads = (
        FcnHead(norm, 8, 3, 4), AuxiliaryHead(norm, 8, 3), DepthHead(norm, 64),
        feature_pyramid(norm, [8, 16], 4), box_head(norm, 4, 7, 2, 8), mask_head(norm, 4, 2),
    )  # fmt: skip
    for head in heads:
        convs = [each for each in head.modules() if isinstance(each, nn.Conv2d)]
        assert convs
        assert all(each.bias is not None for each in convs)


def test_channels_of_depth_can_be_halved_so_often() -> None:
    assert DepthHead(normalizer("bn"), 64, 5)[-1].in_channels == 1
    with pytest.raises(Impossible, match=r"task.projections=6: .* 64 channels, .*; 5 work"):
        DepthHead(normalizer("bn"), 64, 6)


@pytest.mark.parametrize("side", [65, 72, 100, 513])
def test_sides_that_do_not_divide_evenly_have_the_same_strides(side: int) -> None:
    ours = backbone(timm.create_model("resnet18", num_classes=2), (3, side, side), 16)
    assert ours.reductions == (2, 4, 8, 16, 16)
    expected = timm.create_model("resnet18", features_only=True, output_stride=16)
    with torch.device("meta"):
        x = torch.empty(1, 3, side, side)
    shapes = [each.shape for each in ours.to("meta")(x)]
    assert shapes == [each.shape for each in expected.to("meta")(x)]


def test_a_network_that_is_refused_keeps_its_strides() -> None:
    network = model("nf_regnet_b0", norm="nf", num_classes=10)
    before = [str(module) for module in network.modules() if isinstance(module, nn.Conv2d)]
    with pytest.raises(Impossible, match=r"output_stride=8: blocks\.\d+\.pool shrinks maps"):
        backbone(network, IMAGE, 8)
    assert before == [str(module) for module in network.modules() if isinstance(module, nn.Conv2d)]


def test_convolutions_of_even_size_cannot_be_dilated() -> None:
    with pytest.raises(Impossible, match="only convolutions with an odd kernel"):
        backbone(timm.create_model("convnext_atto", num_classes=2), IMAGE, 16)


def test_padding_as_in_tensorflow_follows_the_dilation() -> None:
    network = model("resnet50_v2", norm="nf", num_classes=10, padding="same", width=8)
    ours = backbone(network, IMAGE, 8).eval()
    with torch.no_grad():
        assert [each.shape[2] for each in ours(torch.randn(1, *IMAGE))] == [32, 16, 8, 8, 8]
    dilations = {conv.dilation[0] for conv in ours.modules() if isinstance(conv, nn.Conv2d)}
    assert dilations == {1, 2, 4}


def test_a_swapped_network_is_a_backbone() -> None:
    network = timm.create_model("resnet18", num_classes=10)
    ours = backbone(swap_by_name(network, "evonorm_s0"), IMAGE, 16)
    assert ours(torch.randn(2, *IMAGE))[-1].shape == (2, 512, 4, 4)
