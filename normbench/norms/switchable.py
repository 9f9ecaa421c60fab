"""Switchable normalization (Luo et al. 2019): learned mixtures of statistics, per worker.

    mix: var    y = (x - sum_k p_k mean_k) / sqrt(sum_k q_k var_k + eps)
    mix: std    y = (x - sum_k p_k mean_k) / sum_k q_k sqrt(var_k + eps)
                z = act(weight * y + bias),   p = softmax(mean_logits),  q = softmax(var_logits)

k over the members of `over`, in the order in, ln, bn: statistics of a channel of an image, axes
(h, w); of an image, axes (c, h, w); of a channel over the images of one worker, axes (n, h, w). The
first form is the authors' code and SN's paper, the second eq. 1 of the study of Luo et al. 2019 on
switchable normalization. Logits (3,) start equal; sn_tied has one vector `logits` for both
ratios. Variances are biased; `unbiased: true` takes the unbiased variance of each channel of an
image, from which the code computes the others too.

Hard ratios keep only the largest of the learned or given ratios: `hard: true` sets them for all
layers, `normbench.norms.ratios` for each layer of a trained network.

    evaluation  the running mean and variance replace bn's (after `recalibrate` they are the
                papers' "batch average", a mean over batches of the training set)

Placement: that of batch normalization, but not on 1x1 maps after global pooling (study, table 4).

The papers decay gain, shift and logits.

Elsewhere:

- The authors' code uses the unbiased variance of each channel of an image, which also changes the
  variances of ln and bn and is NaN on 1x1 maps; the papers define the biased one, as here.
- It starts running_var at 0 instead of 1. With `using_moving_average=False` it sums the statistics
  of batches, but no code divides the sums by their number.
- Its models have a dropout of 0.5 and gains that start at 0; the study has neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import (
    NormAct,
    Normalizer,
    Normalizing,
    Role,
    per_channel,
    upcast,
)
from normbench.norms.base.moments import (
    Moments,
    channel_moments,
    expand_sets,
    merge_moments,
    split_sets,
)
from normbench.norms.base.options import require_positive, require_share
from normbench.norms.base.running import RunningStatistics, blend_moments
from normbench.norms.workers import PerWorker

Member = Literal["in", "ln", "bn"]
MEMBERS: tuple[Member, ...] = ("in", "ln", "bn")


@dataclass(frozen=True)
class SwitchableNorm(Normalizer):
    """Mixtures of the statistics of instance, layer and batch normalization.

    Args:
        over: members of the mixture, of in, ln and bn.
        tied: one vector of ratios for means and variances.
        mix: what is mixed, var or std.
        unbiased: take unbiased variances of the channels of an image.
        hard: use only the largest ratio, and do not learn ratios; if none are given here, they
            come from the network that the run continues (`init_from`).
        mean_ratios: initial ratios of the means, one per member; null: equal.
        var_ratios: initial ratios of the variances; null: equal.
        momentum: weight of a step's statistics in the running statistics.
        eps: added to the variance, inside the square root.
    """

    over: tuple[Member, ...] = MEMBERS
    tied: bool = False
    mix: Literal["var", "std"] = "var"
    unbiased: bool = False
    hard: bool = False
    mean_ratios: tuple[float, ...] | None = None
    var_ratios: tuple[float, ...] | None = None
    momentum: float = 0.1
    eps: float = 1e-5

    def __post_init__(self) -> None:
        require_positive(eps=self.eps)
        require_share(momentum=self.momentum)
        if not self.over or list(self.over) != [each for each in MEMBERS if each in self.over]:
            raise ValueError(
                f"over={list(self.over)}: some of in, ln, bn, in this order, once each"
            )
        for name in ("mean_ratios", "var_ratios"):
            given = getattr(self, name)
            if given is not None and not are_ratios(given, len(self.over)):
                raise ValueError(
                    f"{name}={list(given)}: {len(self.over)} ratios from 0 to 1 whose sum is 1, "
                    f"for {', '.join(self.over)}"
                )
        if self.tied and self.var_ratios is not None:
            given = list(self.var_ratios)
            raise ValueError(f"var_ratios={given}: tied ratios are norm.mean_ratios for both")

    @property
    def undecided(self) -> bool:
        """Whether ratios are hard and not given here, so a trained network must provide them."""
        given = self.mean_ratios is not None and (self.tied or self.var_ratios is not None)
        return self.hard and not given

    @property
    def batch_independent(self) -> bool:
        return "bn" not in self.over

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return SwitchableNormAct(channels, act, self)


class SwitchableNormAct(PerWorker, RunningStatistics, Normalizing):
    """The layer."""

    roles: ClassVar[dict[str, Role]] = {
        **Normalizing.roles,
        "mean_logits": "ratio",
        "var_logits": "ratio",
        "logits": "ratio",
    }

    def __init__(self, channels: int, act: str | None, options: SwitchableNorm) -> None:
        super().__init__(channels, act)
        self.options, self.hard = options, options.hard
        if options.undecided:
            self.unfinished = (
                "norm.hard=true: which member counts follows from the ratios of a trained network, "
                "as with init_from=RUN@EPOCH, or from given ones, as norm.mean_ratios=[0,0,1] "
                "norm.var_ratios=[0,1,0]; tied, from the first alone"
            )
        self.batch_independent = options.batch_independent
        given = {"mean": options.mean_ratios, "var": options.var_ratios}
        for name in ("",) if options.tied else ("mean_", "var_"):
            logits = logits_of(given[name.rstrip("_") or "mean"], len(options.over))
            parameter = nn.Parameter(logits, requires_grad=not options.hard)
            self.register_parameter(f"{name}logits", parameter)
        if not self.batch_independent:
            self.register_running(channels, options.momentum)

    def refusal(self, shape: torch.Size) -> str:
        images, channels, height, width = shape
        positions = height * width
        if self.options.unbiased and positions == 1:
            return (
                "norm.unbiased=true: a 1x1 map has no unbiased variance; norm.unbiased=false works"
            )
        own = (
            images // self.workers if self.training else 2
        )  # running statistics are of many images
        values = {"in": positions, "ln": channels * positions, "bn": own * positions}
        if all(values[member] == 1 for member in self.options.over):
            return (
                f"switchable normalization over {', '.join(self.options.over)}: every statistic "
                "here is that of a single value; more members of norm.over, a larger batch or "
                "a larger map work"
            )
        return ""

    def ratios(self) -> tuple[Tensor, Tensor]:
        """Return the ratios of means and of variances, each (members,) with sum 1."""
        names = ("logits", "logits") if self.options.tied else ("mean_logits", "var_logits")
        mean, var = (torch.softmax(upcast(getattr(self, name)), dim=0) for name in names)
        if not self.hard:
            return mean, var
        return _one_hot(mean), _one_hot(var)

    def norm_act(self, x: Tensor) -> Tensor:
        return self.activation(self.affine(self._normalized(x, track=True)))

    def normalize(self, x: Tensor) -> Tensor:
        return self._normalized(x, track=False)

    def _normalized(self, x: Tensor, *, track: bool) -> Tensor:
        x = upcast(x)
        positions = x.shape[2] * x.shape[3]
        mean, scale = self.mixture(channel_moments(x), positions, self.ratios(), track=track)
        # One multiplication and one addition on the map, for any mixture.
        return x * per_channel(scale) - per_channel(mean * scale)

    def mixture(
        self, own: Moments, positions: int, ratios: tuple[Tensor, Tensor], *, track: bool
    ) -> Moments:
        """Return the mixed mean and inverse standard deviation, broadcastable over (N, C).

        Args:
            own: mean and (biased) variance (N, C) of every channel of every image.
            positions: number of positions of a map.
            ratios: of means and of variances.
            track: update the running statistics.
        """
        mean, var = own
        own = mean, var * (positions / (positions - 1)) if self.options.unbiased else var
        means, variances = [], []
        for member in self.options.over:
            mean, var = self._of_member(member, own, track=track)  # each broadcasts over (N, C)
            means.append(mean)
            variances.append(var)
        p, q = ratios
        mean = _mixed(p, means)
        if self.options.mix == "std":
            return mean, 1 / _mixed(q, [torch.sqrt(var + self.options.eps) for var in variances])
        return mean, torch.rsqrt(_mixed(q, variances) + self.options.eps)

    def _of_member(self, member: Member, own: Moments, *, track: bool) -> Moments:
        """Compute a member's statistics from those (N, C) of every channel of every image."""
        mean, var = own
        if member == "in":
            return own
        if member == "ln":
            mean, var = merge_moments(mean, var, dim=1)
            return mean[:, None], var[:, None]
        if not self.training:
            running = self.running_mean, self.running_var
            return (
                blend_moments(own, running, self.example_weight) if self.example_weight else running
            )
        # (N, C) -> (N/W, W, C): images of a worker along the first axis.
        mean, var = merge_moments(
            split_sets(mean, self.workers), split_sets(var, self.workers), dim=0
        )
        if track:
            self.track(mean=mean, var=var)
        return expand_sets(mean, len(own[0])), expand_sets(var, len(own[0]))

    def reference_normalize(self, x: Tensor) -> Tensor:
        means, variances = zip(*(self._reference_of(m, x) for m in self.options.over), strict=True)
        names = ("logits", "logits") if self.options.tied else ("mean_logits", "var_logits")
        p, q = (self._reference_ratios(getattr(self, name).double()) for name in names)
        mean = _summed(p, means)
        if self.options.mix == "std":
            return (x - mean) / _summed(q, [torch.sqrt(v + self.options.eps) for v in variances])
        return (x - mean) / torch.sqrt(_summed(q, variances) + self.options.eps)

    def _reference_ratios(self, logits: Tensor) -> Tensor:
        if self.hard:
            return (logits == logits.max()).double()
        return torch.exp(logits) / torch.exp(logits).sum()

    def _reference_of(self, member: Member, x: Tensor) -> Moments:
        if member == "bn" and not self.training:
            return per_channel(self.running_mean.double()), per_channel(self.running_var.double())
        n = x.shape[2] * x.shape[3]
        mean = reference_ops.mean(x, reference_ops.POSITIONS)
        factor = n / (n - 1) if self.options.unbiased else 1.0
        var = factor * reference_ops.variance(x, reference_ops.POSITIONS)
        if member == "in":
            return mean, var
        axis = (1,) if member == "ln" else (0,)

        def over(statistic: Tensor) -> Tensor:
            if member == "ln":
                return reference_ops.mean(statistic, axis)
            return reference_ops.by_set(
                statistic, self.workers, lambda s: reference_ops.mean(s, axis)
            )

        # E[x^2] of the union, less the square of its mean, as in the authors' code.
        return over(mean), over(var + mean**2) - over(mean) ** 2

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, over={'+'.join(self.options.over)}"


def _mixed(ratio: Tensor, statistics: list[Tensor]) -> Tensor:
    # Not a matrix product, which autocast would round to half precision.
    return (torch.stack(torch.broadcast_tensors(*statistics), dim=-1) * ratio).sum(-1)


def _summed(ratio: Tensor, statistics: Sequence[Tensor]) -> Tensor:
    total = ratio[0] * statistics[0]
    for k in range(1, len(statistics)):
        total = total + ratio[k] * statistics[k]
    return total


def _one_hot(ratio: Tensor) -> Tensor:
    return F.one_hot(ratio.argmax(), len(ratio)).to(ratio.dtype)


def logits_of(given: tuple[float, ...] | None, members: int) -> Tensor:
    """Return logits whose softmax is `given`; None: all equal."""
    if given is None:
        return torch.ones(members)  # as in the authors' code
    # A ratio of 0 has no finite logit; exp(-30) vanishes in fp32 beside the others.
    return torch.tensor(given).clamp(min=1e-13).log()


def are_ratios(given: Sequence[float], members: int) -> bool:
    """Return True if `given` are as many ratios as `members`, from 0 to 1, with sum 1."""
    inside = all(0 <= each <= 1 for each in given)
    return len(given) == members and inside and abs(sum(given) - 1) < 1e-4
