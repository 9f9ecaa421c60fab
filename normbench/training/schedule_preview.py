"""Preview of a recipe for `python -m normbench.catalog recipes NAME`: schedule and optimizer."""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from normbench.training.parameter_groups import ROLES
from normbench.training.recipe import Recipe, RMSPropRecipe, TimmRecipe


class ScheduleEvent(NamedTuple):
    """A step at which the schedule changes."""

    name: str
    step: int  # from 0 on
    epoch: float  # passes over the training images before the step
    lr: float


def list_events(recipe: Recipe, images: int, global_batch: int) -> list[ScheduleEvent]:
    """List the steps of a training on `images` at which the schedule changes, first and last too.

    Raises:
        ValueError: the recipe has no learning rate for that global batch.
    """
    steps = recipe.count_steps(images, global_batch)
    peak = recipe.peak_lr(global_batch)
    names: dict[int, str] = {}
    for name, fraction in _event_fractions(recipe):
        names.setdefault(min(steps - 1, ceil(fraction * steps)), name)
    if recipe.schedule == "onecycle":  # torch's own, without a closed form here
        rates = simulate_lr(recipe, SGD([nn.Parameter(torch.zeros(1))], lr=peak), steps)
    else:
        rates = {step: peak * recipe.lr_factor(step, steps) for step in names}
    per_epoch = images // global_batch
    return [
        ScheduleEvent(name, step, step / per_epoch, rates[step])
        for step, name in sorted(names.items())
    ]


def simulate_lr(recipe: Recipe, optimizer: Optimizer, steps: int) -> dict[int, float]:
    """Return the learning rate by step, as the recipe's scheduler sets it in `optimizer`."""
    scheduler = recipe.build_scheduler(optimizer, steps)
    rates = {}
    for step in range(steps):
        rates[step] = float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def _event_fractions(recipe: Recipe) -> Iterator[tuple[str, float]]:
    """Yield the names of events and their times, as fractions of all steps."""
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


def describe_optimizer(recipe: Recipe) -> str:
    """Return the optimizer and its weight decay in words."""
    kind = "SGD"
    if isinstance(recipe, RMSPropRecipe):
        kind = f"RMSProp, decay {recipe.alpha:g}, epsilon {recipe.eps:g}"
    elif isinstance(recipe, TimmRecipe):
        betas = f", further betas {', '.join(map(str, recipe.betas))}" if recipe.betas else ""
        kind = f"{recipe.optimizer} of timm{betas}"
    momentum = f"{'Nesterov ' if recipe.nesterov else ''}momentum {recipe.momentum:g}"
    decayed = ", ".join(role for role in ROLES if role in recipe.decayed)
    others = ", ".join(role for role in ROLES if role not in recipe.decayed)
    rest = f", on {others} none" if others else ""
    return f"{kind}, {momentum}; weight decay {recipe.weight_decay:g} on {decayed}{rest}"


def describe_options(recipe: Recipe) -> Iterator[str]:
    """Yield what the recipe sets for images and evaluations, in words."""
    if recipe.crop is not None:
        yield f"training images of {recipe.crop} x {recipe.crop} pixels"
    if recipe.layer_decay is not None:
        yield f"learning rate of each block: {recipe.layer_decay:g} times that of the next one"
    if recipe.value_clip is not None:
        yield f"gradients: each value clipped to ±{recipe.value_clip:g}"
    if recipe.norm_clip is not None:
        yield f"gradients: clipped together to norm {recipe.norm_clip:g}"
    if recipe.adaptive_clip is not None:
        yield (
            f"gradients of rows and filters: clipped to {recipe.adaptive_clip:g} of their norms, "
            "except in the classifier"
        )
    if recipe.ratio_clip is not None:
        yield f"gradients of ratios: clipped together to norm {recipe.ratio_clip:g}"
    if recipe.ema is not None:
        unit = "epoch" if recipe.ema_unit == "epoch" else "step"
        yield f"evaluations: moving average of weights with a decay of {recipe.ema:g} per {unit}"
    if recipe.recalibration is not None:
        yield f"evaluations: running statistics from {recipe.recalibration} global batches"
    if recipe.example_weight is not None:
        yield (
            "evaluations: an image's weight in its own statistics is the best one by the "
            f"{recipe.example_weight} of the held-out images"
        )


def format_schedule(recipe: Recipe, images: int, global_batch: int) -> str:
    """Format events, optimizer and options for the terminal."""
    lines = [f"{'':<20} {'step':>9} {'epoch':>7} {'learning rate':>14}"]
    for event in list_events(recipe, images, global_batch):
        lines.append(f"{event.name:<20} {event.step:>9,} {event.epoch:>7.2f} {event.lr:>14.6g}")
    return "\n".join([*lines, describe_optimizer(recipe), *describe_options(recipe)])
