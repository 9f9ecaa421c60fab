"""Propose, and train, the next seeds: those that decide most undecided claims per hour.

    python -m normbench.decide hours=2 [claim=NAME,...] [runs=DIR] [run=true] [KEY=VALUE ...]

The claims are judged as by `python -m normbench.report`. For each that is undecided, the proposal
completes the planned number of seeds, with which intervals have 95 %. Where that is complete, it
takes the number of seeds with which the claim would be decided in four of five cases at 99.9 %, if
the present means and standard deviations were true; seeds are given where they vary most. Claims
whose table lacks a few cells get these. Of all of this, what decides most claims per hour is chosen
until the hours are used. Runs that several claims share count once, and claims that more seeds than
planned may leave undecided again are subtracted. Hours are those of one training after the other,
from the speed of finished runs.

run=true trains the proposal as `python -m normbench` does, and prints the new verdicts; without it
the commands are printed. Other words are added to these commands, as jobs=2, logger=none or
data.root=FOLDER; they must not change the numbers of a run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from normbench import results
from normbench.config import cli
from normbench.errors import BadInput, choose_from, count
from normbench.execution.progress import waiting
from normbench.records.studies import study_file
from normbench.report import build
from normbench.report.additions import Additions, merge
from normbench.report.claim_results import ClaimResult, count_verdicts
from normbench.report.forecast import MOST_SEEDS, Prospect

if TYPE_CHECKING:  # which import torch
    from normbench.execution.more_seeds import Step, Trainings


SURE = 0.9  # chance to stay decided below which a verdict is named


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < float("inf"):
        raise ValueError("it is a number of hours above 0, as hours=2 or hours=0.5")
    return hours


@dataclass(frozen=True)
class DecideOptions:
    """Options of the command line."""

    hours: float | None = cli.option(None, "hours of training to spend; needed", "H", _hours)
    claim: tuple[str, ...] = cli.option((), "names of claims; all if none is given")
    runs: Path = cli.option(Path("runs"), "root folder of all runs")
    run: bool | None = cli.option(None, "train what is proposed (false)")


@cli.command("normbench.decide", lambda: f"{__doc__}\n{cli.describe(DecideOptions)}")
def main(arguments: Sequence[str]) -> int:
    """Print a proposal, and train it if that is asked for."""
    options, words = cli.parse_options(arguments, DecideOptions, pass_on=True)
    if options.hours is None:
        raise BadInput("hours=H is missing: the hours of training to spend, as hours=2")
    build.require_rows(options.runs)
    if options.run and study_file(options.runs):
        raise BadInput(
            f"run=true: runs={options.runs} is a study, which holds no runs; name the folder of "
            "its runs, or leave out run=true and type the commands that are printed"
        )
    report = build.read_report(build.specs(), options.runs)
    wanted = _wanted(report.claims, options.claim)
    undecided = [each for each in wanted if each.verdict.outcome == "undecided"]
    if not undecided:
        print(f"no verdict is undecided: {count_verdicts(wanted)}")
        return 0
    if options.runs != Path("runs") and not study_file(options.runs):
        words.append(f"runs={options.runs}")
    return _decide(report.claims, wanted, options, words)


def _wanted(judged: Sequence[ClaimResult], names: Sequence[str]) -> list[ClaimResult]:
    """Return the verdicts on the claims of these names, or all without names.

    Raises:
        BadInput: there is no such claim.
    """
    known = {each.claim.name for each in judged}
    for name in names:
        if name not in known:
            raise BadInput(f"claim={name} is unknown; {choose_from(name, known)}")
    return [each for each in judged if not names or each.claim.name in names]


def _decide(
    judged: Sequence[ClaimResult],
    wanted: Sequence[ClaimResult],
    options: DecideOptions,
    words: Sequence[str],
) -> int:
    """Print what decides most of the wanted verdicts, and train it if that is asked for."""
    from normbench.execution.more_seeds import Trainings, choose
    from normbench.execution.proposal_text import commands, loss_line, proposal_lines

    assert options.hours is not None
    prospects = [Prospect(result) for result in judged if result.table is not None]
    counted = [each for each in prospects if each.result in wanted]
    trainings = Trainings(results.read(options.runs), words)
    with waiting("simulating verdicts with further seeds ..."):
        candidates, left_out = _candidates(counted, trainings)
        steps = choose(counted, candidates, trainings, options.hours)
    undecided = [each for each in wanted if each.verdict.outcome == "undecided"]
    print(f"{len(undecided)} of {count(len(wanted), 'verdict')} are undecided")
    for reason, number in left_out.items():
        print(f"left out: {number} {reason}")
    if not candidates:
        print("nothing to add")
        return 0
    additions: Additions = {}
    for step in steps:
        additions = merge(additions, step.additions)
    refusals = _refusals(counted, candidates, additions, trainings, options.hours)
    if not steps:
        raise BadInput("; ".join(refusals))
    for refusal in refusals:
        print(f"not chosen: {refusal}")
    print("\n".join(["", *proposal_lines(steps, trainings.units(additions)), ""]))
    for prospect in prospects:
        chance = prospect.forecast(additions).chance
        if prospect.decided and chance is not None and chance < SURE:
            print(loss_line(prospect, chance))
    if options.run:
        return _train(steps, additions, trainings)
    for command in commands(additions, words):
        print(command)
    return 0


def _candidates(
    prospects: Sequence[Prospect], trainings: "Trainings"
) -> tuple[dict[Prospect, Additions], Counter[str]]:
    """Return what each verdict needs, and how many of the others are left out for which reason.

    Raises:
        BadInput: the words of the command line suit the runs of none.
    """
    candidates: dict[Prospect, Additions] = {}
    left_out: Counter[str] = Counter()
    failure: BadInput | None = None
    for prospect in prospects:
        if prospect.result.verdict.outcome != "undecided":
            continue
        if reason := prospect.obstacle:
            left_out[reason] += 1
            continue
        try:
            additions = prospect.propose(trainings.hours_of_seed)
            trainings.hours(additions)
        except BadInput as error:
            failure = failure or error
            left_out[f"because {error}"] += 1
            continue
        if additions:
            candidates[prospect] = additions
        else:
            left_out[f"that {MOST_SEEDS} seeds of an entry would hardly decide"] += 1
    if failure is not None and not candidates:
        raise failure
    return candidates, left_out


def _refusals(
    wanted: Sequence[Prospect],
    candidates: Mapping[Prospect, Additions],
    chosen: Additions,
    trainings: "Trainings",
    hours: float,
) -> list[str]:
    """Return why other candidates are not chosen, a part of a sentence for each reason."""
    from normbench.execution.more_seeds import decides, gain

    harmful, needed = 0, []
    for prospect, additions in candidates.items():
        merged = merge(chosen, additions)
        if decides(prospect, chosen) or merged == chosen:
            continue
        if gain(wanted, chosen, merged) > 0:
            needed.append(trainings.hours(merged))
        else:
            harmful += 1
    refusals = []
    if needed:
        least = ceil(min(needed) * 1000) / 1000
        refusals.append(
            f"{count(len(needed), 'verdict')} for which hours={hours:g} do not suffice; "
            f"hours={least:g} would for the next"
        )
    if harmful:
        refusals.append(
            f"{count(harmful, 'verdict')} whose seeds would leave as many decided ones undecided; "
            "claim=NAME counts the named ones alone"
        )
    return refusals


def _train(steps: "Sequence[Step]", additions: Additions, trainings: "Trainings") -> int:
    """Train what is proposed, and print the new verdicts; return the exit code."""
    from normbench.execution.conclusion import stop_by_signals, train
    from normbench.execution.proposal_text import verdict_line
    from normbench.execution.sweep import Interrupted

    tables = dict.fromkeys(step.prospect.result.spec.name for step in steps)
    _, settings = trainings.compose(next(iter(additions.values())).row)
    try:
        with stop_by_signals():
            code = train(trainings.cells(additions), settings, lambda: build.specs([*tables]))
    except Interrupted as stop:
        return 128 + stop.number
    print()
    judged = build.read_report(build.specs(), Path(settings.runs)).claims
    for step in steps:
        before = step.prospect.result
        for after in judged:
            if _same(before, after):
                print(verdict_line(before, after))
    return code


def _same(before: ClaimResult, after: ClaimResult) -> bool:
    """Return True if two verdicts are on the same claim in the same setting of a table."""
    return (before.claim, before.spec.name, before.setting) == (
        after.claim,
        after.spec.name,
        after.setting,
    )


if __name__ == "__main__":
    cli.run(main)
