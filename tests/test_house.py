"""The house itself: who may import whom, what travels in a wheel, that documents say what is so."""

import ast
import inspect
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from normbench import __version__, catalog, cost, status
from normbench.config import build
from normbench.config.cells import GROUPS
from normbench.config.files import CONF, ROOT, names
from normbench.errors import BadInput
from normbench.probe import __main__ as probe
from normbench.report.__main__ import main as report
from support.commands import Command
from support.dataset_files import FASHION_MNIST

MODULES = sorted((ROOT / "normbench").rglob("*.py"))
README = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="not a checkout, so there is no house to look at"
)


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([script, "--no-cache"], cwd=root, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its contracts, to be sinned against."""
    shutil.copytree(ROOT / "normbench", tmp_path / "normbench")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold() -> None:
    assert lint_imports(ROOT).returncode == 0


@pytest.mark.parametrize(
    ("module", "sin", "contract"),
    [
        ("norms/batch.py", "import normbench.training.lightning_module", "imports point down"),
        ("models/profile.py", "import normbench.data.digits", "networks know no data sets"),
        ("results.py", "import normbench.report.table", "imports point down"),
        ("report/table.py", "import torch", "import no torch"),
        ("execution/sweep.py", "import wandb", "import no torch"),
        ("report/build.py", "import hydra", "the report is a reader"),
        ("norms/group.py", "import pytorch_lightning", "know torch alone"),
        ("results.py", "import pydantic", "the row is standard library"),
        ("fresh.py", "import os", "imports point down"),
    ],
)
def test_a_planted_sin_is_caught(copy: Path, module: str, sin: str, contract: str) -> None:
    with (copy / "normbench" / module).open("a") as file:
        file.write(f"\n{sin}\n")
    found = lint_imports(copy)
    assert found.returncode != 0
    broken = [line for line in found.stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken) or "fresh" in found.stdout


def test_no_module_is_a_junk_drawer() -> None:
    drawers = {"utils", "util", "helpers", "helper", "misc", "common", "tools"}
    assert not {path.stem for path in MODULES} & drawers


@pytest.mark.parametrize("path", sorted((ROOT / "normbench/models").glob("*.py")), ids=str)
def test_no_architecture_asks_for_the_name_of_a_normalizer(path: Path) -> None:
    tree = ast.parse(path.read_text())
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not strings & set(catalog.normalizers())


# The yamls and what they name

SCIENCE = [(group, name) for group in GROUPS for name in names(CONF / group)]


@pytest.mark.parametrize(("group", "name"), SCIENCE)
def test_a_yaml_names_every_argument_of_its_target_and_no_other(group: str, name: str) -> None:
    chosen = build.options(group, name, {})
    module, _, attribute = chosen.pop("_target_").rpartition(".")
    target = getattr(import_module(module), attribute)
    accepted = set(inspect.signature(target).parameters) - {"norm", "num_classes", "in_chans"}
    assert set(chosen) == accepted


@pytest.mark.parametrize("group", ["norm", "data", "model"])
def test_a_misspelt_name_or_option_is_an_error_in_python_too(group: str) -> None:
    name = names(CONF / group)[0]
    with pytest.raises(BadInput, match=f"{group}={name}x is unknown; did you mean {name}"):
        build.options(group, f"{name}x", {})
    with pytest.raises(BadInput, match=f"{group}.surplus is no option of {name}"):
        build.options(group, name, {"surplus": 1})


@pytest.mark.parametrize("kind", catalog.LISTS)
def test_the_catalog_lists_names_with_what_they_are(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalog.main([kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]  # sizes of models are below
    assert [line.split()[0] for line in heads] == names(catalog.LISTS[kind])
    assert all(len(line) > 30 for line in lines)
    assert catalog.main(["nothing"]) == 2


# A wheel


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
    work = tmp_path / "work"
    work.mkdir()
    words = [sys.executable, "-m", "normbench", "norm=gn", "recipe.images=256", "logger=none"]
    found = subprocess.run(
        words, cwd=work, env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "of these files are new" in found.stdout
    assert list(work.glob("reports/batch_size/*.md"))
    assert list(work.glob("runs/default/*/row.json"))
    report = subprocess.run(
        [sys.executable, "-m", "normbench.report"], cwd=work, capture_output=True, text=True,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert report.returncode == 0, report.stderr
    assert (work / "reports" / "index.html").exists()


def test_the_process_of_a_sweep_imports_no_torch_to_its_end(tmp_path: Path) -> None:
    """Its imports would be waited for before the first run, and once more at the end."""
    script = """if __name__ == "__main__":
        import sys
        from normbench import __main__
        code = __main__.main(["norm=gn", "recipe.images=256"])
        print(code, sorted({"torch", "pytorch_lightning", "wandb"} & sys.modules.keys()))
    """
    (tmp_path / "script.py").write_text(script)
    found = run("python script.py", tmp_path)
    assert found.stdout.splitlines()[-1] == "0 ['wandb']", found.stderr


def test_the_console_script_is_the_command_line(tmp_path: Path) -> None:
    found = run("normbench norm=gn recipe.images=256 logger=none", tmp_path)
    assert found.returncode == 0, found.stderr
    assert list(tmp_path.glob("runs/default/*/row.json"))
    assert run("normbench --version", tmp_path).stdout == f"normbench {__version__}\n"
    assert run("normbench --help | head -1", tmp_path).stderr == ""


# The README


def block(mark: str) -> list[str]:
    """The commands of the README's code block below `<!-- mark -->`."""
    below = README.partition(f"<!-- {mark} -->\n```sh\n")[2]
    return below.partition("\n```")[0].splitlines()


def run(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell command with this Python and without a network."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "WANDB_MODE": "offline", "HOME": str(folder)}
    return subprocess.run(
        words, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("mark", ["run", "test"])
def test_the_readme_has_its_two_commands(mark: str) -> None:
    (command,) = block(mark)
    install, _, then = command.rpartition(" && ")
    assert install.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install -e ")
    assert then in ("make ffcv check", MAIN_JOB)


def test_the_readmes_table_is_that_of_the_report() -> None:
    report = ROOT / "reports/batch_size/digits-resnet14-demo-fixed_global_batch-128.md"
    lines = [line for line in report.read_text().splitlines() if line.startswith("|")]
    assert "\n".join(lines) in README


MAIN_JOB = block("run")[0].rpartition(" && ")[2]


def test_the_main_job_of_the_readme(tmp_path: Path) -> None:
    found = run(MAIN_JOB, tmp_path)
    assert found.returncode == 0, found.stderr
    assert len(list(tmp_path.glob("runs/default/*/row.json"))) == 18
    assert "| evonorm_s0 †   | " in found.stdout
    again = run(MAIN_JOB, tmp_path)
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
        assert "Usage: python -m normbench" in run(example, Path.cwd()).stdout
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
    found = run(command + " recipe.images=2560 trainer=cpu logger=none", tmp_path)
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
    listed = run(f"python -m normbench {' '.join(mine)} --help", tmp_path)
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


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    found = subprocess.run(
        script.replace('eval "$test_command"', "").replace("rm -rf .venv", "")
        .replace('"$(dirname "$0")/.."', f'"{ROOT}"'),
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == f"+ {block('test')[0]}\n"
