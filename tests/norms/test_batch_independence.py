"""Normalizers compute what they declare about workers, so that their rows can be shared."""

from typing import Any

import pytest

from normbench.catalog import normalizer, normalizers
from support.cells import arguments_for, cell, train_cell
from support.slow import EVERYDAY_NORMS, slow_except

#: One step and what follows from it; no two of the batches are alike for a ghost of 2.
WORDS = ("recipe.images=256", "logger=none", "trainer=cpu", "data.val=0")


def numbers(norm: str, batch: int, *more: str) -> tuple[Any, ...]:
    ghost = ["norm.ghost=2"] if norm == "ghost_bn" else []
    request = cell(*arguments_for(norm), f"batch={batch}", *ghost, *WORDS, *more)
    row, _ = train_cell(request)
    return tuple(row.get(name) for name in ("train_loss", "test_loss", "test_top1", "status"))


@pytest.mark.parametrize("norm", slow_except(normalizers(), EVERYDAY_NORMS))
def test_a_normalizer_is_what_it_declares_about_workers(norm: str) -> None:
    """Every division of 128 images gives the same bits, or other numbers if it matters."""
    same = numbers(norm, 4) == numbers(norm, 64)
    assert same == normalizer(norm).worker_independent


@pytest.mark.parametrize(
    "other",
    [
        "norm.eps=1e-3", "norm.groups=2", "model.width=8", "reg=mixup", "recipe.lr=0.05", "seed=1",
        "precision=bf16-mixed", "data.noise=0.2", "init_from=0123456789ab@1", "global_batch=64",
    ],
)  # fmt: skip
def test_only_the_division_among_workers_is_shared(other: str) -> None:
    assert cell("norm=gn", "batch=8", other).computation != cell("norm=gn", "batch=8").computation


@pytest.mark.parametrize(
    "same", [["batch=32"], ["protocol=fixed_workers", "workers=16"], ["trainer.threads=2"]], ids=str
)
def test_the_division_among_workers_and_hardware_are_shared(same: list[str]) -> None:
    base = cell("norm=gn", "batch=8")
    assert cell("norm=gn", "batch=8", *same).computation == base.computation
