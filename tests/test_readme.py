"""README and guides: every command works, every link leads somewhere, tables are the report's."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import build as docs
import pytest

from normbench import catalog
from normbench.config.compose import compose
from normbench.config.files import ROOT
from support.commands import Command
from support.dataset_files import FASHION_MNIST
from support.shell import shell
from support.slow import slow_except

README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""
GUIDES = sorted((ROOT / "docs" / "guide").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: A training of a few steps; grids run whole once their trainings are short.
SHORT = ("recipe.images=256", "trainer=cpu", "logger=none")

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="not a checkout, so there are no documents"
)


@dataclass(frozen=True)
class Example:
    """A command of a document, and the comment above its block."""

    page: str
    command: str
    mark: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    def __str__(self) -> str:
        return f"{self.page}: {self.command}"


def examples(page: Path) -> list[Example]:
    """Return the commands in the shell blocks of a page."""
    blocks = re.findall(r"(?:<!-- (.+?) -->\n)?```sh\n(.+?)```", page.read_text(), re.S)
    return [
        Example(page.stem, line.partition("  #")[0].strip(), mark)
        for mark, block in blocks
        for line in block.splitlines()
    ]


EVERY = [example for page in (ROOT / "README.md", *GUIDES) for example in examples(page)]
#: The one with --config-dir runs with files of its own, below.
OURS = [
    example
    for example in EVERY
    if example.words[:2] == ["python", "-m"] and "--config-dir" not in example.words
]
RUN = [example for example in OURS if not example.mark.startswith("not run: ")]


def block(mark: str) -> str:
    """Return the command of the README's block marked `<!-- mark -->`."""
    (example,) = (each for each in examples(ROOT / "README.md") if each.mark == mark)
    return example.command


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_has_at_most_120_lines(guide: Path) -> None:
    assert len(guide.read_text().splitlines()) <= 120


@pytest.mark.parametrize("mark", ["run", "test"])
def test_the_readme_installs_in_one_command(mark: str) -> None:
    install, _, then = block(mark).rpartition(" && ")
    assert install.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install -e ")
    assert then in ("make check", MAIN_JOB)


MAIN_JOB = block("run").rpartition(" && ")[2] if README else ""


@pytest.mark.slow
def test_the_main_job_of_the_readme_fills_its_table(tmp_path: Path) -> None:
    first = shell(MAIN_JOB, tmp_path)
    assert first.returncode == 0, first.stderr
    assert len(list(tmp_path.glob("runs/default/*/row.json"))) == 30
    assert "| evonorm_s0 †   | " in first.stdout
    again = shell(MAIN_JOB, tmp_path)
    assert "30 cells, 30 finished before, 0 to do" in again.stdout


def test_the_readmes_table_is_that_of_the_report() -> None:
    table, recommended = docs.demonstration()
    assert len(table.splitlines()) == 4
    assert table in README, "run python docs/build.py readme"
    assert f"\n> {recommended}\n" in README


def run_in_process(
    words: Sequence[str], command: Command, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run `python -m MODULE WORDS` in this process, trainings shortened; return what it printed."""
    module, *rest = words
    if module == "normbench":
        keeps_epochs = any(word.startswith("checkpoint.epochs") for word in rest)
        small = ["data.size=64"] if "data=image_folder" in rest else []
        if any(word.startswith("task=") for word in rest):
            small = ["data.size=40", "data.scenes=40", "data.test_scenes=4", "model.width=4"]
        finished = command(*rest, *small, *(SHORT[1:] if keeps_epochs else SHORT))
        assert finished.code == 0, finished.err
        return finished.out
    command("norm=gn", *SHORT)  # a row to report on
    main: Any = import_module(main_module(module)).main
    assert main(rest) == 0
    return capsys.readouterr().out


def main_module(module: str) -> str:
    """Return the module that `python -m MODULE` executes."""
    package = ROOT / module.replace(".", "/")
    return f"{module}.__main__" if package.is_dir() else module


README_RUN = [each for each in RUN if each.page == "README"]
#: What is no grid; the grids, and the cost of a sweep of hundreds of networks, take longer.
README_EVERYDAY = [
    each for each in README_RUN if "-m" not in each.words[3:] and each.words[2] != "normbench.cost"
]


@pytest.mark.parametrize(
    "example",
    slow_except(README_RUN, README_EVERYDAY),
    ids=str,
)
def test_a_command_of_the_readme_runs(
    example: Example, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(example, command, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("example", [each for each in RUN if each.page != "README"], ids=str)
def test_a_command_of_a_guide_runs(
    example: Example, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(example, command, capsys)


def _run(example: Example, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    if example.mark == "needs: dataset-fashion-mnist" and not FASHION_MNIST.is_dir():
        pytest.skip("dataset-fashion-mnist is not installed")
    if "image_folder" in example.command:
        _photographs(Path.cwd())
    assert run_in_process(example.words[2:], command, capsys)


def _photographs(folder: Path) -> None:
    """Write a few photographs of two classes to photos/."""
    from PIL import Image

    for split, count in (("train", 80), ("test", 4)):
        for number in range(2 * count):
            path = folder / "photos" / split / ("rose", "tulip")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 36), (number, 255 - number, 80 * (number % 2))).save(path)


@pytest.mark.parametrize(
    "example", [each for each in OURS if each not in RUN and each.words[2] == "normbench"], ids=str
)
def test_a_command_that_is_too_long_to_run_is_understood(example: Example) -> None:
    words = [word.replace("RUN@", "0123456789ab@") for word in example.words[3:]]
    cells, _ = compose([word for word in words if not word.startswith("hydra")])
    assert cells


@pytest.mark.slow
def test_a_normalizer_of_your_own_as_the_readme_writes_it(tmp_path: Path) -> None:
    code = README.partition("```python\n# my_norm.py")[2].partition("```")[0]
    yaml = README.partition("```yaml\n# mine/norm")[2].partition("```")[0]
    (tmp_path / "my_norm.py").write_text(code)
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "norm" / "identity.yaml").write_text(f"# mine/norm{yaml}")
    (command,) = (
        line for line in README.splitlines() if line.startswith("python -m normbench --config-dir")
    )
    finished = shell(command + " recipe.images=2560 trainer=cpu logger=none", tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "| identity †" in finished.stdout


@pytest.mark.slow
def test_a_sweep_of_your_own_as_the_guide_writes_it(tmp_path: Path, command: Command) -> None:
    guide = (ROOT / "docs/guide/running.md").read_text()
    yaml = guide.partition("```yaml\n# @package")[2].partition("```")[0]
    (tmp_path / "mine" / "sweeps").mkdir(parents=True)
    (tmp_path / "mine" / "sweeps" / "small.yaml").write_text(f"# @package{yaml}")
    finished = command("--config-dir", "mine", "sweeps=small", "batch=4", *SHORT)
    assert finished.code == 0, finished.err
    assert "6 cells, 0 finished before, 6 to do" in finished.out
    listed = shell("python -m normbench --config-dir mine --help", tmp_path)
    assert "    small                The question, the expected" in listed.stdout


def executed(page: str) -> list[dict[str, Any]]:
    """Execute the Python blocks of a guide; return what each leaves behind."""
    text = (ROOT / "docs" / "guide" / page).read_text()
    namespaces: list[dict[str, Any]] = []
    for code in re.findall(r"```python\n(.+?)```", text, re.S):
        namespaces.append({})
        exec(code, namespaces[-1])
    return namespaces


def test_the_python_of_dense_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    executed("dense.md")
    assert capsys.readouterr().out == "(2, 4, 8, 16, 16) torch.Size([2, 21, 4, 4])\n"


@pytest.mark.slow
def test_the_python_of_the_guide(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command("norm=gn", "batch=4", "recipe.images=5120", *SHORT[1:])  # long enough not to diverge
    layers, networks, _ = executed("python.md")
    conversion, deployment = executed("deploy.md")
    (ratios,) = layers["ratios"](layers["network"]).values()
    assert sum(ratios["mean"]) == pytest.approx(1)
    sizes = [sum(p.numel() for p in networks[name].parameters()) for name in ("network", "same")]
    assert sizes[0] == sizes[1]
    sizes = [
        sum(p.numel() for p in deployment[name].parameters()) for name in ("deployed", "network")
    ]
    assert sizes[0] < sizes[1]
    assert conversion["network"](conversion["images"]).isfinite().all()
    assert "gn 1 " in capsys.readouterr().out


def test_the_guide_names_every_normalizer() -> None:
    section = _section("choices.md", "Normalizers")
    assert set(catalog.normalizers()) <= set(re.findall(r"`(\w+)`", section))


def test_the_guide_names_every_architecture() -> None:
    section = _section("choices.md", "Networks")
    named: set[str] = set()
    for part in re.findall(r"[^;|]+", section):
        stems = re.findall(r"`([a-z]\w+)`", part)
        named |= set(stems)
        for suffix in re.findall(r"each also `(_\w+)`", part):
            named |= {f"{stem}{suffix}" for stem in stems}
    for first, last in re.findall(r"`(\w+)` to `(\w+)`", section):
        named |= {f"{first[:-1]}{k}" for k in range(int(first[-1]), int(last[-1]) + 1)}
    assert set(catalog.models()) <= named


def _section(page: str, heading: str) -> str:
    text = (ROOT / "docs" / "guide" / page).read_text()
    return text.partition(f"## {heading}")[2].partition("\n## ")[0]


LINKS = [
    (page, link)
    for page in PAGES
    if page.exists()
    for link in sorted(set(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())))
]


@pytest.mark.parametrize(
    ("page", "link"), LINKS, ids=lambda value: str(getattr(value, "name", value))
)
def test_a_link_leads_somewhere(page: Path, link: str) -> None:
    assert (page.parent / link).exists()


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
    command = block("test")
    calls = [
        f"+ {command}", "python3 -m venv .venv", 'pip install -e .[dev]', "make check",
        "+ make ffcv slow", "make ffcv slow",
    ]  # fmt: skip
    assert result.stdout.splitlines() == (calls[:4] if failing == "make check" else calls)
    assert (result.returncode == 0) == (failing == "")
