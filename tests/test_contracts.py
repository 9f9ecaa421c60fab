"""Rules about the code: which room imports which, and what a module may not know."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from normbench import catalog
from normbench.config.files import ROOT

MODULES = sorted((ROOT / "normbench").rglob("*.py"))

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="runs only in a checkout"
)


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([script, "--no-cache"], cwd=root, capture_output=True, text=True)


def broken_contracts(stdout: str) -> list[str]:
    """Return the names of the contracts that import-linter reports as broken."""
    return re.findall(r"^(.+?) BROKEN", stdout, re.MULTILINE)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the package and its contracts, so that a test can break them."""
    shutil.copytree(ROOT / "normbench", tmp_path / "normbench")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout
    assert broken_contracts(result.stdout) == []


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("norms/batch.py", "normbench.training.lightning_module", "imports point down"),
        ("models/profile.py", "normbench.data.digits", "networks know no data sets"),
        ("results.py", "normbench.report.table", "imports point down"),
        ("report/table.py", "torch", "the command line and the report import no torch"),
        ("execution/sweep.py", "wandb", "the command line and the report import no torch"),
        ("report/build.py", "hydra", "the report is a reader"),
        ("norms/group.py", "pytorch_lightning", "networks, layers and data know torch alone"),
        ("results.py", "pydantic", "the row is standard library"),
    ],
)
def test_a_forbidden_import_is_reported(
    copy: Path, module: str, imported: str, contract: str
) -> None:
    with (copy / "normbench" / module).open("a") as file:
        file.write(f"\nimport {imported}\n")
    result = lint_imports(copy)
    assert result.returncode == 1
    assert contract in broken_contracts(result.stdout)
    importer = f"normbench.{module.removesuffix('.py').replace('/', '.')}"
    assert re.search(rf"{re.escape(importer)} ->\s+{re.escape(imported)}\b", result.stdout)


def test_a_module_outside_of_the_layers_is_reported(copy: Path) -> None:
    (copy / "normbench" / "fresh.py").write_text("import os\n")
    result = lint_imports(copy)
    assert result.returncode == 1
    assert broken_contracts(result.stdout) == ["imports point down"]
    assert "fresh" in result.stdout


def test_no_module_is_a_junk_drawer() -> None:
    drawers = {"utils", "util", "helpers", "helper", "misc", "common", "tools"}
    assert not {path.stem for path in MODULES} & drawers


@pytest.mark.parametrize("path", sorted((ROOT / "normbench/models").glob("*.py")), ids=str)
def test_no_architecture_asks_for_the_name_of_a_normalizer(path: Path) -> None:
    tree = ast.parse(path.read_text())
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not strings & set(catalog.normalizers())
