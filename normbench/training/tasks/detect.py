"""Detection of objects: their boxes, classes and masks."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from normbench.data.dataset import Dataset
from normbench.data.maps import CLASS, INSTANCE, list_objects
from normbench.errors import Impossible
from normbench.models.backbone import backbone
from normbench.models.mask_rcnn import (
    DetectionLosses,
    Detections,
    DetectionSizes,
    MaskRcnn,
)
from normbench.norms.base.layer import Normalizer
from normbench.records.history import CurveRecord
from normbench.training.regularization import Regularization
from normbench.training.tasks.pictures import class_colors, show_input, side_by_side
from normbench.training.tasks.task import Task

SHOWN_SCORE = 0.5  # of detections in pictures


@dataclass(frozen=True)
class Detect(DetectionSizes, Task):
    """Images (N, C, H, W) -> detections of each, or losses in training."""

    metric = "box_map"
    score = "region_accuracy"
    maps = (CLASS, INSTANCE)
    by_region = True
    smooths_labels = False

    def build_network(self, classifier: nn.Module, norm: Normalizer, data: Dataset) -> nn.Module:
        network = backbone(classifier, data.image_shape)
        if (stages := len(self.anchors) - 1) > (most := len(network.channels)) or stages < 1:
            raise Impossible(
                f"task.anchors has {stages + 1} sides, for {stages} stages and a pooled map; the "
                f"network has {most} stages, and 2 to {most + 1} sides work"
            )
        detector = MaskRcnn(network, norm, data.classes, self)
        if reason := detector.explain_fixed_regions():
            raise Impossible(
                f"the number of regions differs from worker to worker, and {reason}; norm=bn and "
                "norm=gn work"
            )
        return detector

    def example_targets(self, images: int, data: Dataset) -> tuple[Tensor, ...]:
        """Return targets of nine objects an image, each a sixth of its height and width."""
        _, height, width = data.image_shape
        maps = torch.ones(images, data.maps, height, width, dtype=torch.uint8)  # the background
        maps[:, INSTANCE] = 0
        for number in range(9):
            top, left = (number // 3 * height // 3, number % 3 * width // 3)
            here = (slice(top, top + height // 6), slice(left, left + width // 6))
            maps[:, CLASS, *here] = 2 + number % (data.classes - 1)
            maps[:, INSTANCE, *here] = 1 + number
        return (maps,)

    def run_training_pass(
        self, network: nn.Module, images: Tensor, targets: Sequence[Tensor]
    ) -> DetectionLosses:
        (maps,) = targets
        losses: DetectionLosses = network(images, list_objects(maps))
        return losses

    def loss(
        self,
        output: DetectionLosses,
        targets: Sequence[Tensor],  # noqa: ARG002 (the network knows them)
        reg: Regularization,  # noqa: ARG002 (nothing of it concerns objects)
        workers: int,  # noqa: ARG002 (the network knows them)
    ) -> Tensor:
        return output.losses.mean()

    def score_input(self, output: DetectionLosses, target: Tensor) -> Tensor:  # noqa: ARG002
        return output.accuracies

    def draw(self, images: Tensor, target: Tensor, output: Sequence[Detections]) -> Tensor:
        shown = show_input(images)
        objects = [(each.boxes, each.labels, each.masks > 0) for each in list_objects(target)]
        detections = []
        for each in output:
            confident = each.scores > SHOWN_SCORE
            detections.append(
                (each.boxes[confident], each.labels[confident], each.masks[confident])
            )
        columns = (_draw_objects(shown, each) for each in (objects, detections))
        return side_by_side(images, *columns)

    def split_metrics(self, data: Dataset) -> "DetectionMetrics":  # noqa: ARG002 (of any data)
        return DetectionMetrics()


def _draw_objects(images: Tensor, objects: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return `images` (N, 3, H, W) uint8 with boxes (M, 4) and masks (M, H, W) of each one."""
    pictures = []
    for image, (boxes, labels, masks) in zip(images, objects, strict=True):
        if not len(labels):
            pictures.append(image)
            continue
        colors = class_colors(labels)
        painted = draw_segmentation_masks(image, masks.cpu(), alpha=0.5, colors=colors)
        pictures.append(draw_bounding_boxes(painted, boxes.cpu(), colors=colors))
    return torch.stack(pictures)


class DetectionMetrics(nn.Module):
    """Mean average precision of boxes and masks over the images of a split, as COCO defines it.

    The mean is over classes and over ten thresholds of the intersection over union, from 0.5 to
    0.95. There is no loss: it is defined for sampled boxes, in training alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.precision = MeanAveragePrecision(
            iou_type=("bbox", "segm"),
            # COCO's own, in double precision: those of torchmetrics are rounded to fp32, and boxes
            # of whole pixels often have an overlap of exactly 0.6.
            iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
            rec_thresholds=np.linspace(0, 1, 101).tolist(),
            backend="faster_coco_eval",
            # Devices have unequal numbers of images, for which its own exchange would wait forever.
            sync_on_compute=False,
        )

    def reset(self) -> None:
        """Forget all images."""
        self.precision.reset()

    def update(self, output: Sequence[Detections], target: Tensor) -> None:
        """Count the images of detections and maps (N, T, H, W)."""
        detections: list[dict[str, Any]] = [
            {**each._asdict(), "boxes": each.boxes.float()} for each in output
        ]
        objects = [{**each._asdict(), "masks": each.masks > 0} for each in list_objects(target)]
        self.precision.update(detections, objects)

    def summary(self, split: str) -> CurveRecord:
        """Return the mean and those at thresholds of 0.5 and 0.75 in percent."""
        means = self._of_all_devices().compute()
        return {
            f"{split}_{name}_map{threshold}": 100 * float(means[f"{of}_map{key}"])
            for name, of in (("box", "bbox"), ("mask", "segm"))
            for threshold, key in (("", ""), ("50", "_50"), ("75", "_75"))
        }

    def _of_all_devices(self) -> MeanAveragePrecision:
        """Return the metric of the images of all devices, in the order of these."""
        if not (distributed.is_initialized() and distributed.get_world_size() > 1):
            return self.precision
        state = {
            name: [each.cpu() if isinstance(each, Tensor) else each for each in values]
            for name, values in self.precision.metric_state.items()
        }
        states: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(states, state)
        merged = deepcopy(self.precision).cpu()
        merged.reset()
        merged.update([], [])  # there may be no images at all, of which it would warn
        for state in states:
            for name, values in state.items():
                getattr(merged, name).extend(values)
        return merged
