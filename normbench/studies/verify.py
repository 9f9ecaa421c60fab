"""Train a random sample of the runs of a study again, and compare."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from random import Random
from typing import Literal

from normbench import results
from normbench.config.cells import Cell, Settings, title_of
from normbench.config.row_words import compose_again
from normbench.errors import BadInput, count, join_words
from normbench.execution import dispatch
from normbench.execution.conclusion import stop_by_signals
from normbench.execution.provenance import commit, versions
from normbench.execution.sweep import Interrupted
from normbench.report.footnotes import short_commit
from normbench.report.planned_seeds import configuration
from normbench.report.statistics import CONFIDENCE, bonferroni, largest_difference
from normbench.results import Row, find_test_hits
from normbench.studies.files import describe_difference, read_study

#: Fields that change rounding; versions of packages are compared besides.
MACHINE = (
    "cpu", "devices", "threads", "plan", "impl", "channels_last", "cuda_graphs", "stacked_seeds",
)  # fmt: skip
FEWEST_SEEDS = 3  # other than that of the run, from which a margin is computed

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


def verify(study: Path, share: float, draw: int, runs: Path, words: Sequence[str]) -> int:
    """Train a sample of a study again below `runs`, print comparisons, and return the exit code.

    Args:
        study: its folder or file.
        share: fraction of the runs to train; at least one.
        draw: seed of the random choice.
        runs: folder of the repetitions; those by the present code are not trained again.
        words: of the command line, as jobs=2.

    Raises:
        BadInput: `study` is not one or has no run to train, no run of the sample can be composed
            with `words`, or `runs` has the runs of the study themselves.
    """
    rows = read_study(study)
    chosen = choose(rows, share, draw)
    total = sum(map(_can_be_repeated, rows))
    print(f"{study}: training {len(chosen)} of {count(total, 'computed run')} again")
    set_older_aside(chosen, runs)
    cells, settings, failures = _compose(chosen, [f"runs={runs}", "resume=false", *words])
    if settings is None:
        raise BadInput(failures[0])
    try:
        with stop_by_signals():
            summary = dispatch.start(cells, settings)
    except Interrupted as stop:
        return 128 + stop.number
    if summary.interrupted:
        return 128 + summary.interrupted
    failures += summary.failed
    repeated = {row.id: row for row in results.read(runs)}
    others = _by_configuration(rows)
    level = bonferroni(len(chosen), CONFIDENCE)
    comparisons = [
        _compare((study, row), (runs, repeated[row.id]), others[configuration(row)], level)
        for row in chosen
        if row.id in repeated
    ]
    for line in [*map(str, comparisons), *(f"failed    {failure}" for failure in failures)]:
        print(line)
    outcomes = [comparison.outcome for comparison in comparisons]
    totals = [f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)]
    print(f"{len(comparisons)} of {count(len(chosen), 'run')} compared: {', '.join(totals) or '-'}")
    complete = len(comparisons) == len(chosen)
    return 0 if complete and not any(each.failed for each in comparisons) else 1


def choose(rows: Sequence[Row], share: float, draw: int) -> list[Row]:
    """Return a random sample of the runs of a study that can be repeated.

    Raises:
        BadInput: there is none.
    """
    repeatable = [row for row in rows if _can_be_repeated(row)]
    if not repeatable:
        raise BadInput("the study has no run that was trained from its start to its end")
    number = max(1, ceil(share * len(repeatable) - 1e-9))
    drawn = {row.id for row in Random(draw).sample(repeatable, number)}
    return [row for row in repeatable if row.id in drawn]


def _can_be_repeated(row: Row) -> bool:
    """Return True if a run was trained by itself, and is no copy of another one."""
    trained = row.kind == "run" and row.status in ("ok", "diverged") and row.shared_with is None
    return trained and not row.config.get("init_from")


def set_older_aside(chosen: Sequence[Row], runs: Path) -> None:
    """Set aside repetitions by other code, so that the present code trains these runs again.

    Of a checkout with changed files no commit tells the code, so all its repetitions are older.

    Raises:
        BadInput: `runs` has the runs of the study themselves.
    """
    ids = {row.id: row for row in chosen}
    present, packages = commit(), versions()
    for row in results.read(runs):
        if row.id in ids and row.finished == ids[row.id].finished:
            raise BadInput(
                f"runs={runs} has the runs of the study themselves; name another folder, in which "
                "they are trained again"
            )
        same_code = row.commit == present and row.versions == packages
        if row.id in ids and (present.endswith("+") or not same_code):
            results.set_aside(runs / row.sweep / row.id)


def _compose(
    rows: Sequence[Row], words: Sequence[str]
) -> tuple[list[Cell], Settings | None, list[str]]:
    """Return the cells of `rows`, their settings, and a line for each that is none any more."""
    cells, settings, failures = [], None, []
    for row in rows:
        try:
            cell, settings = compose_again(row, words)
            cells.append(cell)
        except BadInput as error:
            failures.append(f"{title_of(vars(row))}: {error}")
    return cells, settings, failures


def _by_configuration(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Return the rows of each configuration, which differ in seeds alone."""
    grouped = defaultdict(list)
    for row in rows:
        grouped[configuration(row)].append(row)
    return grouped


def _compare(
    run_source: tuple[Path, Row],
    repetition_source: tuple[Path, Row],
    seeds: Sequence[Row],
    level: float,
) -> Comparison:
    """Compare a run with its repetition.

    Args:
        run_source: root and row of the run.
        repetition_source: root and row of its repetition.
        seeds: the runs of the study with this configuration.
        level: confidence of the margin of one run.
    """
    run, repetition = run_source[1], repetition_source[1]
    if repetition.status in ("oom", "impossible"):
        return Comparison(run, "unknown", f"its repetition ended as {repetition.status}")
    difference = describe_difference(run, repetition)
    hits = [find_test_hits(*source) for source in (run_source, repetition_source)]
    if not difference and None not in hits and hits[0] != hits[1]:
        difference = "other test images are classified correctly"
    if not difference:
        return Comparison(run, "same bits", repetition.outcome)
    machine = _describe_other_machine(run, repetition)
    if not machine:
        commits = f"{short_commit(run.commit) or 'unknown'} and {short_commit(repetition.commit)}"
        reason = f"{difference}, on the same kind of machine; commits {commits}"
        return Comparison(run, "DIFFERENT", reason)
    if run.result is None or repetition.result is None or run.status != repetition.status:
        return Comparison(run, "OUTSIDE", f"{difference}; {machine}")
    others = [row.result for row in seeds if row.seed != run.seed and row.result is not None]
    margin = largest_difference(others, level) if len(others) >= FEWEST_SEEDS else 0.0
    decimals, unit = (1, " %") if run.metric == "test_top1" else (3, "")
    reason = f"test {run.result:.{decimals}f}{unit} and {repetition.result:.{decimals}f}{unit}"
    if not margin:
        few = f"the study has {count(len(others), 'other seed')} that tell no margin"
        return Comparison(run, "unknown", f"{reason}; {few}; {machine}")
    inside = abs(run.result - repetition.result) <= margin
    reason += f", at most {margin:.{decimals}f} apart by the other seeds; {machine}"
    return Comparison(run, "inside" if inside else "OUTSIDE", reason)


def _describe_other_machine(one: Row, other: Row) -> str:
    """Return in which properties two machines differ: "cpu and torch differ"; "" in none."""
    names = [name for name in MACHINE if getattr(one, name) != getattr(other, name)]
    names += [
        package
        for package, version in other.versions.items()
        if package != "normbench" and one.versions.get(package) != version
    ]
    return f"{join_words(names)} {'differs' if len(names) == 1 else 'differ'}" if names else ""
