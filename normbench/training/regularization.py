"""Levels of regularization beyond weight decay.

Mixup (Zhang et al. 2018) trains on convex combinations of two images and of their labels, cutmix
(Yun et al. 2019) on an image in which a box shows another, with labels by area:

    mixup    x = r * x_i + (1 - r) * x_j                   r ~ Beta(a, a)
    cutmix   x = x_i outside of the box, x_j within        r = share of x that shows x_i
             loss = r * loss(y_i) + (1 - r) * loss(y_j)

The ratio is one for a step, and partner j of image i a permutation of its global batch; both follow
from (seed, step), so that no plan of workers changes them. The box has (1 - r) of the area, r drawn
as in mixup, around a uniform center, and what of it lies outside of the image is lost.

The variant of cutmix in Proxy Norm's appendix A.1 draws r otherwise, for a target l (its released
code): 1, which mixes nothing, with probability 1.55 l - 0.96, and else 1 + ln(b) / 4 with b uniform
from exp(-4) to 1.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn import functional as F

from normbench.data.counter_rng import of_step, permutation
from normbench.data.policies import Distortion


@dataclass(frozen=True)
class Mix:
    """How the images of one step are mixed, B of them in the order of the global batch.

    Args:
        partners: (B,) places of their partners.
        share: (B,) of an image's own pixels outside of the box; within it is 0.
        boxes: (B, 4) top, bottom, left, right, the second and fourth exclusive.
        label_share: (B,) weight of an image's own label.
    """

    partners: Tensor
    share: Tensor
    boxes: Tensor
    label_share: Tensor


@dataclass(frozen=True)
class Regularization:
    """What is asked of images, network and loss.

    Args:
        label_smoothing: share of the target that is spread evenly over all classes.
        mixup: a of Beta(a, a); null: no mixup.
        cutmix: a of Beta(a, a); null: no cutmix.
        cutmix_target: l of the variant of cutmix, which takes the place of `cutmix`; null: none.
        together: with both mixup and cutmix: either (or null), one of the two in each step, or
            halves, each in one half of the images of every step.
        dropout: rate before the classifier; null: what the model says.
        stochastic_depth: rate that the last block nearly has, growing linearly from 0 in the first
            one; null: what the model says.
        rescale: divide what stochastic depth keeps by its probability, as EfficientNet's code does
            and normalizer-free networks do not; null: what the model does.
        policy: of augmentation, in timm's notation, as rand-m9-n2 (RandAugment of two operations of
            magnitude 9) or original (AutoAugment); null: none.
        color_jitter: brightness, contrast and saturation change by a factor of 1 - s to 1 + s;
            null: they stay.
    """

    label_smoothing: float = 0.0
    mixup: float | None = None
    cutmix: float | None = None
    cutmix_target: float | None = None
    together: Literal["either", "halves"] | None = None
    dropout: float | None = None
    stochastic_depth: float | None = None
    rescale: bool | None = None
    policy: str | None = None
    color_jitter: float | None = None

    def __post_init__(self) -> None:
        for name in ("label_smoothing", "dropout", "stochastic_depth"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name}={value}: it is from 0 to below 1")
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}: it is above 0, as 0.2; null does not mix")
        if self.cutmix_target is not None:
            if self.cutmix is not None:
                raise ValueError("cutmix_target: it takes the place of cutmix, which is null then")
            if not 0.96 / 1.55 <= self.cutmix_target <= 1:
                raise ValueError(
                    f"cutmix_target={self.cutmix_target}: it is from 0.62 to 1, as 0.9"
                )
        if self.together is not None and len(self._asked) < 2:
            raise ValueError(f"together={self.together}: it needs mixup and cutmix, or choose null")
        _ = self.distortion  # refuses what it cannot do

    @cached_property
    def distortion(self) -> Distortion:
        """Of single training images."""
        return Distortion(self.policy, self.color_jitter)

    @property
    def drops(self) -> dict[str, float]:
        """Options of a model that this level sets."""
        rates = {"dropout": self.dropout, "stochastic_depth": self.stochastic_depth}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        others: Tensor | None = None,
        share: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of images with logits (N, K), with e label smoothing and p the softmax:

            -(1 - e) * log p_y - e / K * sum_k log p_k

        Args:
            logits: (N, K).
            labels: (N,).
            others: (N,) those of their partners, if images are mixed.
            share: (N,) weight of an image's own label.
        """
        smoothing = self.label_smoothing
        if others is None or share is None:
            return F.cross_entropy(logits, labels, label_smoothing=smoothing)
        own, other = (
            F.cross_entropy(logits, each, label_smoothing=smoothing, reduction="none")
            for each in (labels, others)
        )
        share = share.to(own.dtype)
        return (share * own + (1 - share) * other).mean()

    @property
    def _asked(self) -> list[str]:
        wanted = {"mixup": self.mixup, "cutmix": self.cutmix or self.cutmix_target}
        return [kind for kind, strength in wanted.items() if strength is not None]

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others."""
        return bool(self._asked)

    def partners(self, seed: int, step: int, global_batch: int) -> Tensor:
        """(B,) places of the partners of all images in optimizer step `step`."""
        return permutation(seed, step, global_batch, "partners")

    def mix(self, seed: int, step: int, global_batch: int, size: tuple[int, int]) -> Mix:
        """The mixing in optimizer step `step` of images of `size` (H, W), where they are mixed."""
        asked = self._asked
        which, ratio, *center, second = of_step(seed, step, "mix", 5)
        if self.together == "halves":
            first = global_batch // 2
            counts = {"mixup": first, "cutmix": global_batch - first}
        else:
            counts = {asked[int(which * len(asked))]: global_batch}
        ratios = dict(zip(counts, (ratio, second), strict=False))
        drawn = [(self._of(kind, ratios[kind], center, size), n) for kind, n in counts.items()]
        share, boxes, label_share = (
            torch.cat([torch.tensor([own[place]] * count) for own, count in drawn if count])
            for place in range(3)
        )
        return Mix(self.partners(seed, step, global_batch), share, boxes, label_share)

    def _of(
        self, kind: str, ratio: float, center: list[float], size: tuple[int, int]
    ) -> tuple[float, tuple[int, int, int, int], float]:
        """Share of pixels outside of the box, the box, and the share of the label."""
        share = self._share(kind, ratio)
        if kind == "mixup":
            return share, (0, 0, 0, 0), share
        side = math.sqrt(1 - share)
        top, bottom = _span(center[0], side, size[0])
        left, right = _span(center[1], side, size[1])
        area = (bottom - top) * (right - left) / (size[0] * size[1])
        return 1.0, (top, bottom, left, right), 1 - area

    def _share(self, kind: str, ratio: float) -> float:
        """r, from a number `ratio` that is uniform in [0, 1)."""
        if kind == "cutmix" and self.cutmix_target is not None:
            nothing = 1.55 * self.cutmix_target - 0.96
            if ratio < nothing:
                return 1.0
            rest = (ratio - nothing) / (1 - nothing)  # uniform again
            return 1 + math.log(math.exp(-4) + (1 - math.exp(-4)) * rest) / 4
        strength = self.mixup if kind == "mixup" else self.cutmix
        # By the inverse of Beta's distribution: no state, no rejection.
        return float(betaincinv(strength, strength, ratio))


def _span(center: float, side: float, length: int) -> tuple[int, int]:
    """First and last (exclusive) position of `side` of the `length` around `center`."""
    middle, half = int(center * length), int(side * length) // 2
    return max(0, middle - half), min(length, middle + half)


def mixed(x: Tensor, other: Tensor, share: Tensor, boxes: Tensor) -> Tensor:
    """Images (..., C, H, W) with those of their partners.

    Args:
        x: the images.
        other: their partners, of the same shape.
        share: (...,) of an image's own pixels outside of the box.
        boxes: (..., 4) integers, as in `Mix`.
    """
    height, width = x.shape[-2:]
    rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    top, bottom, left, right = boxes[..., None].unbind(-2)  # each (..., 1)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    inside = in_rows[..., :, None] & in_columns[..., None, :]  # (..., H, W)
    own = torch.where(inside, 0.0, share[..., None, None])[..., None, :, :].to(x.dtype)
    return own * x + (1 - own) * other
