"""Mask R-CNN: boxes, classes and masks of the objects in an image (He et al. 2017).

    maps = pyramid(backbone(images))                    of several scales
    regions = proposals(maps)                           boxes that may hold an object
    classes, boxes = box_head(maps within a region)
    masks = mask_head(maps within a detected box)

The parts are torchvision's. The convolutions of the pyramid, the 3x3 convolutions of the box head
and those of the mask head are normalized; proposals and predictions are not. In training, backbone
and pyramid see the images of all workers at once. What follows, losses and statistics of the heads
included, is that of each worker, of whose images the heads get a varying number of regions. A
worker without objects predicts no masks: its loss of masks is 0, and the running statistics of the
mask head stay. Behind the pyramid all numbers are fp32, as half precision rounds boxes to pixels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import (
    RoIHeads,
    fastrcnn_loss,
    maskrcnn_inference,
    maskrcnn_loss,
    paste_masks_in_image,
)
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign

from normbench.data.counter_rng import uniform
from normbench.data.maps import Objects
from normbench.models.backbone import Backbone
from normbench.models.heads.detection import box_head, feature_pyramid, mask_head
from normbench.models.random_layers import RandomLayer
from normbench.norms.base.layer import NormAct, Normalizer
from normbench.norms.base.running import NetworkStatistics
from normbench.norms.workers import PerWorker, set_workers

#: Constants of Faster and Mask R-CNN, as in Detectron and torchvision.
ANCHORS_PER_IMAGE, ANCHOR_SHARE, REGION_SHARE = 256, 0.5, 0.25
MOST_DETECTIONS = 100
SHAPES = (0.5, 1.0, 2.0)  # heights of anchors over their widths
BOX_SIDE, MASK_SIDE = 7, 14  # positions of a region's maps
CANONICAL_LEVEL = 4
TRIAL_REGIONS = 101  # a prime, so that no set of 2 to 100 regions divides it

Maps = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class DetectionSizes:
    """Sizes of a Mask R-CNN.

    Args:
        width: channels of the feature pyramid and of the heads' convolutions.
        anchors: sides of anchors in pixels, the finest map first; K sides are for the last K - 1
            stages of the network and a pooled map.
        proposal_convolutions: 3x3 convolutions of the proposal network, without normalization.
        box_convolutions: normalized 3x3 convolutions of the box head.
        hidden: units of the linear layer of the box head.
        regions: most boxes of an image that are sampled for the heads in training, at least 4.
        proposals: most boxes of an image that are proposed, in training and in an evaluation.
        canonical: side in pixels of a box whose maps are those of stride 16; half of it and below
            belong to finer maps, twice of it and above to coarser ones, as far as there are any.
        detections: most detections of an image, at most 100.
    """

    width: PositiveInt
    anchors: tuple[PositiveInt, ...]
    proposal_convolutions: PositiveInt
    box_convolutions: PositiveInt
    hidden: PositiveInt
    regions: PositiveInt
    proposals: tuple[PositiveInt, PositiveInt]
    canonical: PositiveInt
    detections: PositiveInt

    def __post_init__(self) -> None:
        if self.regions * REGION_SHARE < 1:
            raise ValueError(
                f"regions={self.regions}: a quarter of them may have an object; regions=32 works"
            )
        if self.detections > MOST_DETECTIONS:
            raise ValueError(
                f"detections={self.detections}: the metric counts {MOST_DETECTIONS} of an image; "
                f"detections={MOST_DETECTIONS} works"
            )


class DetectionLosses(NamedTuple):
    """Result of a forward pass of training with W workers and N images."""

    losses: Tensor  # (W,)
    accuracies: Tensor  # (N,) share of an image's regions whose class is the most probable one


class Detections(NamedTuple):
    """Objects that were detected in one image, the highest score first."""

    boxes: Tensor  # (M, 4): left, top, right, bottom
    labels: Tensor  # (M,) int64
    scores: Tensor  # (M,)
    masks: Tensor  # (M, H, W) bool: pixels that probably belong to the object


class RegionSampler(RandomLayer):
    """Choose boxes of each image at random, at most a share of them with an object.

    It replaces torchvision's sampler, which draws from one generator for all images.
    """

    def __init__(self, number: int, share: float) -> None:
        super().__init__()
        self.number, self.share = number, share

    def forward(self, labels: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return masks (K,) uint8 of the chosen objects and of the chosen background.

        Args:
            labels: of the K boxes of each image: above 0 an object, 0 background, below 0 neither.
        """
        return tuple(zip(*map(self._choose, range(len(labels)), labels), strict=True))  # type: ignore[return-value]

    def _choose(self, image: int, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is None:
            numbers = torch.rand(len(labels), device=labels.device)
        else:
            numbers = uniform(self.keys[image : image + 1], len(labels))[0]
        objects = _lowest(numbers, labels > 0, int(self.number * self.share))
        return objects, _lowest(numbers, labels == 0, self.number - int(objects.sum()))


def _lowest(numbers: Tensor, candidates: Tensor, most: int) -> Tensor:
    """Return a mask (K,) uint8 of those `candidates` that have the lowest `numbers`."""
    places = candidates.nonzero()[:, 0]
    chosen = places[numbers[places].argsort()[:most]]
    return torch.zeros_like(candidates, dtype=torch.uint8).index_fill(0, chosen, 1)


@contextmanager
def any_algorithm() -> Iterator[None]:
    """Lift `torch.use_deterministic_algorithms`, where nothing is propagated back to maps.

    It makes torchvision's pooling of regions a function in Python, which samples every position of
    a mask for each region. The kernel's results are deterministic; only its gradients are not.
    """
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """Anchors of maps whose positions are `strides` pixels apart.

    torchvision divides the sides of image and map, which rounds down where an image is no multiple
    of all strides.
    """

    def __init__(self, sides: Sequence[int], strides: Sequence[int]) -> None:
        super().__init__(tuple((side,) for side in sides), (SHAPES,) * len(sides))
        self.strides = strides

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        """Return the anchors (A, 4) of each image."""
        first = feature_maps[0]
        self.set_cell_anchors(first.dtype, first.device)
        strides = [[each, each] for each in self.strides]
        anchors = torch.cat(
            self.grid_anchors([[*each.shape[2:]] for each in feature_maps], strides)
        )
        return [anchors] * len(image_list.image_sizes)


class MaskRcnn(PerWorker, nn.Module):
    """Images (N, C, H, W) -> detections, or in training the losses of the workers.

    Args:
        backbone: whose last maps the pyramid gets, one stage less than there are anchors.
        norm: the normalizer of pyramid and heads.
        classes: number of classes, of which 0 is the background.
        sizes: sizes of its parts.
    """

    #: An evaluation has other numbers of regions than training.
    trains_as_evaluated = False

    def __init__(
        self, backbone: Backbone, norm: Normalizer, classes: int, sizes: DetectionSizes
    ) -> None:
        super().__init__()
        self.backbone, self.sizes, self.stages = backbone, sizes, len(sizes.anchors) - 1
        names = [str(stage) for stage in range(self.stages)]
        width = sizes.width
        self.pyramid = feature_pyramid(norm, backbone.channels[-self.stages :], width)
        strides = backbone.reductions[-self.stages :]
        most = dict(zip(("training", "testing"), sizes.proposals, strict=True))
        self.proposals = RegionProposalNetwork(
            Anchors(sizes.anchors, [*strides, 2 * strides[-1]]),  # the last maps are pooled
            RPNHead(width, len(SHAPES), sizes.proposal_convolutions),
            fg_iou_thresh=0.7, bg_iou_thresh=0.3, batch_size_per_image=ANCHORS_PER_IMAGE,
            positive_fraction=ANCHOR_SHARE, pre_nms_top_n=most, post_nms_top_n=most, nms_thresh=0.7,
        )  # fmt: skip
        self.proposals.fg_bg_sampler = RegionSampler(ANCHORS_PER_IMAGE, ANCHOR_SHARE)
        box_pool, mask_pool = (
            MultiScaleRoIAlign(
                names, side, sampling_ratio=2, canonical_scale=sizes.canonical,
                canonical_level=CANONICAL_LEVEL,
            )
            for side in (BOX_SIDE, MASK_SIDE)
        )  # fmt: skip
        self.heads = RoIHeads(
            box_pool, box_head(norm, width, BOX_SIDE, sizes.box_convolutions, sizes.hidden),
            FastRCNNPredictor(sizes.hidden, classes),
            fg_iou_thresh=0.5, bg_iou_thresh=0.5, batch_size_per_image=sizes.regions,
            positive_fraction=REGION_SHARE, bbox_reg_weights=None, score_thresh=0.05,
            nms_thresh=0.5, detections_per_img=sizes.detections, mask_roi_pool=mask_pool,
            mask_head=mask_head(norm, width),
            mask_predictor=MaskRCNNPredictor(width, width, classes),
        )  # fmt: skip
        self.heads.fg_bg_sampler = RegionSampler(sizes.regions, REGION_SHARE)

    def forward(
        self, images: Tensor, objects: Sequence[Objects] | None = None
    ) -> list[Detections] | DetectionLosses | Tensor:
        """Return detections of each image, or with `objects` losses.

        On the meta device, where there are no values, return class logits (R, classes) of the
        largest possible number of regions R.
        """
        stages = self.backbone(images)[-self.stages :]
        maps: Maps = self.pyramid({str(number): each for number, each in enumerate(stages)})
        if images.is_meta:
            return self._run_on_shapes(maps, len(images))
        with torch.autocast(images.device.type, enabled=False):
            maps = {
                name: each if each.dtype == torch.float64 else each.float()
                for name, each in maps.items()
            }
            if objects is None:
                with any_algorithm():
                    return self._detect(images, maps)
            return self._train(images, maps, objects)

    def explain_fixed_regions(self) -> str:
        """Return why a normalizer needs a fixed number of regions, or ""."""
        shape = torch.Size((TRIAL_REGIONS, self.sizes.width, MASK_SIDE, MASK_SIDE))
        for layer in self.heads.modules():
            if isinstance(layer, NormAct):
                if layer.whole_step:
                    return "synchronized statistics need equal numbers"
                if reason := layer.refusal(shape):
                    return reason
        return ""

    def _train(self, images: Tensor, maps: Maps, objects: Sequence[Objects]) -> DetectionLosses:
        """Compute the losses of each worker, whose images are every W-th one."""
        set_workers(self.heads, 1)  # they get the regions of one worker at a time
        samplers = [self.proposals.fg_bg_sampler, self.heads.fg_bg_sampler]
        keys = [sampler.keys for sampler in samplers]
        losses, accuracies = [], images.new_empty(len(images))
        for worker in NetworkStatistics(self.heads).passes(self.workers):
            its_images = slice(worker, None, self.workers)
            for sampler, all_keys in zip(samplers, keys, strict=True):
                sampler.keys = None if all_keys is None else all_keys[its_images]
            its_maps = {name: each[its_images] for name, each in maps.items()}
            loss, accuracies[its_images] = self._losses(
                images[its_images], its_maps, objects[its_images]
            )
            losses.append(loss)
        for sampler, all_keys in zip(samplers, keys, strict=True):
            sampler.keys = all_keys
        return DetectionLosses(torch.stack(losses), accuracies)

    def _losses(
        self, images: Tensor, maps: Maps, objects: Sequence[Objects]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one worker (), and `DetectionLosses.accuracies` of its images."""
        heads, shapes = self.heads, _shapes(images)
        dtype = maps["0"].dtype
        targets = [{**each._asdict(), "boxes": each.boxes.to(dtype)} for each in objects]
        regions, proposal_losses = self.proposals(ImageList(images, shapes), maps, targets)
        regions, matches, labels, deltas = heads.select_training_samples(regions, targets)
        losses = [*proposal_losses.values()]
        if not any(map(len, regions)):  # after the loss of proposals has become NaN
            return torch.stack([*losses, *_idle(heads)]).sum(), images.new_zeros(len(images))
        logits, moves = self._classify(maps, regions, shapes)
        losses += fastrcnn_loss(logits, moves, labels, deltas)
        positive = [each > 0 for each in labels]
        positives = [each[chosen] for each, chosen in zip(regions, positive, strict=True)]
        if any(map(len, positives)):
            predicted = self._predict_masks(maps, positives, shapes)
            with any_algorithm():
                losses.append(
                    maskrcnn_loss(
                        predicted, positives,
                        [each.masks for each in objects], [each.labels for each in objects],
                        [each[chosen] for each, chosen in zip(matches, positive, strict=True)],
                    )
                )  # fmt: skip
        else:
            losses += [*_idle(heads.mask_head), *_idle(heads.mask_predictor)]
        hits = (logits.detach().argmax(1) == torch.cat(labels)).to(images.dtype)
        shares = [each.sum() / max(1, len(each)) for each in hits.split([*map(len, labels)])]
        return torch.stack(losses).sum(), torch.stack(shares)

    def _detect(self, images: Tensor, maps: Maps) -> list[Detections]:
        heads, shapes = self.heads, _shapes(images)
        regions, _ = self.proposals(ImageList(images, shapes), maps)
        if not any(map(len, regions)):  # weights are NaN: the training has diverged
            return [_nothing(image) for image in images]
        logits, moves = self._classify(maps, regions, shapes)
        boxes, scores, labels = heads.postprocess_detections(logits, moves, regions, shapes)
        masks = [images.new_empty(0, 1, 2 * MASK_SIDE, 2 * MASK_SIDE)] * len(images)
        if any(map(len, boxes)):  # normalizers take no empty batch
            masks = maskrcnn_inference(self._predict_masks(maps, boxes, shapes), labels)
        return [
            Detections(box, label, score, paste_masks_in_image(mask, box, shapes[0])[:, 0] > 0.5)
            for box, label, score, mask in zip(boxes, labels, scores, masks, strict=True)
        ]

    def _classify(
        self, maps: Maps, regions: list[Tensor], shapes: list[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Return class logits (R, classes) and moves of the boxes (R, 4 classes) of all regions."""
        heads = self.heads
        features = heads.box_head(heads.box_roi_pool(maps, regions, shapes))
        logits, moves = heads.box_predictor(features)
        return logits, moves

    def _predict_masks(
        self, maps: Maps, boxes: list[Tensor], shapes: list[tuple[int, int]]
    ) -> Tensor:
        """Return mask logits (R, classes, 2 MASK_SIDE, 2 MASK_SIDE) of all boxes."""
        heads = self.heads
        logits: Tensor = heads.mask_predictor(
            heads.mask_head(heads.mask_roi_pool(maps, boxes, shapes))
        )
        return logits

    def _run_on_shapes(self, maps: Maps, images: int) -> Tensor:
        """Run all parts on shapes: every image has the most regions and objects."""
        heads, regions = self.heads, self.sizes.regions
        objects = int(regions * REGION_SHARE)
        if not self.training:
            regions, objects = self.sizes.proposals[1], self.sizes.detections
        self.proposals.head([*maps.values()])
        some = maps["0"]
        boxes = some.new_empty(images * regions, self.sizes.width, BOX_SIDE, BOX_SIDE)
        masks = some.new_empty(images * objects, self.sizes.width, MASK_SIDE, MASK_SIDE)
        heads.mask_predictor(heads.mask_head(masks))
        logits: Tensor = heads.box_predictor(heads.box_head(boxes))[0]
        return logits


def _idle(module: nn.Module) -> Iterator[Tensor]:
    """Yield losses of 0 that give parameters a gradient, for which devices would wait."""
    for parameter in module.parameters():
        yield 0 * parameter.sum()


def _nothing(image: Tensor) -> Detections:
    """Return no detections in an image (C, H, W)."""
    no_labels = image.new_empty(0, dtype=torch.int64)
    masks = image.new_empty(0, *image.shape[1:], dtype=torch.bool)
    return Detections(image.new_empty(0, 4), no_labels, image.new_empty(0), masks)


def _shapes(images: Tensor) -> list[tuple[int, int]]:
    """Return height and width of each image."""
    height, width = images.shape[2:]
    return [(height, width)] * len(images)
