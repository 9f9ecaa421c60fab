"""The papers' tables: their numbers, how rows come into them, and the sweeps that fill them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.files import SWEEPS, TABLES, headline, load, names
from normbench.errors import BadInput
from normbench.report import build, exports, latex
from normbench.report.claim_power import find_power
from normbench.report.figure import draw
from normbench.report.figure_kinds import SIZES, by_size, figure_kinds
from normbench.report.footnotes import footnotes
from normbench.report.metrics import METRICS
from normbench.report.pivot import tables
from normbench.report.power_text import head_lines
from normbench.report.table import Table
from normbench.report.table_spec import (
    FULL,
    SMALL,
    PublishedNumber,
    TableSpec,
    fits,
    published,
    spec,
)
from normbench.results import Row
from support.rows import runs
from support.slow import slow_except

SPECS = {each.name: each for each in build.specs()}
PAPERS = sorted(name for name, each in SPECS.items() if each.paper)
TRAINED = [name for name in PAPERS if SPECS[name].sweep]


# The numbers

#: Sum of all numbers of a table, and how many there are, added up from the papers' texts.
SUMS: dict[str, tuple[int, float]] = {
    "evonorm_10": (36, 2749.5),
    "evonorm_11": (36, 2781.3),
    "evonorm_12": (36, 2788.3),
    "evonorm_13": (36, 2618.2),
    "evonorm_9": (36, 2731.0),
    "evonorm_fig10": (0, 0),  # the paper draws it and prints no number
    "four_things_batch_group": (8, 453.08),
    "four_things_decay": (5, 99.87),
    "four_things_fig1": (3, 5.46),
    "four_things_fig2": (0, 0.0),
    "four_things_fig3": (4, 105.43),
    "four_things_fig4": (0, 0.0),
    "four_things_fig5": (2, 12.4),
    "four_things_negatives": (1, 0.5),
    "nf_1": (12, 933.9),
    "nf_2": (6, 401.7),
    "nf_3": (84, 3472.67),
    "nf_4": (24, 148.45),
    "nf_5": (27, 103.63),
    "nf_6": (8, 615.4),
    "nf_7": (40, 2230.495),
    "nf_augmentation": (3, 230.5),
    "nf_efficientnet": (2, 150.2),
    "proxy_norm_10": (16, 1274.8),
    "proxy_norm_11": (40, 2906.8),
    "proxy_norm_12": (32, 2473.8),
    "proxy_norm_13": (32, 2499.3),
    "proxy_norm_14": (24, 1858.4),
    "proxy_norm_15": (30, 2772.5),
    "proxy_norm_16": (30, 2059.4),
    "proxy_norm_2": (20, 1519.4),
    "proxy_norm_3": (24, 1854.2),
    "proxy_norm_4": (48, 3724.3),
    "proxy_norm_5": (8, 33.3),
    "proxy_norm_6": (20, 1519.4),
    "proxy_norm_7": (24, 1854.2),
    "proxy_norm_8": (48, 3724.4),
    "proxy_norm_9": (16, 1227.2),
    "sn_1": (14, 1048.2),
    "sn_2": (12, 686.2),
    "sn_2_hard": (14, 1189.7),
    "sn_3": (10, 562.5),
    "sn_3_coco": (8, 301.3),
    "sn_choices": (5, 93),
    "sn_initialization": (8, 681.176),
    "sn_input": (6, 467.96),
    "sn_practices": (2, 170.4),
    "sn_subsets": (8, 676.46),
}


def of_row(name: str, *row: str) -> list[Any]:
    """A line of a table as it was typed."""
    known = SPECS[name]
    return [known.published.get((row, column.label)) for column in known.columns]


def test_every_table_of_the_papers_is_there() -> None:
    wanted = {
        *(f"evonorm_{part}" for part in (*range(9, 14), "fig10")),
        *(f"nf_{part}" for part in (*range(1, 8), "augmentation", "efficientnet")),
        *(f"proxy_norm_{n}" for n in range(2, 17)),
        *(f"four_things_fig{number}" for number in range(1, 6)),
        *(f"four_things_{part}" for part in ("decay", "batch_group", "negatives")),
        *(f"sn_{part}" for part in ("1", "2", "2_hard", "subsets", "initialization", "input")),
        *("sn_3", "sn_3_coco", "sn_choices", "sn_practices"),
    }
    assert wanted == set(PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_the_numbers_add_up_to_those_of_the_paper(name: str) -> None:
    known = SPECS[name].published.values()
    values = [each.value for each in known if each.value is not None and not each.unverified]
    count, total = SUMS[name]
    assert (len(values), round(sum(values), 3)) == (count, total)


def test_some_rows_typed_once_more() -> None:
    def values(*where: str) -> list[float | None]:
        return [each and each.value for each in of_row(*where)]

    def errors(*where: str) -> list[float | None]:
        return [each and each.error for each in of_row(*where)]

    assert values("evonorm_9", "BN-ReLU") == [76.1, 76.4, 76.3, 76.0, 74.5, 70.4]
    assert values("evonorm_13", "EvoNorm-S0") == [74.0, 74.0, 73.9, 73.9, 73.9, 73.8]
    assert values("proxy_norm_2", "GN (8)") == [75.4, 75.4, 76.3, 76.7]
    assert values("proxy_norm_16", "GN+PN") == [
        66.3,
        66.7,
        67.8,
        69.5,
        68.9,
        70.8,
        69.8,
        71.7,
        71.4,
        73.1,
    ]
    assert errors("proxy_norm_16", "GN+PN") == [0.4, 0.2, 0.4, 0.2, 0.3, 0.4, 0.3, 0.4, 0.2, 0.4]
    assert values("proxy_norm_11", "with", "FRN+TLU") == [70.4, 65.1, 68.8, 64.0]
    assert values("sn_1", "(8, 8)") == [75.2, 76.0, None, None, 76.7, 76.1]
    assert values("nf_2", "ResNet-50") == [69.9, 69.6, 69.9, 70.9, 65.7, 55.7]
    assert values("nf_1", "RN288") == [76.2, 78.4, 76.3, 78.7, 78.1, 79.5, 78.8, 79.5]
    assert [str(each) for each in of_row("nf_4", "ResNet-288")] == ["3.0", "2.25", *["OOM"] * 4]


def test_numbers_that_no_text_of_a_paper_has_are_marked() -> None:
    marked = {
        name: sum(number.unverified for number in SPECS[name].published.values()) for name in PAPERS
    }
    assert {name: count for name, count in marked.items() if count} == {"nf_1": 28}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (76.1, PublishedNumber(76.1, text="76.1")),
        ("76.3 ± 0.1", PublishedNumber(76.3, 0.1, text="76.3 ± 0.1")),
        ("79.5 ± .1", PublishedNumber(79.5, 0.1, text="79.5 ± .1")),
        ("74.0 unverified", PublishedNumber(74.0, unverified=True, text="74.0")),
        ("OOM", PublishedNumber(None, text="OOM")),
        (-0.13, PublishedNumber(-0.13, text="-0.13")),
    ],
)
def test_a_number_as_a_paper_prints_it(entry: Any, expected: PublishedNumber) -> None:
    assert published(entry) == expected


# The sweeps


@cache
def composed(sweep: str) -> list[Cell]:
    return compose([f"sweeps={sweep}"])[0]


@cache
def rows_of(sweep: str) -> list[Row]:
    """Rows as the cells of a sweep would leave them."""
    dense = {name: 70.0 for name, metric in METRICS.items() if metric.of_task}
    results: dict[str, dict[str, Any]] = {
        "classify": {"test_top1": 70.0},
        "segment": {"metric": "test_miou", "metrics": dense},
        "detect": {"metric": "test_box_map", "metrics": dense},
        "depth": {"metric": "test_rms", "metrics": dense},
    }
    return [
        Row(**cell.description(sweep), **results[cell.task.name], status="ok", finished=str(k))
        for k, cell in enumerate(composed(sweep))
    ]


@cache
def filled(name: str, sweep: str) -> Table:
    """The table that a sweep fills."""
    (table,) = tables([SPECS[name]], rows_of(sweep), None)
    return table


#: One table of each paper, whose sweep is composed every day.
EVERYDAY = ("evonorm_10", "nf_2", "proxy_norm_7", "four_things_fig5", "sn_1")
SCALES = slow_except(
    [(name, end) for name in TRAINED for end in ("", "_small")],
    [(name, "_small") for name in EVERYDAY],
)


@pytest.mark.parametrize(("name", "end"), SCALES, ids=lambda each: str(each) or "full")
def test_a_sweep_fills_its_table_and_nothing_else(name: str, end: str) -> None:
    table = filled(name, f"{SPECS[name].sweep}{end}")
    rows, columns = SPECS[name].rows, SPECS[name].columns
    empty = [
        (row.label, column.label)
        for row in rows
        for column, entry in zip(columns, table.lines[row.label], strict=True)
        if row.ours and column.ours and not (row.minus or column.minus) and not entry.runs
    ]
    numbers_there = SPECS[name].published or {}
    # What the paper itself has no number for need not be trained.
    assert not [place for place in empty if place in numbers_there]
    assert {run.id for run in table.runs} == {
        row.id for row in rows_of(f"{SPECS[name].sweep}{end}")
    }
    assert not any(entry.older for entry in table.entries)


@pytest.mark.parametrize("name", slow_except(TRAINED, EVERYDAY[:1]))
def test_the_full_scale_is_the_papers_setting_and_the_small_one_is_not(name: str) -> None:
    sweep = SPECS[name].sweep
    assert filled(name, f"{sweep}").setting_differences == []
    small = filled(name, f"{sweep}_small")
    assert small.setting_differences
    kinds = {
        len(level)
        for axis in (SPECS[name].rows, SPECS[name].columns)
        for place in axis
        for level in place.conditions
    }
    assert small.scale == (SMALL if 2 in kinds else FULL)


@pytest.mark.parametrize(("name", "end"), SCALES, ids=lambda each: str(each) or "full")
def test_the_head_of_a_sweep_says_what_it_asks_and_how_much(name: str, end: str) -> None:
    head = (SWEEPS / f"{SPECS[name].sweep}{end}.yaml").read_text().split("\ndefaults", 1)[0]
    first = head.splitlines()[1]
    assert first.startswith("# ")
    assert max(len(line) for line in head.splitlines()) <= 100
    said = re.search(r"\b(\d+) runs\b", head)
    assert said is not None
    assert int(said[1]) == len(composed(f"{SPECS[name].sweep}{end}"))
    assert end or re.search(r"# Cost: .* GPU hours of one V100", head)


@pytest.mark.parametrize(
    "sweep",
    slow_except(
        sorted({each.sweep for each in SPECS.values() if each.sweep}), ["nf_2", "sn_input"]
    ),
)
def test_the_head_of_a_sweep_says_which_claims_need_more_seeds(sweep: str) -> None:
    head = (SWEEPS / f"{sweep}.yaml").read_text().split("\ndefaults", 1)[0]
    said = re.search(r"(?ms)^# Power: .*?normbench\.cost\)\.$", head)
    lines = head_lines(find_power(rows_of(sweep), []))
    assert (said[0].splitlines() if said else []) == lines


# How rows come into a table

MADE: dict[str, Any] = {
    "title": "A table",
    "paper": "Somebody (2020)",
    "place": "table 1",
    "metric": "test_top1",
    "seeds": 5,
    "where": {"recipe": "demo"},
    "setting": {"data": "digits", "workers": 8, "protocol": "fixed_workers"},
    "rows": {"GN": {"norm": "gn"}, "BN": {"norm": "bn"}, "minus": {"minus": ["GN", "BN"]}},
    "columns": [
        {"RN50": [{"model": "resnet50"}, {"model": "resnet14"}], "other": None},
        {"few": {"batch": 4}, "many": {"batch": 64}},
    ],
    "published": {
        "GN": [70.0, "71.0 ± 0.2", 1.0, 2.0],
        "BN": ["60.0 unverified", 72.0, None, None],
        "minus": [10.0, None, None, None],
    },
}


def made(**changes: Any) -> TableSpec:
    return spec("made", MADE | changes)


def one(trained: list[Row], **changes: Any) -> Table:
    (table,) = tables([made(**changes)], trained, None)
    return table


FULL_RUNS = [
    *runs("gn", 4, [70.5, 71.5], model="resnet50"),
    *runs("bn", 4, [61.0, 63.0], model="resnet50"),
]


def cell_text(table: Table, row: str, *column: str) -> str:
    index = [each.label for each in table.columns].index(column)
    return table.text(table.lines[row,][index])


def test_beside_our_number_stands_the_papers_and_the_difference() -> None:
    table = one(FULL_RUNS)
    assert table.setting_differences == []
    assert cell_text(table, "GN", "RN50", "few") == "71.0 ± 0.7 (2) [70.0, +1.0]"
    assert cell_text(table, "BN", "RN50", "few") == "62.0 ± 1.4 (2) [60.0 ?, +2.0]"
    assert cell_text(table, "BN", "RN50", "many") == "– [72.0]"
    assert cell_text(table, "GN", "other", "few") == "– [1.0]"
    assert cell_text(table, "minus", "RN50", "few") == "+9.0 ± 0.7 (2) [10.0, −1.0]"


def test_a_setting_may_name_an_option_of_networks_on_an_axis() -> None:
    setting = MADE["setting"] | {"model.init": "truncated_fan_in"}
    assert one(FULL_RUNS, setting=setting).setting_differences == [
        "model.init=None (truncated_fan_in)"
    ]
    started = [
        replace(
            row, config=row.config | {"model": {"name": "resnet50", "init": "truncated_fan_in"}}
        )
        for row in FULL_RUNS
    ]
    assert one(started, setting=setting).setting_differences == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": "fashion_mnist"}, "data=fashion_mnist (digits)"),
        ({"workers": 2, "global_batch": 8}, "workers=2 (8)"),
        ({"model": "resnet14"}, "small networks"),
        ({"options": "recipe.epochs=3"}, "recipe.epochs=3"),
    ],
)
def test_numbers_of_another_setting_are_not_compared(changes: dict[str, Any], says: str) -> None:
    table = one(runs("gn", 4, [70.5, 71.5], **{"model": "resnet50"} | changes))
    assert table.setting_differences == [says]
    assert cell_text(table, "GN", "RN50", "few") == "71.0 ± 0.7 (2) [70.0]"
    assert any(f"because our setting differs: {says}." in note for note in footnotes(table))


def test_small_networks_and_the_papers_never_share_a_table() -> None:
    rows = [*FULL_RUNS, *runs("gn", 4, [80.0], model="resnet14")]
    full, small = tables([made()], rows, None)
    assert (full.scale, small.scale) == (FULL, SMALL)
    assert {run.model for run in full.runs} == {"resnet50"}
    assert full.slug != small.slug
    assert "small networks: " in small.heading
    assert "small networks" not in full.heading


def test_rows_of_another_recipe_are_no_part_of_it() -> None:
    assert tables([made()], runs("gn", 4, [70.0], model="resnet50", recipe="other"), None) == []


def test_options_that_the_table_names_do_not_split_it_and_others_do() -> None:
    def groups(number: int, typed: str) -> list[Row]:
        rows = runs("gn", 4, [70.0], model="resnet50", options=typed)
        for row in rows:
            row.config["norm"]["groups"] = number
        return rows

    rows = {"GN 8": {"norm": "gn", "norm.groups": 8}, "GN 32": {"norm": "gn", "norm.groups": 32}}
    both = [*groups(8, "norm.groups=8"), *groups(32, "")]
    (table,) = tables([made(rows=rows, published={})], both, None)
    assert [len(entries[0].runs) for entries in table.lines.values()] == [1, 1]
    odd = groups(8, "norm.groups=8 norm.eps=1")
    assert len(tables([made(rows=rows, published={})], [*both, *odd], None)) == 2


def test_of_runs_from_before_a_yaml_changed_the_latest_count() -> None:
    old = runs("gn", 4, [10.0, 11.0], model="resnet50", finished="1")
    for row in old:
        row.config["norm"]["eps"] = 1.0
    table = one([*old, *runs("gn", 4, [70.0, 71.0], model="resnet50", finished="2")])
    assert cell_text(table, "GN", "RN50", "few").startswith("70.5 ± 0.7 (2)")
    assert "2 runs with older values of options are left out." in footnotes(table)


def test_a_table_of_medians_has_medians() -> None:
    rows = runs("gn", 4, [60.0, 70.0, 71.0], model="resnet50")
    table = one(rows, statistic="median")
    assert cell_text(table, "GN", "RN50", "few") == "70.0 ± 6.1 (3) [70.0, +0.0]"
    assert "median ± sample standard deviation" in footnotes(table)[0]


def test_how_fast_a_network_is_does_not_depend_on_what_it_has_learned() -> None:
    changes = {"images_per_second": 320.0, "model": "resnet50", "devices": "1 x GPU"}
    rows = runs("gn", 4, [None, 70.0], **changes)
    table = one(rows, metric="steps_per_second")
    assert cell_text(table, "GN", "RN50", "few") == "10.00 ± 0.00 (2) [70.0, −60.00]"
    assert "devices=1 x GPU" in table.heading
    other = runs("gn", 4, [70.0], **changes | {"devices": "1 x cpu"})
    assert len(tables([made(metric="steps_per_second")], [*rows, *other], None)) == 2


def test_of_several_firsts_a_difference_takes_the_best() -> None:
    rows = {
        "GN": {"norm": "gn"}, "LN": {"norm": "ln"}, "BN": {"norm": "bn"},
        "gain": {"minus": [["GN", "LN"], "BN"]},
    }  # fmt: skip
    table = one(
        [*FULL_RUNS, *runs("ln", 4, [80.0, 81.0], model="resnet50")], rows=rows, published={}
    )
    assert cell_text(table, "gain", "RN50", "few") == "+18.5 ± 0.7 (2)"


def test_a_difference_may_be_to_one_column() -> None:
    """As of all batches to a number that one batch has."""
    table = one(
        [*FULL_RUNS, *runs("bn", 64, [75.0, 75.5], model="resnet50")],
        rows=MADE["rows"] | {"minus": {"minus": ["GN", "BN"], "at": "many"}},
        columns={"few": {"batch": 4, "model": "resnet50"}, "many": {"batch": 64}},
        published={},
    )
    assert [table.text(entry) for entry in table.lines["minus",]] == [
        "−4.2 ± 0.4 (2)".replace("−", "-"),
        "–",
    ]


def test_a_difference_says_what_its_parts_have_lost() -> None:
    rows = [*runs("gn", 4, [70.5, 71.5, None], model="resnet50"), FULL_RUNS[2], FULL_RUNS[3]]
    assert cell_text(one(rows), "minus", "RN50", "few").startswith("+9.0 ± 0.7 (2), 1 div.")


def test_the_best_of_a_column_is_bold_and_differences_are_not() -> None:
    tex = latex.table_latex(one(FULL_RUNS))
    assert r"GN & \bfseries 71.0 +- 0.7 &" in tex
    assert r"BN & \bfseries 62.0 +- 1.4 &" in tex  # two seeds do not tell them apart
    assert r"\quad paper & \bfseries 70.0 & 71.0 +- 0.2 &" in tex
    assert "\nminus & +9.0 +- 0.7 &" in tex
    assert r" & \multicolumn{2}{c}{RN50} & \multicolumn{2}{c}{other} \\" in tex
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in tex


def test_a_cell_that_shares_its_computation_is_marked() -> None:
    shared = runs("gn", 4, [70.0], model="resnet50", shared_with="f" * 12)
    table = one(shared)
    assert "70.0 (1) [70.0, +0.0] ‡" in exports.table_markdown(table)
    assert any(note.startswith("‡ 1 of 1 runs") for note in footnotes(table))


def test_the_csv_has_runs_and_published_numbers() -> None:
    text = exports.table_csv(one(FULL_RUNS))
    assert "GN,RN50 few,gn,4,0,ok,test top-1 accuracy (%),70.5," in text
    assert (
        'BN,RN50 few,,,,published,test top-1 accuracy (%),60.0,,,,"Somebody (2020), table 1' in text
    )
    assert "GN,RN50 many,,,,published,test top-1 accuracy (%),71.0,0.2," in text
    assert text.count("(unverified)") == 1


@pytest.mark.parametrize(
    ("seeds", "says"),
    [
        (5, ", table 1, mean (of 5 runs). "),
        ("one run each", ", table 1, mean (of one run each). "),
        (None, ", table 1, mean (number of runs not stated). "),
    ],
)
def test_a_table_says_how_many_runs_the_paper_had(seeds: int | str | None, says: str) -> None:
    (table,) = tables([made(seeds=seeds)], [], None, empty=True)
    assert says in " ".join(footnotes(table))


def test_of_a_size_nobody_asks_how_many_runs_there_were() -> None:
    (table,) = tables([made(metric="params_m", seeds=None)], [], None, empty=True)
    assert "Somebody (2020), table 1. Nothing of this table" in " ".join(footnotes(table))


def test_the_figure_over_sizes_has_the_sizes_of_the_table() -> None:
    """As EvoNorm's figure 10: a folded network has other sizes than the trained one."""
    sizes = {"BN": (2.0, 3.0), "GN": (2.5, 4.0)}
    rows = [
        row
        for label, (params, macs) in sizes.items()
        for batch in (4, 64)
        for row in runs(
            label.lower(), batch, [70.0], model="resnet50",
            params=9_000_000, macs=9_000_000,
            inference_params=int(params * 1e6) + batch,
            inference_operations=int(macs * 2e6) + 2 * batch,
        )
    ]  # fmt: skip
    (table,) = tables([made(sizes=["inference_params_m", "inference_macs_m"])], rows, None)
    assert SIZES in figure_kinds(table, Path())
    svg = draw(table, SIZES, ["svg"], Path())["svg"].decode()
    assert "parameters at inference (millions)" in svg
    assert "multiply-adds at inference (millions)" in svg
    assert by_size(table, table.spec.sizes[1])["gn"] == [(4.000004, 70.0), (4.000064, 70.0)]
    (usual,) = tables([made()], rows, None)
    assert SIZES not in figure_kinds(usual, Path())  # a single size makes no line


def test_without_rows_a_table_has_the_papers_numbers_alone() -> None:
    (table,) = tables([made()], [], None, empty=True)
    assert "| GN    | – [70.0]" in exports.table_markdown(table)
    assert "Nothing of this table has been trained here." in " ".join(footnotes(table))
    assert tables([made()], [], None) == []


@pytest.mark.parametrize(
    ("wanted", "have", "expected"),
    [
        ({"norm": "gn"}, {"norm": "gn", "batch": 4}, True),
        ({"norm": ["gn", "bn"]}, {"norm": "bn"}, True),
        ({"norm": ["gn", "bn"]}, {"norm": "ln"}, False),
        ({"norm.over": [["in", "ln"]]}, {"norm.over": ["in", "ln"]}, True),
        ({"norm.over": [["in", "ln"]]}, {"norm.over": ["in"]}, False),
        ({"data.fraction": None}, {}, True),
        ({"data.fraction": None}, {"data.fraction": 0.5}, False),
        ({"init_from": "*@30"}, {"init_from": "abc@30"}, True),
        ({"init_from": "*@30"}, {}, False),
    ],
)
def test_what_an_entry_asks_for(
    wanted: Mapping[str, Any], have: Mapping[str, Any], expected: bool
) -> None:
    assert fits(wanted, have) is expected


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metric": "test_top"}, "metric=test_top needs a label"),
        ({"statistic": "mode"}, "statistic=mode is unknown; it is mean or median"),
        ({"sizes": ["params_m"]}, "sizes=['params_m']: two of params_m, macs_g, inference_"),
        ({"sizes": ["params_m", "test_top1"]}, "two of params_m, macs_g, inference_params_m, "),
        ({"sed": 1}, "sed is no key of a table; did you mean seeds?"),
        ({"notes": [{"epochs": "ours"}]}, "is no text; quote a note that has a colon"),
        ({"over": "rate", "columns": {"low": {"batch": 4}}}, "no column has a number as its label"),
        (
            {"rows": {"GN": {"nrom": "gn"}, "BN": {"norm": "bn"}}, "published": {}},
            "nrom is no option of a run; did you mean norm?",
        ),
        ({"published": {"GN": [1.0]}}, "published GN: 1 numbers, and the table has 4 columns"),
        ({"published": {"LN": [1.0, 2.0, 3.0, 4.0]}}, "published LN is no row of the table"),
        (
            {"rows": MADE["rows"] | {"minus": {"minus": ["GN", "LN"]}}},
            "minus LN is no row or column of the table",
        ),
        (
            {"rows": MADE["rows"] | {"minus": {"minus": ["GN", "BN"], "at": "few"}}},
            "minus few is no row or column of the table",
        ),
        ({"published": {"GN": ["7o", 1.0, 2.0, 3.0]}}, "published '7o' is no number"),
    ],
)
def test_a_file_that_is_no_table_is_named_with_the_reason(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput) as caught:
        made(**changes)
    assert str(caught.value).startswith("reports/tables/made.yaml: ")
    assert says in str(caught.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(BadInput, match="title is missing"):
        spec("made", {key: value for key, value in MADE.items() if key != "title"})


def test_every_table_has_a_file_of_its_own_with_a_headline() -> None:
    titles = [load(TABLES / f"{name}.yaml")["title"] for name in names(TABLES)]
    ours = {
        "batch_size", "conditions", "fine_tuning", "map", "map_rates", "scale", "skew",
        "small_rates", "tuned",
    }  # fmt: skip
    assert {*names(TABLES)} == {*PAPERS, *ours}
    assert all(titles)
    for name in names(TABLES):
        assert (TABLES / f"{name}.yaml").read_text().startswith("# ")
        assert len(headline(TABLES / f"{name}.yaml")) > 10
