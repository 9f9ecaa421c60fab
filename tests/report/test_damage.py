"""Reports of damaged folders: what cannot be used is named, and everything else is written."""

import csv
import io
import json
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from normbench import results
from normbench.config.files import TABLES
from normbench.errors import DamagedFile, LeftOut
from normbench.records.history import History
from normbench.records.probes import read_records, write_records
from normbench.report import build, exports, figure_files, probe_figures
from normbench.report.__main__ import main
from normbench.report.figure_kinds import FORMATS
from normbench.report.markdown import escape_markdown
from normbench.report.probe_columns import COLUMNS, read_probe
from normbench.report.probe_drawings import DRAW
from support.commands import Finished, in_process
from support.damage import DAMAGES, damage_file
from support.rows import batch_size_tables, runs
from support.slow import slow_after

Report = Callable[..., Finished]
#: A record of each probe.
RECORDS: dict[str, dict[str, Any]] = {
    "spp": {"squared_mean": 0.5, "variance": 2.0, "branch_variance": 1.0, "ends_stage": True},
    "power": {"depth": 1, "p1": 0.25, "p2": 0.25, "p3": 0.25, "p4": 0.25, "linearity": None},
    "ratios": {
        "depth": 1, "field": 3, "group": "all", "of": "mean", "in": 0.5, "ln": 0.25, "bn": 0.25,
        "divergence": 0.0,
    },
    "example_weight": {"split": "val", "alpha": 0.5, "top1": 90.0, "top5": 99.0, "loss": 0.5},
}  # fmt: skip
FIRST = "runs/default/000000000000"


@pytest.fixture
def report(
    _figures: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Report:
    """Make the report of four runs with curves and probes; the first is bn with seed 0."""
    monkeypatch.chdir(tmp_path)
    for number, row in enumerate([*runs("bn", 4, [70.0, 71.0]), *runs("sn", 64, [80.0, 81.0])]):
        folder = Path("runs/default") / f"{number:012x}"
        results.write(folder, replace(row, id=folder.name))
        curve = History(folder)
        for epoch in (1, 2):
            curve.add({"step": epoch, "epoch": epoch, "train_top1": 50.0, "val_top1": 40.0})
        for kind, record in RECORDS.items():
            lines = [{"epoch": 2, "block": block, **record} for block in (1, 2)]
            write_records(folder / "probes" / f"{kind}.csv", lines)
    return in_process(main, capsys)


def named(end: Finished, path: str) -> None:
    """Check that a report has named a file in one line, and nothing else."""
    assert end.code == 1, end.err
    (line,) = end.err.splitlines()
    assert line.startswith(f"normbench.report: left out: {path}"), line


@pytest.mark.parametrize("name", slow_after(1, ["row.json", "history.csv", "probes/ratios.csv"]))
def test_a_damaged_file_is_named_by_each_report_until_it_is_repaired(
    name: str, report: Report
) -> None:
    path = Path(FIRST) / name
    content = path.read_bytes()
    for kind in DAMAGES:
        damage_file(path, kind)
        for _ in range(2 if kind == "half" else 1):
            named(report(), str(path))
        assert Path("runs/reports/index.html").exists()
        assert len(list(Path("runs/reports/batch_size").glob("*.svg"))) == 6, kind
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    path.write_bytes(content)
    end = report()
    assert (end.code, end.err) == (0, "")


def test_a_probe_that_is_a_link_to_nothing_is_named(report: Report) -> None:
    path = Path(FIRST) / "probes/spp.csv"
    path.unlink()
    path.symlink_to("nothing")
    named(report(), f"{path} is a link to nothing")


@pytest.mark.parametrize("kind", slow_after(1, [*COLUMNS]))
def test_a_probe_without_its_columns_is_named(kind: str, report: Report) -> None:
    path = Path(FIRST) / "probes" / f"{kind}.csv"
    (first, second), columns = read_records(path), COLUMNS[kind]
    broken = [{k: v for k, v in first.items() if k != name} for name in columns.places]
    broken += [first | {name: "x"} for name in (*columns.places, *columns.numbers)]
    broken += [first | {name: float("nan")} for name in columns.places]
    broken += [first | {name: 1e200} for name in (*columns.places, *columns.numbers)]
    for record in broken:
        write_records(path, [second, record])
        with pytest.raises(DamagedFile, match=f"{kind}.csv: record"):
            read_probe(path, kind)
    named(report(), str(path))
    (drawn,) = Path("runs/reports/batch_size").glob(f"*-{kind}.svg")
    for other in Path("runs/default").glob(f"*/probes/{kind}.csv"):
        other.write_bytes(path.read_bytes())
    assert report().code == 1
    assert not drawn.exists()  # it would show what is damaged now


@pytest.mark.slow
def test_a_damaged_cache_counts_as_none(report: Report) -> None:
    assert report().code == 0
    cache = Path("runs/reports/.report.json")
    for content in ("[]", '{"figures": 5, "inputs": [], "outputs": {"a": 1}}', "{", ""):
        cache.write_text(content)
        end = report()
        assert (end.code, end.err) == (0, "")
    assert json.loads(cache.read_text())["inputs"]
    (drawn, *_) = Path("runs/reports/batch_size").glob("*.svg")
    before = drawn.read_bytes()
    drawn.write_text("")  # by a full disk, long ago
    assert report().code == 0
    assert drawn.read_bytes() == before


@pytest.mark.slow
@pytest.mark.figures
@pytest.mark.parametrize(
    "text",
    ["$x", "a$b$c", r"$\frac$", "${x}", "\x1b[31m\0", "漢" * 90, "_"],
)
def test_names_are_literal_in_every_file_of_a_report(text: str, report: Report) -> None:
    for path in Path("runs").glob("*/*/row.json"):
        raw = json.loads(path.read_text())
        raw |= {"data": text, "config": raw["config"] | {"data": {"name": text}}}
        path.write_text(json.dumps(raw | {"options": "norm.eps=$y$"}))
    end = report()
    assert (end.code, end.err) == (0, "")
    assert "\x1b" not in end.out
    for path in Path("runs/reports/batch_size").glob("*.svg"):
        ElementTree.parse(path)


@pytest.mark.slow
@pytest.mark.figures
def test_names_are_literal_in_every_format(report: Report) -> None:
    for path in Path("runs").glob("*/*/row.json"):
        path.write_text(path.read_text().replace('"digits"', r'"$\\frac$"'))
    end = report("batch_size")
    assert (end.code, end.err) == (0, "")
    for form in FORMATS:
        assert len(list(Path("runs/reports/batch_size").glob(f"*.{form}"))) == 6


@pytest.mark.parametrize("kind", DRAW)
def test_no_text_of_a_figure_is_markup(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a name with a dollar sign would end the report."""
    shown = []

    def save(figure: Any, forms: Any) -> dict[str, bytes]:
        figure.canvas.draw()
        shown.extend(figure.findobj(Text))
        return {}

    monkeypatch.setattr(probe_figures, "save_figure", save)
    noise = {"layer": "all", "per_worker": 4, "loss": 1.0, "bias": 0.1, "variance": 1.0}
    noise |= {"predicted": 1.0, "measured": None}
    corruptions = {"statistics": "running", "corruption": "noise", "strength": 0, "top1": 1.0}
    conversion = {"norm": "gn", "start": "copied", "step": 0, "top1": 1.0}
    records = RECORDS | {"hard_ratios": RECORDS["ratios"], "noise": noise}
    records |= {"corruptions": corruptions, "conversion": conversion}
    record = records.get(kind, {"batch": 4, "mode": "training", "ratio": 1.0, "memory_ratio": 1.0})
    record = {"exact": 1.0, "sampled": 1.0, "act": "$x", "group": "$x", "of": "mean"} | record
    record = record | {"block": 1, "epoch": 1, "network": "$x", "seed": 0, "divergence": 1e9}
    far = record | {"block": 2, "variance": 1e9, "depth": 2}
    probe_figures.draw(kind, [record, record | {"variance": 1.0}, far], "$x")
    texts = [each.get_text() for each in shown]
    assert "$x" in " ".join(texts)
    assert not [each for each in shown if each.get_parse_math()]
    assert not [text for text in texts if "mathdefault" in text]


def test_a_file_that_cannot_be_written_is_named(report: Report) -> None:
    for path in ("runs/reports/claims.md/x", "runs/reports/report.tex/x"):
        Path(path).mkdir(parents=True)
    leftover = Path("runs/reports/.index.html.4194305")  # of a process that was killed
    leftover.touch()
    end = report()
    assert end.code == 1
    first, second = end.err.splitlines()
    assert (
        first
        == "normbench.report: left out: runs/reports/claims.md cannot be written: Is a directory"
    )
    assert "runs/reports/report.tex cannot be written" in second
    assert Path("runs/reports/index.html").exists()
    assert not leftover.exists()
    assert report().code == 1
    for path in ("runs/reports/claims.md", "runs/reports/report.tex"):
        shutil.rmtree(path)
    assert report().code == 0
    Path("runs/reports/batch_size").rename("runs/reports/kept")
    Path("runs/reports/batch_size").touch()
    end = report()
    assert end.code == 1
    assert len(end.err.splitlines()) <= 12
    assert "File exists" in end.err


@pytest.fixture
def yamls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of two tables and a claim about one of them."""
    for name in ("TABLES", "CLAIMS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(build, name, tmp_path / name)
    for stem in ("batch_size", "evonorm_9"):
        shutil.copy(TABLES / f"{stem}.yaml", tmp_path / "TABLES")
    claim = "place: here\n    says: so\n    tables: [evonorm_9]\n    spread: [[BN-ReLU, '*']]\n"
    (tmp_path / "CLAIMS" / "mine.yaml").write_text(f"paper: mine\nclaims:\n  valid:\n    {claim}")
    return tmp_path


TABLE = "title: mine\nmetric: test_top1\nrows: norm\ncolumns: batch\n"


@pytest.mark.parametrize(
    ("content", "says"),
    slow_after(
        5,
        [
            ("title: [", "line 2: did not find expected node content"),
            ("- a\n- b\n", "must hold options with their values"),
            ("title: mine\n", "metric is missing"),
            (f"{TABLE}title: twice\n", "line 5: found duplicate key title"),
            (TABLE.replace("mine", "5"), "title=5 is no str"),
            (TABLE.replace("test_top1", "[a]"), "metric=['a'] is no str"),
            (TABLE.replace("norm", "nrom"), "nrom is no axis; did you mean norm?"),
            (TABLE.replace("norm", "norm.eps"), "norm.eps is no axis"),
            (TABLE.replace("norm", "init_from"), "init_from is no axis"),
            (f"{TABLE}decimals: 99\n", "decimals=99: it must be from 0 to 15"),
            (f"{TABLE}where: [norm]\n", "where=['norm'] is no dict"),
            (f"{TABLE}published: &a {{x: *a}}\n", "is too large"),
            ("title: !!bool maybe\n", "is no yaml: KeyError"),
            ("title: \x80\n", "is not UTF-8"),
        ],
    ),
)
def test_an_invalid_table_is_left_out_with_its_claims(
    content: str, says: str, yamls: Path, report: Report
) -> None:
    (yamls / "TABLES" / "mine.yaml").write_bytes(content.encode("latin-1"))
    end = report()
    assert end.code == 1, end.err
    assert len(end.err.splitlines()) == 1
    assert says in end.err
    assert "mine.yaml" in end.err
    assert Path("runs/reports/batch_size").is_dir()
    end = report("mine")
    assert end.code == 2
    assert says in end.err


def test_an_invalid_claim_is_left_out_alone(yamls: Path, report: Report) -> None:
    assert len(build.read_claims(build.specs())) == 1
    path = yamls / "CLAIMS" / "mine.yaml"
    path.write_text(f"{path.read_text()}  invalid:\n    higher: 5\n  worse: 7\n")
    end = report()
    assert end.code == 1
    first, second = end.err.splitlines()
    assert "left out: reports/claims/mine.yaml, invalid: place is missing" in first
    assert "left out: reports/claims/mine.yaml, worse: a claim has keys" in second
    with pytest.warns(LeftOut):
        assert [claim.name for claim in build.read_claims(build.specs())] == ["valid"]
    (yamls / "TABLES" / "evonorm_9.yaml").write_text("title: [")  # the claim is about it
    assert len(report().err.splitlines()) == 3
    path.write_text("paper: 5\nclaims: 7\n")
    assert len(report().err.splitlines()) == 2


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'=1", "'", "plain"])
def test_a_spreadsheet_computes_no_text(text: str, tmp_path: Path) -> None:
    """And our own reader returns the text."""
    (table,) = batch_size_tables([replace(row, norm=text) for row in runs("bn", 4, [70.0])])
    (line,) = csv.DictReader(io.StringIO(exports.table_csv(table), newline=""))
    path = tmp_path / "records.csv"
    write_records(path, [{"network": text, "epoch": -1, "loss": -0.5}])
    assert read_records(path) == [{"network": text, "epoch": -1, "loss": -0.5}]
    (cells,) = csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""))
    expected = text if text in ("'", "plain") else f"'{text}"
    assert (line["norm"], cells["network"]) == (expected, expected)
    assert (cells["epoch"], cells["loss"]) == ("-1", "-0.5")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("evonorm_s0", "evonorm_s0"),
        (r"norm \ batch", r"norm \ batch"),
        ("76.0 [76.1, +0.3] #FLOPs R&D 1 < 2", "76.0 [76.1, +0.3] #FLOPs R&D 1 < 2"),
        ("a|b", r"a\|b"),
        ("*x* _y_", r"\*x\* \_y\_"),
        ("<b>", r"\<b>"),
        ("[a](b)", r"[a\](b)"),
        ("# a\nb", r"\# a b"),
        ("`x` $y$ ~z~ &lt;", r"\`x\` \$y\$ \~z\~ \&lt;"),
        ("\x1b[31m", r"\x1b[31m"),
    ],
)
def test_markdown_shows_names_as_they_are(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped


def test_labels_of_a_logarithmic_axis_are_plain_text() -> None:
    plot = Figure()
    axes = plot.add_subplot()
    figure_files.use_log_scale(axes)
    for lowest, highest, label in ((1e-9, 1e9, "10⁻⁸"), (2.0, 5.0, "2×10⁰")):
        axes.set_ylim(lowest, highest)
        plot.canvas.draw()
        ticks = axes.yaxis.get_ticklabels(which="both")
        assert label in [tick.get_text() for tick in ticks]
