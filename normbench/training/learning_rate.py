"""Learning rate of a recipe: scaling with the global batch, warm-up and schedule."""

import math
from dataclasses import dataclass, field
from typing import Literal

from pydantic import PositiveFloat, PositiveInt
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from normbench.models.dropout import Fraction


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule:
    """Peak learning rate by global batch, and the learning rate of every optimizer step.

    Args:
        lr: peak learning rate at a global batch of `lr_batch`; it grows linearly with the global
            batch (Goyal et al. 2017).
        lr_batch: global batch of `lr`.
        rates: peak learning rates by global batch, where a paper gives a table; they replace `lr`,
            and other global batches are refused.
        schedule: learning rate after the warm-up: a cosine down to 0 (cosine; Loshchilov and
            Hutter 2017), times `drop` at each of `milestones` (multistep), times `drop` after
            every `period` (exponential), a `power` of what is left (poly; Chen et al. 2017,
            DeepLab, section 4.1), constant, or up and down on cosines (onecycle; Smith and Topin
            2018).
        warmup: fraction of all steps in which the learning rate rises linearly.
        milestones: of multistep, as fractions of all steps.
        drop: factor at each milestone or period.
        period: of exponential, as a fraction of all steps.
        power: of poly, as 0.9.
    """

    lr: PositiveFloat
    lr_batch: PositiveInt
    rates: dict[PositiveInt, PositiveFloat] = field(default_factory=dict)
    schedule: Literal["cosine", "multistep", "exponential", "poly", "constant", "onecycle"] = (
        "cosine"
    )
    warmup: Fraction = 0.0
    milestones: tuple[Fraction, ...] = ()
    drop: float = 0.1
    period: PositiveFloat | None = None
    power: PositiveFloat | None = None

    def __post_init__(self) -> None:
        for schedule, option, example in (("exponential", "period", 0.01), ("poly", "power", 0.9)):
            value = getattr(self, option)
            if self.schedule == schedule and value is None:
                raise ValueError(
                    f"schedule={schedule}: it needs a {option}, as recipe.{option}={example}"
                )
            if self.schedule != schedule and value is not None:
                raise ValueError(f"{option}={value}: schedule={self.schedule} has none; null works")

        if self.schedule == "multistep" and not self.milestones:
            raise ValueError(
                "schedule=multistep: it needs milestones, as recipe.milestones=[0.5,0.75]; "
                "schedule=constant has none"
            )

    def peak_lr(self, global_batch: int) -> float:
        """Return the peak learning rate: from `rates`, or lr * global_batch / lr_batch.

        Raises:
            ValueError: `rates` does not have this global batch.
        """
        if not self.rates:
            return self.lr * global_batch / self.lr_batch
        if global_batch not in self.rates:
            batches = ", ".join(map(str, self.rates))
            raise ValueError(
                f"has learning rates for global batches of {batches}, and none for {global_batch} "
                "(batch * workers)"
            )
        return self.rates[global_batch]

    def build_scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Build the scheduler of `optimizer` over `steps` optimizer steps; step it after each."""
        if self.schedule == "onecycle":
            peaks = [group["lr"] for group in optimizer.param_groups]
            # At least half a step of warm-up: OneCycleLR divides by the length of the rise.
            rise = min(max(self.warmup, 1.5 / steps), 0.75)
            return OneCycleLR(optimizer, peaks, steps, pct_start=rise, cycle_momentum=False)
        return LambdaLR(optimizer, lambda step: self.lr_factor(step, steps))

    def lr_factor(self, step: int, steps: int) -> float:
        """Return learning rate / peak at optimizer step `step` of `steps`; not for onecycle.

        warm-up       (step + 1) / (w + 1)                             w = warmup * steps
        cosine        (1 + cos(pi * (step - w) / (steps - w))) / 2
        multistep     drop ** (number of milestones passed)
        exponential   drop ** floor(step / (period * steps))
        poly          (1 - (step - w) / (steps - w)) ** power
        """
        # Step 0 has a rate above 0, and the first step after the warm-up has the peak.
        rise = self.warmup * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "multistep":
            passed = sum(step >= round(milestone * steps) for milestone in self.milestones)
            return float(self.drop**passed)
        if self.period is not None:
            return float(self.drop ** (step // (self.period * steps)))
        done = (step - rise) / max(1.0, steps - rise)
        if self.power is not None:
            return float(max(0.0, 1 - done) ** self.power)
        return 0.5 * (1 + math.cos(math.pi * done))
