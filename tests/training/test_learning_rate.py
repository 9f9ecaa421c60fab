"""Learning rates against their closed forms."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from normbench.config.build import build, options
from normbench.errors import BadInput
from normbench.training.recipe import Recipe
from normbench.training.schedule_preview import simulate_lr


def recipe(**changes: Any) -> Recipe:
    built: Recipe = build("recipe", options("recipe", "demo", changes))
    return built


def factors(steps: int, **changes: Any) -> list[float]:
    return [recipe(**changes).lr_factor(step, steps) for step in range(steps)]


def test_a_warm_up_rises_linearly_from_above_zero_to_the_peak() -> None:
    expected = [0.25, 0.5, 0.75, *[1.0] * 27]
    assert factors(30, schedule="constant", warmup=0.1) == pytest.approx(expected)


def test_a_cosine_falls_from_the_end_of_the_warm_up() -> None:
    cosine = factors(100, schedule="cosine", warmup=0.1)
    assert cosine[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    expected = [0.5 * (1 + math.cos(math.pi * step / 90)) for step in range(90)]
    assert cosine[10:] == pytest.approx(expected)


def test_an_exponential_schedule_drops_after_every_period() -> None:
    expected = [0.5**number for number in range(4) for _ in range(5)]
    assert factors(20, schedule="exponential", period=0.25, drop=0.5, warmup=0.0) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("warmup", "steps", "rise"), [(0.3, 100, 0.3), (0.0, 100, 0.015), (0.9, 100, 0.75)]
)
def test_one_cycle_is_torchs_with_a_rise_of_the_warm_up(
    warmup: float, steps: int, rise: float
) -> None:
    """At least one and a half steps, which it divides by, and at most three quarters of all."""

    def optimizer() -> SGD:
        return SGD([nn.Parameter(torch.zeros(1))], lr=0.4, momentum=0.9)

    found = simulate_lr(recipe(schedule="onecycle", warmup=warmup), optimizer(), steps)
    reference = optimizer()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        reference, 0.4, steps, pct_start=rise, cycle_momentum=False
    )
    for step in range(steps):
        assert found[step] == scheduler.get_last_lr()[0]
        assert reference.param_groups[0]["momentum"] == 0.9
        reference.step()
        scheduler.step()


def test_drops_come_after_the_epochs_that_a_rounded_fraction_means() -> None:
    """30, 60 and 80 of 90 epochs of 1,251 steps."""
    built: Recipe = build("recipe", options("recipe", "evonorm_resnet_90", {}))
    factors = [built.lr_factor(step, 112_590) for step in range(30_000, 112_590)]
    drops = [step for step, (a, b) in enumerate(pairwise(factors), 30_001) if a != b]
    assert drops == [37_530, 75_060, 100_080]


def test_a_schedule_of_drops_needs_milestones() -> None:
    with pytest.raises(BadInput, match="schedule=multistep: it needs milestones"):
        recipe(schedule="multistep")
