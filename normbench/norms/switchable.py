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

With `sync: true` bn's statistics are those of all images of an optimizer step, on whatever workers
and devices they are (practice 9 in table 4 of the study); in and ln stay those of an image.

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
from normbench.norms.base.devices import count_devices, merge_devices
from normbench.norms.base.layer import NormAct, Normalizer, Normalizing, Role
from normbench.norms.base.moments import (
    Moments,
    channel_moments,
    expand_sets,
    merge_images,
    merge_moments,
)
from normbench.norms.base.options import positive, share
from normbench.norms.base.running import RunningStatistics, blend_moments, running_moments
from normbench.norms.base.tensors import per_channel, upcast
from normbench.norms.whole_step import WholeStep
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
        sync: take bn's statistics over all images of an optimizer step, on all workers and devices,
            as the authors' SyncSN; null and false: per worker.
    """

    over: tuple[Member, ...] = MEMBERS
    tied: bool = False
    mix: Literal["var", "std"] = "var"
    unbiased: bool = False
    hard: bool = False
    mean_ratios: tuple[float, ...] | None = None
    var_ratios: tuple[float, ...] | None = None
    momentum: float = share(0.1)
    eps: float = positive(1e-5)
    sync: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.over or list(self.over) != [each for each in MEMBERS if each in self.over]:
            raise ValueError(
                f"over={list(self.over)}: some of in, ln, bn, in this order, once each"
            )
        for name in ("mean_ratios", "var_ratios"):
            ratios = getattr(self, name)
            if ratios is not None and not are_ratios(ratios, len(self.over)):
                raise ValueError(
                    f"{name}={list(ratios)}: {len(self.over)} ratios from 0 to 1 whose sum is 1, "
                    f"for {', '.join(self.over)}"
                )
        if self.tied and self.var_ratios is not None:
            raise ValueError(
                f"var_ratios={list(self.var_ratios)}: tied ratios are norm.mean_ratios for both"
            )

        if self.sync and "bn" not in self.over:
            raise ValueError(
                f"sync=true: over={list(self.over)} has no bn, whose statistics are of several "
                "images; sync=false works"
            )

    @property
    def batch_independent(self) -> bool:
        return "bn" not in self.over

    @property
    def worker_independent(self) -> bool:
        return self.batch_independent or bool(self.sync)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return SwitchableNormAct(channels, act, self)


class SwitchableNormAct(WholeStep, PerWorker, RunningStatistics, Normalizing):
    roles: ClassVar[dict[str, Role]] = {
        **Normalizing.roles,
        "mean_logits": "ratio",
        "var_logits": "ratio",
        "logits": "ratio",
    }
    shown: ClassVar[tuple[str, ...]] = ("act", "over", "example_weight")

    mean_logits: Tensor
    var_logits: Tensor
    logits: Tensor  # of both, if tied

    def __init__(self, channels: int, act: str | None, options: SwitchableNorm) -> None:
        super().__init__(channels, act)
        self.options, self.over, self.hard = options, options.over, options.hard
        ratios = {"mean_logits": options.mean_ratios, "var_logits": options.var_ratios}
        if options.tied:
            ratios = {"logits": options.mean_ratios}
        if options.hard and None in ratios.values():
            self.unfinished = (
                "norm.hard=true: which member counts follows from the ratios of a trained network, "
                "as with init_from=RUN@EPOCH, or from given ones, as norm.mean_ratios=[0,0,1] "
                "norm.var_ratios=[0,1,0]; tied, from the first alone"
            )
        for name, initial in ratios.items():
            logits = self.logits_of(initial)
            self.register_parameter(name, nn.Parameter(logits, requires_grad=not options.hard))
        self.batch_independent = options.batch_independent
        self.whole_step = bool(options.sync)
        if not self.batch_independent:
            self.register_running(channels, options.momentum)

    def logits_of(self, ratios: tuple[float, ...] | None) -> Tensor:
        """Return the logits (members,) of `ratios`; None: of equal ones."""
        return logits_of(ratios, len(self.over))

    def refusal(self, shape: torch.Size) -> str:
        images, channels, height, width = shape
        positions = height * width
        if self.options.unbiased and positions == 1:
            return (
                "norm.unbiased=true: a 1x1 map has no unbiased variance; norm.unbiased=false works"
            )
        # Running and shared statistics are of many images, for which 2 stands.
        of_pass = self.training and self.shared_moments is None
        batch = images // self.sets(images) * self._devices() if of_pass else 2
        values = {"in": positions, "ln": channels * positions, "bn": batch * positions}
        if all(values[member] == 1 for member in self.over):
            return (
                f"switchable normalization over {', '.join(self.over)}: every statistic "
                "here is that of a single value; more members of norm.over, a larger batch or "
                "a larger map work"
            )
        return ""

    @property
    def worker_independent(self) -> bool:
        return self.options.worker_independent

    def sets(self, images: int) -> int:
        return 1 if self.options.sync else super().sets(images)

    def pass_moments(self, x: Tensor) -> Moments:
        return merge_images(*self.image_moments(x), 1)

    def track_step(self, moments: Moments, values: int) -> None:  # noqa: ARG002 (the running variance is the batch's)
        mean, var = moments
        self.track(mean=mean, var=var)

    def _devices(self) -> int:
        """Return the number of devices whose images share bn's statistics."""
        return count_devices() if self.options.sync else 1

    def _logits(self) -> tuple[Tensor, Tensor]:
        # Not get_parameter: stacked seeds call the layer with plain tensors as parameters.
        if self.options.tied:
            return self.logits, self.logits
        return self.mean_logits, self.var_logits

    def ratios(self) -> tuple[Tensor, Tensor]:
        """Return the ratios of means and of variances, each (members,) with sum 1."""
        mean, var = (torch.softmax(upcast(logits), dim=0) for logits in self._logits())
        return (_one_hot(mean), _one_hot(var)) if self.hard else (mean, var)

    def choose(self, mean: Sequence[float], var: Sequence[float], *, hard: bool) -> None:  # noqa: ARG002
        """Use only the largest of these ratios if `hard`, else all of them."""
        self.hard = hard

    def norm_act(self, x: Tensor) -> Tensor:
        return self.map_standardized(x, *self._moments(x, track=True))

    def normalize(self, x: Tensor) -> Tensor:
        mean, scale = self._moments(x, track=False)  # a probe must not move statistics
        return upcast(x) * per_channel(scale) - per_channel(mean * scale)

    def image_moments(self, x: Tensor) -> Moments:
        return self._correct_bias(super().image_moments(x), x.shape[2] * x.shape[3])

    def _correct_bias(self, moments: Moments, positions: int) -> Moments:
        """Return moments with unbiased variances, if the option says so."""
        mean, var = moments
        # The moments of ln and bn follow from them, as in the authors' code.
        return mean, var * (positions / (positions - 1)) if self.options.unbiased else var

    def _moments(self, x: Tensor, *, track: bool) -> Moments:
        """Return mean and inverse standard deviation, which broadcast over (N, C)."""
        positions = x.shape[2] * x.shape[3]
        return self.mix_moments(channel_moments(x), positions, self.ratios(), track=track)

    def mix_moments(
        self, moments: Moments, positions: int, ratios: tuple[Tensor, Tensor], *, track: bool
    ) -> Moments:
        """Return the mixed mean and inverse standard deviation, broadcastable over (N, C).

        Args:
            moments: mean and (biased) variance (N, C) of every channel of every image.
            positions: number of positions of a map.
            ratios: of means and of variances.
            track: update the running statistics.
        """
        mean, var = self._correct_bias(moments, positions)
        members = [self._member_moments(member, (mean, var), track=track) for member in self.over]
        means, variances = zip(*members, strict=True)
        p, q = ratios
        mean = _mix(p, means)
        if self.options.mix == "std":
            return mean, 1 / _mix(q, [torch.sqrt(var + self.options.eps) for var in variances])
        return mean, torch.rsqrt(_mix(q, variances) + self.options.eps)

    def _member_moments(self, member: Member, moments: Moments, *, track: bool) -> Moments:
        """Return a member's moments, broadcastable over (N, C), from those of each channel."""
        mean, var = moments
        if member == "in":
            return moments
        if member == "ln":
            mean, var = merge_moments(mean, var, dim=1)
            return mean[:, None], var[:, None]
        if not self.training:
            running = running_moments(self)
            weight = self.example_weight
            return blend_moments(moments, running, weight) if weight else running
        images = len(mean)
        if self.shared_moments is not None:
            mean, var = self.shared_moments
        else:
            mean, var = merge_images(mean, var, self.sets(images))
            if self.options.sync:
                mean, var = merge_devices(mean, var)
            if track:
                self.track(mean=mean, var=var)
        return expand_sets(mean, images), expand_sets(var, images)

    def reference_normalize(self, x: Tensor) -> Tensor:
        members = [self._reference_moments(member, x) for member in self.over]
        means, variances = zip(*members, strict=True)
        p, q = self.reference_ratios()
        mean = _sum_products(p, means)
        if self.options.mix == "std":
            roots = [torch.sqrt(var + self.options.eps) for var in variances]
            return (x - mean) / _sum_products(q, roots)
        return (x - mean) / torch.sqrt(_sum_products(q, variances) + self.options.eps)

    def reference_ratios(self) -> tuple[Tensor, Tensor]:
        """Return the ratios of means and of variances in double precision."""
        p, q = (logits.double() for logits in self._logits())
        if self.hard:
            return (p == p.max()).double(), (q == q.max()).double()
        return torch.exp(p) / torch.exp(p).sum(), torch.exp(q) / torch.exp(q).sum()

    def _reference_moments(self, member: Member, x: Tensor) -> Moments:
        if member == "bn" and not self.training:
            return per_channel(self.running_mean.double()), per_channel(self.running_var.double())
        n = x.shape[2] * x.shape[3]
        mean = reference_ops.mean(x, reference_ops.POSITIONS)
        factor = n / (n - 1) if self.options.unbiased else 1.0
        var = factor * reference_ops.variance(x, reference_ops.POSITIONS)
        if member == "in":
            return mean, var

        def average(statistic: Tensor) -> Tensor:
            if member == "ln":
                return reference_ops.mean(statistic, (1,))
            return reference_ops.by_set(
                statistic, self.sets(len(x)), lambda images: reference_ops.mean(images, (0,))
            )

        # E[x^2] of the union, less the square of its mean, as in the authors' code.
        return average(mean), average(var + mean**2) - average(mean) ** 2


def _mix(ratio: Tensor, statistics: Sequence[Tensor]) -> Tensor:
    # Not a matrix product, which autocast would round to half precision.
    return (torch.stack(torch.broadcast_tensors(*statistics), dim=-1) * ratio).sum(-1)


def _sum_products(ratio: Tensor, statistics: Sequence[Tensor]) -> Tensor:
    total = ratio[0] * statistics[0]
    for k in range(1, len(statistics)):
        total = total + ratio[k] * statistics[k]
    return total


def _one_hot(ratio: Tensor) -> Tensor:
    return F.one_hot(ratio.argmax(), len(ratio)).to(ratio.dtype)


def logits_of(ratios: tuple[float, ...] | None, members: int) -> Tensor:
    """Return logits whose softmax is `ratios`; None: all equal."""
    if ratios is None:
        return torch.ones(members)  # as in the authors' code
    # A ratio of 0 has no finite logit; exp(-30) vanishes in fp32 beside the others.
    return torch.tensor(ratios).clamp(min=1e-13).log()


def are_ratios(values: Sequence[float], members: int) -> bool:
    """Return True if `values` are as many ratios as `members`, from 0 to 1, with sum 1."""
    inside = all(0 <= each <= 1 for each in values)
    return len(values) == members and inside and abs(sum(values) - 1) < 1e-4
