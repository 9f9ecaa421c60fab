"""Disks that fill while a sweep runs: a tmpfs of 1.5 MB, mounted in a namespace of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from normbench import results
from support.cells import RESUMABLE
from support.rows import numbers

GRID = (
    "-m", "norm=bn,evonorm_b0", "batch=4,128", "model=resnet14", *RESUMABLE, "recipe.images=3200",
)  # fmt: skip
#: Fills the disk of the folder $1, trains there, makes room, and repeats the command.
SCRIPT = """
full=$1; shift
mount -t tmpfs -o {limit} tmpfs "$full" || exit 77
"$@" > full.txt 2>&1; echo $? > full.code
ls -AR "$full" > full.files
mount -o remount,size=256m,nr_inodes=10000 "$full"
"$@" > room.txt 2>&1; echo $? > room.code
cp -r "$full" kept
"""


def run_on_small_disk(folder: Path, full: str, limit: str, *words: str) -> None:
    """Run a command line with the folder `full` on a small disk, then again with room."""
    (folder / full).mkdir()
    script = SCRIPT.format(limit=limit)
    end = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "bash", "-c", script, "bash", full,
         sys.executable, "-m", "normbench", *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not (folder / "full.code").exists():
        pytest.skip(f"no disk can be mounted here: {end.stderr.strip()}")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """The numbers of the rows of a sweep whose disk has room, by their ids."""
    folder = tmp_path_factory.mktemp("undisturbed")
    mount = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    undisturbed = [sys.executable, "-m", "normbench", *GRID]
    subprocess.run(undisturbed, cwd=folder, capture_output=True, check=True)
    return {row.id: numbers(row) for row in results.read(folder / "runs")}


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["size=1500k", "size=256m,nr_inodes=12"])
def test_a_sweep_goes_on_once_there_is_room_for_its_runs(
    tmp_path: Path, limit: str, expected: dict[str, dict[str, object]]
) -> None:
    run_on_small_disk(tmp_path, "runs", limit, *GRID)
    out = (tmp_path / "full.txt").read_text()
    assert (tmp_path / "full.code").read_text() == "1\n"
    assert "Traceback" not in out
    assert "No space left on device" in out
    assert (tmp_path / "room.code").read_text() == "0\n", (tmp_path / "room.txt").read_text()
    assert {row.id: numbers(row) for row in results.read(tmp_path / "kept")} == expected
    left = {path.name for path in (tmp_path / "kept").glob("default/*/*")}
    assert left == {"row.json", "history.csv", "test_hits.bin", "log.txt", "lock"}
    # What did not fit left nothing behind either.
    assert not [line for line in (tmp_path / "full.files").read_text().split() if line[0] == "."]


@pytest.mark.slow
def test_a_full_disk_of_reports_costs_no_row(tmp_path: Path) -> None:
    run_on_small_disk(tmp_path, "reports", "size=16k", *GRID, "reports=reports")
    out = (tmp_path / "full.txt").read_text()
    assert (tmp_path / "full.code").read_text() == "1\n"
    assert "Traceback" not in out
    assert "No space left on device" in out
    assert len(results.read(tmp_path / "runs")) == 4
    assert (tmp_path / "room.code").read_text() == "0\n", (tmp_path / "room.txt").read_text()
    assert len([*(tmp_path / "kept").rglob("*.md")]) == 1
