"""The training protocol: how long, optimizer, learning rate, what is decayed."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from timm.optim import RMSpropTF
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from normbench.errors import choose_from
from normbench.training import parameter_groups


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD under a schedule that is counted in optimizer steps.

    Args:
        epochs: passes over the training images; give this or `images`.
        images: training images seen in all, whatever the size of the data set.
        lr: peak learning rate at a global batch of `lr_batch`; it grows linearly with that batch.
        lr_batch: images to which `lr` belongs.
        rates: peak learning rates by global batch, where a paper gives them and no rule; with
            other batches the recipe does not go, and `lr` counts no more.
        momentum: of SGD.
        nesterov: Nesterov's form of it.
        weight_decay: added to the gradient, times the parameter.
        decayed: roles of the parameters that it applies to
        (`normbench.training.parameter_groups`); without gain and
            shift there is none on those.
        gain_target: what it pulls gains towards; null is 0, as for all else, and 1 is where they
            start (Summers and Dinneen 2020, section 3.3).
        schedule: after the warm-up: down a cosine to 0; down by `drop` at each of `milestones`
            (multistep); by `drop` once every `period` (exponential); constant; or both up and down
            on cosines (onecycle; Smith and Topin 2018).
        warmup: fraction of all steps in which the rate rises.
        milestones: of multistep, as fractions of all steps.
        drop: of multistep and exponential, the factor at each milestone or period.
        period: of exponential, as a fraction of all steps.
        recalibration: global batches of training images that running statistics are taken from
            after the training, under its final weights (the "batch average" of switchable
            normalization); null: they stay the moving averages.
        ema: decay of an exponential moving average of weights and running statistics, which is
            what evaluations see, min(ema, (1 + i) / (10 + i)) after step i as in EfficientNet's
            code; null: none.
        ema_unit: step (or null), or epoch: the average is taken over the ends of epochs, without
            that rise of the decay, as over checkpoints in Proxy Norm's appendix A.1.
        crop: side of training images in pixels, windows of small images without padding; null: as
            large as in evaluations, and small images are padded before the window.
    """

    epochs: float | None = None
    images: int | None = None
    lr: float
    lr_batch: int
    rates: dict[int, float] = field(default_factory=dict)
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    decayed: tuple[str, ...] = ("weight", "bias")
    gain_target: float | None = None
    schedule: Literal["cosine", "multistep", "exponential", "constant", "onecycle"] = "cosine"
    warmup: float = 0.0
    milestones: tuple[float, ...] = ()
    drop: float = 0.1
    period: float | None = None
    recalibration: int | None = None
    ema: float | None = None
    ema_unit: Literal["step", "epoch"] | None = None
    crop: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.images is None):
            raise ValueError(
                f"epochs={self.epochs} and recipe.images={self.images}: one of them says how long "
                "to train and the other is null, as in recipe.epochs=10 recipe.images=null or "
                "recipe.epochs=null recipe.images=1000"
            )
        for name in ("epochs", "images", "lr", "lr_batch", "period", "recalibration", "crop"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}: it must be above 0")
        for batch, rate in self.rates.items():
            if min(batch, rate) <= 0:
                raise ValueError(f"rates={self.rates}: batches and rates must be above 0")
        if (self.schedule == "exponential") != (self.period is not None):
            raise ValueError(
                f"period={self.period}: it belongs to schedule=exponential, which needs it, as "
                "period=0.01; with others choose null"
            )
        for name in ("momentum", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: it must not be below 0")
        for name, fractions in (("warmup", [self.warmup]), ("milestones", self.milestones)):
            if not all(0 <= fraction < 1 for fraction in fractions):
                value = getattr(self, name)
                raise ValueError(f"{name}={value}: fractions of all steps are from 0 to below 1")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(
                f"ema={self.ema}: a decay is from 0 to below 1, as 0.999; null is none"
            )
        for role in self.decayed:
            if role not in parameter_groups.ROLES:
                raise ValueError(f"decayed={role}: {choose_from(role, parameter_groups.ROLES)}")
        if self.ema_unit is not None and self.ema is None:
            raise ValueError(f"ema_unit={self.ema_unit}: without recipe.ema it is null")
        if self.gain_target and "gain" not in self.decayed:
            raise ValueError(
                f"gain_target={self.gain_target}: recipe.decayed has no gain to be pulled there; "
                "add it, or choose gain_target=null"
            )
        if self.nesterov and self.momentum == 0:
            raise ValueError("momentum=0: Nesterov's form needs momentum, or nesterov=false")

    def steps(self, train_images: int, global_batch: int) -> int:
        """Optimizer steps of a run whose epochs have `train_images // global_batch` steps each."""
        if self.epochs is not None:
            return max(1, round(self.epochs * (train_images // global_batch)))
        assert self.images is not None
        return max(1, round(self.images / global_batch))

    def peak(self, global_batch: int) -> float:
        """The highest learning rate, by the table or else by the linear rule.

        Raises:
            ValueError: the table lacks this batch.
        """
        if not self.rates:
            return self.lr * global_batch / self.lr_batch
        if global_batch not in self.rates:
            known = ", ".join(map(str, self.rates))
            raise ValueError(
                f"has learning rates for global batches of {known}, and none for {global_batch} "
                "(batch * workers)"
            )
        return self.rates[global_batch]

    def optimizer(self, model: nn.Module, global_batch: int) -> Optimizer:
        """The optimizer of the parameters of `model`, decayed by role."""
        peak = self.peak(global_batch)
        groups = parameter_groups.groups(model, peak, self.weight_decay, self.decayed)
        optimizer = self._over(groups, peak)
        if self.gain_target:
            parameter_groups.pull_gains(model, optimizer, self.weight_decay * self.gain_target)
        return optimizer

    def _over(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        return SGD(groups, lr=lr, momentum=self.momentum, nesterov=self.nesterov)

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """The schedule over `steps` optimizer steps; step it after each."""
        if self.schedule == "onecycle":
            peaks = [group["lr"] for group in optimizer.param_groups]
            # At least half a step up: over a length of 0 the rate of step 0 would divide by it.
            rise = min(max(self.warmup, 1.5 / steps), 0.75)
            return OneCycleLR(optimizer, peaks, steps, pct_start=rise, cycle_momentum=False)
        return LambdaLR(optimizer, lambda step: self.factor(step, steps))

    def factor(self, step: int, steps: int) -> float:
        """Learning rate over peak at optimizer step `step` of `steps`, for all but onecycle."""
        # From one share of the rise in the first step, since a rate of 0 would waste it, to the
        # last share before the peak, which is the first step after the rise.
        rise = self.warmup * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "multistep":
            passed = sum(step >= milestone * steps for milestone in self.milestones)
            return float(self.drop**passed)
        if self.period is not None:
            return float(self.drop ** (step // (self.period * steps)))
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


@dataclass(frozen=True, kw_only=True)
class RMSPropRecipe(Recipe):
    """The same with RMSProp as TensorFlow has it, by timm: epsilon within the square root, and the
    mean square begins at 1.

    Args:
        epochs: as of `Recipe`, and so all that follow.
        alpha: decay of the mean square of gradients.
        eps: added to it.
    """

    nesterov: bool = False
    alpha: float
    eps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha={self.alpha}: a decay is from 0 to below 1, as 0.9")
        if self.eps <= 0:
            raise ValueError(f"eps={self.eps}: it must be above 0")
        if self.nesterov:
            raise ValueError("nesterov=true: RMSProp has no such form; nesterov=false works")

    def _over(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        optimizer: Optimizer = RMSpropTF(
            groups, lr=lr, alpha=self.alpha, eps=self.eps, momentum=self.momentum
        )
        return optimizer
