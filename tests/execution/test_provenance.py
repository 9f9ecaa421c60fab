"""The origin of a result: commit, versions, processor, time."""

import platform
import re
import subprocess
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from normbench.execution import provenance


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    end = subprocess.run(
        ["git", "-C", str(folder), *author, *arguments], capture_output=True, text=True, check=True
    )
    return end.stdout.strip()


def test_a_commit_has_a_plus_if_a_file_that_decides_numbers_differs(tmp_path: Path) -> None:
    git(tmp_path, "init")
    for name in ("normbench", "conf", "sweeps", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.commit(tmp_path) == commit
    (tmp_path / "docs" / "file").write_text("2")
    assert provenance.commit(tmp_path) == commit
    for name in ("normbench", "conf", "sweeps"):
        (tmp_path / name / "file").write_text("2")
        assert provenance.commit(tmp_path) == f"{commit}+"
        (tmp_path / name / "file").write_text("1")
    (tmp_path / "pyproject.toml").touch()
    assert provenance.commit(tmp_path) == f"{commit}+"


def test_a_folder_inside_of_another_repository_has_no_commit(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) == ""
    git(tmp_path, "init")
    (tmp_path / "site-packages").mkdir()
    assert provenance.commit(tmp_path / "site-packages") == ""


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert provenance.commit(tmp_path) == ""


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() == ""


def test_versions_are_those_of_installed_packages() -> None:
    versions = provenance.versions()
    assert versions.keys() >= {"normbench", "torch", "numpy", "timm", "wandb", "hydra-core"}
    assert versions["torch"] == version("torch")


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGES", ("torch", "normbench-is-not-installed"))
    assert provenance.versions() == {"torch": version("torch"), "normbench-is-not-installed": ""}


def test_now_is_utc_to_the_millisecond() -> None:
    text = provenance.now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", text)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(text)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
            "model name\t: AMD EPYC\nflags\t\t: fpu\nbugs: a:b\n\nprocessor\t: 1\nmodel\t\t: 18\n",
            "AMD EPYC (family 25, model 17)",
        ),
        (
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n",
            "aarch64 (implementer 0x41, part 0xd0c)",
        ),
        ("processor\t: 0\nmodel name\t: Some CPU\n", "Some CPU"),
        ("", "aarch64"),
    ],
)
def test_a_processor_has_the_numbers_of_its_generation(
    text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert provenance.processor() == name
