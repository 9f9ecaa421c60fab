"""Sparse switchable normalization (Shao et al. 2019): every layer ends with one normalizer.

Switchable normalization (`sn`) with another function from logits to ratios:

    p = sparsestmax(mean_logits, r),   q = sparsestmax(var_logits, r)

sparsestmax(v, r) is the point w = sparsemax(v), the nearest point of the simplex, pushed away from
the center u of the face that w lies in until |w - u| >= r. If that leaves the simplex, the point is
projected to it again and pushed away from the center u' of its smaller face, to the distance
sqrt(r^2 - |u' - u|^2), which is the same distance from u:

    w <- u + (w - u) * r / |w - u|    if |w - u| < r

r is the progress of the training, from 0, where ratios are those of sparsemax, to 1, where only
corners of the simplex are left. A corner is at most sqrt(2/3) from the center of three members, so
the choice of a layer ends after 82 % of the training. A layer whose ratios have reached a corner
keeps them, whatever its logits do later.

A run of normbench sets the progress; in your own loop call
`normbench.norms.base.progress.set_progress`. Until then r is 0.

    evaluation  as in sn, with the ratios of the current progress

Learning rate of the logits: a tenth of that of other parameters (`rate`), as in the authors' code.

Placement: that of switchable normalization.

Elsewhere:

- The authors' code decays gains and shifts but no logits (`recipe.decayed` without ratio), and
  clips the gradient of all logits together to norm 1 (`recipe.ratio_clip=1`).
- It divides 0 by 0 where logits are equal and r is above 0; here the ratios stay equal.
- Its running statistics have momentum 0.003 (0.997 for the old value) and start at 0, and its
  variances are unbiased (`unbiased`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from normbench.norms.base.layer import NormAct
from normbench.norms.base.options import positive
from normbench.norms.base.sparsestmax import reference_sparsestmax, sparsestmax
from normbench.norms.base.tensors import upcast
from normbench.norms.switchable import SwitchableNorm, SwitchableNormAct


@dataclass(frozen=True)
class SparseSwitchableNorm(SwitchableNorm):
    """Mixtures of instance, layer and batch normalization that become one of them.

    Other options as in `SwitchableNorm`, without `hard`. Initial ratios are used as logits, because
    sparsemax leaves ratios unchanged.

    Args:
        rate: learning rate of the logits, as a factor of the others'.
    """

    rate: float = positive(0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hard:
            raise ValueError("hard=true: sparse ratios become hard by themselves; false works")

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return SparseSwitchableNormAct(channels, act, self)


class SparseSwitchableNormAct(SwitchableNormAct):
    """The layer; `set_progress` sets the progress of the training.

    The buffers `fixed_mean` and `fixed_var` (members,), or `fixed`, mark the member of a statistic
    that the layer has chosen for good.
    """

    shown: ClassVar[tuple[str, ...]] = (*SwitchableNormAct.shown, "progress")
    progress: Tensor
    fixed: Tensor  # if tied
    fixed_mean: Tensor
    fixed_var: Tensor

    def __init__(self, channels: int, act: str | None, options: SparseSwitchableNorm) -> None:
        super().__init__(channels, act, options)
        self.rates = dict.fromkeys(("mean_logits", "var_logits", "logits"), options.rate)
        # A tensor, so that torch.compile does not recompile the layer at every step; in the state,
        # because an evaluation needs it.
        self.register_buffer("progress", torch.zeros(()))
        for name in self._fixed_names():
            # Not of floating point: a moving average of a network would average it.
            self.register_buffer(name, torch.zeros(len(self.over), dtype=torch.bool))

    def logits_of(self, ratios: tuple[float, ...] | None) -> Tensor:
        return torch.ones(len(self.over)) if ratios is None else torch.tensor(ratios)

    def _fixed_names(self) -> tuple[str, str] | tuple[str]:
        return ("fixed",) if self.options.tied else ("fixed_mean", "fixed_var")

    def _fixed(self) -> tuple[Tensor, Tensor]:
        names = self._fixed_names()
        return self.get_buffer(names[0]), self.get_buffer(names[-1])

    def ratios(self) -> tuple[Tensor, Tensor]:
        ratios = sparsestmax(upcast(torch.stack(self._logits())), self.progress)
        fixed = torch.stack(self._fixed())
        p, q = torch.where(fixed.any(-1, keepdim=True), fixed.to(ratios.dtype), ratios)
        return p, q

    def choose(self, mean: Sequence[float], var: Sequence[float], *, hard: bool) -> None:
        """Keep the largest of these ratios for good if `hard`, else choose none yet.

        Raises:
            ValueError: soft ratios would become sparse, because the training has begun.
        """
        if not hard and self.progress > 0:
            raise ValueError(
                f"soft ratios become sparse at progress={float(self.progress):g}; set hard ones, "
                "or the progress to 0"
            )
        for fixed, ratio in zip(self._fixed(), (mean, var), strict=False):
            chosen = torch.tensor(list(ratio), device=fixed.device)
            fixed.copy_((torch.arange(len(ratio)) == chosen.argmax().cpu()) & hard)

    def norm_act(self, x: Tensor) -> Tensor:
        if self.training:
            self._fix_ratios()
        return super().norm_act(x)

    @torch.no_grad()
    def _fix_ratios(self) -> None:
        """Keep ratios that have reached a corner of the simplex."""
        for ratio, fixed in zip(self.ratios(), self._fixed(), strict=True):
            chosen = ratio > 0
            fixed.copy_(chosen & (chosen.sum() == 1))

    def reference_ratios(self) -> tuple[Tensor, Tensor]:
        p, q = (
            fixed.double()
            if fixed.any()
            else reference_sparsestmax(logits.double(), float(self.progress))
            for logits, fixed in zip(self._logits(), self._fixed(), strict=True)
        )
        return p, q
