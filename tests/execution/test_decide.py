"""`normbench.decide`: which seeds are proposed and trained within some hours."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from normbench import results
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.decide import main
from normbench.execution.additions import Additions, bring_to, merge
from normbench.execution.missing_cells import missing_cells, missing_places
from normbench.execution.more_seeds import Trainings
from normbench.records.studies import STUDY
from normbench.report import build
from normbench.report.pivot import tables
from normbench.report.planned_seeds import UNPLANNED_TEXT
from normbench.report.table_spec import spec
from normbench.report.verdicts import judge_claims
from normbench.results import Row
from support.claims import SPEC, TABLE, claim
from support.commands import Command, Finished, Rows, in_process
from support.rows import runs

#: A cell of EvoNorm's table 9 in small.
WORDS = (
    "recipe=evonorm_resnet_90", "recipe.epochs=2", "model=resnet8", "protocol=fixed_workers",
    "workers=8", "data=digits", "logger=none", "trainer=cpu",
)  # fmt: skip
CLAIM = "claim=bn_falls_below_gn"  # gn is above bn with 4 images per worker

Decide = Callable[..., Finished]


@pytest.fixture
def decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Decide:
    """`python -m normbench.decide ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return in_process(main, capsys)


@cache
def cells(*words: str) -> list[Cell]:
    """Return the cells of a grid, composed once for all tests."""
    return compose(["-m", *WORDS, *words])[0]


def write(accuracies: Sequence[float], *words: str, **changes: Any) -> list[Row]:
    """Write rows of seeds 0, 1, 2 ... of a cell below runs/; they train for about a minute."""
    (cell,) = cells(*words)
    measured = {"status": "ok", "devices": "1 x cpu", "images_per_second": 50.0} | changes
    rows = []
    for seed, accuracy in enumerate(accuracies):
        description = replace(cell, seed=seed, command_seeds=len(accuracies)).description("default")
        rows.append(Row(**{**description, **measured, "test_top1": accuracy}))
        results.write(Path("runs/default", rows[-1].id), rows[-1])
    return rows


def write_undecided() -> list[Row]:
    return [
        *write([70.5, 71.5, 71.0], "norm=gn", "batch=4"),
        *write([70.0, 71.0, 70.5], "norm=bn", "batch=4"),
    ]


def commands(finished: Finished) -> list[list[str]]:
    """Return the words of the commands that were printed, after `python -m normbench`."""
    lines = [line for line in finished.out.splitlines() if line.startswith("python -m normbench ")]
    return [shlex.split(line)[3:] for line in lines]


# What is printed


@pytest.mark.slow
def test_the_commands_train_the_proposed_seeds_of_the_same_cells(decide: Decide) -> None:
    rows = write_undecided()
    proposal = decide("hours=9", CLAIM, "logger=none")
    assert proposal.code == 0
    assert "of 5 verdicts: 0 confirmed, 0 refuted, 1 undecided, 4 untested" in proposal.out
    (line,) = re.findall(r"^bn_falls_below_gn +evonorm_9 .+$", proposal.out, re.MULTILINE)
    match = re.search(r"gn batch=4 +3 → (\d+) +(\S+) +(\S+) → (\S+) +(\d+) %$", line)
    assert match is not None
    number, hours, now, then, chance = match.groups()
    assert int(number) >= 6
    assert float(then) < float(now)
    assert int(chance) >= 80
    composed = [cell for words in commands(proposal) for cell in compose(words)[0]]
    assert {row.id for row in rows} < {cell.id for cell in composed}
    assert {cell.command_seeds for cell in composed} == {int(number)}
    assert len(composed) == 2 * int(number)
    # 16 steps of 32 images in an epoch, and those of evaluations.
    trained = len(composed) - len(rows)
    assert float(hours) == pytest.approx(trained * 2 * 1280 / 50 / 3600, rel=0.3)
    assert all("logger=none" in words for words in commands(proposal))


@pytest.mark.slow
def test_a_proposal_keeps_to_the_hours(decide: Decide) -> None:
    write_undecided()
    refused = decide("hours=0.01", CLAIM)
    assert (refused.code, commands(refused)) == (2, [])
    least = re.search(
        r"1 further verdict would need more than hours=0.01; (hours=\S+) ", refused.err
    )
    assert least is not None
    assert decide(least[1], CLAIM).code == 0
    slightly_less = f"hours={float(least[1].removeprefix('hours=')) - 0.002:g}"
    assert decide(slightly_less, CLAIM).code == 2


@pytest.mark.slow
def test_the_planned_number_is_completed_first(decide: Decide) -> None:
    write([70.5, 71.5], "norm=gn", "batch=4", command_seeds=None)
    write([70.0, 71.0], "norm=bn", "batch=4", command_seeds=None)
    proposal = decide("hours=9", CLAIM)
    assert proposal.out.count("2 → 3") == 2
    composed = [compose(words)[0] for words in commands(proposal)]
    assert [[(cell.seed, cell.command_seeds) for cell in each] for each in composed] == [
        [(2, 1)], [(2, 1)],
    ]  # fmt: skip


@pytest.mark.slow
def test_a_decided_claim_is_not_proposed(decide: Decide) -> None:
    write([80.5, 81.5, 81.0], "norm=gn", "batch=4")
    write([70.0, 71.0, 70.5], "norm=bn", "batch=4")
    nothing = decide("hours=9", CLAIM)
    assert (nothing.code, commands(nothing)) == (0, [])
    assert "nothing is undecided: 1 confirmed, 0 refuted, 0 undecided" in nothing.out
    write([70.5, 71.5, 71.0], "norm=bn", "batch=128")  # bn_falls is undecided with it
    proposal = decide("hours=9", "claim=bn_falls,bn_falls_below_gn")
    assert proposal.code == 0
    assert "\nbn_falls " in proposal.out
    assert "\nbn_falls_below_gn" not in proposal.out
    assert "left out" not in proposal.out
    assert not any("norm=gn" in words for words in commands(proposal))


@pytest.mark.slow
def test_seeds_that_leave_a_decided_claim_undecided_are_named(decide: Decide) -> None:
    write([71.6, 72.6, 72.1], "norm=gn", "batch=4")
    write([70.0, 71.0, 70.5], "norm=bn", "batch=4")
    write([70.7, 71.7, 71.2], "norm=bn", "batch=128")
    lost = "may be undecided then: bn_falls_below_gn, evonorm_9, which is confirmed now"
    assert lost in decide("hours=9", "claim=bn_falls").out
    # For all claims together, it is lost where another is won.
    every = decide("hours=9", "claim=bn_falls,bn_falls_below_gn")
    assert every.code == 2
    assert "1 verdict whose seeds would leave as many decided ones undecided" in every.err


@pytest.mark.slow
def test_an_untested_claim_gets_the_cells_that_its_table_lacks(decide: Decide) -> None:
    write_undecided()
    proposal = decide("hours=9", "claim=bn_loses_more_than_gn")
    assert proposal.code == 0
    assert re.search(
        r"^bn_loses_more_than_gn .* bn batch=128 +0 → 3 .* unknown$", proposal.out, re.M
    )
    composed = {cell.id for words in commands(proposal) for cell in compose(words)[0]}
    expected = [cells(f"norm={norm}", "batch=128")[0] for norm in ("bn", "gn")]
    assert composed == {replace(cell, seed=n).id for cell in expected for n in range(3)}


def test_no_cells_are_proposed_of_a_table_that_has_few_runs(decide: Decide) -> None:
    write([70.5, 71.5, 71.0], "norm=gn", "batch=4")
    nothing = decide("hours=9", "claim=s0_above_gn")
    assert (nothing.code, commands(nothing)) == (0, [])


@pytest.mark.slow
def test_rows_of_a_study_are_proposed_for_and_not_trained_into(decide: Decide) -> None:
    path = Path("study", STUDY).resolve()
    results.write_study(path, [(Path("runs"), row) for row in write_undecided()])
    study = f"runs={path.parent}"
    proposal = decide(study, "hours=9", CLAIM)
    assert proposal.code == 0
    assert "3 → " in proposal.out
    assert not any(study in words for words in commands(proposal))
    refused = decide(study, "hours=9", CLAIM, "run=true")
    assert refused.code == 2
    assert "is a study" in refused.err


# Costs


@pytest.mark.slow
def test_cells_that_share_a_computation_cost_one(tmp_path: Path, decide: Decide) -> None:
    words = ("protocol=fixed_global_batch", "workers=null", "global_batch=128")
    rows = [row for n in (4, 8) for row in write([70.0, 71.0], "norm=gn", f"batch={n}", *words)]
    (table,) = tables(build.specs(["batch_size"]), rows)
    trainings = Trainings(rows, ["logger=none"])
    of_each: list[Additions] = [bring_to(entry, 4) for entry in table.entries]
    assert len(of_each) == 2
    both = merge(*of_each)
    assert len(trainings.cells(both)) == 4
    assert trainings.hours(both) == trainings.hours(of_each[0]) > 0


@pytest.mark.slow
def test_a_computation_that_another_cell_has_trained_costs_nothing(decide: Decide) -> None:
    words = ("protocol=fixed_global_batch", "workers=null", "global_batch=128")
    (cell,) = cells("norm=gn", "batch=8", *words)
    rows = write([70.0, 71.0], "norm=gn", "batch=4", *words)
    others = write([70.0, 71.0, 72.0], "norm=gn", "batch=8", *words)
    rows.append(replace(others[2], computation=replace(cell, seed=2).computation))
    (table,) = tables(build.specs(["batch_size"]), rows[:2])
    trainings = Trainings(rows, [])
    (entry,) = table.entries
    assert trainings.hours(bring_to(entry, 3)) == 0
    assert trainings.hours(bring_to(entry, 4)) > 0


@pytest.mark.parametrize(
    ("accuracies", "missing"),
    [([70.0, 71.0], [(("GN",), ("4",))]), ([None, None], []), ([70.0, None], [])],
)
def test_cells_are_missing_only_where_they_make_a_claim_testable(
    accuracies: list[float | None], missing: list[Any]
) -> None:
    (table,) = tables([SPEC], runs("bn", 4, accuracies))
    (result,) = judge_claims([claim(higher=[["GN", 4], ["BN", 4]])], {"made": SPEC}, [table])
    assert result.verdict.outcome == "untested"
    assert missing_places(result) == missing


def test_a_missing_speed_is_that_of_the_processor_of_its_table(decide: Decide) -> None:
    measured = {"devices": "1 x cpu (x86_64)", "cpu": "AMD EPYC (family 25, model 17)"}
    rows = [
        row
        for norm, batch in (("gn", 4), ("gn", 16), ("bn", 4))
        for row in write([70.0, 71.0], f"norm={norm}", f"batch={batch}", **measured)
    ]
    speeds = spec("made", TABLE | {"metric": "steps_per_second", "published": {}, "where": {}})
    (table,) = tables([speeds], rows)
    (result,) = judge_claims(
        [claim(speeds, higher=[["GN", 16], ["BN", 16]])], {"made": speeds}, [table]
    )
    assert len(missing_cells(result, missing_places(result), [])) == 1


# Refusals


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "hours=H is missing"),
        (["hours=0"], "hours=0: it is a number of hours above 0, as hours=2 or hours=0.5"),
        (["hours=-1"], "hours=-1: it is a number of hours above 0"),
        (["hours=nan"], "hours=nan: it is a number of hours above 0"),
        (["hours=much"], "hours=much: it is a number of hours above 0"),
        (["hours=1", "claim=bn_falls_below"], "did you mean bn_falls_below_gn?"),
        (["hours=1", "run=yes"], "run=yes is unknown"),
        (["hours=1", CLAIM, "logger=nonee"], "logger=nonee is unknown; did you mean none?"),
        (["hours=1", CLAIM, "recipe.epochs=3"], "a word of this command line changes results"),
        (["hours=1", "runs=other"], "other"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_refused(
    words: list[str], sentence: str, decide: Decide
) -> None:
    write_undecided()
    refused = decide(*words)
    assert refused.code == 2
    assert refused.err.startswith("normbench.decide: ")
    assert refused.err.count("\n") == 1
    assert sentence in refused.err


def test_without_rows_there_is_nothing_to_decide(decide: Decide) -> None:
    Path("runs").mkdir()
    refused = decide("hours=1")
    assert refused.code == 2
    assert "runs=runs holds no finished run" in refused.err


@pytest.mark.slow
def test_what_fifty_seeds_would_not_decide_is_left_out(decide: Decide) -> None:
    write([70.0, 73.0, 76.0], "norm=gn", "batch=4")
    write([70.0, 73.0, 76.1], "norm=bn", "batch=4")
    nothing = decide("hours=9", CLAIM)
    assert (nothing.code, commands(nothing)) == (0, [])
    assert (
        "left out: 1 verdict that even 50 seeds of an entry decide with a chance below 80%"
        in nothing.out
    )


# Training


@pytest.mark.slow
@pytest.mark.parametrize("planned", [True, False])
def test_run_trains_the_seeds_and_judges_again(
    planned: bool, command: Command, decide: Decide, rows: Rows
) -> None:
    """Completing the plan keeps 95 %; seeds beyond it have 99.9 %."""
    seeds = "seed=0" if planned else "seed=0,1,2"
    grid = [*WORDS, "norm=gn,bn", "batch=4"]
    assert command("-m", *grid, seeds).code == 0
    before = {row.id for row in rows()}
    trained = decide("hours=5", CLAIM, "run=true", "logger=none", "trainer=cpu")
    assert trained.code == 0, trained.err
    added = [row for row in rows() if row.id not in before]
    assert added
    (result,) = (
        each
        for each in build.read_report(build.specs(), Path("runs")).claims
        if each.claim.name == "bn_falls_below_gn" and each.table is not None
    )
    assert result.table is not None
    numbers = [len(entry.values) for entry in result.table.entries if entry.values]
    assert sum(numbers) == len(before) + len(added)
    assert (result.verdict.reason == UNPLANNED_TEXT) != planned
    if planned:
        assert numbers == [3, 3]
        assert {row.command_seeds for row in added} == {1}
    else:
        assert {row.command_seeds for row in added} <= {*numbers}
    last = trained.out.splitlines()[-1]
    assert last.startswith("bn_falls_below_gn, evonorm_9: undecided ")
    assert last.endswith(f" → {result.verdict.outcome} {result.effect}")
