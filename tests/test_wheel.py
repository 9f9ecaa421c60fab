"""The installed package: its wheel, its console script, and what its processes import."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from normbench import __version__
from normbench.config.files import ROOT
from support.shell import shell

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="runs only in a checkout"
)


@pytest.mark.slow
def test_a_wheel_carries_the_yamls_and_runs_from_any_folder(tmp_path: Path) -> None:
    """Built as pip builds it; unpacked before the checkout on the path, so it alone is used."""
    source = tmp_path / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "runs", ".*_cache")
    )
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "-o",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("normbench-*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    packed = {str(path.relative_to(installed / "normbench")) for path in installed.rglob("*.yaml")}
    for folder in ("conf", "sweeps", "reports/tables", "reports/claims", "reports/figures"):
        expected = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.yaml")}
        assert expected
        assert expected <= packed
    assert (installed / "hydra_plugins/normbench_sweeper.py").exists()
    work = tmp_path / "work"
    work.mkdir()
    words = [sys.executable, "-m", "normbench", "norm=gn", "recipe.images=256", "logger=none"]
    found = subprocess.run(
        words, cwd=work, env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "files: 3 new" in found.stdout  # texts alone: two steps give no number to draw
    assert list(work.glob("runs/reports/batch_size/*.md"))
    assert list(work.glob("runs/default/*/row.json"))
    report = subprocess.run(
        [sys.executable, "-m", "normbench.report"], cwd=work, capture_output=True, text=True,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert report.returncode == 0, report.stderr
    assert (work / "runs/reports/index.html").exists()


@pytest.mark.slow
def test_the_process_of_a_sweep_imports_no_torch_to_its_end(tmp_path: Path) -> None:
    """Its imports would be waited for before the first run, and once more at the end."""
    script = """if __name__ == "__main__":
        import sys
        from normbench import __main__
        code = __main__.main(["norm=gn", "recipe.images=256"])
        print(code, sorted({"torch", "pytorch_lightning", "wandb"} & sys.modules.keys()))
    """
    (tmp_path / "script.py").write_text(script)
    found = shell("python script.py", tmp_path)
    assert found.stdout.splitlines()[-1] == "0 ['wandb']", found.stderr


@pytest.mark.slow
def test_the_console_script_trains(tmp_path: Path) -> None:
    found = shell("normbench norm=gn recipe.images=256 logger=none", tmp_path)
    assert found.returncode == 0, found.stderr
    assert list(tmp_path.glob("runs/default/*/row.json"))


@pytest.mark.slow
def test_the_console_script_finds_modules_of_the_folder(tmp_path: Path) -> None:
    """As `python -m` does: a normalizer of a user's own."""
    (tmp_path / "my_norm.py").write_text("raise SystemExit('found')")
    (tmp_path / "conf/norm").mkdir(parents=True)
    (tmp_path / "conf/norm/mine.yaml").write_text("_target_: my_norm.Mine")
    for command in ("normbench", "python -m normbench"):
        found = shell(f"{command} --config-dir conf norm=mine logger=none", tmp_path)
        assert "SystemExit: found" in found.stderr + found.stdout, command


def test_the_console_script_is_the_command_line(tmp_path: Path) -> None:
    found = shell("normbench norm=bm", tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith("normbench: norm=bm is unknown; known: batch_renorm, ")
    assert shell("normbench --version", tmp_path).stdout == f"normbench {__version__}\n"
    assert shell("normbench --help | head -1", tmp_path).stderr == ""
