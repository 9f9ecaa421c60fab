"""A refactor does not move the numbers: losses of short runs, as last meant to change.

After a change that is meant to move them, or with a new normalizer, `python tests/test_golden.py`
writes golden.json anew.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import SHORT, cell, in_its_network

from normbench.catalog import normalizers
from normbench.training import train

#: Training losses of the first 8 optimizer steps, 8 images per worker, seed 0.
PATH = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, list[float]] = json.loads(PATH.read_text())


def losses(norm: str) -> list[float]:
    base = cell(*in_its_network(norm), "batch=8", *SHORT, "recipe.images=1024")
    found: list[float] = []
    train(
        replace(base, trainer=replace(base.trainer, log_every=1)),
        lambda record: found.append(record["train_loss"]),
        lambda done, steps, loss: None,
    )
    return found


@pytest.mark.parametrize("norm", GOLDEN)
def test_losses_are_where_they_were(norm: str) -> None:
    # Other processors sum in another order; what 8 steps make of that stays far below 1e-4.
    assert losses(norm) == pytest.approx(GOLDEN[norm], rel=1e-4)


def test_every_normalizer_has_its_losses() -> None:
    assert sorted(GOLDEN) == normalizers(), "run python tests/test_golden.py"


if __name__ == "__main__":
    lines = [f'  "{name}": {[round(x, 6) for x in losses(name)]}' for name in normalizers()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
