"""When a report is made again: something that it is made of has changed, or one of its files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from normbench import results
from normbench.report import cache
from normbench.report.__main__ import main
from normbench.report.cache import Cache, data_digest, inputs_digest
from support.rows import RUNS

Report = Callable[[], str]


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    """Make the whole report in tmp_path/out; what it prints."""
    for each in RUNS:
        results.write(tmp_path / "runs" / each.sweep / each.id, each)

    def make() -> str:
        assert main([f"runs={tmp_path / 'runs'}", f"reports={tmp_path / 'out'}"]) == 0
        return capsys.readouterr().out

    return make


def test_what_is_gone_or_was_changed_is_made_again(tmp_path: Path, report: Report) -> None:
    report()
    out, of = tmp_path / "out", inputs_digest(tmp_path / "out", tmp_path / "runs")
    before = {
        path: path.read_bytes() for path in out.rglob("*.*") if not path.match(".report.json")
    }
    assert {path.suffix for path in before} == {".md", ".csv", ".tex", ".svg", ".html"}
    assert len(before) == 9
    for path, content in before.items():
        time = path.stat().st_mtime_ns
        path.unlink()
        assert not Cache(out).is_current(of), path
        path.write_bytes(content + b" ")
        assert not Cache(out).is_current(of), path
        path.write_bytes(content)
        os.utime(path, ns=(time, time))
        assert Cache(out).is_current(of)
    for path in before:
        path.unlink()
    assert "files: 9 new" in report()
    (out / "claims.csv").write_text("something else")
    assert "files: 1 replaced\n" in report()
    assert {path: path.read_bytes() for path in before} == before
    assert "nothing has changed" in report()


def touched(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.read_text() + "\n" if path.exists() else "\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of yamls that tests may change."""
    for name in ("TABLES", "CLAIMS", "SWEEPS", "CONF"):
        monkeypatch.setattr(cache, name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    "place",
    ["TABLES/one.yaml", "CLAIMS/one.yaml", "SWEEPS/one.yaml", "CONF/norm/one.yaml",
     "runs/s/r/row.json", "runs/s/r/history.csv", "runs/s/r/test_hits.bin"],
)  # fmt: skip
def test_the_fingerprint_is_of_everything_that_a_report_is_made_of(root: Path, place: str) -> None:
    touched(root / "runs" / "s" / "r" / "row.json")
    of = [inputs_digest(root / "out", root / "runs")]
    for _ in range(2):  # it appears and changes, or changes twice
        touched(root / place)
        of.append(inputs_digest(root / "out", root / "runs"))
    (root / place).unlink()
    of.append(inputs_digest(root / "out", root / "runs"))
    assert len(set(of[:3])) == 3
    assert of[3] not in of[1:3]
    assert inputs_digest(root / "elsewhere" / "out", root / "runs") != of[3]  # its links lead there


def test_a_new_normalizer_shifts_the_colours_so_all_is_drawn_again(root: Path) -> None:
    touched(root / "CONF" / "norm" / "bn.yaml")
    before = data_digest("a table")
    assert data_digest("a table") == before
    assert data_digest("another") != before
    touched(root / "CONF" / "norm" / "an.yaml")
    assert data_digest("a table") != before
