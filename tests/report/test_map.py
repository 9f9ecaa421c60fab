"""The map of all normalizers: its sweep, its table, and the pilot that chose its learning rates."""

from collections import defaultdict

import pytest

from normbench import results
from normbench.config.compose import compose
from normbench.config.files import CONF, ROOT, names
from normbench.report import build
from normbench.report.pivot import tables
from normbench.report.table_spec import TableSpec
from normbench.results import Row
from support.rows import runs

PILOTS = ROOT / "reports" / "studies" / "pilots"
RATES = (0.1, 0.2, 0.4, 0.8)


@pytest.fixture(scope="module")
def planned() -> list[Row]:
    """The runs of the sweep, as if all were finished."""
    cells, _ = compose(["-m", "sweeps=map"])
    return [Row(**cell.description("map"), status="ok", test_top1=80.0) for cell in cells]


def table_spec(name: str) -> TableSpec:
    (spec,) = build.specs([name])
    return spec


def test_every_normalizer_is_in_the_map() -> None:
    rows = {str(row).split(" ")[0] for row in table_spec("map").rows}
    assert rows == {*names(CONF / "norm")} - {"evonorm_candidate", "frozen_bn", "graph"}


def test_each_run_of_the_sweep_has_one_place_in_the_table(planned: list[Row]) -> None:
    made = tables(build.specs(["map", "batch_size"]), planned)
    assert [table.spec.name for table in made] == ["map"] * 4  # two data sets, two levels
    places = [row.id for table in made for entry in table.entries for row in entry.runs]
    assert len(places) == len({*places}) == len(planned)
    for table in made:
        assert {len(entry.values) for entry in table.entries} == {5}


def test_rates_are_chosen_from_the_pilot_by_the_rule_of_the_sweep(planned: list[Row]) -> None:
    tried: dict[str, dict[float, float | None]] = defaultdict(dict)
    for row in results.read(PILOTS):
        if row.sweep == "map_pilot" and row.reg == "none" and row.seed == 100:
            tried[row.norm][row.config["recipe"]["lr"]] = (
                row.val_top1 if row.status == "ok" else None
            )
    tried["sync_bn"] = tried["bn"]
    chosen: dict[str, set[float]] = defaultdict(set)
    for row in planned:
        chosen[row.norm].add(row.config["recipe"]["lr"])
    for norm, rates in chosen.items():
        first_failure = min((lr for lr, top1 in tried[norm].items() if top1 is None), default=9.0)
        usable = {lr: top1 for lr, top1 in tried[norm].items() if top1 and lr < first_failure}
        assert {*RATES} <= tried[norm].keys()
        assert rates == {min(lr for lr in usable if usable[lr] >= max(usable.values()) - 0.5)}, norm


def test_a_few_runs_of_the_map_stay_in_the_usual_table() -> None:
    few = []
    for norm, lr in (("bn", 0.2), ("gn", 0.1)):
        for batch in (2, 128):
            of_cell = runs(norm, batch, [80.0, 81.0], recipe="onecycle", model="resnet20_v2")
            for row in of_cell:
                row.config["recipe"]["lr"] = lr
                row.config["model"]["depth"] = 8
            few += of_cell
    names_made = [table.spec.name for table in tables(build.specs(["map", "batch_size"]), few)]
    assert "batch_size" in names_made
