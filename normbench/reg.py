"""Levels of regularization beyond weight decay.

Mixup (Zhang et al. 2018) trains on convex combinations of two images and of their labels, cutmix
(Yun et al. 2019) on an image in which a box shows another, with labels by area:

    mixup    x = r * x_i + (1 - r) * x_j                   r ~ Beta(a, a)
    cutmix   x = x_i outside of the box, x_j within        r = share of x that shows x_i
             loss = r * loss(y_i) + (1 - r) * loss(y_j)

The ratio is one for a step, and partner j of image i a permutation of its global batch; both follow
from (seed, step), so that no plan of workers changes them. The box has (1 - r) of the area, r drawn
as in mixup, around a uniform center, and what of it lies outside of the image is lost.
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Tensor

from normbench.draws import of_step, permutation


@dataclass(frozen=True)
class Mix:
    """How the images of one step are mixed.

    Args:
        partners: (global batch,) for every place the place of its partner.
        share: of an image's own pixels outside of the box; within it is 0.
        box: top, bottom, left, right, the second and fourth exclusive.
        label_share: weight of an image's own label.
    """

    partners: Tensor
    share: float
    box: tuple[int, int, int, int]
    label_share: float


@dataclass(frozen=True)
class Regularization:
    """What is asked of images and loss.

    Args:
        label_smoothing: share of the target that is spread evenly over all classes.
        mixup: a of Beta(a, a); null: no mixup.
        cutmix: a of Beta(a, a); null: no cutmix. With both, each step draws one of the two.
    """

    label_smoothing: float = 0.0
    mixup: float | None = None
    cutmix: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing}: it is from 0 to below 1")
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}: it is above 0, as 0.2; null does not mix")

    def mix(self, seed: int, step: int, global_batch: int, size: tuple[int, int]) -> Mix | None:
        """The mixing in optimizer step `step` of images of `size` (H, W); None: they stay apart."""
        known = {"mixup": self.mixup, "cutmix": self.cutmix}
        asked = [(kind, strength) for kind, strength in known.items() if strength is not None]
        if not asked:
            return None
        which, ratio, *center = of_step(seed, step, "mix", 4)
        kind, strength = asked[int(which * len(asked))]
        # From a uniform number by the inverse of Beta's distribution: no state, no rejection.
        share = float(betaincinv(strength, strength, ratio))
        partners = permutation(seed, step, global_batch, "partners")
        if kind == "mixup":
            return Mix(partners, share, (0, 0, 0, 0), share)
        side = math.sqrt(1 - share)
        top, bottom = _span(center[0], side, size[0])
        left, right = _span(center[1], side, size[1])
        area = (bottom - top) * (right - left) / (size[0] * size[1])
        return Mix(partners, 1.0, (top, bottom, left, right), 1 - area)


def _span(center: float, side: float, length: int) -> tuple[int, int]:
    """First and last (exclusive) position of `side` of the `length` around `center`."""
    middle, half = int(center * length), int(side * length) // 2
    return max(0, middle - half), min(length, middle + half)


def mixed(x: Tensor, other: Tensor, share: Tensor, boxes: Tensor) -> Tensor:
    """Images (K, ..., H, W) of K steps with those of their partners.

    Args:
        x: the images.
        other: their partners, of the same shape.
        share: (K,) of an image's own pixels outside of the box.
        boxes: (K, 4) integers, as in `Mix`.
    """
    height, width = x.shape[-2:]
    rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    top, bottom, left, right = boxes[..., None].unbind(1)  # each (K, 1)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    inside = in_rows[:, :, None] & in_columns[:, None, :]  # (K, H, W)
    own = torch.where(inside, 0.0, share[:, None, None])
    own = own.view(len(x), *(1,) * (x.dim() - 3), height, width).to(x.dtype)
    return own * x + (1 - own) * other
