"""Recipes: length of a training, optimizer, learning-rate schedule and weight decay."""

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
    """SGD with momentum, under a schedule that counts optimizer steps.

    Args:
        epochs: passes over the training images; set this or `images`.
        images: training images seen in total, whatever the size of the data set.
        lr: peak learning rate at a global batch of `lr_batch`; it grows linearly with the global
            batch (Goyal et al. 2017).
        lr_batch: global batch of `lr`.
        rates: peak learning rates by global batch, where a paper gives a table; they replace `lr`,
            and other global batches are refused.
        momentum: of SGD.
        nesterov: Nesterov momentum.
        weight_decay: factor of the parameter that is added to its gradient.
        decayed: roles of the parameters with weight decay
            (`normbench.training.parameter_groups`).
        gain_target: value towards which weight decay pulls gains; null is 0, as for all other
            parameters, and 1 is their initial value (Summers and Dinneen 2020, section 3.3).
        schedule: learning rate after the warm-up: a cosine down to 0 (cosine; Loshchilov and
            Hutter 2017), times `drop` at each of `milestones` (multistep), times `drop` after
            every `period` (exponential), constant, or up and down on cosines (onecycle; Smith and
            Topin 2018).
        warmup: fraction of all steps in which the learning rate rises linearly.
        milestones: of multistep, as fractions of all steps.
        drop: factor at each milestone or period.
        period: of exponential, as a fraction of all steps.
        recalibration: global batches of training images from which running statistics are computed
            after the training, under its final weights (the "batch average" of switchable
            normalization); null: they stay moving averages.
        ema: decay of an exponential moving average of weights and running statistics, which
            evaluations see: min(ema, (1 + i) / (10 + i)) after step i, as in EfficientNet's code;
            null: none.
        ema_unit: step (or null), or epoch: an average over the ends of epochs with a constant
            decay, as over checkpoints in Proxy Norm's appendix A.1.
        crop: side of training images in pixels, cropped from small images without padding; null:
            the side of evaluations, cropped from small images after padding.
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
                f"epochs={self.epochs} and recipe.images={self.images}: set one of them and leave "
                "the other null, as in recipe.epochs=10 recipe.images=null or recipe.epochs=null "
                "recipe.images=1000"
            )
        for name in ("epochs", "images", "lr", "lr_batch", "period", "recalibration", "crop"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}: it must be above 0")
        for batch, rate in self.rates.items():
            if min(batch, rate) <= 0:
                raise ValueError(f"rates={self.rates}: global batches and rates must be above 0")
        if (self.schedule == "exponential") != (self.period is not None):
            raise ValueError(
                f"period={self.period}: schedule=exponential needs a period, as period=0.01; other "
                "schedules need period=null"
            )
        for name in ("momentum", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: it must not be below 0")
        for name, fractions in (("warmup", [self.warmup]), ("milestones", self.milestones)):
            if not all(0 <= fraction < 1 for fraction in fractions):
                value = getattr(self, name)
                raise ValueError(
                    f"{name}={value}: a fraction of all steps must be at least 0 and below 1"
                )
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(
                f"ema={self.ema}: a decay must be at least 0 and below 1, as 0.999; null disables "
                "the average"
            )
        for role in self.decayed:
            if role not in parameter_groups.ROLES:
                raise ValueError(f"decayed={role}: {choose_from(role, parameter_groups.ROLES)}")
        if self.ema_unit is not None and self.ema is None:
            raise ValueError(f"ema_unit={self.ema_unit}: it needs recipe.ema, or choose null")
        if self.gain_target and "gain" not in self.decayed:
            raise ValueError(
                f"gain_target={self.gain_target}: recipe.decayed has no gain; add gain, or choose "
                "gain_target=null"
            )
        if self.nesterov and self.momentum == 0:
            raise ValueError("momentum=0: Nesterov momentum must be above 0; nesterov=false works")

    def count_steps(self, train_images: int, global_batch: int) -> int:
        """Return the optimizer steps of a run with `train_images // global_batch` per epoch."""
        if self.epochs is not None:
            return max(1, round(self.epochs * (train_images // global_batch)))
        assert self.images is not None
        return max(1, round(self.images / global_batch))

    def peak_lr(self, global_batch: int) -> float:
        """Return the peak learning rate: from `rates`, or lr * global_batch / lr_batch.

        Raises:
            ValueError: `rates` does not have this global batch.
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

    def build_optimizer(self, model: nn.Module, global_batch: int) -> Optimizer:
        """Build the optimizer of `model`, with weight decay by the roles of its parameters."""
        lr = self.peak_lr(global_batch)
        groups = parameter_groups.build_groups(model, lr, self.weight_decay, self.decayed)
        optimizer = self._create_optimizer(groups, lr)
        if self.gain_target:
            offset = self.weight_decay * self.gain_target
            parameter_groups.subtract_from_gain_gradients(model, optimizer, offset)
        return optimizer

    def _create_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        return SGD(groups, lr=lr, momentum=self.momentum, nesterov=self.nesterov)

    def build_scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Build the learning-rate schedule over `steps` optimizer steps; step it after each."""
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
        """
        # Step 0 has a rate above 0, and the first step after the warm-up has the peak.
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
    """The same with RMSProp in TensorFlow's form, from timm: epsilon is inside the square root, and
    the mean square begins at 1.

        s <- alpha * s + (1 - alpha) * g^2
        m <- momentum * m + lr * g / sqrt(s + eps)
        w <- w - m

    Args:
        epochs: see `Recipe`, as for all arguments that are not listed here.
        alpha: decay of the mean square of gradients.
        eps: added to the mean square.
    """

    nesterov: bool = False
    alpha: float
    eps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha={self.alpha}: a decay must be at least 0 and below 1, as 0.9")
        if self.eps <= 0:
            raise ValueError(f"eps={self.eps}: it must be above 0")
        if self.nesterov:
            raise ValueError("nesterov=true: RMSProp has no Nesterov form; nesterov=false works")

    def _create_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        optimizer: Optimizer = RMSpropTF(
            groups, lr=lr, alpha=self.alpha, eps=self.eps, momentum=self.momentum
        )
        return optimizer
