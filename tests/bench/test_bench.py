"""Benchmarks: what they measure, the tables that they write, and the words that they refuse."""

import csv
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from normbench import results
from normbench.bench import (
    in_worker_process,
    layers,
    plans_and_loaders,
    report,
    step,
    sweep,
)
from normbench.bench.__main__ import main
from normbench.bench.measure import Quartiles, measure_in_turn, save
from normbench.config.plan import Plan
from normbench.results import Row
from normbench.training.datamodule import open_datamodule
from normbench.training.experiment import Experiment
from support import dataset_files
from support.cells import cell
from support.slow import slow_after

SMALL = ("norm=gn", "model=resnet8", "recipe.images=512", "logger=none", "trainer=cpu", "rounds=1")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Clock:
    """A clock of which each reading is `step` seconds after the one before."""

    def __init__(self, step: float) -> None:
        self.step, self.readings = step, 0

    def __call__(self) -> float:
        self.readings += 1
        return self.readings * self.step


def set_clock(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str, step: float
) -> Clock:
    """Let `module` read a clock of ours in the place of `time.FUNCTION`."""
    clock = Clock(step)
    monkeypatch.setattr(module, "time", SimpleNamespace(**{function: clock}))
    return clock


# Rounds, medians, tables


@pytest.mark.parametrize("warm_up", [True, False])
def test_every_round_measures_all_entries_and_the_first_may_not_count(warm_up: bool) -> None:
    calls: list[str] = []
    values = {"a": iter([100.0] * warm_up + [3.0, 1.0, 2.0]), "b": iter([0.0, 7.0, 5.0, 9.0])}

    def once(name: str) -> float:
        calls.append(name)
        return next(values[name])

    if not warm_up:
        next(values["b"])
    entries = {name: partial(once, name) for name in values}
    assert measure_in_turn(entries, 3, warm_up=warm_up) == {
        "a": Quartiles(1.5, 2.0, 2.5),
        "b": Quartiles(6.0, 7.0, 8.0),
    }
    assert calls == ["a", "b"] * (3 + warm_up)


def test_a_single_round_is_its_own_median() -> None:
    assert measure_in_turn({"a": lambda: 3.0}, 1, warm_up=False) == {"a": Quartiles(3.0, 3.0, 3.0)}


def test_ratios_are_over_the_median_of_the_base() -> None:
    assert Quartiles(2.0, 3.0, 5.0).over(2.0) == {"ratio": 1.5, "lower": 1.0, "upper": 2.5}


def test_a_table_names_machine_versions_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "table.csv"
    save(out, [{"what": "a", "ratio": 1.23456}, {"what": "b", "ratio": 2.0}])
    assert str(out) in capsys.readouterr().out
    lines = table(out)
    assert [(line["what"], line["ratio"]) for line in lines] == [("a", "1.235"), ("b", "2")]
    assert {line["torch"] for line in lines} == {version("torch")}
    assert all(line["machine"] and line["measured"] for line in lines)


# What each benchmark measures, by a clock of ours


def test_plans_are_compared_with_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {Plan(1, 4, 1): 200.0, Plan(2, 2, 1): 300.0, Plan(1, 1, 4): 100.0}
    requests: list[tuple[Plan, int, int]] = []

    def run(target: str, request: Any, devices: int, log: Path) -> float:
        assert target == "normbench.bench.in_worker_process:measure"
        cell, plan = request
        requests.append((plan, devices, cell.trainer.threads))
        return rates[plan]

    monkeypatch.setattr(plans_and_loaders, "_call", run)
    out = tmp_path / "workers.csv"
    words = ["rounds=2", "cores=2", "plans=1x4x1,2x2x1,1x1x4", "batch=32", f"out={out}"]
    assert main(["workers", *SMALL[:-1], *words]) == 0
    assert "4 workers of 32 images" in capsys.readouterr().out
    # All cores are shared out among the devices of a plan; plans take turns.
    assert requests == [(Plan(1, 4, 1), 1, 2), (Plan(2, 2, 1), 2, 1), (Plan(1, 1, 4), 1, 2)] * 2
    assert [(line["plan"], line["images_per_second"], line["ratio"]) for line in table(out)] == [
        ("1x4x1", "200", "1"), ("2x2x1", "300", "1.5"), ("1x1x4", "100", "0.5"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_plan_is_timed_by_a_training(tmp_path: Path) -> None:
    out = tmp_path / "workers.csv"
    words = ["rounds=1", "plans=1x4x1,2x2x1", "batch=32", f"out={out}"]
    assert main(["workers", *SMALL[:-1], *words]) == 0
    assert all(0 < float(line["images_per_second"]) < math.inf for line in table(out))


@pytest.mark.parametrize("loader", ["usual", "torch", "memory"])
def test_a_loader_is_timed_on_a_second_pass_over_all_images(
    loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the training is: 54 of 62 images are trained on, in whole batches."""
    clock = set_clock(monkeypatch, in_worker_process, "monotonic", 2.0)
    words = dataset_files.words("image_folder", dataset_files.image_folder(tmp_path))
    size = ["batch=4", "global_batch=8", "model.stem_stride=1", "trainer.readers=0"]
    base = cell(*SMALL[:-1], *words, *size)
    images = len(open_datamodule(Experiment(replace(base, loader="memory"))).splits.train.labels)
    whole = 4 if loader == "usual" else 8
    assert images >= 48
    assert in_worker_process.feed((base, loader), lambda _: None) == images // whole * whole / 2.0
    assert clock.readings == 2


@pytest.mark.slow
def test_loaders_are_timed_by_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "loader.csv"
    words = dataset_files.words("image_folder", dataset_files.image_folder(tmp_path))
    more = ["batch=4", "global_batch=8", "model.stem_stride=1", "trainer.readers=1", f"out={out}"]
    assert main(["loader", *SMALL, *words, *more, "loaders=usual,torch,memory"]) == 0
    assert "8 images a step" in capsys.readouterr().out
    lines = table(out)
    assert [line["loader"] for line in lines] == ["usual", "torch", "memory"]
    assert all(float(line["images_per_second"]) > 0 for line in lines)


@pytest.mark.slow
def test_layers_are_timed_against_torchs_batch_normalization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = set_clock(monkeypatch, layers, "process_time", 0.25)
    out = tmp_path / "layers.csv"
    words = ["norm=bn,sn,in", "impl=eager", "shape=2x32x4x4,2x32x1x1", "rounds=2"]
    assert main(["layers", *words, f"out={out}"]) == 0
    lines = table(out)
    assert {line["shape"] for line in lines} == {"2x32x4x4", "2x32x1x1"}
    by_name = {line["layer"]: line for line in lines if line["shape"] == "2x32x4x4"}
    ours = {f"{name} eager" for name in ("bn", "sn", "in")}
    assert by_name.keys() >= ours | {"F.batch_norm + relu", "torch gn", "timm evonorm_b0"}
    # A pass lies between two readings; every layer has three, of which the first warms up.
    assert {(line["milliseconds"], line["ratio"]) for line in lines} == {("250", "1")}
    assert clock.readings == 2 * 3 * len(lines)
    assert float(by_name["bn eager"]["kept"]) < 1.2 < float(by_name["timm evonorm_b0"]["kept"])
    # A map of 1x1 is a single value to instance normalization, which is left out.
    assert not any(x["layer"] == "in eager" for x in lines if x["shape"] == "2x32x1x1")


def test_a_step_is_timed_against_a_loop_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each training lies between two readings, 20 seconds for 10 steps."""
    clock = set_clock(monkeypatch, step, "process_time", 20.0)
    out = tmp_path / "step.csv"
    words = ["model=resnet8", "batch=4", "norm=gn", "rounds=1", "steps=10", f"out={out}"]
    assert main(["step", *words]) == 0
    lines = table(out)
    assert [line["network"] for line in lines] == ["smallest"] * 3 + ["as typed"] * 3
    assert [line["loop"] for line in lines[:3]] == ["bare loop", "bare again", "normbench"]
    assert {(line["microseconds"], line["more"], line["ratio"]) for line in lines} == {
        ("2e+06", "0", "1")
    }
    assert clock.readings == 2 * 2 * len(lines)


def test_stacked_seeds_are_timed_against_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each training takes 20 seconds for 10 steps, so 3 of them take 6 seconds a step."""
    set_clock(monkeypatch, step, "process_time", 20.0)
    out = tmp_path / "seeds.csv"
    words = ["norm=gn", "batch=4", *SMALL[1:2], "seeds=3", "rounds=1", "steps=10", f"out={out}"]
    assert main(["seeds", *words]) == 0
    assert [
        (line["seeds"], line["how"], line["milliseconds"], line["ratio"]) for line in table(out)
    ] == [("3", "one after the other", "6000", "1"), ("3", "stacked", "2000", "0.3333")]


@pytest.mark.slow
def test_tables_are_timed_against_reading_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, report, "perf_counter", 3.0)
    read: list[int] = []

    def read_none(root: Path) -> list[Row]:
        read.append(len([*root.glob("*/*/row.json")]))
        return []

    monkeypatch.setattr(results, "read", read_none)
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(
        report, "subprocess",
        SimpleNamespace(run=lambda words, **_: commands.append(words), DEVNULL=None),
    )  # fmt: skip
    out = tmp_path / "report.csv"
    assert main(["report", "rows=200", "rounds=1", f"out={out}"]) == 0
    assert [(line["what"], line["seconds"], line["ratio"]) for line in table(out)] == [
        ("JSON alone", "3", "1"), ("tables", "3", "1"), ("command, nothing new", "3", "1"),
    ]  # fmt: skip
    assert read == [200, 200]  # a round to warm up, and one that counts
    assert [words[2] for words in commands] == ["normbench.report"] * 2


#: Writes the files of two runs as a sweep does: seconds before each.
SWEEP = """
import time
from pathlib import Path
for run, before, long in (("a", 0.3, 1.0), ("b", 0.2, 0.1)):
    folder = Path("runs/default", run)
    folder.mkdir(parents=True)
    (folder / "history.csv").write_text("step\\n")
    time.sleep(before)
    (folder / "history.csv").write_text("step\\n1\\n")
    time.sleep(long)
    (folder / "row.json").touch()
"""


def test_a_start_is_timed_from_the_row_before_to_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(words: Sequence[str], root: str) -> subprocess.Popen[str]:
        assert words == ["-m", "norm=gn", *sweep.SHORT]
        return subprocess.Popen([sys.executable, "-c", SWEEP], cwd=root, text=True)

    monkeypatch.setattr(sweep, "_start", started)
    first, between = sweep.measure_starts(["norm=gn"])
    assert first >= 0.3
    assert len(between) == 1
    assert 0.1 < between[0] < 1.0  # 0.2, and not the second that the first run has trained


@pytest.mark.slow
def test_runs_of_a_sweep_start_one_after_the_other() -> None:
    words = ["norm=gn", "seed=0,1", *SMALL[1:2], "logger=none", "trainer=cpu"]
    first, between = sweep.measure_starts(words)
    assert first > 0
    assert len(between) == 1
    assert between[0] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    slow_after(
        3,
        [
            (["worker"], "worker is no kind; did you mean workers?"),
            (
                ["report", "row=10"],
                "row=10 is unknown to report; did you mean rows? (known: out, rounds, rows)",
            ),
            (["report", "rows=many"], "rows=many: it is a whole number above 0"),
            (["sweep", "norm=gn"], "a grid is timed, as norm=bn,gn seed=0,1,2; this is one cell"),
            (
                ["sweep", "norm=gn,bn", "against=x"],
                "against=x: it holds no normbench; a checkout of",
            ),
            (["sweep", "seed=range(0,3)"], "seed=range(0,3): a grid to be timed is of lists"),
            (["seeds", "seeds=two"], "seeds=two: it is a whole number above 0, as seeds=3"),
            (["workers"], "plans is missing: plans=A,B,... names what is compared"),
            (
                ["layers", "norms=bn"],
                "norms=bn is unknown to layers; did you mean norm? (known: act, device, ",
            ),
            (["layers", "norm=bm"], "bm is unknown; known: batch_renorm"),
            (
                ["layers", "impl=triton"],
                "impl=triton: its kernels are for CUDA devices; device=cuda",
            ),
            (["layers", "impl=auto"], "impl=auto is unknown; known: compile, eager, triton"),
            (["layers", "shape=4x4"], "shape=4x4: it is NxCxHxW"),
            (["layers", "dtype=fp8"], "dtype=fp8 is unknown; known: bfloat16, float32"),
            (["layers", "act=tanh"], "act=tanh: relu or silu, or peers=false for any"),
            (["step", "batch=4,8", "-m"], "one cell is timed; this is a grid"),
            (
                ["loader", "loaders=fast"],
                "loaders=fast is unknown; known: ffcv, memory, torch, usual",
            ),
            (["loader", "loaders=ffcv"], "loader=ffcv: Digits is always in memory"),
            (["workers", "plans=1x1"], "plans=1x1: a plan is devices x per_forward x accumulation"),
            (["workers", "plans=1x3x1"], "it has 3 workers, the cell 16"),
            (["workers", "plans=1x4x1", "norm=bm"], "norm=bm is unknown; known: "),
            (["workers", "plans=1x16x1", "rounds=0"], "rounds=0: it is a whole number above 0"),
            (["workers", "-m", "plans=1x16x1", "batch=4,8"], "one cell is timed; this is a grid"),
        ],
    ),
)
def test_words_that_cannot_be_used(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *rest = words
    cell = SMALL[:-1] if kind in ("workers", "loader") else ()
    assert main([kind, *cell, *rest]) == 2
    err = capsys.readouterr().err
    assert err.startswith("normbench.bench: ")
    assert says in err


def test_help_names_what_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "plans=PLAN" in out
    assert "loaders=L" in out
