"""Folders that several users share: modes by the umask, and sentences that name an owner."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from normbench.config.cells import Settings
from normbench.errors import BadInput
from normbench.execution.job import Summary
from normbench.execution.local_scheduler import LocalScheduler
from normbench.execution.scheduler import QueueEntry
from normbench.execution.sweep import make_job
from normbench.results import Row
from normbench.run_files import require_writable
from support.cells import SHORT, cell

COMMANDS = (
    ("normbench", "norm=bn", "batch=8", "checkpoint=keep", "probe=spp", *SHORT),
    ("normbench.report",),
    ("normbench.probe", "spp", "norm=bn"),
    ("normbench.dashboard", "--dry-run"),
    ("normbench.status",),
)
NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Act as another user; root may write everywhere."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def closed_folder(parent: Path) -> Path:
    """Return a folder that only root can write."""
    for above in (parent, *parent.parents):
        if "pytest-of" in str(above):  # pytest's own folders, which are closed to others
            above.chmod(0o755)
    folder = parent / "runs"
    folder.mkdir(mode=0o755)
    return folder


@pytest.mark.slow
def test_files_have_the_modes_of_the_umask(tmp_path: Path) -> None:
    umask = 0o007
    for module, *words in COMMANDS:
        end = subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=tmp_path, umask=umask, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert end.returncode == 0, (module, end.stderr)
    made = list(tmp_path.rglob("*"))
    assert {"check.log", "log.txt", "row.json", "checkpoint.pt", "spp.csv", "lock"} <= {
        path.name for path in made
    }
    wrong = {
        str(path.relative_to(tmp_path)): oct(stat.S_IMODE(path.lstat().st_mode))
        for path in made
        if stat.S_IMODE(path.lstat().st_mode) != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert not wrong


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_folder_of_another_user_is_refused_with_its_owner(tmp_path: Path) -> None:
    folder = closed_folder(tmp_path)
    with as_nobody():
        for refused in (folder, folder / "below/it"):
            reason = rf"^runs=x cannot be written \(Permission denied; {folder} belongs to root\)"
            with pytest.raises(BadInput, match=reason):
                require_writable(refused, "runs=x", "name another")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_run_whose_folder_belongs_to_another_user_fails_with_its_owner(tmp_path: Path) -> None:
    folder = closed_folder(tmp_path)
    settings = Settings(
        str(folder),
        reports=None,
        jobs=1,
        force=False,
        resume=True,
        stack_seeds=True,
        sweep="default",
    )
    entry = QueueEntry(make_job(cell("norm=bn", "trainer=cpu"), settings))
    row = Row(**entry.cell.description("default"), status="ok", test_top1=90.0)
    scheduler = LocalScheduler([entry], settings, Summary(), {}, gpus=0, memory=0)
    with as_nobody():
        assert not scheduler.prepare(entry)
        scheduler.copy_row(row, entry.cell)
    scheduler.screen.close()
    for failure in scheduler.summary.failed:
        assert f"cannot be written (Permission denied; {folder} belongs to root)" in failure
    assert len(scheduler.summary.failed) == 2
