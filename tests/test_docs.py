"""What is written of normalizers, and what a new one costs: one Python file and one yaml."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import build as docs
import pytest
from performance_tables import performance
from small_sweeps import small_sweeps

from normbench import catalog
from normbench.config.build import options
from normbench.config.files import CONF, ROOT, names
from support.slow import slow_except

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="not a checkout, so there are no pages"
)


PAGES = [docs.normalizers, docs.architectures, docs.data, docs.recipes, performance, small_sweeps]


@pytest.mark.parametrize("page", slow_except(PAGES, PAGES[:-1]))
def test_a_page_is_current(page: Callable[[], str]) -> None:
    written = (docs.REFERENCE / f"{page.__name__}.md").read_text()
    assert written == page(), "run python docs/build.py"


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group in ("norm", "model") for name in names(CONF / group)],
)
def test_a_page_has_every_yaml_with_all_its_options(group: str, name: str) -> None:
    page = {"norm": docs.normalizers, "model": docs.architectures}[group]
    text = (docs.REFERENCE / f"{page.__name__}.md").read_text()
    # The options of a class stand above the sections of its yamls.
    above = text.partition(f"\n### {name}\n")[0].rpartition(f"| option of `{group}` |")[2]
    assert f"\n### {name}\n" in text
    for option in options(group, name, {}).keys() - {"_target_"}:
        meaning = re.search(rf"^\| `{option}` \| \S.* \| (.+) \|$", above, re.M)
        assert meaning is not None
        assert len(meaning[1]) > 10


@pytest.mark.slow
def test_the_table_of_coverage_is_current() -> None:
    name = "resnet18"  # the quickest; all of them take minutes
    text = (docs.REFERENCE / "coverage.md").read_text()
    written = text.partition(f"\n| {name} |")[2].partition("\n")[0]
    reasons = re.findall(r"^\d+\. (.+)$", text, re.M)
    row = docs.coverage_row(name, reasons)
    assert written.strip(" |").split(" | ") == row[1:], "run make coverage"
    assert all(f"\n| {each} |" in text for each in docs.COVERED)


def test_every_family_says_where_it_stands_and_what_it_does_in_evaluation() -> None:
    families = [part for part in docs.normalizers().split("\n## ")[1:] if "\n### " in part]
    assert len(families) >= 12
    for family in families:
        assert "Placement: " in family
        assert re.search(r"(?i)evaluation", family)
        assert "\n    " in family  # a formula


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bn", "2"),
        ("gn_pn", "4"),
        ("evonorm_s0", "3"),
        ("rms", "1"),
        ("sn", "2 + 6 a layer"),
        ("nf", "0, conv 2"),
        ("fixup", "0 + 1 a layer"),
    ],
)
def test_parameters_are_counted_on_the_layer(name: str, parameters: str) -> None:
    assert catalog.count_parameters(catalog.normalizer(name)) == parameters


def test_the_catalog_says_parameters_and_independence(capsys: pytest.CaptureFixture[str]) -> None:
    assert catalog.main(["norms"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines.keys() == set(catalog.normalizers())
    assert "2 + 6 a layer" in lines["sn"]
    for name, line in lines.items():
        independent = catalog.normalizer(name).batch_independent
        assert ("batch-independent" in line) == independent
        assert ("batch-dependent" in line) != independent


# A new normalizer

TOY = '''"""Squashing: y = x / (1 + |x|)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from normbench.norms.base.layer import NormAct, Normalizer, Normalizing


@dataclass(frozen=True)
class Toy(Normalizer):
    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return ToyAct(channels, act)


class ToyAct(Normalizing):
    batch_independent = True

    def normalize(self, x: Tensor) -> Tensor:
        return x / (1 + x.abs())

    def reference_normalize(self, x: Tensor) -> Tensor:
        return x / (1 + (x**2) ** 0.5)
'''
YAML = "# A toy that squashes every value.\n_target_: normbench.norms.toy.Toy\n"


def outcome(folder: Path, toy: str) -> str:
    """The end of a run of the tests of `toy` in a copy of the repository."""
    for part in ("normbench", "hydra_plugins", "conf", "sweeps", "reports", "tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "normbench/norms/toy.py").write_text(toy)
    (folder / "conf/norm/toy.yaml").write_text(YAML)
    files = [
        "tests/norms/test_normalizers.py",
        "tests/training/test_training.py",
        "tests/norms/test_inference.py",
    ]
    words = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        "-k",
        "toy",
        "-m",
        "not large",
        "-p",
        "no:cacheprovider",
        "-rf",
    ]
    found = subprocess.run(
        words, cwd=folder, env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    return found.stdout


@pytest.mark.slow
def test_a_new_normalizer_costs_two_files_and_is_tested_without_another(tmp_path: Path) -> None:
    assert not (CONF / "norm" / "toy.yaml").exists()
    last = outcome(tmp_path, TOY).splitlines()[-1]
    passed = re.match(r"(\d+) passed", last)
    assert passed is not None, last
    assert int(passed[1]) >= 40
    assert "failed" not in last


@pytest.mark.slow
def test_a_new_normalizer_that_is_not_its_equation_fails(tmp_path: Path) -> None:
    wrong = TOY.replace("(1 + (x**2) ** 0.5)", "(1.0001 + (x**2) ** 0.5)")
    failed = re.findall(r"^FAILED \S+::(\w+)", outcome(tmp_path, wrong), re.M)
    assert "test_values_and_gradients_are_those_of_the_reference" in failed
