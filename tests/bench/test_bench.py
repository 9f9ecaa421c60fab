"""What benchmarks measure, what they leave, and what they refuse."""

import csv
from pathlib import Path

import pytest

from normbench.bench.__main__ import main
from normbench.bench.sweep import starts
from support import dataset_files

SMALL = ("norm=gn", "model=resnet8", "recipe.images=512", "logger=none", "trainer=cpu", "rounds=1")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_plans_are_timed_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "workers.csv"
    words = ["rounds=2", "plans=1x4x1,2x2x1,1x1x4", "batch=32", f"out={out}"]
    assert main(["workers", *SMALL[:-1], *words]) == 0
    assert "4 workers of 32 images" in capsys.readouterr().out
    lines = table(out)
    assert [line["plan"] for line in lines] == ["1x4x1", "2x2x1", "1x1x4"]
    assert float(lines[0]["ratio"]) == 1
    assert all(float(line["images_per_second"]) > 0 for line in lines)


def test_loaders_are_timed_on_all_images_however_short_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "loader.csv"
    words = dataset_files.words("image_folder", dataset_files.image_folder(tmp_path))
    more = ["batch=4", "global_batch=8", "model.stem_stride=1", "trainer.readers=1", f"out={out}"]
    assert main(["loader", *SMALL, *words, *more, "loaders=usual,torch,memory"]) == 0
    assert "8 images a step" in capsys.readouterr().out
    lines = table(out)
    assert [line["loader"] for line in lines] == ["usual", "torch", "memory"]
    assert all(float(line["images_per_second"]) > 0 for line in lines)


def test_layers_are_timed_against_torchs_batch_normalization(tmp_path: Path) -> None:
    out = tmp_path / "layers.csv"
    words = ["norm=bn,sn,in", "impl=eager,lean", "shape=2x32x4x4,2x32x1x1", "rounds=2"]
    assert main(["layers", *words, f"out={out}"]) == 0
    lines = table(out)
    assert {line["shape"] for line in lines} == {"2x32x4x4", "2x32x1x1"}
    by_name = {line["layer"]: line for line in lines if line["shape"] == "2x32x4x4"}
    ours = {f"{name} {impl}" for name in ("bn", "sn", "in") for impl in ("eager", "lean")}
    assert by_name.keys() >= ours | {"F.batch_norm + relu", "torch gn", "timm evonorm_b0"}
    assert float(by_name["F.batch_norm + relu"]["ratio"]) == 1
    assert float(by_name["sn lean"]["kept"]) == 1 < float(by_name["sn eager"]["kept"])
    assert all(line["machine"] and line["torch"] and line["measured"] for line in lines)
    # A map of 1x1 is a single value to instance normalization: said, and left out.
    assert not any(x["layer"] == "in eager" for x in lines if x["shape"] == "2x32x1x1")


def test_a_step_is_timed_against_a_loop_by_hand(tmp_path: Path) -> None:
    out = tmp_path / "step.csv"
    words = ["model=resnet8", "batch=4", "norm=gn", "rounds=1", "steps=10", f"out={out}"]
    assert main(["step", *words]) == 0
    lines = table(out)
    assert [line["network"] for line in lines] == ["smallest"] * 3 + ["as typed"] * 3
    assert [line["loop"] for line in lines[:3]] == ["bare loop", "bare again", "normbench"]
    assert all(float(line["microseconds"]) > 0 for line in lines)


def test_stacked_seeds_are_timed_against_one_after_the_other(tmp_path: Path) -> None:
    out = tmp_path / "seeds.csv"
    words = ["norm=gn", "batch=4", *SMALL[1:2], "seeds=2,3", "rounds=1", "steps=10", f"out={out}"]
    assert main(["seeds", *words]) == 0
    lines = table(out)
    assert [(line["seeds"], line["how"]) for line in lines] == [
        ("2", "one after the other"), ("2", "together"),
        ("3", "one after the other"), ("3", "together"),
    ]  # fmt: skip
    assert [float(line["ratio"]) for line in lines[::2]] == [1, 1]
    assert all(float(line["milliseconds"]) > 0 for line in lines)


def test_tables_are_timed_against_reading_json(tmp_path: Path) -> None:
    out = tmp_path / "report.csv"
    assert main(["report", "rows=600", "rounds=1", f"out={out}"]) == 0
    lines = table(out)
    assert [line["what"] for line in lines] == [
        "JSON alone", "tables", "command, nothing new",
    ]  # fmt: skip
    assert all(float(line["seconds"]) > 0 for line in lines)


def test_runs_follow_each_other_faster_than_the_first_begins() -> None:
    first, between = starts(["norm=gn", "seed=0,1", *SMALL[1:2], "logger=none", "trainer=cpu"])
    assert len(between) == 1
    assert 0 < between[0] < first


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["worker"], "worker is no kind; did you mean workers?"),
        (["report", "row=10"], "row=10: report has no such word; it has rows, rounds, out"),
        (["report", "rows=many"], "rows=many: it is a whole number above 0"),
        (["sweep", "norm=gn"], "a grid is timed, as norm=bn,gn seed=0,1,2; this is one cell"),
        (["sweep", "norm=gn,bn", "against=x"], "against=x: it holds no normbench; a checkout of"),
        (["sweep", "seed=range(0,3)"], "seed=range(0,3): a grid to be timed is of lists"),
        (["seeds", "seeds=two"], "seeds=two: it is a whole number above 0, as seeds=3"),
        (["workers"], "plans=A,B,... says what is compared"),
        (["layers", "norms=bn"], "norms=bn: layers has no such word; it has norm, impl, shape"),
        (["layers", "norm=bm"], "bm is unknown; known: batch_renorm"),
        (["layers", "impl=triton"], "impl=triton: its kernels are for CUDA devices; device=cuda"),
        (["layers", "impl=auto"], "auto is unknown; known: compile, eager, lean"),
        (["layers", "shape=4x4"], "shape=4x4: it is NxCxHxW"),
        (["layers", "dtype=fp8"], "dtype=fp8: float32 or bfloat16"),
        (["layers", "act=tanh"], "act=tanh: relu or silu, or peers=false for any"),
        (["step", "batch=4,8", "-m"], "one cell is timed; this is a grid"),
        (["loader", "loaders=fast"], "loaders=fast is unknown; known: ffcv, memory, torch, usual"),
        (["loader", "loaders=ffcv"], "loader=ffcv: Digits is always in memory"),
        (["workers", "plans=1x1"], "plans=1x1: a plan is devices x per_forward x accumulation"),
        (["workers", "plans=1x3x1"], "it lays 3 workers, and there are 16"),
        (["workers", "plans=1x4x1", "norm=bm"], "norm=bm is unknown; known: "),
        (["workers", "plans=1x16x1", "rounds=0"], "rounds=0: it is a whole number above 0"),
        (["workers", "-m", "plans=1x16x1", "batch=4,8"], "one cell is timed; this is a grid"),
    ],
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
