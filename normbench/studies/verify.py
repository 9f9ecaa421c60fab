"""Train a random sample of the runs of a study again, and compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from random import Random
from typing import Literal

from normbench import results
from normbench.config.cells import title_of
from normbench.config.row_words import compose_again
from normbench.errors import BadInput, count, join_words
from normbench.execution import dispatch
from normbench.execution.conclusion import stop_by_signals
from normbench.execution.sweep import Interrupted
from normbench.report.planned_seeds import configuration
from normbench.report.statistics import CONFIDENCE, bonferroni, prediction_interval
from normbench.results import Row, find_test_hits
from normbench.studies.files import differences, read_study

#: What decides the last bits of a training, besides its configuration.
MACHINE = (
    "cpu", "devices", "threads", "plan", "impl", "channels_last", "cuda_graphs", "stacked_seeds",
)  # fmt: skip

Outcome = Literal["same bits", "inside", "unknown", "DIFFERENT", "OUTSIDE"]


@dataclass(frozen=True)
class Comparison:
    """A run of a study and its repetition."""

    run: Row
    outcome: Outcome
    reason: str

    @property
    def failed(self) -> bool:
        return self.outcome in ("DIFFERENT", "OUTSIDE")

    def __str__(self) -> str:
        return f"{self.outcome:<10}{title_of(vars(self.run))}  {self.reason}"


def verify(study: Path, share: float, sample: int, runs: Path, words: Sequence[str]) -> int:
    """Train a sample of a study again below `runs`, print comparisons, and return the exit code.

    Args:
        study: its folder or file.
        share: part of the runs to train; at least one.
        sample: number of the random sample.
        runs: root folder of the repetitions; those that are finished are not trained again.
        words: of the command line, as jobs=2.

    Raises:
        BadInput: `study` is none, has no run to train, or `words` change numbers.
    """
    rows = read_study(study)
    chosen = choose(rows, share, sample)
    composed = [compose_again(row, [f"runs={runs}", *words]) for row in chosen]
    computed = sum(map(_is_computed, rows))
    print(f"{study}: training {len(chosen)} of {count(computed, 'computed run')} again")
    try:
        with stop_by_signals():
            summary = dispatch.start([cell for cell, _ in composed], composed[0][1])
    except Interrupted as stop:
        return 128 + stop.number
    if summary.interrupted:
        return 128 + summary.interrupted
    repeated = {row.id: row for row in results.read(runs)}
    level = bonferroni(len(chosen), CONFIDENCE)
    comparisons = [
        _compare(study, row, runs, repeated[row.id], rows, level)
        for row in chosen
        if row.id in repeated
    ]
    for comparison in comparisons:
        print(comparison)
    for line in summary.failed:
        print(f"failed    {line}")
    outcomes = [comparison.outcome for comparison in comparisons]
    totals = [f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)]
    print(f"{count(len(comparisons), 'run')} compared: {', '.join(totals) or 'none'}")
    return 1 if summary.failed or any(each.failed for each in comparisons) else 0


def choose(rows: Sequence[Row], share: float, sample: int) -> list[Row]:
    """Return a random sample of the runs that a study computed.

    Raises:
        BadInput: there is none.
    """
    computed = [row for row in rows if _is_computed(row)]
    if not computed:
        raise BadInput("the study has no run that was computed from its start and ended with ok")
    number = max(1, ceil(share * len(computed) - 1e-9))
    drawn = {row.id for row in Random(sample).sample(computed, number)}
    return [row for row in computed if row.id in drawn]


def _is_computed(row: Row) -> bool:
    """Return True if a run can be trained again by itself, and is no copy of another one."""
    own = row.kind == "run" and row.status == "ok" and row.shared_with is None
    return own and not row.config.get("init_from")


def _compare(
    study: Path, run: Row, runs: Path, repeated: Row, rows: Sequence[Row], level: float
) -> Comparison:
    """Compare a run with its repetition; `level` is the confidence of the interval of one run."""
    difference = differences(run, repeated)
    if not difference and find_test_hits(study, run) != find_test_hits(runs, repeated):
        difference = "other test images are classified correctly"
    if not difference:
        return Comparison(run, "same bits", repeated.outcome)
    machine = _other_machine(run, repeated)
    if not machine:
        where = f"commit {run.commit[:12] or 'unknown'} and {repeated.commit[:12] or 'unknown'}"
        return Comparison(run, "DIFFERENT", f"{difference}, on the same kind of machine; {where}")
    values = [
        row.test_top1
        for row in rows
        if configuration(row) == configuration(run) and row.test_top1 is not None
    ]
    predicted = prediction_interval(values, level) if values else None
    if predicted is None or predicted.low is None or predicted.high is None:
        reason = f"{difference}, {machine}; the study has one seed, which predicts no interval"
        return Comparison(run, "unknown", reason)
    inside = repeated.test_top1 is not None and (
        predicted.low <= repeated.test_top1 <= predicted.high
    )
    interval = f"[{predicted.low:.1f}, {predicted.high:.1f}]"
    reason = f"{repeated.outcome}, predicted {interval}; {machine}"
    return Comparison(run, "inside" if inside else "OUTSIDE", reason)


def _other_machine(one: Row, other: Row) -> str:
    """Return in what the machines of two runs differ: "cpu and torch differ"; "" in nothing."""
    names = [name for name in MACHINE if getattr(one, name) != getattr(other, name)]
    if one.versions.get("torch") != other.versions.get("torch"):
        names.append("torch")
    return f"{join_words(names)} {'differs' if len(names) == 1 else 'differ'}" if names else ""
