"""The list of runs by their state."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from normbench import results, run_files, status
from normbench.config.cells import title_of
from normbench.errors import DamagedFile
from normbench.records.hits import TEST_HITS, write_hits
from normbench.records.studies import STUDY
from normbench.results import Row
from support.cells import BROKEN, LONG, RESUMABLE, SHORT, cell, run_folder
from support.commands import Command
from support.damage import DAMAGES, damage_file
from support.processes import is_training, run_when
from support.rows import write_row


@pytest.mark.slow
def test_runs_by_their_state(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("-m", "norm=gn,bn", "batch=8,4", *SHORT).code == 0
    grid = [
        run_folder(f"norm={n}", f"batch={b}", *SHORT).name for n in ("gn", "bn") for b in (8, 4)
    ]
    assert run_files.read_order(Path("runs/default")) == grid
    assert command(*BROKEN, "norm=broken", *SHORT).code == 1
    folder = run_folder("norm=bn", "batch=4", *RESUMABLE)

    def look_and_stop() -> None:
        status.main(["running"])
        os.kill(os.getpid(), signal.SIGINT)

    stopper = run_when(
        lambda: is_training(folder) and (folder / "checkpoint.pt").exists(), look_and_stop
    )
    assert "running      default/" in command("norm=bn", "batch=4", *RESUMABLE).out
    stopper.join()
    lost = run_folder("norm=bn", "batch=4", *LONG)
    run_files.write_state(lost, "running", pid=1, title="bn batch=4", host=os.uname().nodename)
    others = (  # reports and a search, which are no runs
        "reports/probes/spp.json", "reports/probes/row.json", "reports/dashboard/workspace.json",
        "first/search.json", "first/candidates/000000.json", "first/baselines/bn.json",
    )  # fmt: skip
    for other in others:
        run_files.write_file(Path("runs", other), b"{}")
    assert len(results.read("runs")) == 4
    assert status.main([]) == 0
    out = capsys.readouterr().out
    assert "7 runs in runs: 1 interrupted, 1 failed, 1 lost, 4 ok" in out
    (line,) = [line for line in out.splitlines() if line.startswith("interrupted")]
    assert re.search(r"resumes from step [1-9][0-9]* of 100$", line)
    assert "bn batch=4 seed=0" in line
    assert "RuntimeError: this layer is broken on purpose" in out
    assert ", shared with " in out
    assert status.main(["finished", "failed"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 6
    assert status.main(["runs=nowhere"]) == 2
    assert status.main(["fnished"]) == 2
    errors = capsys.readouterr().err
    assert "runs=nowhere is no folder" in errors
    assert "did you mean finished?" in errors


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"test_top1": 91.26}, "test 91.3 %"),
        ({"test_top1": None, "status": "oom", "reason": "no memory"}, "no memory"),
        ({"test_top1": 10.0, "status": "diverged", "reason": "loss is nan"}, "loss is nan"),
    ],
)
def test_a_row_without_an_accuracy_is_listed(
    changes: dict[str, Any], outcome: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_row(tmp_path, **changes)
    assert status.main([f"runs={tmp_path}"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert " ".join(line.split()[2:]) == f"bn batch=4 seed=0 model=resnet14 data=digits {outcome}"


def listed_titles(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert status.main([f"runs={root}"]) == 0
    return [" ".join(line.split()[2:5]) for line in capsys.readouterr().out.splitlines()[:-1]]


def test_runs_are_in_the_order_of_their_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = [("gn", 128), ("gn", 4), ("bn", 128), ("bn", 4)]
    ids = [f"{number:012x}" for number in (7, 1, 9, 3)]
    for id_, (norm, batch) in list(zip(ids, grid, strict=True))[1:]:
        write_row(tmp_path, id=id_, norm=norm, batch=batch)
    title = "gn batch=128 seed=0"
    run_files.write_state(tmp_path / "default" / ids[0], "running", title=title, host="elsewhere")
    natural = ["bn batch=4 seed=0", "bn batch=128 seed=0", "gn batch=4 seed=0", title]
    assert listed_titles(tmp_path, capsys) == natural
    run_files.record_order(tmp_path / "default", ids[:3])
    run_files.record_order(tmp_path / "default", ids[::-1])  # of a later command
    assert run_files.read_order(tmp_path / "default") == ids
    ordered = [f"{norm} batch={batch} seed=0" for norm, batch in grid]
    assert listed_titles(tmp_path, capsys) == ordered
    (tmp_path / "default" / run_files.ORDER).unlink()
    (tmp_path / "default" / run_files.ORDER).mkdir()
    assert listed_titles(tmp_path, capsys) == natural
    with pytest.raises(DamagedFile):
        run_files.record_order(tmp_path / "default", ids)


def test_a_row_has_the_title_of_its_cell() -> None:
    for words in (
        ["norm=gn", "norm.groups=8", "reg=mixup", "precision=bf16-mixed"],
        ["model=timm", "model.name=resnet18", "protocol=fixed_workers", "workers=4"],
        ["global_batch=64", "data=fashion_mnist", "recipe.lr=0.2"],
    ):
        one = cell(*words)
        assert title_of(vars(Row(**one.description("default"), status="ok"))) == one.title


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_row_is_listed_with_the_reason(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_row(tmp_path, id="f" * 12)
    path = write_row(tmp_path) / "row.json"
    damage_file(path, kind)
    for words in ([], ["damaged"]):
        assert status.main([f"runs={tmp_path}", *words]) == 0
        line, *_, last = capsys.readouterr().out.splitlines()
        assert line.split()[:3] == ["damaged", "default/0123456789ab", str(path)]
        assert last == f"2 runs in {tmp_path}: 1 damaged, 1 ok"


@pytest.mark.parametrize("name", ["state.json", "history.csv", "lock", "checkpoint.pt"])
def test_damaged_files_of_an_unfinished_run_end_no_listing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, kind in enumerate(DAMAGES):
        folder = tmp_path / "default" / f"{number:012x}"
        run_files.write_state(folder, "running", pid=1, title="bn", host="elsewhere")
        (folder / "gone").symlink_to("nowhere")
        damage_file(folder / name, kind)
    assert status.main([f"runs={tmp_path}"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    state = "lost" if name == "state.json" else "running"
    assert captured.out.splitlines()[-1] == f"7 runs in {tmp_path}: 7 {state}"


def test_a_renamed_run_is_listed_as_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_row(tmp_path)
    folder.rename(folder.with_name(f"{folder.name}-old"))
    assert status.main([f"runs={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "move it to the folder of that name" in out
    assert out.splitlines()[-1] == f"1 run in {tmp_path}: 1 damaged"


def test_status_imports_no_torch() -> None:
    program = (
        "import sys, normbench.status, normbench.bench.__main__; print('torch' in sys.modules)"
    )
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert end.stdout == "False\n"


def write_pair(root: Path, **changes: Any) -> tuple[str, str]:
    """Write two runs of four test images, of which each misses another, and both the last."""
    written = []
    for norm, hits in (("bn", (1, 1, 0, 0)), ("gn", (1, 0, 1, 0))):
        more = {"id": f"{norm:0>12}", "norm": norm, "test_top1": 50.0, "test_images": 4}
        folder = write_row(root, **{**more, **(changes if norm == "gn" else {})})
        write_hits(folder, map(bool, hits))
        written.append(f"{folder.parent.name}/{folder.name}")
    return written[0], written[1]


@pytest.mark.parametrize("study", [False, True])
def test_two_runs_are_compared_image_by_image(
    study: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = write_pair(tmp_path)
    root = tmp_path / STUDY if study else tmp_path
    if study:
        results.write_study(root, [(tmp_path, row) for row in results.read(tmp_path)])
    for a, b in ((first, second), (first.rpartition("/")[2], second.rpartition("/")[2])):
        assert status.main(["compare", a, b, f"runs={root}"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("of 4 test images both are right on 1, only bn batch=4 seed=0 ")
        assert " on 1, only gn batch=4 seed=0 " in line
        assert " on 1, neither on 1; McNemar's exact p = 1 " in line


@pytest.mark.parametrize(
    ("words", "changes", "reason"),
    [
        (("A",), {}, "compare takes two runs"),
        (("A", "nothing"), {}, "nothing has no row in runs="),
        (("A", "*"), {}, "* has no row in runs="),
        (("A", "B"), {"data": "svhn"}, "were not tested on the same images"),
        (("A", "B"), {"test_images": 3}, "were not tested on the same images"),
        (("A", "B"), {"test_top1": 75.0}, "do not match the accuracy of its row"),
        (("A", "B"), {"test_images": None}, "has no usable test_hits.bin"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    words: tuple[str, ...], changes: dict[str, Any], reason: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pair = dict(zip("AB", write_pair(tmp_path, **changes), strict=True))
    named = [pair.get(word, word) for word in words]
    assert status.main(["compare", *named, f"runs={tmp_path}"]) == 2
    assert reason in capsys.readouterr().err


def test_a_run_without_hits_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_pair(tmp_path)
    (tmp_path / second / TEST_HITS).unlink()
    assert status.main(["compare", first, second, f"runs={tmp_path}"]) == 2
    assert f"{second.rpartition('/')[2]} has no usable test_hits.bin" in capsys.readouterr().err
