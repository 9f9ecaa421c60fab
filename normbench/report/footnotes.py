"""Footnotes of a table: what its numbers are, and what must be known to read them."""

from collections.abc import Iterator
from statistics import fmean

from normbench.report.planned_seeds import confidence
from normbench.report.statistics import signed, welch_contrast
from normbench.report.table import DAGGER, DOUBLE_DAGGER, WORDS, Entry, Table
from normbench.report.table_spec import TableSpec
from normbench.report.tuning import tuning_notes


def footnotes(table: Table) -> list[str]:
    """Return the footnotes of `table`, the most important first."""
    notes = [_metric(table), *_paper(table), *table.spec.notes]
    statuses = {row.status for row in table.runs}
    if "diverged" in statuses:
        notes.append(
            "div.: diverged; a loss was not finite, or the final training loss was not at least "
            "1 % below ln(classes), the loss of guessing."
        )
    if "oom" in statuses:
        notes.append("OOM: out of memory; the run did not fit into the memory of the device.")
    notes += impossible(table)
    if single := table.single_computations:
        notes.append(
            f"{DAGGER} {', '.join(map(' '.join, single))}: with protocol=fixed_global_batch, every "
            "column of this row is the same computation for a given seed, because no statistic "
            "depends on the images per worker. That the row is flat is no evidence."
        )
    if shared := sum(row.shared_with is not None for row in table.runs):
        marked = any(table.mark(label, e) for label, line in table.lines.items() for e in line)
        notes.append(
            f"{f'{DOUBLE_DAGGER} ' if marked else ''}{shared} of {len(table.runs)} runs were not "
            "trained: each is the same computation as another run and reuses its result "
            "(shared_with)."
        )
    if older := sum(entry.older for entry in table.entries):
        notes.append(f"{older} runs with older values of options are left out.")
    if groups := groups_in_use(table):
        notes.append(f"Group counts in the layers of this network: {groups}.")
    notes += tuning_notes(table)
    notes += example_weighing(table)
    if options := sorted({value for row in table.runs for value in row.unverified}):
        notes.append(
            f"Unverified: no source gives these options of the protocol: {', '.join(options)}."
        )
    notes += differences(table)
    notes += sorted({row.data_limits for row in table.runs if row.data_limits})
    if table.runs:
        notes.append(_provenance(table))
    return notes


def _metric(table: Table) -> str:
    metric = table.spec.metric
    when = " after the last epoch" if metric.accuracy else ""
    # Not by str.capitalize, which would write "bn" for BN.
    label = metric.label[0].upper() + metric.label[1:]
    note = f"{label}{when}: {table.spec.statistic} ± sample standard deviation (number of seeds)."
    if table.spec.statistic == "mean":
        return note
    return f"{note} Claims, and intervals below, are about means."


def _paper(table: Table) -> Iterator[str]:
    """Yield what the numbers in brackets are and whether ours can be compared with them."""
    spec = table.spec
    if not spec.published:
        return
    source = f"The paper's numbers: {spec.source}{_runs_behind(spec)}"
    if not table.runs:
        yield f"{source}. Nothing of this table has been trained here."
    elif table.setting_differences:
        differs = ", ".join(table.setting_differences)
        yield f"{source}. No differences are shown, because our setting differs: {differs}."
    else:
        yield f"{source}; after each, our number minus the paper's."
    if any(number.unverified for number in spec.published.values()):
        yield "?: we could not verify this number in the text of the paper."


def _runs_behind(spec: TableSpec) -> str:
    """Return how many runs are behind a number of the paper; a size needs none."""
    if not spec.metric.learned:
        return ""
    if spec.seeds is None:
        return f", {spec.statistic} (number of runs not stated)"
    return f", {spec.statistic} (of {spec.seeds}{'' if isinstance(spec.seeds, str) else ' runs'})"


def impossible(table: Table) -> list[str]:
    """Return a footnote for each reason why runs are impossible."""
    labels: dict[str, list[str]] = {}
    for label, entries in table.lines.items():
        rows = (row for entry in entries for row in entry.runs)
        # In the order of columns: that of a set differs from process to process.
        for reason in dict.fromkeys(row.reason for row in rows if row.status == "impossible"):
            # One reason often holds for several normalizers.
            labels.setdefault(reason, []).append(" ".join(label))
    return [f"n/a, {', '.join(rows)}: {reason}." for reason, rows in labels.items()]


def groups_in_use(table: Table) -> str:
    """Return the group counts in use by each normalizer; a network may cap the requested count."""
    texts = []
    for label, entries in table.lines.items():
        if counts := {count for entry in entries for row in entry.runs for count in row.groups}:
            texts.append(f"{' '.join(label)} {', '.join(map(str, sorted(counts)))}")
    return "; ".join(texts)


def example_weighing(table: Table) -> Iterator[str]:
    """Yield a footnote with the alphas of the evaluations, where runs chose them."""
    texts = []
    for label, entries in table.lines.items():
        runs = [row for each in entries for row in each.runs]
        chosen = [row.example_weighing for row in runs if "alpha" in row.example_weighing]
        if not chosen:
            continue
        alphas = sorted(weighing["alpha"] for weighing in chosen)
        ends = " to ".join(dict.fromkeys(f"{alpha:g}" for alpha in (alphas[0], alphas[-1])))
        gains = [weighing["test_top1"] for weighing in chosen if "test_top1" in weighing]
        gain = f", {signed(fmean(gains), 1)} points of test top-1 on average" if gains else ""
        texts.append(f"{' '.join(label)} alpha {ends} (usual {chosen[0]['usual']:g}){gain}")
    if texts:
        yield (
            "Evaluated with the weight alpha of an image that held-out images chose "
            f"(recipe.example_weight): {'; '.join(texts)}."
        )


def _provenance(table: Table) -> str:
    """Return sweeps and commits of the runs; "+" after a commit marks changed files."""
    commits = {short_commit(row.commit) for row in table.runs if row.commit}
    sweeps = ", ".join(sorted({row.sweep for row in table.runs}))
    return (
        f"Runs: {len(table.runs)}, sweep {sweeps}, "
        f"commit {', '.join(sorted(commits)) or 'unknown'}."
    )


def short_commit(commit: str) -> str:
    """Return a commit shortened to 12 digits, with the "+" of changed files."""
    return commit[:12] + commit[40:]


def differences(table: Table) -> list[str]:
    """Return footnotes on the largest batch minus the smallest, by Welch.

    Rows that are one computation have none, and rows in which one of the two has failed runs.
    """
    if not table.over_batch:
        return []
    notes = []
    for label, entries in table.lines.items():
        by_batch = {
            column.batch: entry
            for column, entry in zip(table.columns, entries, strict=True)
            if column.batch and (entry.values or _has_failed(entry))
        }
        # Equal by construction: an interval of no width would pass for evidence.
        if len(by_batch) < 2 or label in table.single_computations:
            continue
        few, many = min(by_batch), max(by_batch)
        compared = [by_batch[many], by_batch[few]]
        if any(map(_has_failed, compared)):  # the other runs alone would flatter
            continue
        level = confidence(compared)
        parts = [(w, [*e.values.values()]) for w, e in zip((1.0, -1.0), compared, strict=True)]
        estimate = welch_contrast(parts, level)
        if estimate.low is not None:
            notes.append(
                f"{' '.join(label)}: batch={many} minus batch={few} is "
                f"{estimate.text(table.spec.decimals)} "
                f"(Welch's {100 * level:g} % confidence interval, {estimate.seeds} seeds)."
            )
    return notes


def _has_failed(entry: Entry) -> bool:
    """Return True if a run of an entry diverged or ran out of memory."""
    return bool(entry.failures.keys() - {WORDS["impossible"]})
