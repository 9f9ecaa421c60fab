"""The recommendation in words and as a table; which numbers are the best."""

from pathlib import Path
from typing import Any

import pytest

from normbench.records.probes import write_records
from normbench.report import build
from normbench.report.best import best_of_ours, best_published
from normbench.report.measured_times import network_key
from normbench.report.pivot import tables
from normbench.report.printout import print_recommendations
from normbench.report.recommendation import recommendations
from normbench.report.recommendation_text import (
    Standing,
    costs_text,
    describe,
    recommending,
    sentences,
    short_sentences,
    standings,
)  # fmt: skip
from normbench.report.repeats import distinct, repeats
from normbench.report.table_spec import spec
from normbench.report.titles import comparison_title, table_title
from normbench.results import Row
from support.rows import batch_size_tables, dense, runs

RUNS = [
    *runs("bn", 4, [70.0, 70.2, 70.4]),
    *runs("gn", 4, [76.0, 76.2, 76.4]),
    *runs("bn", 8, [76.0, 76.4, 76.8]),
    *runs("gn", 8, [76.1, 76.3, 76.2]),
    *runs("bn", 16, [76.1, 76.4, 76.8]),
    *runs("gn", 16, [76.1, 76.3, 76.2]),
    *runs("ln", 4, [70.0, None, 71.0]),
]


def test_the_recommendation_is_a_sentence_for_all_batches_with_the_same_best() -> None:
    ((table, columns),) = recommending(batch_size_tables(RUNS))
    assert short_sentences(table, columns) == [
        "With 4 images per worker gn is the best: bn is 6.0 lower [5.5, 6.5]; without a result for "
        "every seed: ln.",
        "With 8 and 16 images per worker no difference is significant; bn has the highest mean, "
        "followed by gn.",
    ]
    assert comparison_title(table).endswith("; recipe demo")


def test_a_sentence_for_several_batches_says_how_much_worse_the_only_other_one_is() -> None:
    rows = [*runs("bn", 2, [60.0, 60.2, 60.4]), *runs("gn", 2, [76.0, 76.2, 76.4]), *RUNS[:6]]
    ((table, columns),) = recommending(batch_size_tables(rows))
    assert short_sentences(table, columns) == [
        "With 2 and 4 images per worker gn is the best; significantly worse: bn, by 16.0 "
        "[15.5, 16.5] and 6.0 [5.5, 6.5].",
    ]
    (at_2, at_4) = columns
    assert short_sentences(table, [at_4])[0].endswith(
        " gn is the best: bn is 6.0 lower [5.5, 6.5]."
    )
    assert at_2.worse[0].name == "bn"


def test_of_many_worse_normalizers_the_nearest_and_bn_and_gn_are_described() -> None:
    names = ["sn", "gn", "ln", "in", "frn", "rms", "dyt", "bn", "gn_ws", "evonorm_s0"]
    rows = [
        row
        for place, name in enumerate(names)
        for row in runs(name, 4, [80.0 - place + step / 10 for step in range(3)])
    ]
    ((table, (column,)),) = recommending(batch_size_tables(rows))
    assert len(column.worse) == len(names) - 1
    sentence = sentences(table, [column])[0]
    described = "; ".join(describe(each, 1) for each in (*column.worse[:3], column.worse[6]))
    others = "5 others, 4.0 to 9.0 lower: frn, rms, dyt, gn_ws, evonorm_s0."
    assert sentence.endswith(f"Significantly worse: {described}; {others}")
    ((table, (column,)),) = recommending(batch_size_tables(rows[:-3]))
    assert "others" not in sentences(table, [column])[0]


def test_the_recommendation_has_a_line_for_each_normalizer() -> None:
    ((_, columns),) = recommending(batch_size_tables(RUNS))
    lines = standings(columns, 1)
    assert [*lines] == ["gn", "bn", "ln"]
    assert [each.word for each in lines["gn"]] == ["best", "good", "good"]
    assert lines["bn"][0] == Standing("worse", "70.2 ± 0.2 (3)", "6.0 lower [5.5, 6.5]")
    assert lines["ln"] == [Standing("failed", "1 of 3 div."), *[Standing("missing")] * 2]


def test_the_recommendation_names_the_unstable_and_intervals_of_unplanned_seeds() -> None:
    rows = [
        *runs("bn", 4, [76.0, 76.1, 75.9, 76.05, 75.95]),
        *runs("frn", 4, [76.1, 76.2, 76.0, 76.15, 76.05]),
        *runs("ln", 4, [62.0, 78.0, 75.0, 77.0, 73.0]),
    ]
    ((_, columns),) = recommending(batch_size_tables(rows))
    lines = standings(columns, 1)
    assert lines["ln"][0].number == "73.0 ± 6.4 (5), unstable"
    assert lines["bn"][0].number == "76.0 ± 0.1 (5)"
    assert lines["bn"][0].distance.endswith(" (99.9 %)")


def test_settings_with_more_batches_are_first() -> None:
    single = [row for norm in ("bn", "gn") for row in runs(norm, 4, [1.0, 2.0], data="a")]
    found = recommending(batch_size_tables([*single, *RUNS]))
    assert [len(columns) for _, columns in found] == [3, 1]


def test_a_normalizer_that_was_trained_alone_is_not_called_the_best() -> None:
    rows = [row for row in RUNS if row.batch == 4 or row.norm == "bn"]
    ((table, columns),) = recommending(batch_size_tables(rows))
    assert short_sentences(table, columns)[1] == (
        "With 8 and 16 images per worker only bn was trained."
    )
    assert sentences(table, columns)[1].startswith("With 8 images per worker only bn was trained.")
    assert [each.word for each in standings(columns, 1)["bn"]] == ["worse", "unsure", "unsure"]


def test_a_single_seed_with_the_highest_mean_is_not_the_best() -> None:
    rows = [*RUNS[:6], *runs("frn", 4, [99.0])]
    (column,) = recommendations(batch_size_tables(rows)[0])
    assert column.ranked
    assert [each.name for each in column.good] == ["gn"]
    assert [each.name for each in column.unsure] == ["frn"]


def test_what_is_better_when_it_is_lower_is_not_recommended() -> None:
    own = {"title": "Loss", "rows": "norm", "columns": "batch", "metric": "test_loss"}
    (table,) = tables([spec("loss", own)], [row for row in RUNS if row.norm != "ln"])
    assert len(table.runs) > 10
    assert recommendations(table) == []


@pytest.mark.parametrize(
    ("again", "study", "said"),
    [
        (1.04, False, "bn 70.2 ± 0.2 (3), 6.0 lower [5.5, 6.5], 1.00x time of bn"),
        (1.04, True, "bn 70.2 ± 0.2 (3), 6.0 lower [5.5, 6.5], 1.00x time of bn"),
        (0.93, False, "bn 70.2 ± 0.2 (3), 6.0 lower [5.5, 6.5]"),
    ],
)
def test_times_are_those_that_the_probe_has_measured(
    again: float, study: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not if bn, timed twice, differs from itself by more than 5 %."""
    rows = RUNS[:6]
    for row in rows:
        row.config.update(norm={"name": row.norm}, precision="32-true")
    measured = [
        {"mode": mode, "batch": 4, "ratio": ratio, "bn_again": again, "device": "a CPU",
         "key": network_key({**rows[0].config, "norm": {"name": norm}})}
        for norm, ratio in (("bn", 1.0), ("gn", 0.8)) for mode in ("training", "folded")
    ]  # fmt: skip
    root = tmp_path / "rows.jsonl.gz" if study else tmp_path
    path = tmp_path / ("speed.csv" if study else "reports/probes/speed.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, measured)
    if study:
        root.touch()
    (table,) = tables(build.specs(["batch_size"]), rows, root=root)
    (column,) = recommendations(table)
    assert describe(column.worse[0], 1) == said
    counts = again == 1.04
    assert describe(column.good[0], 1).endswith("1.25x time of bn") == counts
    assert costs_text([column], "gn") == ("1.2x time of bn" if counts else "")
    print_recommendations([table], None)
    note = "- Time is that of a training step, measured on a CPU by `normbench.probe speed`.\n"
    assert (note in capsys.readouterr().out) == counts


PAPER: dict[str, Any] = {
    "title": "A table", "paper": "Somebody (2020)", "place": "appendix, table 2", "seeds": 3,
    "metric": "test_top1", "rows": {"BN": {"norm": "bn"}, "GN": {"norm": "gn"}, "X": None},
    "columns": {"4": {"batch": 4}, "8": {"batch": 8}},
    "setting": {"data": "imagenet", "model": "resnet50"},
    "published": {
        "BN": ["70.0 ± 0.1", "75.0 ± 0.5"], "GN": ["75.0 ± 0.1", "75.1 ± 0.5"], "X": [75.1, 70.0],
    },
}  # fmt: skip


def paper_table(rows: list[Row], **changes: Any) -> Any:
    return tables([spec("made", PAPER | changes)], rows)[0]


@pytest.mark.parametrize(
    ("seeds", "at_8"),
    [(3, ["BN", "GN"]), (None, ["GN"])],  # without the number of runs there is no interval
)
def test_best_are_all_that_may_be_as_good_and_the_papers_apart(
    seeds: int | None, at_8: list[str]
) -> None:
    table = paper_table(RUNS, seeds=seeds)
    assert best_of_ours(table) == {(("GN",), 0), (("BN",), 1), (("GN",), 1)}
    # X has no deviation, so no interval: its 75.1 is the best alone.
    assert best_published(table) == {(("X",), 0), *(((label,), 1) for label in at_8)}


def test_a_twin_is_named_after_what_was_trained() -> None:
    def trained(**changes: Any) -> list[Row]:
        rows = runs("bn", 4, [70.0], **changes)
        for row in rows:
            row.config["model"]["depth"] = 8
            row.config["data"]["fraction"] = 0.02
        return rows

    twin = paper_table(trained(model="resnet14", data="fashion_mnist"))
    said = "Table 2 of Somebody in small: ResNet-8, 1,200 images of Fashion-MNIST"
    assert table_title(twin) == said
    own = {"data": "imagenet", "model": "resnet50"}
    assert table_title(paper_table(runs("bn", 4, [70.0], **own))) == "A table"


def test_a_table_that_shows_nothing_of_its_own_is_left_out() -> None:
    plain = {
        label: [str(number).partition(" ")[0] for number in line]
        for label, line in PAPER["published"].items()
    }
    specs = [
        *build.specs(["batch_size"]),
        spec("with_deviations", PAPER),
        spec("without", PAPER | {"published": plain}),
        spec("others", PAPER | {"published": {"BN": [1.0, 2.0]}}),
        spec("other_deviations", PAPER | {"published": {"BN": ["70.0 ± 9.9", None]}}),
    ]
    rows = [row for row in RUNS if row.norm in ("bn", "gn") and row.batch < 16]
    pivoted = tables(specs, rows)
    left_out = {table.spec.name: other.spec.name for table, other in repeats(pivoted)}
    assert left_out == {"batch_size": "with_deviations", "without": "with_deviations"}
    shown = {table.spec.name for table in distinct(pivoted)}
    assert shown == {"with_deviations", "others", "other_deviations"}
    ours = {table.spec.name for table, _ in repeats(pivoted, published=False)}
    assert ours == {"batch_size", "without", "others", "other_deviations"}


def test_of_an_error_the_lowest_mean_is_the_best() -> None:
    rows = [
        *dense("bn", 2, [0.6, 0.61, 0.62], "depth", "test_rms"),
        *dense("gn", 2, [0.4, 0.41, 0.42], "depth", "test_rms"),
        *dense("ln", 2, [0.405, 0.415, 0.425], "depth", "test_rms"),
    ]
    ((table, columns),) = recommending(batch_size_tables(rows))
    assert table.spec.title == "Test root mean squared error of depth over images per worker"
    assert table.setting_text.startswith("task=depth data=scattered_digits")
    (column,) = columns
    assert [each.name for each in column.good] == ["gn", "ln"]
    assert short_sentences(table, columns) == [
        "With 2 images per worker gn has the lowest mean; not significantly worse: ln (0.005 "
        "higher [−0.024, 0.034]); significantly worse: bn."
    ]
    assert [*standings(columns, 3)] == ["gn", "ln", "bn"]
    said = sentences(table, columns)[0]
    assert said.startswith("With 2 images per worker the lowest mean has gn 0.410 ± 0.010 (3).")
    assert "bn 0.610 ± 0.010 (3), 0.200 higher [0.171, 0.229]" in said
    assert best_of_ours(table) == {(("gn",), 0), (("ln",), 0)}


def test_each_task_has_tables_of_its_own() -> None:
    rows = [
        *runs("bn", 2, [70.0, 71.0]), *runs("gn", 2, [60.0, 61.0]),
        *dense("bn", 2, [50.0, 51.0], "segment", "test_miou"),
        *dense("gn", 2, [40.0, 41.0], "segment", "test_miou"),
        *dense("gn", 2, [0.4, 0.5], "depth", "test_rms"),
    ]  # fmt: skip
    found = {table.spec.metric.label: table for table in batch_size_tables(rows)}
    assert {label.partition(" (")[0] for label in found} == {
        "test top-1 accuracy", "test mean intersection over union",
        "test root mean squared error of depth",
    }  # fmt: skip
    assert all(len({row.task for row in table.runs}) == 1 for table in found.values())
