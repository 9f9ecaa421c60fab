"""Pictures of predictions: an image, its target and its prediction beside each other.

A picture is (3, H, 3 W) uint8.
"""

import torch
from torch import Tensor

from normbench.data.maps import VOID

GAP = 2  # white pixels between two pictures


def side_by_side(images: Tensor, targets: Tensor, predictions: Tensor) -> Tensor:
    """Return one picture of N images below each other, (3, N (H + gap), 3 W + 2 gaps) uint8.

    Args:
        images: the network's input (N, C, H, W).
        targets: (N, 3, H, W) uint8.
        predictions: (N, 3, H, W) uint8.
    """
    columns = [show_input(images), targets, predictions]
    padded = [torch.nn.functional.pad(each, (0, GAP, 0, GAP), value=255) for each in columns]
    rows = torch.cat(padded, dim=3)[..., :-GAP]  # (N, 3, H + gap, 3 W + 2 gaps)
    return torch.cat([*rows], dim=1)[:, :-GAP].cpu()


def color_classes(classes: Tensor) -> Tensor:
    """Return classes (N, H, W) in the colors of Pascal VOC (N, 3, H, W) uint8, void in white.

    Bit b of the class gives bit 7 - b // 3 of channel b mod 3.
    """
    colors = torch.zeros(len(classes), 3, *classes.shape[1:], dtype=torch.uint8)
    for bit in range(8):
        value = ((classes >> bit) & 1) << (7 - bit // 3)
        colors[:, bit % 3] |= value.to(colors)
    return torch.where((classes == VOID)[:, None].cpu(), colors.new_tensor(255), colors)


def class_colors(classes: Tensor) -> list[tuple[int, int, int]]:
    """Return the colors of classes (M,), as `color_classes`."""
    return [tuple(color) for color in color_classes(classes[:, None, None]).flatten(1).tolist()]


def shade_depth(depth: Tensor, farthest: float) -> Tensor:
    """Return depth (N, H, W) as grey (N, 3, H, W) uint8: near is white, `farthest` black.

    Unknown depth, 0, is blue.
    """
    shade = 1 - (depth.float() / max(farthest, 1e-6)).clamp(0, 1)
    grey = (255 * shade).round().to(torch.uint8)[:, None]
    blue = grey.new_tensor([0, 0, 255])[:, None, None]
    return torch.where(depth[:, None] == 0, blue, grey).cpu()


def show_input(images: Tensor) -> Tensor:
    """Stretch each image to 0 to 255 and return it in color."""
    flat = images.float().flatten(1)
    low, high = (each[:, None, None, None] for each in (flat.amin(1), flat.amax(1)))
    shown = (255 * (images.float() - low) / (high - low).clamp(min=1e-6)).round().to(torch.uint8)
    return shown[:, :3].expand(-1, 3, -1, -1).cpu()
