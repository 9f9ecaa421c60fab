"""Rows in, tables out: what stands in a cell, what below the table, what is never mixed."""

import csv
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normbench import results
from normbench.config.files import CONF, ROOT, names
from normbench.records.history import History
from normbench.records.studies import STUDY
from normbench.report import build, exports, latex
from normbench.report.__main__ import main
from normbench.report.figure import draw, style
from normbench.report.figure_kinds import FORMATS, LINES, figure_kinds
from normbench.report.footnotes import differences, footnotes
from normbench.report.pivot import tables
from normbench.report.statistics import summary
from normbench.report.table import Table
from normbench.report.titles import setting_title
from normbench.results import Row
from support.rows import RUNS, batch_size_tables, config, row, run, runs, write_row
from support.slow import slow_except


def test_a_cell_is_mean_deviation_and_number_of_seeds() -> None:
    (table,) = batch_size_tables(RUNS)
    assert table.grid() == (
        ["norm \\ batch", "4", "128"],
        [
            ["bn", "82.0 ± 2.0 (3)", "92.0 ± 2.0 (3)"],
            ["gn †", "88.5 ± 0.7 (2)", "88.5 ± 0.7 (2)"],
        ],
    )


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([run("bn", 4, 0, 80.0)], "80.0 (1)"),
        ([run("bn", 4, 0, 10.0, status="diverged")], "div."),
        ([run("bn", 4, 0, None, status="oom")], "OOM"),
        ([run("bn", 4, 0, None, status="impossible")], "n/a"),
        ([run("bn", 4, 0, 80.0), run("bn", 4, 1, None, status="diverged")], "80.0 (1), 1 div."),
        ([], "–"),
    ],
)
def test_where_there_is_no_number_a_word_says_why(runs: list[Row], text: str) -> None:
    (table,) = batch_size_tables([*runs, run("bn", 8, 0, 85.0), run("gn", 4, 0, 85.0)])
    assert table.grid()[1][0] == ["bn", text, "85.0 (1)"]


def test_batches_are_in_the_order_of_numbers() -> None:
    (table,) = batch_size_tables([run("bn", batch, 0, 90.0) for batch in (128, 8, 16, 2)])
    assert [column.batch for column in table.columns] == [2, 8, 16, 128]


@pytest.mark.parametrize(
    "change",
    [
        {"data": "fashion_mnist"}, {"model": "resnet8"}, {"recipe": "other"}, {"reg": "mixup"},
        {"precision": "bf16-mixed"}, {"global_batch": 64},
    ],
    ids=str,
)  # fmt: skip
def test_runs_of_another_setting_are_another_table(change: dict[str, Any]) -> None:
    by_setting = batch_size_tables([*RUNS, run("bn", 4, 0, 50.0, **change)])
    assert len(by_setting) == 2
    assert (
        len({table.heading for table in by_setting})
        == len({table.slug for table in by_setting})
        == 2
    )


def test_the_setting_without_regularization_is_first() -> None:
    rows = [run("bn", 4, 0, 50.0, reg=reg) for reg in ("mixup", "none", "extra")]
    regs = [table.setting.get("reg", "none") for table in batch_size_tables(rows)]
    assert regs == ["none", "extra", "mixup"]


@pytest.mark.parametrize(
    ("held", "follows"), [("workers", "global_batch"), ("global_batch", "workers")]
)
def test_what_follows_from_the_batch_is_no_setting(held: str, follows: str) -> None:
    protocol = f"fixed_{held}"
    runs = [run("bn", b, 0, 90.0, protocol=protocol, **{held: 16, follows: b * 16}) for b in (4, 8)]
    (table,) = batch_size_tables(runs)
    assert [column.batch for column in table.columns] == [4, 8]
    assert f"protocol={protocol} {held}=16" in table.heading


def with_options(seed: int, options: str, **inside: Any) -> Row:
    """A run of gn whose configuration has more than names."""
    made = run("gn", 4, seed, 80.0 + seed, options=options)
    for group, values in inside.items():
        made.config[group].update(values)
    return made


def test_options_of_the_normalizer_are_rows_of_their_own() -> None:
    runs = [with_options(0, ""), with_options(1, "norm.groups=8", norm={"groups": 8})]
    (table,) = batch_size_tables(runs)
    assert list(table.lines) == [("gn",), ("gn groups=8",)]


def test_options_of_the_recipe_are_settings() -> None:
    runs = [with_options(0, ""), with_options(1, "recipe.lr=0.2", recipe={"lr": 0.2})]
    assert [("recipe.lr=0.2" in table.heading) for table in batch_size_tables(runs)].count(
        True
    ) == 1


def test_runs_from_before_a_yaml_changed_are_kept_apart_and_named() -> None:
    """Nothing was typed, so only the configurations tell."""
    old = [with_options(seed, "", model={"width": 16}) for seed in (0, 1)]
    new = [with_options(seed, "", model={"width": 32}) for seed in (0, 1)]
    by_width = batch_size_tables(old + new)
    assert sorted(
        re.findall(r"model\.width=\d+", " ".join(table.heading for table in by_width))
    ) == [
        "model.width=16",
        "model.width=32",
    ]
    eps = [with_options(seed, "", norm={"eps": seed}) for seed in (0, 1)]
    assert list(batch_size_tables(eps)[0].lines) == [("gn eps=0",), ("gn eps=1",)]


def test_only_the_settings_that_a_sweep_touched_are_shown() -> None:
    other = run("bn", 4, 0, 50.0, data="fashion_mnist")
    specs = build.specs(["batch_size"])
    (table,) = tables(specs, [*RUNS, other], {other.id})
    assert table.setting["data"] == "fashion_mnist"


def test_probes_are_no_runs() -> None:
    assert batch_size_tables([run("bn", 4, 0, 50.0, kind="probe")]) == []


# Below the table


def test_what_the_words_mean_is_said_where_they_stand() -> None:
    (table,) = batch_size_tables([run("bn", 4, 0, 10.0, status="diverged"), run("bn", 4, 1, 90.0)])
    assert any(
        note.startswith("div.: diverged; a loss was not finite") for note in footnotes(table)
    )
    (other,) = batch_size_tables(RUNS)
    assert not any(note.startswith("div.") for note in footnotes(other))


def test_alphas_that_held_out_images_chose_are_told_with_their_gain() -> None:
    weighings = [{"alpha": 0.4, "usual": 0.0, "test_top1": 2.0}, {"alpha": 0.1, "usual": 0.0}, {}]
    chosen = [
        replace(run, example_weighing=weighing)
        for run, weighing in zip(runs("bn", 4, [80.0, 81.0, 82.0]), weighings, strict=True)
    ]
    (table,) = batch_size_tables([*chosen, *runs("gn", 4, [80.0])])
    (note,) = (note for note in footnotes(table) if "recipe.example_weight" in note)
    assert note.endswith(": bn alpha 0.1 to 0.4 (usual 0), +2.0 points of test top-1 on average.")


def test_the_groups_that_a_network_really_has_are_said() -> None:
    (table,) = batch_size_tables(
        [run("gn", 4, 0, 90.0, groups=[4]), run("evonorm_s0", 4, 0, 90.0, groups=[2, 4])]
    )
    assert "Group counts in the layers of this network: evonorm_s0 2, 4; gn 4." in footnotes(table)


def test_one_computation_is_said_under_a_fixed_global_batch_alone() -> None:
    (table,) = batch_size_tables(RUNS)
    assert table.single_computations == [("gn",)]
    assert (
        "† gn: with protocol=fixed_global_batch, every column of this row is the same computation"
        in " ".join(footnotes(table))
    )
    assert "gn †" in exports.table_markdown(table)
    workers = {"protocol": "fixed_workers", "workers": 8}
    (other,) = batch_size_tables(
        [run("gn", b, 0, 90.0, global_batch=8 * b, **workers) for b in (4, 8)]
    )
    assert other.single_computations == []


def test_a_row_whose_numbers_are_the_same_to_the_digit_is_one_computation_too() -> None:
    """Synchronized batch normalization: it sees the batch, but the same one in every column."""
    flat = [run("bn", batch, seed, 80.0 + seed) for batch in (4, 128) for seed in (0, 1)]
    assert batch_size_tables(flat)[0].single_computations == [("bn",)]
    other = [*flat[:3], run("bn", 128, 1, 81.0, train_loss=0.123)]
    assert batch_size_tables(other)[0].single_computations == []
    apart = [run("bn", 4, 0, 80.0), run("bn", 128, 1, 80.0)]
    assert batch_size_tables(apart)[0].single_computations == []


def test_why_a_cell_cannot_work_is_said() -> None:
    cannot = [
        run(norm, 4, 0, None, status="impossible", reason="a 1x1 map") for norm in ("in", "x")
    ]
    (table,) = batch_size_tables([*RUNS, *cannot])
    assert "n/a, in, x: a 1x1 map." in footnotes(table)


def test_reasons_are_said_in_the_order_of_the_columns() -> None:
    batches = (2, 4, 8, 16, 32, 64)
    cannot = [
        run("x", batch, 0, None, status="impossible", reason=f"no {batch}") for batch in batches
    ]
    (table,) = batch_size_tables(cannot)
    said = [note for note in footnotes(table) if note.startswith("n/a")]
    assert said == [f"n/a, x: no {batch}." for batch in batches]


def test_the_widest_column_is_compared_with_the_narrowest() -> None:
    (table,) = batch_size_tables(RUNS)
    assert differences(table) == [
        "bn: batch=128 minus batch=4 is +10.0 [+5.5, +14.5] "
        "(Welch's 95 % confidence interval, 3 seeds)."
    ]


def test_the_widest_column_is_compared_at_the_level_of_the_verdicts() -> None:
    accuracies = (80.0, 81.0, 82.0, 83.0)
    bn = [run("bn", b, seed, top1 + b) for b in (4, 8) for seed, top1 in enumerate(accuracies)]
    (table,) = batch_size_tables(bn)  # three seeds are planned
    (note,) = differences(table)
    assert note.endswith("(Welch's 99.9 % confidence interval, 4 seeds).")
    failed = [replace(bn[0], status="diverged"), *bn[1:]]
    assert differences(batch_size_tables(failed)[0]) == []


def test_limits_and_provenance_are_said() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    runs = [run("bn", 4, 0, 90.0, data_limits="Small images.", commit=commit + "+", sweep="demo")]
    said = footnotes(batch_size_tables(runs)[0])
    assert said[-2:] == ["Small images.", "Runs: 1, sweep demo, commit 0123456789ab+."]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0], (1.0, None)), ([1.0, 3.0], (2.0, 2**0.5)), ([2.0, 2.0, 2.0], (2.0, 0.0))],
)
def test_the_deviation_is_that_of_a_sample(values: list[float], expected: Any) -> None:
    assert summary(values) == expected


# Forms


@pytest.mark.parametrize(
    ("form", "piece"),
    [
        (exports.table_markdown, "| bn             | 82.0 ± 2.0 (3) |"),
        (latex.table_latex, r"gn \dag{} & \bfseries 88.5 +- 0.7 & \bfseries 88.5 +- 0.7 \\"),
        (
            latex.table_latex,
            r"data=digits model=resnet14 recipe=demo protocol=fixed\_global\_batch",
        ),
    ],
)
def test_every_form_has_every_number(form: Callable[[Table], str], piece: str) -> None:
    assert piece in form(batch_size_tables(RUNS)[0])


def test_csv_has_a_line_a_run() -> None:
    lines = list(csv.DictReader(io.StringIO(exports.table_csv(batch_size_tables(RUNS)[0]))))
    assert len(lines) == len(RUNS)
    assert {(line["norm"], line["seed"], line["value"]) for line in lines} >= {("bn", "1", "84.0")}


def test_a_figure_is_the_same_bytes_every_time() -> None:
    (table,) = batch_size_tables(RUNS)
    once, again = (draw(table, LINES, FORMATS, Path()) for _ in range(2))
    assert once == again
    assert once["png"][:8] == b"\x89PNG\r\n\x1a\n"
    assert once["pdf"][:5] == b"%PDF-"
    assert b"<svg" in once["svg"]


def test_where_every_run_diverged_there_is_nothing_to_draw(tmp_path: Path) -> None:
    failed = run("bn", 4, 0, None, status="diverged")
    results.write(tmp_path / failed.sweep / failed.id, failed)
    History(tmp_path / failed.sweep / failed.id)
    (table,) = batch_size_tables([failed])
    assert figure_kinds(table, tmp_path) == []


def test_no_two_normalizers_share_marker_and_dashes() -> None:
    known = names(CONF / "norm")
    looks = {(style(name)["marker"], str(style(name)["linestyle"])) for name in known}
    assert len(looks) == len(known)
    assert len({(style(name)["marker"], style(name)["color"]) for name in known}) == len(known)
    own = [style("gn", variant) for variant in range(4)]
    assert len({(look["marker"], str(look["linestyle"])) for look in own}) == 4
    assert len({look["color"] for look in own}) == 1
    assert style("somebodys_own") == style("somebodys_own")


# The command


def test_the_command_writes_what_changed_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in RUNS:
        results.write(tmp_path / "runs" / "default" / each.id, each)
    arguments = ["batch_size", f"runs={tmp_path / 'runs'}", f"reports={tmp_path / 'out'}"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("new: ") == 6
    assert main(arguments) == 0
    assert "no file has changed" in capsys.readouterr().out
    write_row(tmp_path / "runs", id="f" * 12, seed=9, config=config(vars(row(seed=9))))
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("replaced: ") == 6


def test_figures_that_are_there_are_drawn_again_in_each_format(tmp_path: Path) -> None:
    """The whole report draws svg; a png that is there would go on showing older runs."""
    tables = batch_size_tables(RUNS)
    texts = {".md", ".csv", ".tex"}
    assert {path.suffix for path in build.write(tables, tmp_path, tmp_path, ("svg",))} == {
        *texts, ".svg",
    }  # fmt: skip
    assert {path.suffix for path in build.write(tables, tmp_path, tmp_path)} == {".png", ".pdf"}
    for path in tmp_path.rglob("*.pdf"):
        path.unlink()
    more = batch_size_tables([*RUNS, run("bn", 4, 3, 86.0)])
    assert {path.suffix for path in build.write(more, tmp_path, tmp_path, ("svg",))} == {
        *texts, ".svg", ".png",
    }  # fmt: skip
    assert build.write(more, tmp_path, tmp_path, ("svg",)) == []


def test_a_papers_table_that_is_named_needs_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evonorm_9,nf_6"]) == 0
    out = capsys.readouterr().out
    assert "[76.1]" in out
    assert "Nothing of this table has been trained here." in out
    assert {path.name for path in (tmp_path / "runs/reports").iterdir()} >= {"evonorm_9", "nf_6"}
    assert main(["evonorm_9", "batch_size"]) == 2
    assert "runs=runs holds no finished run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("root", "chosen", "expected"),
    [
        ("runs", None, "runs/reports"),
        ("other", None, "other/reports"),
        ("study", None, "study/reports"),
        ("study/rows.jsonl.gz", None, "study/reports"),
        ("study", "tables", "tables"),
    ],
)
def test_reports_lie_beside_their_rows(
    root: str, chosen: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study").mkdir()
    Path("study/rows.jsonl.gz").touch()
    assert build.reports_folder(Path(root), chosen) == Path(expected)


def test_new_and_replaced_files_are_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "old").touch()
    before = build.files_below(tmp_path)
    old, new = tmp_path / "table" / "old", tmp_path / "table" / "new"
    assert build.count_changes([old, new], before) == "files: 1 new, 1 replaced"
    assert build.count_changes([new], before) == "files: 1 new"
    assert build.count_changes([], before) == "no file has changed"


STUDIES = sorted(path.parent for path in (ROOT / "reports" / "studies").glob("*/tables.md"))


def without_figures(page: Path) -> str:
    """A page without the drawings, whose bytes depend on the version of matplotlib."""
    return re.sub(r"<svg.*?</svg>", "", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("study", slow_except(STUDIES, STUDIES[:1]), ids=lambda path: path.name)
def test_the_files_of_a_study_are_made_from_its_rows(study: Path, tmp_path: Path) -> None:
    # As deep in the repository as the study itself, so that links are the same.
    copy = study.with_name(f".{study.name}-{tmp_path.name}")
    shutil.copytree(study, copy, ignore=shutil.ignore_patterns("*.html", "*.md", "*.png"))
    try:
        assert main([f"study={copy}"]) == 0
        again = without_figures(copy / "index.html")
        documents = {path.name: path.read_text() for path in copy.glob("*.md")}
    finally:
        shutil.rmtree(copy)
    assert again.count("<table>") > 1
    if (page := study / "index.html").exists():
        assert again == without_figures(page)
    assert documents == {path.name: path.read_text() for path in study.glob("*.md")}


def test_a_report_is_made_from_the_file_of_a_study(tmp_path: Path) -> None:
    study = ROOT / "reports" / "studies" / "default" / STUDY
    assert main([f"runs={study}", f"reports={tmp_path}"]) == 0
    (text,) = (path.read_text() for path in (tmp_path / "batch_size").glob("*.md"))
    assert "| evonorm_s0 †   | 90.9 ± 1.0 (5) |" in text
    assert list((tmp_path / "batch_size").glob("*-curves.svg"))
    assert "84.4" in (tmp_path / "index.html").read_text()


def test_a_page_needs_the_rows_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"study={tmp_path}"]) == 2
    assert f"study={tmp_path} has no rows.jsonl.gz; `python -m normb" in capsys.readouterr().err
    assert main([f"study={tmp_path}", "runs=runs"]) == 2
    assert "cannot be combined with runs= or reports=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["batch_sise"], "table batch_sise is unknown; did you mean batch_size?"),
        (["rums=x"], "rums=x is unknown; did you mean runs?"),
        (["runs=nowhere"], "runs=nowhere is no folder"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr().err
    assert captured.startswith(f"normbench.report: {says}")
    assert captured.count("\n") == 1


def test_the_folder_of_one_sweep_is_no_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_row(tmp_path / "runs", "demo")
    assert main([f"runs={tmp_path / 'runs' / 'demo'}", f"reports={tmp_path}"]) == 2
    assert f"as runs={tmp_path / 'runs'}\n" in capsys.readouterr().err


def test_the_former_name_of_the_folder_leads_to_its_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["out=tables"]) == 2
    assert "out=tables is unknown; reports=tables chooses the folder" in capsys.readouterr().err


def test_help_names_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "Tables: batch_size" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["normbench.report", "normbench"])
def test_neither_help_nor_report_imports_torch(module: str, tmp_path: Path) -> None:
    write_row(tmp_path / "runs")
    argument = "--help" if module == "normbench" else f"reports={tmp_path}"
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module, argument],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in process.stderr.splitlines()
    }
    assert "normbench" in imported
    heavy = {"torch", "pytorch_lightning", "wandb", "sklearn"}
    assert not imported & (heavy | ({"hydra"} if module == "normbench.report" else set()))


@pytest.mark.parametrize(
    ("model", "options", "name"),
    [
        ("resnext50", {"depths": [3, 4, 6, 3]}, "ResNeXt-50"),
        ("resnext50", {"depths": [1, 2, 2, 1]}, "ResNeXt with stages of 1, 2, 2 and 1 blocks"),
        ("resnet14_v2", {"depth": 20}, "ResNet-20"),
    ],
)
def test_a_network_is_called_after_what_was_trained(
    model: str, options: dict[str, Any], name: str
) -> None:
    rows = [run("bn", batch, 0, 80.0, model=model) for batch in (4, 8)]
    for each in rows:
        each.config["model"] |= options
    assert setting_title(batch_size_tables(rows)[0]).startswith(f"{name}, ")
