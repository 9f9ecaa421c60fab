"""Recipes: length of a training, optimizer, weight decay, averaging of weights."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn
from torch.optim import SGD, Optimizer

from normbench.errors import choose_from
from normbench.models.dropout import Fraction
from normbench.training import parameter_groups
from normbench.training.example_weight import Metric
from normbench.training.gradient_clipping import clip_gradients
from normbench.training.learning_rate import LearningRateSchedule


@dataclass(frozen=True, kw_only=True)
class Recipe(LearningRateSchedule):
    """SGD with momentum, under a schedule that counts optimizer steps.

    Args:
        epochs: passes over the training images; set this or `images`.
        images: training images seen in total, whatever the size of the data set.
        momentum: of SGD.
        nesterov: Nesterov momentum.
        weight_decay: factor of the parameter that is added to its gradient; optimizers such as
            AdamW subtract it, times the learning rate, apart from the gradient.
        decayed: roles of the parameters with weight decay
            (`normbench.training.parameter_groups`).
        layer_decay: factor of the learning rate of each residual block, over that of the next one
            (layer-wise decay, in fine-tuning transformers; 0.65 to 0.9); the classifier has the
            full rate; null: one rate for all.
        gain_target: value towards which weight decay pulls gains; null is 0, as for all other
            parameters, and 1 is their initial value (Summers and Dinneen 2020, section 3.3).
        ratio_clip: largest norm of the gradient of all logits of ratios together, before weight
            decay (1 in the code of sparse switchable normalization); null: any.
        value_clip: largest absolute value of a gradient, before weight decay; null: any.
        norm_clip: largest norm of all gradients together, before weight decay; null: any.
        adaptive_clip: largest norm of the gradient of a row or filter, as a fraction of its own
            norm, in all layers but the classifier (Brock et al. 2021, eq. 3; 0.01 in NFNets); null:
            any.
        recalibration: global batches of training images from which running statistics are computed
            after the training, under its final weights (the "batch average" of switchable
            normalization); null: they stay moving averages.
        example_weight: metric on the held-out images (top1, top5 or loss) that chooses the weight
            of an image in its own statistics for the evaluations of the run (Summers and Dinneen
            2020, section 3.1; `normbench.training.example_weight`); null: the normalizer's usual
            weight.
        ema: decay of an exponential moving average of weights and running statistics, which
            evaluations see: min(ema, (1 + i) / (10 + i)) after step i, as in EfficientNet's code;
            null: none.
        ema_unit: step (or null), or epoch: an average over the ends of epochs with a constant
            decay, as over checkpoints in Proxy Norm's appendix A.1.
        crop: side of training images in pixels, cropped from small images without padding; null:
            the side of evaluations, cropped from small images after padding.
    """

    epochs: PositiveFloat | None = None
    images: PositiveInt | None = None
    momentum: NonNegativeFloat = 0.9
    nesterov: bool = True
    weight_decay: NonNegativeFloat = 0.0
    decayed: tuple[str, ...] = ("weight", "bias")
    layer_decay: PositiveFloat | None = None
    gain_target: float | None = None
    ratio_clip: PositiveFloat | None = None
    value_clip: PositiveFloat | None = None
    norm_clip: PositiveFloat | None = None
    adaptive_clip: PositiveFloat | None = None
    recalibration: PositiveInt | None = None
    example_weight: Metric | None = None
    ema: Fraction | None = None
    ema_unit: Literal["step", "epoch"] | None = None
    crop: PositiveInt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.images is None):
            raise ValueError(
                f"epochs={self.epochs} and recipe.images={self.images}: set one of them and leave "
                "the other null, as in recipe.epochs=10 recipe.images=null or recipe.epochs=null "
                "recipe.images=1000"
            )
        for role in self.decayed:
            if role not in parameter_groups.ROLES:
                raise ValueError(f"decayed={role}: {choose_from(role, parameter_groups.ROLES)}")
        if self.layer_decay is not None and self.layer_decay > 1:
            raise ValueError(
                f"layer_decay={self.layer_decay}: it must be at most 1, as 0.75, so that no block "
                "has a larger rate than the classifier"
            )
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
            # Images that do not fill a global batch are left out of an epoch.
            return max(1, round(self.epochs * (train_images // global_batch)))
        assert self.images is not None
        return max(1, round(self.images / global_batch))

    def build_optimizer(self, model: nn.Module, global_batch: int) -> Optimizer:
        """Build the optimizer of `model`, with weight decay by the roles of its parameters."""
        lr = self.peak_lr(global_batch)
        groups = parameter_groups.build_groups(
            model, lr, self.weight_decay, self.decayed, self.layer_decay
        )
        optimizer = self._create_optimizer(groups, lr)
        clip_gradients(
            model, optimizer, value=self.value_clip, norm=self.norm_clip,
            adaptive=self.adaptive_clip, ratios=self.ratio_clip,
        )  # fmt: skip
        # Weight decay by itself pulls towards 0.
        if self.gain_target:
            offset = self.weight_decay * self.gain_target
            parameter_groups.subtract_from_gain_gradients(model, optimizer, offset)
        return optimizer

    def _create_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        return SGD(groups, lr=lr, momentum=self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True, kw_only=True)
class RMSPropRecipe(Recipe):
    """The same with RMSProp in TensorFlow's form, from timm: epsilon is inside the square root, and
    the mean square begins at 1.

        s <- alpha * s + (1 - alpha) * g^2
        m <- momentum * m + lr * g / sqrt(s + eps)
        w <- w - m

    Args:
        alpha: decay of the mean square of gradients.
        eps: added to the mean square.
    """

    nesterov: bool = False
    alpha: Fraction
    eps: PositiveFloat

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov:
            raise ValueError("nesterov=true: RMSProp has no Nesterov form; nesterov=false works")

    def _create_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        from timm.optim import RMSpropTF  # here, as timm takes a second to import

        optimizer: Optimizer = RMSpropTF(
            groups, lr=lr, alpha=self.alpha, eps=self.eps, momentum=self.momentum
        )
        return optimizer


@dataclass(frozen=True, kw_only=True)
class TimmRecipe(Recipe):
    """An optimizer of timm, under the same schedules and roles of weight decay.

    Args:
        optimizer: its name (`timm.optim.list_optimizers()`), as adamw, lamb, lion or muon.
        momentum: its momentum, or its first beta if it has betas.
        nesterov: Nesterov momentum, of the optimizers sgd, sgdw and sgdp.
        betas: the betas after the first, as [0.999] of adamw; null: timm's defaults.
    """

    nesterov: bool = False
    optimizer: str
    betas: tuple[Fraction, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        from normbench.training import timm_optimizers  # timm takes a second to import

        timm_optimizers.require(self.optimizer, self.momentum, self.nesterov, self.betas)
        if self.gain_target:
            raise ValueError(
                f"gain_target={self.gain_target}: timm's optimizers may decouple weight decay from "
                "the gradient, so a target has no effect of known size; gain_target=null works, or "
                "a recipe of SGD"
            )

    def _create_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        from normbench.training import timm_optimizers

        return timm_optimizers.create(
            self.optimizer, groups, lr, self.momentum, self.nesterov, self.betas
        )
