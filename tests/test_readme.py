"""The README: its commands run, its tables and lists are current, its links lead somewhere."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from normbench import catalog, cost, status
from normbench.config.files import ROOT
from normbench.probe import __main__ as probe
from normbench.report.__main__ import main as report
from support.commands import Command
from support.dataset_files import FASHION_MNIST
from support.shell import shell

README = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="runs only in a checkout"
)


def block(mark: str) -> list[str]:
    """The commands of the README's code block below `<!-- mark -->`."""
    below = README.partition(f"<!-- {mark} -->\n```sh\n")[2]
    return below.partition("\n```")[0].splitlines()


@pytest.mark.parametrize("mark", ["run", "test"])
def test_the_readme_has_its_two_commands(mark: str) -> None:
    (command,) = block(mark)
    install, _, then = command.rpartition(" && ")
    assert install.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install -e ")
    assert then in ("make check", MAIN_JOB)


def test_the_readmes_table_is_that_of_the_report() -> None:
    report = ROOT / "reports/batch_size/digits-resnet14-demo-fixed_global_batch-128.md"
    lines = [line for line in report.read_text().splitlines() if line.startswith("|")]
    assert "\n".join(lines) in README


MAIN_JOB = block("run")[0].rpartition(" && ")[2]


def test_the_main_job_of_the_readme(tmp_path: Path) -> None:
    found = shell(MAIN_JOB, tmp_path)
    assert found.returncode == 0, found.stderr
    assert len(list(tmp_path.glob("runs/default/*/row.json"))) == 18
    assert "| evonorm_s0 †   | " in found.stdout
    again = shell(MAIN_JOB, tmp_path)
    assert "18 cells, 18 finished before, 0 to do" in again.stdout


# Short enough to be run whole; the grids among them only once they are made shorter.
SHORTER = " recipe.images=256 trainer=cpu logger=none"


EXAMPLES = [line.partition("  #")[0].strip() for line in block("examples")]
MAINS = {
    "normbench.catalog": catalog.main, "normbench.report": report, "normbench.status": status.main,
    "normbench.cost": cost.main, "normbench.probe": probe.main,
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_readme(
    example: str, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    python, _, module, *words = shlex.split(example)
    assert python == "python"
    if module in MAINS:
        command("norm=gn", *SHORTER.split())
        assert MAINS[module](words) == 0
        assert capsys.readouterr().out
        return
    assert module == "normbench"
    if words == ["--help"]:  # Hydra answers by itself, and ends the process
        assert "Usage: python -m normbench" in shell(example, Path.cwd()).stdout
        return
    end = command(*words, *SHORTER.split())
    assert end.code == 0, end.err
    assert end.out


def test_a_normalizer_of_ones_own_as_the_readme_says(tmp_path: Path) -> None:
    code = README.partition("```python\n# my_norm.py")[2].partition("```")[0]
    yaml = README.partition("```yaml\n# mine/norm")[2].partition("```")[0]
    (tmp_path / "my_norm.py").write_text(code)
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "norm" / "identity.yaml").write_text(f"# mine/norm{yaml}")
    (command,) = (line for line in README.splitlines() if line.startswith("PYTHONPATH"))
    found = shell(command + " recipe.images=2560 trainer=cpu logger=none", tmp_path)
    assert found.returncode == 0, found.stderr
    assert "| identity †" in found.stdout


def python_below(heading: str) -> dict[str, Any]:
    """What the code block of a section of our own README leaves behind."""
    section = README.partition(f"## {heading}")[2].partition("\n## ")[0]
    found: dict[str, Any] = {}
    exec(section.partition("```python\n")[2].partition("```")[0], found)
    return found


def test_the_python_of_the_readme() -> None:
    found = python_below("The normalizers")
    (ratios,) = found["ratios"](found["network"]).values()
    assert sum(ratios["mean"]) == pytest.approx(1)


def test_the_python_of_the_readme_about_architectures() -> None:
    found = python_below("The architectures")
    sizes = [sum(p.numel() for p in found[name].parameters()) for name in ("network", "same")]
    assert sizes[0] == sizes[1]


def test_the_readme_names_every_normalizer() -> None:
    section = README.partition("## The normalizers")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert set(catalog.normalizers()) <= named


def test_the_readme_names_every_architecture() -> None:
    section = README.partition("## The architectures")[2].partition("\n## ")[0]
    named: set[str] = set()
    for part in re.findall(r"[^;|]+", section):
        names_of = re.findall(r"`([a-z]\w+)`", part)
        named |= set(names_of)
        for suffix in re.findall(r"each also `(_\w+)`", part):
            named |= {f"{name}{suffix}" for name in names_of}
    for first, last in re.findall(r"`(\w+)` to `(\w+)`", section):
        stem = first[:-1]
        named |= {f"{stem}{k}" for k in range(int(first[-1]), int(last[-1]) + 1)}
    assert set(catalog.models()) <= named


def test_a_sweep_of_ones_own_as_the_readme_says(tmp_path: Path, command: Command) -> None:
    yaml = README.partition("```yaml\n# @package")[2].partition("```")[0]
    (tmp_path / "mine" / "sweeps").mkdir(parents=True)
    (tmp_path / "mine" / "sweeps" / "small.yaml").write_text(f"# @package{yaml}")
    mine = ("--config-dir", "mine")
    found = command(*mine, "sweeps=small", "batch=4", *SHORTER.split())
    assert found.code == 0, found.err
    assert "6 cells, 0 finished before, 6 to do" in found.out
    listed = shell(f"python -m normbench {' '.join(mine)} --help", tmp_path)
    assert "    small                The question, the result" in listed.stdout


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_fashion_mnist_as_the_readme_says(command: Command) -> None:
    (grid, sweep) = (
        line for line in README.splitlines() if "fashion_mnist norm" in line or "demo_fixed" in line
    )
    for line in (grid, f"{sweep} seed=0 batch=4 norm=bn"):
        words = line.removeprefix("python -m normbench ").split()
        found = command(*words, *SHORTER.split())
        assert found.code == 0, found.err
    assert "data=fashion_mnist" in found.out


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize("failing", ["", "make check", "make ffcv slow"])
def test_continuous_integration_runs_the_readmes_test_command_and_the_slow_tests(
    failing: str, tmp_path: Path
) -> None:
    """Programs that only print their arguments stand in for those that install and test."""
    (tmp_path / ".ci").mkdir()
    for name in (".ci/run", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    programs = {
        "id": "echo 1000",  # no root, so nothing is installed by apt-get
        "python3": 'mkdir -p .venv/bin && : > .venv/bin/activate && echo "python3 $*"',
        "pip": 'echo "pip $*"',
        "make": f'echo "make $*"; [ "make $*" != "{failing}" ]',
    }
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    result = subprocess.run(
        [tmp_path / ".ci/run"], env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    (command,) = block("test")
    calls = [
        f"+ {command}", "python3 -m venv .venv", 'pip install -e .[dev]', "make check",
        "+ make ffcv slow", "make ffcv slow",
    ]  # fmt: skip
    assert result.stdout.splitlines() == (calls[:4] if failing == "make check" else calls)
    assert (result.returncode == 0) == (failing == "")
