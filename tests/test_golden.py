"""Golden losses: a refactor does not change what a training computes.

The losses are computed in double precision, over four steps at a low learning rate and on maps of
at least 2x2, so that another processor, instruction set or thread count changes them by less than
1e-6. After a change that is meant to change them, or for a new normalizer, run
`python tests/test_golden.py`, which writes golden.json.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from normbench.catalog import normalizers
from support.cells import SHORT, arguments_for, cell, train_cell
from support.slow import slow_except

#: Training losses of the first optimizer steps, 16 images per worker, seed 0.
PATH = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, list[float]] = json.loads(PATH.read_text())
#: Frozen batch normalization is trained by none.
TRAINED = [norm for norm in normalizers() if norm != "frozen_bn"]
TOLERANCE = 1e-6  # relative; another processor changes them by 2e-8 at most
OPTIONS = (
    *SHORT, "precision=64-true", "batch=16", "recipe.images=512", "recipe.lr=0.02",
    "data=digits", "model.stem_stride=1", "model.width=8",
)  # fmt: skip


@contextmanager
def double_precision() -> Iterator[None]:
    """Draw weights and images in double precision: vectorized float32 draws differ by processor."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def losses(norm: str, threads: int = 1) -> list[float]:
    base = cell(*arguments_for(norm), *OPTIONS, f"trainer.threads={threads}")
    with double_precision():
        _, curve = train_cell(replace(base, trainer=replace(base.trainer, log_every=1)))
    return [record["train_loss"] for record in curve]


#: One of every way to compute statistics, to scale and to start.
EVERYDAY = [
    "batch_renorm", "bgn", "bn", "bn_ws", "evonorm_b0", "evonorm_s0", "fixup", "frn", "ghost_bn",
    "gn_pn", "nf", "sn", "sync_bn",
]  # fmt: skip


@pytest.mark.parametrize("norm", slow_except([*GOLDEN], EVERYDAY))
def test_losses_are_the_golden_ones(norm: str) -> None:
    assert losses(norm) == pytest.approx(GOLDEN[norm], rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "threads"), [("default", 1), ("avx2", 2)])
def test_losses_do_not_depend_on_the_processor(capability: str, threads: int) -> None:
    """Same losses with other instruction sets, which torch chooses at its import, and threads."""
    environment = {
        **os.environ, "OMP_NUM_THREADS": str(threads), "ATEN_CPU_CAPABILITY": capability,
        # Beside other processes a thread that spins takes the core that the others wait for.
        "OMP_WAIT_POLICY": "passive",
    }  # fmt: skip
    code = (
        "import json, test_golden as g;"
        f"print(json.dumps({{norm: g.losses(norm, {threads}) for norm in g.GOLDEN}}))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PATH.parent, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = json.loads(output.splitlines()[-1])
    assert found == {norm: pytest.approx(GOLDEN[norm], rel=TOLERANCE) for norm in GOLDEN}


def test_every_normalizer_has_its_losses() -> None:
    assert sorted(GOLDEN) == TRAINED, "run python tests/test_golden.py"


if __name__ == "__main__":
    found = {name: [round(x, 12) for x in losses(name)] for name in TRAINED}
    for name, numbers in GOLDEN.items():  # those of another processor stay
        if found.get(name) == pytest.approx(numbers, rel=TOLERANCE):
            found[name] = numbers
    lines = [f'  "{name}": {numbers}' for name, numbers in found.items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
