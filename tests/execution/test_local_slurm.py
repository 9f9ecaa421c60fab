"""The Slurm of the tests: it takes jobs, and leaves no process behind."""

import os
import subprocess
from pathlib import Path

import pytest

from support import local_slurm
from support.processes import processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(local_slurm.unavailable()), reason=local_slurm.unavailable()),
]

#: Two tasks, then a process that leaves its parent, and with it Slurm's sight.
JOB = """\
#!/bin/bash
srun --ntasks=2 --output=%t.out printenv SLURM_PROCID
(setsid tail -f "$PWD/job.sh" &)
tail -f "$PWD/job.sh"
"""


def test_slurm_takes_a_job_and_leaves_no_process(tmp_path: Path) -> None:
    with local_slurm.slurm(tmp_path / "slurm") as variables:
        (tmp_path / "job.sh").write_text(JOB)
        environment = {**os.environ, **variables}
        command = ["sbatch", "--ntasks=2", "job.sh"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        tail = f"tail\0-f\0{tmp_path}/job.sh"
        running = local_slurm.until(lambda: len(processes(tail)) == 2)
        assert running, (tmp_path / "slurm" / "slurmd.log").read_text()
        assert [(tmp_path / f"{rank}.out").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
        assert processes(str(tmp_path))
    assert processes(str(tmp_path)) == []


def test_a_slurm_that_does_not_start_raises_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_slurm, "CONFIGURATION", local_slurm.CONFIGURATION + "NoSuchKey=1\n")
    with pytest.raises(RuntimeError, match="NoSuchKey"), local_slurm.slurm(tmp_path / "slurm"):
        pass
    assert processes(str(tmp_path)) == []
