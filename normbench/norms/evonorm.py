"""EvoNorm (Liu, Brock, Simonyan and Le 2020): normalization and activation as one expression.

    B0    x / max(std_bwh, v * x + std_wh)          S0    x * sigmoid(v * x) / std_g
    B1    x / max(std_bwh, (x + 1) * rms_wh)        S1    x * sigmoid(x) / std_g
    B2    x / max(std_bwh, rms_wh - x)              S2    x * sigmoid(x) / rms_g

times weight, plus bias. std is the root of a biased variance plus eps, rms of a mean square plus
eps: of a channel over the images of a worker (bwh), of a channel of one image (wh), of a group of
channels of one image (g: axes c/g, h, w). v (C,) is learned, initially 1. No numerator is centered.

The appendix lists the ten best layers of each search, B in D.1 and S in D.2. The six above are
numbers d1.6, d1.1, d1.7, d2.6, d2.5 and d2.2; `evonorm_candidate` has all others, once each:

    d1.2    x / max(std_bwh, x + rms_whc)           d2.1     x * tanh(sigmoid(x)) / rms_g
    d1.3    -x * sigmoid(x) / std_bwh               d2.10    z * sigmoid(max(x, z)), z = x / rms_g
    d1.4    x / max(std_bwh, x * rms_wh)
    d1.5    x / max(std_bwh, rms_whc - x)           (rms_whc: over all channels of one image)
    d1.9    x / max(std_bwh, x + std_wh)

Evaluation: the B layers have a running (biased) variance and no running mean; it replaces the
worker's. std_wh and rms_wh remain the image's, so no B layer becomes a fixed affine map. Nothing
differs for the S layers.

Placement: one layer replaces normalization and activation. Without activation, as before a residual
addition, the layer is `weight * x + bias` and does not normalize (appendix A: nonlinearity=False).
The ReLU after the addition of a v1 block stays. If the groups do not divide the channels, the
largest divisor below is used, as in the authors' code.

Elsewhere:

- timm's B0 has eps 1e-3 instead of 1e-5; its running variances are unbiased; its S layers refuse
  channels that 32 does not divide. Its S0a, S1a and S2a normalize without activation as well.
- The appendix does not name B1, B2, S1 and S2; the assignment of names is timm's.
- The authors' TPU code starts the last gain of every residual branch of a v1 block at 0, as does
  `model.zero_init_last=all` here.
- Several ports compute the root of torch's unbiased `std` + eps, the fourth root of the variance.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from normbench.errors import choose_from
from normbench.norms.base.closed_form import apply_map
from normbench.norms.base.layer import (
    Affine,
    GainAndShift,
    Grouped,
    NormAct,
    Normalizer,
    Role,
)
from normbench.norms.base.moments import Moments, expand_sets, merge_images
from normbench.norms.base.options import largest_divisor, positive, share
from normbench.norms.base.running import RunningStatistics
from normbench.norms.base.tensors import upcast
from normbench.norms.evonorm_expressions import (
    EXPRESSIONS,
    MAPS,
    REPEATS,
    WITH_V,
    MapStatistics,
    ReferenceStatistics,
    Statistics,
    uses_batch,
)
from normbench.norms.workers import PerWorker


class EvoNorm(Normalizer):
    """An expression of the appendix, whichever activation it replaces.

    Args:
        eps: added to every variance and mean square, inside the square root.
    """

    eps: float
    momentum: float  # of the B series
    groups: int  # of the S series

    @property
    @abstractmethod
    def which(self) -> str:
        """The number of the expression, as d1.6."""

    @property
    def batch_independent(self) -> bool:
        return not uses_batch(self.which)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        if act is None:  # before a residual addition, as in the paper
            return Affine(channels, None)
        return (EvoNormBAct if uses_batch(self.which) else EvoNormSAct)(channels, act, self)


@dataclass(frozen=True)
class EvoNormB(EvoNorm):
    """The B series: statistics over the images of a worker, and of each image.

    Args:
        momentum: weight of a step's variance in the running variance.
    """

    momentum: float = share(0.1)
    eps: float = positive(1e-5)


@dataclass(frozen=True)
class EvoNormB0(EvoNormB):
    which: ClassVar[str] = "d1.6"


@dataclass(frozen=True)
class EvoNormB1(EvoNormB):
    which: ClassVar[str] = "d1.1"


@dataclass(frozen=True)
class EvoNormB2(EvoNormB):
    which: ClassVar[str] = "d1.7"


@dataclass(frozen=True)
class EvoNormS0(EvoNorm, Grouped):
    which: ClassVar[str] = "d2.6"


@dataclass(frozen=True)
class EvoNormS1(EvoNorm, Grouped):
    which: ClassVar[str] = "d2.5"


@dataclass(frozen=True)
class EvoNormS2(EvoNorm, Grouped):
    which: ClassVar[str] = "d2.2"


@dataclass(frozen=True)
class EvoNormCandidate(EvoNorm, Grouped):
    """A candidate of the paper's appendix D by its number, with the options of its series.

    Args:
        which: d1.1 to d1.10 (B series) or d2.1 to d2.10 (S series).
        groups: of the S series: number of groups G; a layer uses the largest divisor of its
            channels up to it.
        momentum: of the B series: weight of a step's variance in the running variance.
    """

    which: str = "d1.2"
    momentum: float = share(0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.which in REPEATS:
            first = REPEATS[self.which]
            raise ValueError(
                f"which={self.which}: number {self.which.partition('.')[2]} of the appendix "
                f"repeats {first}; use which={first}"
            )
        if self.which not in EXPRESSIONS:
            raise ValueError(
                f"which={self.which} is no candidate of appendix D; "
                f"{choose_from(self.which, EXPRESSIONS)}"
            )


class EvoNormAct(NormAct):
    """The layer of an expression. It has no `normalize`: normalization and activation are one."""

    roles: ClassVar[dict[str, Role]] = {**NormAct.roles, "v": "gain"}
    shown: ClassVar[tuple[str, ...]] = ("which",)
    v: nn.Parameter  # of those that have one

    def __init__(self, channels: int, act: str, options: EvoNorm) -> None:
        super().__init__(channels, act)
        self.which, self.eps = options.which, options.eps
        v = nn.Parameter(torch.ones(channels)) if self.which in WITH_V else None
        self.register_parameter("v", v)

    def norm_act(self, x: Tensor) -> Tensor:
        # Without gain, as in a folded network, the expression has one operation less.
        if self.which not in MAPS or self.weight is None:
            numerator, divisor = EXPRESSIONS[self.which](upcast(x), MapStatistics(self, x))
            return self.affine(numerator / divisor)
        function, factor, offset, gain = MAPS[self.which](Statistics(self, x))
        return apply_map(function, x, factor, offset, gain * self.weight, self.bias)

    def split_back(self) -> tuple[nn.Module, GainAndShift]:
        return self.split_affine()

    def reference(self, x: Tensor) -> Tensor:
        x = x.double()
        numerator, divisor = EXPRESSIONS[self.which](x, ReferenceStatistics(self, x))
        return self.affine(numerator / divisor)


class EvoNormSAct(EvoNormAct):
    """A layer of the S series: statistics of one image."""

    batch_independent = True
    shown: ClassVar[tuple[str, ...]] = ("which", "groups")

    def __init__(self, channels: int, act: str, options: EvoNorm) -> None:
        super().__init__(channels, act, options)
        self.groups = largest_divisor(channels, options.groups)


class EvoNormBAct(PerWorker, RunningStatistics, EvoNormAct):
    """A layer of the B series: statistics over the images of a worker, and of each image."""

    def __init__(self, channels: int, act: str, options: EvoNorm) -> None:
        super().__init__(channels, act, options)
        self.register_running(channels, options.momentum, mean=False)

    def batch_var(self, channel_moments: Callable[[], Moments]) -> Tensor:
        """Return the variance (N, C) of every channel over its worker; update the running one."""
        if not self.training:
            return self.running_var[None]  # (1, C)
        mean, var = channel_moments()
        _, worker_var = merge_images(mean, var, self.workers)
        self.track(var=worker_var)
        return expand_sets(worker_var, len(mean))
