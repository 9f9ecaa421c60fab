"""Propose, and train, the seeds that are expected to decide the largest number of claims per hour.

    python -m normbench.decide hours=2 [claim=NAME,...] [runs=DIR] [run=true] [KEY=VALUE ...]

The claims are judged as by `python -m normbench.report`. For each that is undecided, the proposal
completes the planned number of seeds, with which intervals are of 95 %. Where that is complete, it
takes the number of seeds with which the claim would be decided in four of five cases at 99.9 %, if
the present means and standard deviations were true; entries with larger standard deviations get
more of them. Claims whose table lacks a few entries get these. Proposals are chosen in the order of
decided claims per hour until the hours are used up. Runs that several claims share count once, and
claims that more seeds than planned may leave undecided again are subtracted; with claim=NAME only
the named ones count. Hours are those of one training after the other, from the speed of finished
runs.

run=true trains the proposal as `python -m normbench` does, and prints the new verdicts; without it
the commands are printed. Other words are added to these commands, as jobs=2, logger=none or
data.root=FOLDER; they must not change the numbers of a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from normbench import results
from normbench.config import cli
from normbench.errors import BadInput, choose_from, count
from normbench.execution.additions import Additions, merge
from normbench.execution.missing_cells import missing_places
from normbench.execution.progress import waiting
from normbench.records.studies import study_file
from normbench.report import build
from normbench.report.claim_results import ClaimResult, count_verdicts

if TYPE_CHECKING:  # which import torch
    from normbench.execution.more_seeds import Step, Trainings

KEEP_CHANCE = 0.9  # decided verdicts that stay decided with a lower chance are named


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
    if not any(map(_is_open, wanted)):
        print(f"nothing is undecided: {count_verdicts(wanted)}")
        return 0
    if options.runs != Path("runs") and not study_file(options.runs):
        words.append(f'runs="{options.runs}"')  # Hydra reads brackets only in quotes
    return _decide(report.claims, wanted, options, words)


def _is_open(result: ClaimResult) -> bool:
    """Return True if a claim is undecided, or untested because a few entries have no runs."""
    return result.verdict.outcome == "undecided" or bool(missing_places(result))


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
    from normbench.execution.more_seeds import Candidates, Trainings, choose, refusals
    from normbench.execution.proposal_text import commands, loss_line, proposal_lines

    assert options.hours is not None
    trainings = Trainings(results.read(options.runs), words)
    with waiting("simulating verdicts with further seeds ..."):
        candidates = Candidates(judged, wanted, trainings)
        steps = choose(candidates, options.hours)
    additions: Additions = {}
    for step in steps:
        additions = merge(additions, step.additions)
    print(f"of {count(len(wanted), 'verdict')}: {count_verdicts(wanted)}")
    for reason, number in candidates.left_out.items():
        print(f"left out: {count(number, 'verdict')} {reason}")
    reasons = refusals(candidates, additions, options.hours)
    if not steps and reasons:
        raise BadInput(f"nothing is proposed; {'; '.join(reasons)}")
    if not steps:
        print("nothing to add")
        return 0
    for reason in reasons:
        print(f"not chosen: {reason}")
    print("\n".join(["", *proposal_lines(steps, trainings.units(additions)), ""]))
    for prospect in candidates.prospects:
        chance = prospect.forecast(additions).chance
        if prospect.decided and chance is not None and chance < KEEP_CHANCE:
            print(loss_line(prospect, chance))
    if options.run:
        return _train(steps, additions, trainings)
    if study_file(options.runs):
        print(
            "These rows are from a study, which has no run folders: the commands also train its "
            "seeds again unless runs/ has them."
        )
    for command in commands(additions, words):
        print(command)
    return 0


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
