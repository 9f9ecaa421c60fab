"""Maps of targets: bytes that travel behind the channels of an image.

The images of a dense task have a class, an instance or a depth for every pixel. These are further
channels of the image, so that whatever crops and flips the image does so with them. Padding adds
zeros, and a class or depth of 0 is unknown, so that these pixels count in no loss of segmentation
and depth:

    0       class, plus 1
    1       number of the instance; 0 belongs to none
    2, 3    depth in units of `DEPTH_UNIT`, its higher byte first

A data set has the channels up to the last one that it needs: 1 for classes, 2 with instances, 4
with depth.
"""

from typing import NamedTuple

import torch
from torch import Tensor

VOID = 255  # class of pixels that count nowhere
DEPTH_UNIT = 1 / 4096  # exact in fp32; depth is below 16
CLASS, INSTANCE, DEPTH = 0, 1, 2


def class_map(maps: Tensor) -> Tensor:
    """Return the classes (N, H, W) int64 in maps (N, T, H, W) uint8; unknown ones are `VOID`."""
    return (maps[:, CLASS] - 1).long()  # bytes wrap: 0 becomes 255


def depth_map(maps: Tensor) -> Tensor:
    """Return the depth (N, H, W) fp32 in maps (N, T, H, W) uint8; unknown ones are 0."""
    high, low = maps[:, DEPTH].float(), maps[:, DEPTH + 1].float()
    return (256 * high + low) * DEPTH_UNIT


def encode_depth(depth: Tensor) -> Tensor:
    """Return depth (N, H, W) fp32, below 16, as two channels of bytes (N, 2, H, W)."""
    units = (depth / DEPTH_UNIT).round().long()
    return torch.stack([units >> 8, units & 255], dim=1).to(torch.uint8)


class Objects(NamedTuple):
    """The objects of one image, under the names that torchvision's detectors use."""

    boxes: Tensor  # (M, 4) fp32: left, top, right, bottom of the visible pixels
    labels: Tensor  # (M,) int64: classes from 1 on
    masks: Tensor  # (M, H, W) uint8: 1 where a pixel belongs to the object


def list_objects(maps: Tensor) -> list[Objects]:
    """Return the objects of each image in maps (N, T, H, W) uint8, by ascending number."""
    return [_list_objects(*each) for each in zip(maps[:, CLASS], maps[:, INSTANCE], strict=True)]


def _list_objects(classes: Tensor, instances: Tensor) -> Objects:
    """Return the objects in the maps of classes and instances (H, W) uint8 of an image."""
    numbers = instances.unique()
    masks = instances == numbers[numbers > 0][:, None, None]  # (M, H, W)
    # An object has one class; as bytes, because large images have many objects.
    labels = (classes * masks).flatten(1).amax(1).long() - 1
    rows, columns = masks.any(2), masks.any(1)  # (M, H), (M, W)
    (left, right), (top, bottom) = _span(columns), _span(rows)
    boxes = torch.stack([left, top, right, bottom], dim=1).float()
    return Objects(boxes, labels, masks.to(torch.uint8))


def _span(there: Tensor) -> tuple[Tensor, Tensor]:
    """Return first and last (exclusive) of the true places (M, L) of each row."""
    places = there.to(torch.uint8)
    return places.argmax(1), there.shape[1] - places.flip(1).argmax(1)
