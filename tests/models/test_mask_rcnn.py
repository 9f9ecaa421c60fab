"""Mask R-CNN against torchvision's, and its losses of several workers against those of each."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models.detection import maskrcnn_resnet50_fpn_v2
from torchvision.models.detection.image_list import ImageList

from normbench.catalog import model, normalizer
from normbench.data.counter_rng import Draws
from normbench.data.digits import Digits
from normbench.data.maps import Objects, list_objects
from normbench.data.scattered_digits import SceneSplit
from normbench.models.backbone import backbone
from normbench.models.mask_rcnn import (
    ANCHOR_SHARE,
    ANCHORS_PER_IMAGE,
    SHAPES,
    DetectionSizes,
    MaskRcnn,
    RegionSampler,
)
from normbench.models.network_info import NetworkInfo
from normbench.models.random_layers import random_layers, set_draws
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.workers import set_workers

SIDE = 64
SMALL = DetectionSizes(
    width=16, anchors=(8, 16, 28, 40), proposal_convolutions=1, box_convolutions=1, hidden=16,
    regions=16, proposals=(40, 40), canonical=56, detections=20,
)  # fmt: skip
#: Of torchvision's maskrcnn_resnet50_fpn_v2.
OFFICIAL = DetectionSizes(
    width=256, anchors=(32, 64, 128, 256, 512), proposal_convolutions=2, box_convolutions=4,
    hidden=1024, regions=512, proposals=(2000, 1000), canonical=224, detections=100,
)  # fmt: skip


def scenes(count: int) -> tuple[Tensor, list[Objects]]:
    """Return images (N, 1, 64, 64) between 0 and 1, and their objects."""
    pixels = SceneSplit(Digits().load()[0], torch.arange(count), SIDE).read(
        torch.arange(count), None
    )
    return pixels[:, :1] / 255, list_objects(pixels[:, 1:])


def detector(norm: str, **options: Any) -> MaskRcnn:
    torch.manual_seed(0)
    normalization = normalizer(norm, **options)
    name = "resnet14_v2" if norm == "nf" else "resnet14"
    classifier = model(name, norm=normalization, num_classes=11, in_chans=1)
    return MaskRcnn(backbone(classifier, (1, SIDE, SIDE)), normalization, 11, SMALL)


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, MaskRcnn]:
    """torchvision's network and ours, with the same weights and statistics."""
    torch.manual_seed(0)
    theirs = maskrcnn_resnet50_fpn_v2(
        weights=None, weights_backbone=None, image_mean=[0.0] * 3, image_std=[1.0] * 3,
        min_size=SIDE, max_size=SIDE,
    )  # fmt: skip
    ours = MaskRcnn(backbone(resnet50(weights=None), (3, 224, 224)), normalizer("bn"), 91, OFFICIAL)
    # Both list backbone, pyramid, proposals and heads in this order, and the norm behind its conv.
    kept = [
        (name, value)
        for name, value in theirs.state_dict().items()
        if not name.endswith("num_batches_tracked")
    ]
    names = [name for name in ours.state_dict() if not name.endswith("num_batches_tracked")]
    assert len(names) == len(kept)
    values = dict(zip(names, (value for _, value in kept), strict=True))
    missing, unexpected = ours.load_state_dict(values, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return theirs, ours


def test_it_has_the_parameters_of_torchvisions(pair: tuple[nn.Module, MaskRcnn]) -> None:
    for network in pair:
        assert sum(each.numel() for each in network.parameters()) == 46_359_409


def test_its_losses_are_those_of_torchvisions(pair: tuple[nn.Module, MaskRcnn]) -> None:
    theirs, ours = (deepcopy(network).train() for network in pair)
    images, objects = color_scenes(2)
    theirs.rpn.fg_bg_sampler = RegionSampler(ANCHORS_PER_IMAGE, ANCHOR_SHARE)  # type: ignore[union-attr]
    theirs.roi_heads.fg_bg_sampler = RegionSampler(OFFICIAL.regions, 0.25)  # type: ignore[union-attr]
    for network in (theirs, ours):
        set_draws(random_layers(network), Draws(0, 0, torch.arange(2)))
    expected = theirs([*images], [each._asdict() for each in objects])
    losses, accuracies = ours(images, objects)
    assert losses.shape == (1,)
    assert losses.item() == pytest.approx(sum(expected.values()).item(), rel=1e-5)
    assert accuracies.shape == (2,)


@pytest.mark.slow  # 20 s
def test_its_detections_are_those_of_torchvisions(pair: tuple[nn.Module, MaskRcnn]) -> None:
    theirs, ours = (deepcopy(network).eval() for network in pair)
    heads: tuple[Any, ...] = (theirs.roi_heads, ours.heads)
    for each in heads:
        each.score_thresh = 0.0  # without training no class is sure
    images, _ = color_scenes(1)
    with torch.no_grad():
        expected, found = theirs([*images]), ours(images)
    for one, other in zip(expected, found, strict=True):
        assert len(other.labels) == 100
        assert torch.equal(other.labels, one["labels"])
        torch.testing.assert_close(other.boxes, one["boxes"])
        torch.testing.assert_close(other.scores, one["scores"])
        assert torch.equal(other.masks, one["masks"][:, 0] > 0.5)


@pytest.mark.parametrize("side", [96, 100, 133])
def test_anchors_lie_where_the_maps_do(side: int) -> None:
    """Also where an image is no multiple of all strides."""
    network = MaskRcnn(backbone(resnet50(weights=None), (3, 224, 224)), normalizer("gn"), 3,
                       replace(OFFICIAL, width=8, hidden=8))  # fmt: skip
    maps = [torch.zeros(1, 8, *[-(-side // stride)] * 2) for stride in (4, 8, 16, 32, 64)]
    images = ImageList(torch.zeros(1, 3, side, side), [(side, side)])
    (anchors,) = network.proposals.anchor_generator(images, maps)
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    for stride, of_map in zip((4, 8, 16, 32, 64), maps, strict=True):
        number = of_map[0, 0].numel() * len(SHAPES)
        places = torch.arange(of_map.shape[3]) * stride
        assert centers[:number, 0].unique().tolist() == pytest.approx(places.tolist(), abs=0.5)
        centers = centers[number:]


def color_scenes(count: int) -> tuple[Tensor, list[Objects]]:
    images, objects = scenes(count)
    return images.expand(-1, 3, -1, -1).contiguous(), objects


@pytest.mark.parametrize("norm", ["bn", "gn", "sn", "evonorm_b0", "nf", "gn_ws", "batch_renorm"])
def test_the_losses_of_workers_are_those_of_each_alone(norm: str) -> None:
    """Four workers with two images each, of which one has no object in either."""
    images, objects = scenes(8)
    objects[1::4] = list_objects(empty_maps(2))
    network = detector(norm).double().train()
    before = deepcopy(network.state_dict())
    statistics = NetworkStatistics(network)
    alone, moved, summed = [], [], [torch.zeros_like(each) for each in network.parameters()]
    for worker in range(4):
        network.load_state_dict(before)
        own = slice(worker, None, 4)
        set_draws(random_layers(network), Draws(0, 0, torch.arange(8)[own]))
        alone.append(network(images[own].double(), objects[own]))
        moved.append(statistics.read() if statistics else torch.zeros(1))
        for total, gradient in zip(summed, gradients(network, alone[-1].losses), strict=True):
            total += gradient / 4
    network.load_state_dict(before)
    set_workers(network, 4)
    set_draws(random_layers(network), Draws(0, 0, torch.arange(8)))
    together = network(images.double(), objects)
    for worker, (losses, accuracies) in enumerate(alone):
        assert together.losses[worker].item() == pytest.approx(losses.item(), rel=1e-12)
        assert torch.equal(together.accuracies[worker::4], accuracies)
    if statistics:
        torch.testing.assert_close(statistics.read(), torch.stack(moved).mean(0))
    for ours, expected in zip(gradients(network, together.losses), summed, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    assert together.losses.std().item() > 0


def gradients(network: nn.Module, losses: Tensor) -> list[Tensor]:
    """Of the mean of the losses; every parameter has one."""
    return [*torch.autograd.grad(losses.mean(), [*network.parameters()], retain_graph=True)]


def empty_maps(count: int) -> Tensor:
    """Maps of scenes without a digit."""
    maps = torch.ones(count, 2, SIDE, SIDE, dtype=torch.uint8)
    maps[:, 1] = 0
    return maps


def test_nothing_is_detected_where_no_score_is_high_enough() -> None:
    images, _ = scenes(3)
    network = detector("bn").eval()
    network.heads.score_thresh = 1.0
    for found in network(images):
        assert len(found.labels) == len(found.scores) == len(found.boxes) == 0
        assert found.masks.shape == (0, SIDE, SIDE)


def test_nothing_is_detected_by_a_network_that_has_diverged() -> None:
    """Its boxes are NaN, so no region is left, and heads take no empty batch."""
    images, _ = scenes(2)
    network = detector("bn").eval()
    expected = network(images)
    for parameter in network.parameters():
        parameter.data.fill_(torch.nan)
    for found, usual in zip(network(images), expected, strict=True):
        assert [len(each) for each in found] == [0, 0, 0, 0]
        assert [each.dtype for each in found] == [each.dtype for each in usual]
        assert [each.shape[1:] for each in found] == [each.shape[1:] for each in usual]


def test_boxes_are_exact_under_autocast() -> None:
    images, objects = scenes(2)
    network = detector("gn").train()
    seen: list[Tensor] = []
    network.proposals.anchor_generator.register_forward_hook(
        lambda _, __, anchors: seen.extend(anchors)
    )
    with torch.autocast("cpu", torch.bfloat16):
        losses, _ = network(images, objects)
    assert {each.dtype for each in seen} == {torch.float32}
    assert losses.dtype == torch.float32


def test_other_numbers_of_regions_are_counted_in_training() -> None:
    info = NetworkInfo(
        detector("bn").to("meta"), normalizer("bn"), (1, SIDE, SIDE), (1, SIDE, SIDE)
    )
    assert info.macs > info.trained_macs > 0  # 40 and 20 regions of an image against 16 and 4
    again = NetworkInfo(info.network, info.norm, info.image_shape, info.train_shape)
    again.try_training(2, 4)
    assert (again.macs, again.trained_macs) == (info.macs, info.trained_macs)


def test_a_worker_without_objects_draws_no_masks_and_moves_no_statistics_of_them() -> None:
    images, _ = scenes(2)
    network = detector("bn").train()
    nothing = list_objects(empty_maps(2))
    losses, accuracies = network(images, nothing)
    losses.mean().backward()
    assert torch.isfinite(losses).all()
    assert ((accuracies >= 0) & (accuracies <= 1)).all()
    head = [*network.heads.mask_head.modules()]
    assert all(
        bool((layer.running_mean == 0).all()) for layer in head if hasattr(layer, "running_mean")
    )
    for parameter in network.parameters():
        assert parameter.grad is not None  # devices wait for all of them
    assert not any(
        bool(each.grad.any())
        for each in network.heads.mask_head.parameters()
        if each.grad is not None
    )


def test_a_sampler_draws_by_image_alone() -> None:
    sampler = RegionSampler(20, 0.25)
    torch.manual_seed(0)
    labels = [torch.randint(-1, 3, (200,)) for _ in range(6)]
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    set_draws([sampler], Draws(3, 1, torch.arange(6)))
    objects, background = sampler(labels)
    set_draws([sampler], Draws(3, 1, order))
    again = sampler([labels[place] for place in order.tolist()])
    for place, image in enumerate(order.tolist()):
        assert torch.equal(again[0][place], objects[image])
        assert torch.equal(again[1][place], background[image])
    for chosen, other, label in zip(objects, background, labels, strict=True):
        assert (int(chosen.sum()), int(other.sum())) == (5, 15)
        assert (label[chosen.bool()] > 0).all()
        assert (label[other.bool()] == 0).all()
    set_draws([sampler], Draws(3, 2, torch.arange(6)))
    assert not torch.equal(sampler(labels)[0][0], objects[0])


def test_a_sampler_fills_up_with_background() -> None:
    labels = torch.tensor([1, 0, 0, -1, 0, 0, 0])
    (objects,), (background,) = RegionSampler(5, 0.5)([labels])
    assert objects.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert int(background.sum()) == 4
    (objects,), (background,) = RegionSampler(50, 0.5)([labels])
    assert (int(objects.sum()), int(background.sum())) == (1, 5)


@pytest.mark.parametrize(
    ("norm", "says"),
    [("sync_bn", "synchronized statistics"), ("ghost_bn", "norm.ghost=")],
)
def test_normalizers_that_need_a_fixed_number_of_regions_are_found(norm: str, says: str) -> None:
    assert says in detector(norm).explain_fixed_regions()
    assert not detector("bn").explain_fixed_regions()


def test_shapes_are_known_without_values() -> None:
    network = detector("bn").to("meta")
    images = torch.empty(2, 1, SIDE, SIDE, device="meta")
    assert network.train()(images).shape == (2 * SMALL.regions, 11)
    assert network.eval()(images).shape == (2 * SMALL.proposals[1], 11)
