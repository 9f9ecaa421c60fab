"""Levels of regularization beyond weight decay: label smoothing, mixing, dropping, distortion.

Mixup (Zhang et al. 2018) trains on convex combinations of two images and of their labels. Cutmix
(Yun et al. 2019) replaces a box of an image by that of another one, and weighs labels by area:

    mixup    x = r * x_i + (1 - r) * x_j                   r ~ Beta(a, a)
    cutmix   x = x_i outside of the box, x_j within        r = share of x that shows x_i
             loss = r * loss(y_i) + (1 - r) * loss(y_j)

All images of a step share the ratio r, and partner j of image i comes from a permutation of the
global batch. Both follow from (seed, step), so that no plan of workers changes them. The box of
cutmix has an area share of 1 - r, r drawn as in mixup, around a uniform center, and is clipped to
the image.

The variant of cutmix in Proxy Norm's appendix A.1 and released code (Labatie et al. 2021) draws r
differently, for a target l: r = 1, which mixes nothing, with probability 1.55 l - 0.96, and else
r = 1 + ln(b) / 4 with b uniform from exp(-4) to 1.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from normbench.data.augmentation_policies import AugmentationPolicies
from normbench.data.counter_rng import of_step, permutation
from normbench.models.dropout import Fraction

#: A number from 0 to 1.
Probability = Annotated[float, Field(ge=0, le=1)]


class Mix(NamedTuple):
    """Partners and weights for the B images of one step, in the order of the global batch."""

    partners: Tensor  # (B,) positions in the global batch
    share: Tensor  # (B,) weight of an image's own pixels outside of the box; inside it is 0
    boxes: Tensor  # (B, 4) top, bottom, left, right; bottom and right are exclusive
    label_share: Tensor  # (B,) weight of an image's own label


@dataclass(frozen=True)
class Regularization:
    """Regularization of images, network and loss.

    Args:
        label_smoothing: share of the target that is spread evenly over all classes (Szegedy et
            al. 2016).
        mixup: a of Beta(a, a); null: no mixup.
        cutmix: a of Beta(a, a); null: no cutmix.
        cutmix_target: l of the variant of cutmix, which replaces `cutmix`; null: none.
        mixup_and_cutmix: with both: either (or null) draws one of the two for each step,
            halves applies each to one half of the images of every step.
        dropout: rate before the classifier; null: the model's.
        norm_dropout: rate behind every normalization layer and its activation (the study of
            switchable normalization advises 0.1 to 0.2, appendix B); null: none.
        stochastic_depth: rate that the last block approaches, rising linearly from 0 in the first
            one (Huang et al. 2016); null: the model's.
        rescale: divide kept branches by their probability, as EfficientNet's code does and
            normalizer-free networks do not; null: the model's choice.
        policy: augmentation policy in timm's notation, as rand-m9-n2 (RandAugment of two operations
            of magnitude 9) or original (AutoAugment); null: none.
        color_jitter: brightness, contrast and saturation change by factors from 1 - s to 1 + s;
            null: none.
        erasing: share of the images in which a box is replaced by noise (Zhong et al. 2020); null:
            none.
    """

    label_smoothing: Fraction = 0.0
    mixup: PositiveFloat | None = None
    cutmix: PositiveFloat | None = None
    cutmix_target: float | None = None
    mixup_and_cutmix: Literal["either", "halves"] | None = None
    dropout: Fraction | None = None
    norm_dropout: Fraction | None = None
    stochastic_depth: Fraction | None = None
    rescale: bool | None = None
    policy: str | None = None
    color_jitter: float | None = None
    erasing: Probability | None = None

    def __post_init__(self) -> None:
        if self.cutmix_target is not None:
            if self.cutmix is not None:
                raise ValueError("cutmix_target: it replaces cutmix; choose cutmix=null")
            if not 0.96 / 1.55 <= self.cutmix_target <= 1:
                raise ValueError(
                    f"cutmix_target={self.cutmix_target}: it must be from 0.62 to 1, as 0.9"
                )
        if self.mixup_and_cutmix is not None and len(self._kinds) < 2:
            raise ValueError(
                f"mixup_and_cutmix={self.mixup_and_cutmix}: it needs mixup and cutmix, or is null"
            )
        _ = self.policies  # raises for an unknown policy

    @cached_property
    def policies(self) -> AugmentationPolicies:
        """Policies of single training images."""
        return AugmentationPolicies(self.policy, self.color_jitter)

    @property
    def drop_rates(self) -> dict[str, float]:
        """Options of the model that this level sets."""
        rates = {"dropout": self.dropout, "stochastic_depth": self.stochastic_depth}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        others: Tensor | None = None,
        share: Tensor | None = None,
    ) -> Tensor:
        """Return the mean cross-entropy with label smoothing e, where p is the softmax:

            -(1 - e) * log p_y - e / K * sum_k log p_k

        For logits (N, K) and labels (N,); if images are mixed also the labels of the partners,
        `others` (N,), and the weights of an image's own label, `share` (N,).
        """
        smoothing = self.label_smoothing
        if others is None or share is None:
            return F.cross_entropy(logits, labels, label_smoothing=smoothing)
        loss, loss_of_others = (
            F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
            for targets in (labels, others)
        )
        share = share.to(loss.dtype)
        return (share * loss + (1 - share) * loss_of_others).mean()

    @property
    def _kinds(self) -> list[str]:
        strengths = {"mixup": self.mixup, "cutmix": self.cutmix or self.cutmix_target}
        return [kind for kind, strength in strengths.items() if strength is not None]

    @property
    def mixes(self) -> bool:
        """True if images are mixed with others."""
        return bool(self._kinds)

    def draw_partners(self, seed: int, step: int, global_batch: int) -> Tensor:
        """Return the positions (B,) of the partners of all images in optimizer step `step`."""
        return permutation(seed, step, global_batch, "partners")

    def draw_mix(self, seed: int, step: int, global_batch: int, size: tuple[int, int]) -> Mix:
        """Draw how the images of `size` (H, W) in optimizer step `step` are mixed."""
        kinds = self._kinds
        choice, first, *center, second = of_step(seed, step, "mix", 5)
        if self.mixup_and_cutmix == "halves":
            half = global_batch // 2
            parts = [("mixup", first, half), ("cutmix", second, global_batch - half)]
        else:
            parts = [(kinds[int(choice * len(kinds))], first, global_batch)]
        values = []  # of each image
        for kind, uniform, count in parts:
            values += [self._mix_values(kind, uniform, center, size)] * count
        share, boxes, label_share = map(torch.tensor, zip(*values, strict=True))
        return Mix(self.draw_partners(seed, step, global_batch), share, boxes, label_share)

    def _mix_values(
        self, kind: str, uniform: float, center: list[float], size: tuple[int, int]
    ) -> tuple[float, tuple[int, int, int, int], float]:
        """Return the weight of pixels outside of the box, the box, and the weight of the label."""
        ratio = self.mix_ratio(kind, uniform)
        if kind == "mixup":
            return ratio, (0, 0, 0, 0), ratio
        side = math.sqrt(1 - ratio)
        top, bottom = box_span(center[0], side, size[0])
        left, right = box_span(center[1], side, size[1])
        area = (bottom - top) * (right - left) / (size[0] * size[1])
        return 1.0, (top, bottom, left, right), 1 - area

    def mix_ratio(self, kind: str, uniform: float) -> float:
        """Return the ratio r of `kind` for a number `uniform` in [0, 1)."""
        if kind == "cutmix" and self.cutmix_target is not None:
            unmixed = 1.55 * self.cutmix_target - 0.96
            if uniform < unmixed:
                return 1.0
            rest = (uniform - unmixed) / (1 - unmixed)  # uniform again
            return 1 + math.log(math.exp(-4) + (1 - math.exp(-4)) * rest) / 4
        strength = self.mixup if kind == "mixup" else self.cutmix
        # By the inverse of Beta's distribution: no state, no rejection.
        from scipy.special import betaincinv  # slow import: 0.3 s

        return float(betaincinv(strength, strength, uniform))


def box_span(center: float, side: float, length: int) -> tuple[int, int]:
    """Return first and last (exclusive) position of a `side`, as shares of `length`, clipped."""
    middle, half = int(center * length), int(side * length) // 2
    return max(0, middle - half), min(length, middle + half)


def mix_images(x: Tensor, other: Tensor, share: Tensor, boxes: Tensor) -> Tensor:
    """Mix images x (..., C, H, W) with their partners `other`, of the same shape.

    `share` (...,) and `boxes` (..., 4) are as in `Mix`.
    """
    height, width = x.shape[-2:]
    rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    top, bottom, left, right = boxes[..., None].unbind(-2)  # each (..., 1)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    inside = in_rows[..., :, None] & in_columns[..., None, :]  # (..., H, W)
    weight = torch.where(inside, 0.0, share[..., None, None])[..., None, :, :].to(x.dtype)
    return weight * x + (1 - weight) * other
