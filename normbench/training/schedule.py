"""The course of a training before it is run: what a recipe does when.

Learning rate and momentum at the first step, where the warm-up ends, at every milestone and at the
last step, and which parameters weight decay pulls on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from normbench.training import parameter_groups
from normbench.training.recipe import Recipe, RMSPropRecipe


@dataclass(frozen=True)
class Moment:
    """One step of the training, the first being 0.

    Args:
        what: what is special about it.
        step: which it is.
        epoch: passes over the training images before it.
        lr: its learning rate.
    """

    what: str
    step: int
    epoch: float
    lr: float


def moments(recipe: Recipe, images: int, global_batch: int) -> list[Moment]:
    """The steps of a training on `images` images at which something changes, and the last one.

    Raises:
        ValueError: the recipe has no learning rate for that global batch.
    """
    steps = recipe.steps(images, global_batch)
    peak = recipe.peak(global_batch)
    found: dict[int, str] = {}
    for what, share in _places(recipe):
        step = min(steps - 1, max(0, -int(-share * steps // 1)))  # the first that lies behind it
        found.setdefault(step, what)
    per_epoch = images // global_batch
    rates = None
    if recipe.schedule == "onecycle":  # torch's own, which has no formula to be asked for one
        rates = followed(recipe, SGD([nn.Parameter(torch.zeros(1))], lr=peak), steps)
    return [
        Moment(
            what,
            step,
            step / per_epoch,
            peak * recipe.factor(step, steps) if rates is None else rates[step],
        )
        for step, what in sorted(found.items())
    ]


def followed(recipe: Recipe, optimizer: Optimizer, steps: int) -> list[float]:
    """The learning rate of every step, as the recipe's scheduler sets it in `optimizer`."""
    scheduler = recipe.scheduler(optimizer, steps)
    rates = []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def _places(recipe: Recipe) -> Iterator[tuple[str, float]]:
    """What is special where, as fractions of all steps."""
    yield "first step", 0.0
    if recipe.warmup:
        yield "warm-up is over", recipe.warmup
    if recipe.schedule == "multistep":
        for number, milestone in enumerate(recipe.milestones, 1):
            yield f"milestone {number}", milestone
    if recipe.period is not None:
        first = int(recipe.warmup / recipe.period) + 1
        for number in (first, first + 1):
            yield f"after period {number}", number * recipe.period
    if recipe.schedule in ("cosine", "exponential", "onecycle"):
        yield "half of the steps", 0.5
    yield "last step", 1.0


def optimizer(recipe: Recipe) -> str:
    """The optimizer and what is decayed, in words."""
    kind = "SGD"
    if isinstance(recipe, RMSPropRecipe):
        kind = f"RMSProp, decay {recipe.alpha:g}, epsilon {recipe.eps:g}"
    momentum = f"{'Nesterov ' if recipe.nesterov else ''}momentum {recipe.momentum:g}"
    decayed = ", ".join(role for role in parameter_groups.ROLES if role in recipe.decayed)
    others = ", ".join(role for role in parameter_groups.ROLES if role not in recipe.decayed)
    rest = f", on {others} none" if others else ""
    return f"{kind}, {momentum}; weight decay {recipe.weight_decay:g} on {decayed}{rest}"


def besides(recipe: Recipe) -> Iterator[str]:
    """What it asks of images and evaluations."""
    if recipe.crop is not None:
        yield f"training images of {recipe.crop} x {recipe.crop} pixels"
    if recipe.ema is not None:
        yield (
            f"evaluated: the moving average of weights with a decay of {recipe.ema:g} "
            f"a{'n epoch' if recipe.ema_unit == 'epoch' else ' step'}"
        )
    if recipe.recalibration is not None:
        yield f"evaluated: with statistics of {recipe.recalibration} global batches"


def table(recipe: Recipe, images: int, global_batch: int) -> str:
    """`moments`, `optimizer` and `besides` for the terminal."""
    lines = [f"{'':<20} {'step':>9} {'epoch':>7} {'learning rate':>14}"]
    for each in moments(recipe, images, global_batch):
        lines.append(f"{each.what:<20} {each.step:>9,} {each.epoch:>7.2f} {each.lr:>14.6g}")
    return "\n".join([*lines, optimizer(recipe), *besides(recipe)])
