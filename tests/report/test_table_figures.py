"""Figures of tables: panels, texts of points, names of lines."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normbench import results
from normbench.config.files import CONF, names
from normbench.records.history import History
from normbench.report import build
from normbench.report import figure as figures
from normbench.report.effects import draw_effects
from normbench.report.figure import draw
from normbench.report.figure_kinds import (
    CURVES,
    EFFECTS,
    LINES,
    MAP,
    MIN_MAP_ROWS,
    SENSITIVITY,
    figure_kinds,
)
from normbench.report.footnotes import differences
from normbench.report.heat_map import draw_map, draw_sensitivity
from normbench.report.pivot import tables
from normbench.report.probe_drawings import DRAW
from normbench.report.recommendation import recommendations
from normbench.report.statistics import MINUS
from normbench.report.table import Table
from normbench.report.table_spec import spec
from support.rows import batch_size_tables, dense, runs

NORMS = ["bn", "gn", "ln", "in", "frn", "rms", "dyt", "nf"]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, instead of their files."""
    made: list[Figure] = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, _: made.append(figure))
    return made


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (6, [6]), (7, [3, 4]), (8, [4, 4])])
def test_a_panel_has_few_lines(count: int, sizes: list[int], drawn: list[Figure]) -> None:
    rows = [row for norm in NORMS[:count] for b in (4, 8) for row in runs(norm, b, [70.0, 71.0])]
    (table,) = batch_size_tables(rows)
    draw(table, LINES, ["svg"], Path())
    legends = [legend for axes in drawn[0].axes if (legend := axes.get_legend())]
    assert [len(legend.get_texts()) for legend in legends] == sizes
    assert len({axes.get_ylim() for axes in drawn[0].axes}) == 1


@pytest.mark.parametrize(
    ("study", "name", "titles"),
    [
        ("default", "batch_size", ["2 images per worker", "128 images per worker"]),
        ("papers", "four_things_fig2", ["accuracy"]),
    ],
)
def test_curves_are_of_the_ends_of_a_row_and_drawn_once_for_several_numbers_of_a_run(
    study: str, name: str, titles: list[str], drawn: list[Figure]
) -> None:
    root = CONF.parent / "reports" / "studies" / study
    (table,) = tables(build.specs([name]), results.read(root), root=root)
    draw(table, CURVES, ["svg"], root)
    assert [axes.get_title(loc="left").partition(":")[0] for axes in drawn[0].axes] == titles
    assert all(axes.lines for axes in drawn[0].axes)


def test_curves_of_other_tasks_show_the_main_metric_of_the_validation(
    drawn: list[Figure], tmp_path: Path
) -> None:
    rows = dense("bn", 2, [20.0, 30.0], "detect", "test_box_map")
    for row, last in zip(rows, (10.0, 30.0), strict=True):
        row.metrics["val_box_map"] = last
        results.write(tmp_path / row.sweep / row.id, row)
        history = History(
            tmp_path / row.sweep / row.id, scores=("train_region_accuracy", "val_box_map")
        )
        history.add({"step": 10, "epoch": 1.0, "train_loss": 2.0, "train_region_accuracy": 50.0})
        history.add({"step": 10, "epoch": 1.0, "val_box_map": 4.0})
        history.add({"step": 20, "epoch": 2.0, "val_box_map": last})
    (table,) = batch_size_tables(rows)
    assert CURVES in figure_kinds(table, tmp_path)
    draw(table, CURVES, ["svg"], tmp_path)
    for row in rows:
        del row.metrics["val_box_map"]  # nothing was held out
    assert CURVES not in figure_kinds(table, tmp_path)
    (axes,) = drawn[0].axes
    assert axes.get_title(loc="left") == "2 images per worker: validation"
    assert axes.get_ylabel().replace("\n", " ") == "mean average precision of boxes (%)"
    (line,) = axes.lines
    assert np.array_equal(line.get_xydata(), [[1.0, 4.0], [2.0, 20.0]])


def test_points_of_one_batch_do_not_hide_each_other(drawn: list[Figure]) -> None:
    (table,) = batch_size_tables([*runs("bn", 4, [70.0]), *runs("gn", 4, [70.0]),
                                  *runs("bn", 8, [70.0])])  # fmt: skip
    draw(table, LINES, ["svg"], Path())
    (axes,) = drawn[0].axes
    points: list[Any] = [line for line in axes.lines if "point" in str(line.get_gid())]
    places = [float(point.get_xdata()[0]) for point in points]
    assert len(set(places)) == len(places) == 3


def test_a_map_frames_the_best_and_what_cannot_be_told_apart_from_it() -> None:
    norms = names(CONF / "norm")[: MIN_MAP_ROWS + 2]
    means = {norm: 90.0 - 0.1 * place for place, norm in enumerate(norms)}
    rows = [
        row
        for norm, mean in means.items()
        for batch in (2, 128)
        for row in runs(norm, batch, [mean - 20.0 * (norm == norms[1] and batch == 2) + x
                                      for x in (-0.1, 0.0, 0.1)])
    ]  # fmt: skip
    rows += runs("sn", 2, [None, None, None])
    (table,) = batch_size_tables(rows)
    assert MAP in figure_kinds(table, Path())
    figure = draw_map(table)
    legend = figure.get_supxlabel()
    assert "framed: " in legend
    assert "grey: " in legend
    assert "dashed: " not in legend
    (axes,) = figure.axes
    fields = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    framed = sum(patch.get_linewidth() > 1.2 for patch in fields)
    few, many = recommendations(table)
    assert framed == len(few.good) + len(many.good) < len(fields) == 2 * len(norms) + 1
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("90.0") == 2
    assert f"{MINUS}20.1" in texts
    assert texts.count("3/3 div.") == 1
    order = [label.get_text() for label in axes.get_yticklabels()]
    assert order[0] == norms[0]
    assert order[-1].startswith("sn")


def test_a_few_normalizers_are_compared_by_lines_alone() -> None:
    (table,) = batch_size_tables([row for b in (4, 8) for row in runs("bn", b, [70.0, 71.0])])
    assert MAP not in figure_kinds(table, Path())


def rates_table(norms: list[str]) -> Table:
    """A table over learning rates; the second normalizer learns at the lower one alone."""
    raw = {
        "title": "A table", "metric": "test_top1", "over": "learning rate",
        "rows": {norm: {"norm": norm} for norm in norms},
        "columns": {str(lr): {"recipe.lr": lr} for lr in (0.1, 0.4, 0.8)},
    }  # fmt: skip
    rows = []
    for place, norm in enumerate(norms):
        for lr, top1 in ((0.1, 80.0), (0.4, 80.0 + place)):
            of_rate = runs(norm, 8, [None if (place, lr) == (1, 0.4) else top1])
            for row in of_rate:
                row.config["recipe"]["lr"] = lr
            rows += of_rate
    (table,) = tables([spec("made", raw)], rows)
    return table


def test_a_map_of_sensitivity_compares_each_row_with_its_own_best() -> None:
    norms = names(CONF / "norm")[:MIN_MAP_ROWS]
    table = rates_table(norms)
    kinds = figure_kinds(table, Path())
    assert SENSITIVITY in kinds
    assert not {LINES, MAP} & {*kinds}
    (axes,) = draw_sensitivity(table).axes
    assert axes.get_xlabel() == "learning rate"
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == [norms[0], *norms[2:], norms[1]]  # by their mean distance from their best
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert (shown[0, 0], shown[1, 0]) == ("80.0", "80.0")
    for y, place in enumerate(range(2, MIN_MAP_ROWS), 1):
        assert (shown[0, y], shown[1, y]) == (f"{MINUS}{place}.0", f"{80 + place}.0")
    assert (shown[0, len(rows) - 1], shown[1, len(rows) - 1]) == ("80.0", "fails")
    assert len(shown) == 2 * len(rows)  # nothing where there are no runs
    framed = [patch for patch in axes.patches if patch.get_linewidth() > 1.2]
    assert len(framed) == len(rows) + 1  # both rates of the first


def test_a_row_that_fails_everywhere_is_at_the_bottom_of_a_map_of_sensitivity() -> None:
    raw = {
        "title": "A table", "metric": "test_top1", "over": "learning rate",
        "rows": {"bn": {"norm": "bn"}, "gn": {"norm": "gn"}, "ln": {"norm": "ln"}},
        "columns": {"0.1": {"recipe.lr": 0.1}, "best": {"recipe.lr": 0.4}},
    }  # fmt: skip
    rows = [*runs("bn", 8, [None, None]), *runs("gn", 8, [80.0, 81.0])]
    for row in rows:
        row.config["recipe"]["lr"] = 0.1
    (table,) = tables([spec("made", raw)], rows)
    (axes,) = draw_sensitivity(table).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["gn", "bn"]
    assert [text.get_text() for text in axes.texts] == ["80.5", "fails"]


def test_a_table_with_runs_in_columns_without_a_number_alone_has_no_lines() -> None:
    raw = {
        "title": "A table", "metric": "test_top1", "over": "learning rate",
        "rows": {"bn": {"norm": "bn"}},
        "columns": {"0.1": {"recipe.lr": 0.1}, "best": {"recipe.lr": 0.4}},
    }  # fmt: skip
    rows = runs("bn", 8, [80.0, 81.0])
    for row in rows:
        row.config["recipe"]["lr"] = 0.4
    (table,) = tables([spec("made", raw)], rows)
    assert LINES not in figure_kinds(table, Path())


def test_few_rows_over_a_learning_rate_are_lines(drawn: list[Figure]) -> None:
    table = rates_table(["bn", "gn", "ln"])
    kinds = figure_kinds(table, Path())
    assert LINES in kinds
    assert SENSITIVITY not in kinds
    draw(table, LINES, ["svg"], Path())
    (axes,) = drawn[0].axes
    assert axes.get_xlabel() == "learning rate"
    points: list[Any] = [line for line in axes.lines if "point" in str(line.get_gid())]
    places = {round(float(point.get_xdata()[0]), 1) for point in points}
    assert places == {0.1, 0.4}


def test_differences_are_drawn_with_their_intervals_beside_the_papers_number() -> None:
    raw = {
        "title": "A table", "metric": "test_top1",
        "rows": {"BN": {"norm": "bn"}, "GN": {"norm": "gn"}, "BN - GN": {"minus": ["BN", "GN"]}},
        "columns": {"small": {"batch": 4}, "large": {"batch": 8}, "paper": None},
        "published": {"BN - GN": [None, None, 5.5]},
    }  # fmt: skip
    means = {("bn", 4): 72.0, ("gn", 4): 70.0, ("bn", 8): 75.0, ("gn", 8): 70.0}
    rows = [row for (norm, b), m in means.items() for row in runs(norm, b, [m - 0.1, m, m + 0.1])]
    (table,) = tables([spec("made", raw)], rows)
    assert EFFECTS in figure_kinds(table, Path())
    (axes,) = draw_effects(table).axes
    points: dict[str, Any] = {
        kind: [line.get_xydata() for line in axes.lines if line.get_marker() == kind]
        for kind in "os"
    }
    assert np.concatenate(points["o"]) == pytest.approx(np.array([[0, 2.0], [1, 5.0]]))
    assert np.concatenate(points["s"]).tolist() == [[2, 5.5]]
    lines: list[Any] = list(axes.collections)
    bars = [line.get_segments()[0][:, 1] for line in lines]
    # Welch, four degrees of freedom: t of 2.776 times the root of 2 * 0.1^2 / 3.
    assert np.diff(bars).ravel() == pytest.approx(2 * 2.776445 * (2 * 0.01 / 3) ** 0.5)
    (unmade,) = tables([spec("made", raw | {"paper": "Somebody (2020)", "place": "here"})], rows)
    assert EFFECTS not in figure_kinds(unmade, Path())


PAPER: dict[str, Any] = {
    "title": "A table", "paper": "Somebody (2020)", "place": "table 2", "metric": "test_top1",
    "rows": {"B<N": {"norm": "bn"}}, "columns": {"4": {"batch": 4}, "8": {"batch": 8}},
    "published": {"B<N": [75.5, "76.5 ± 0.1"]},
}  # fmt: skip


def test_a_point_has_its_numbers_and_the_papers_curve_is_beside_ours() -> None:
    rows = [*runs("bn", 4, [69.0, 70.0, 71.0]), *runs("bn", 8, [70.0])]
    (table,) = tables([spec("made", PAPER)], rows)
    svg = draw(table, LINES, ["svg"], Path())["svg"].decode()
    assert re.findall("<title>(.*?)</title>", svg) == [
        "B&lt;N, 4 images per worker: 70.0, 95 % interval of the mean [67.5, 72.5], n = 3",
        "B&lt;N, 8 images per worker: 70.0, n = 1",
        "B&lt;N, 4 images per worker, the paper's: 75.5",
        "B&lt;N, 8 images per worker, the paper's: 76.5 ± 0.1",
    ]
    for kind in ("line", "point", "key"):
        assert f'<g class="{kind}" data-line="B&lt;N">' in svg


def test_no_line_of_a_probe_lies_on_the_frame() -> None:
    keys = ("squared_mean", "variance", "branch_variance")
    records = [
        {"network": "FixUp", "block": n, "ends_stage": n == 3, **dict.fromkeys(keys, 0.0)}
        for n in (1, 2, 3)
    ]
    for axes in DRAW["spp"](records).axes:
        assert axes.get_ylim()[0] < 0 < axes.get_ylim()[1]


def test_the_fastest_normalizer_is_at_the_top_with_its_interval() -> None:
    records = [
        {"network": network, "batch": 4, "mode": "training", "ratio": ratio, "memory_ratio": None,
         "steps_per_second": steps, "lower": low, "upper": high}
        for network, ratio, steps, low, high in (
            ("sn", 0.5, 50, 40, 70), ("in", None, None, None, None), ("gn", 2.0, 200, 100, 300),
        )
    ]  # fmt: skip
    axes = DRAW["speed"](records).axes[0]
    names = {
        t.get_text(): y for t, y in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    }
    assert sorted(names, key=lambda name: -names[name]) == ["gn", "sn", "in"]
    bars: Any = axes.collections[0]
    ends = [path.vertices[:, 0].tolist() for path in bars.get_paths()]
    assert ends == [[0.4, 0.7], [1.0, 3.0]]


MADE: dict[str, Any] = {"title": "A table", "metric": "test_top1"}


def test_columns_of_the_same_batch_are_no_line() -> None:
    """They are of different normalizers, which a line over the batch would mix."""
    columns = {f"{b} {norm}": {"batch": b, "norm": norm} for b in (4, 16) for norm in ("bn", "gn")}
    made = spec("made", MADE | {"rows": {"ResNet": {"model": "resnet14"}}, "columns": columns})
    rows = [row for norm in ("bn", "gn") for b in (4, 16) for row in runs(norm, b, [80.0, 81.0])]
    (table,) = tables([made], rows)
    assert not table.over_batch
    assert LINES not in figure_kinds(table, Path())
    assert differences(table) == []


def test_differences_are_no_accuracies(drawn: list[Figure]) -> None:
    """The figure of effects draws them."""
    lines = {"bn": {"norm": "bn"}, "gn": {"norm": "gn"}, "gn - bn": {"minus": ["gn", "bn"]}}
    columns = {batch: {"batch": batch} for batch in (4, 16)}
    rows = [
        row
        for norm, top1 in (("bn", 80.0), ("gn", 82.0))
        for b in (4, 16)
        for row in runs(norm, b, [top1, top1 + 1])
    ]
    (table,) = tables([spec("made", MADE | {"rows": lines, "columns": columns})], rows)
    draw(table, LINES, ["svg"], Path())
    (axes,) = drawn[0].axes
    assert axes.get_ylim()[0] > 70
    rates = {f"{rate}": {"recipe.lr": rate} for rate in (0.1, 0.4)}
    for row, rate in zip(rows, [0.1, 0.1, 0.4, 0.4] * 2, strict=True):
        row.config["recipe"]["lr"] = rate
    made = spec("made", MADE | {"rows": lines, "columns": rates, "over": "learning rate"})
    table, *_ = tables([made], rows)
    (axes,) = draw_sensitivity(table).axes
    assert "gn - bn" not in [label.get_text() for label in axes.get_yticklabels()]


def test_a_column_of_zero_is_drawn(drawn: list[Figure]) -> None:
    columns = {f"{rate:g}": {"recipe.momentum": rate} for rate in (0.0, 0.5)}
    rows = [*runs("bn", 8, [80.0, 81.0]), *runs("bn", 8, [82.0, 83.0])]
    for row, rate in zip(rows, (0.0, 0.0, 0.5, 0.5), strict=True):
        row.config["recipe"]["momentum"] = rate
    made = spec("made", MADE | {"rows": {"bn": {"norm": "bn"}}, "columns": columns, "over": "rate"})
    (table,) = tables([made], rows)
    draw(table, LINES, ["svg"], Path())
    (axes,) = drawn[0].axes
    assert axes.get_xscale() == "linear"
    assert axes.get_xticks().tolist() == [0.0, 0.5]
    assert len([line for line in axes.lines if "point" in str(line.get_gid())]) == 2
