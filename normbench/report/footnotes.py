"""Footnotes of a table: what its numbers are, and what must be known to read them."""

from collections.abc import Sequence

from normbench.report.statistics import paired_difference
from normbench.report.table import Entry, Table, format_difference
from normbench.report.table_spec import Label, TableSpec

DAGGER = "†"  # marks a row whose columns are one computation
DOUBLE_DAGGER = "‡"  # marks an entry with reused runs


def footnotes(table: Table) -> list[str]:
    """Return the footnotes of `table`, the most important first."""
    notes = [_metric(table), *_paper(table)]
    if any(row.status == "diverged" for row in table.runs):
        notes.append(
            "div.: diverged; a loss was not finite, or the final training loss was not at least "
            "1 % below ln(classes), the loss of guessing."
        )
    if any(row.status == "oom" for row in table.runs):
        notes.append("OOM: out of memory; the run did not fit into the memory of the device.")
    notes += impossible(table)
    if single := single_computation_rows(table):
        notes.append(
            f"{DAGGER} {', '.join(map(_text, single))}: with protocol=fixed_global_batch, every "
            "column of this row is the same computation for a given seed, because no statistic "
            "depends on the images per worker. That the row is flat is no evidence."
        )
    if shared := sum(row.shared_with is not None for row in table.runs):
        mark = f"{DOUBLE_DAGGER} " if shared_entries(table) else ""
        notes.append(
            f"{mark}{shared} of {len(table.runs)} runs were not trained: each is the same "
            "computation as another run and reuses its result (shared_with)."
        )
    if older := sum(entry.older for entry in table.entries):
        notes.append(f"{older} runs with older values of options are left out.")
    if groups := groups_in_use(table):
        notes.append(f"Group counts in the layers of this network: {groups}.")
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
    statistic = table.spec.statistic
    when = " after the last epoch" if table.spec.metric.accuracy else ""
    label = table.spec.label[0].upper() + table.spec.label[1:]
    return f"{label}{when}: {statistic} ± sample standard deviation (number of seeds)."


def _paper(table: Table) -> list[str]:
    """Return what the numbers in brackets are and whether ours can be compared with them."""
    spec = table.spec
    if not spec.published:
        return []
    source = f"In brackets the paper's number: {spec.source}{_runs_behind(spec)}"
    if not table.runs:
        notes = [f"{source}. Nothing of this table has been trained here."]
    elif table.deviations:
        notes = [
            f"{source}. No differences are shown, because our setting differs: "
            f"{', '.join(table.deviations)}."
        ]
    else:
        notes = [f"{source}; after it, our number minus the paper's."]
    if any(number.unverified for number in spec.published.values()):
        notes.append("?: we could not verify this number in the text of the paper.")
    return [*notes, *spec.notes]


def _runs_behind(spec: TableSpec) -> str:
    """Return how many runs are behind a number of the paper; a size needs none."""
    if not spec.metric.learned:
        return ""
    words = "number of runs not stated"
    if spec.seeds is not None:
        words = f"of {spec.seeds}{'' if isinstance(spec.seeds, str) else ' runs'}"
    return f", {spec.statistic} ({words})"


def shared_entries(table: Table) -> list[tuple[Label, int]]:
    """Return (row, column) of entries with reused runs, except in rows of one computation."""
    same = single_computation_rows(table)
    return [
        (label, index)
        for label, entries in table.lines.items()
        if label not in same
        for index, entry in enumerate(entries)
        if entry.shared
    ]


def impossible(table: Table) -> list[str]:
    """Return a footnote for each reason why runs are impossible."""
    labels: dict[str, list[str]] = {}
    for label, entries in table.lines.items():
        for reason in {row.reason for c in entries for row in c.runs if row.status == "impossible"}:
            labels.setdefault(reason, []).append(_text(label))
    return [f"n/a, {', '.join(rows)}: {reason}." for reason, rows in labels.items()]


def groups_in_use(table: Table) -> str:
    """Return the group counts in use by each normalizer; a network may cap the requested count."""
    used = {}
    for label, entries in table.lines.items():
        counts = {count for entry in entries for row in entry.runs for count in row.groups}
        if counts:
            used[_text(label)] = ", ".join(map(str, sorted(counts)))
    return "; ".join(f"{label} {counts}" for label, counts in used.items())


def _provenance(table: Table) -> str:
    """Return sweeps and commits of the runs; "+" after a commit marks changed files."""
    commits = {short_commit(row.commit) for row in table.runs if row.commit}
    sweeps = ", ".join(sorted({row.sweep for row in table.runs}))
    listed = ", ".join(sorted(commits)) or "unknown"
    return f"Runs: {len(table.runs)}, sweep {sweeps}, commit {listed}."


def short_commit(commit: str) -> str:
    """Return a commit shortened to 12 digits, with the "+" of changed files."""
    return commit[:12] + commit[40:]


def single_computation_rows(table: Table) -> list[Label]:
    """Return the rows whose columns are one computation by construction."""
    over_batch = len({column.batch for column in table.columns} - {None}) > 1
    if table.setting.get("protocol") != "fixed_global_batch" or not over_batch:
        return []
    return [
        label
        for label, entries in table.lines.items()
        if len(_filled(entries)) > 1 and (_batch_independent(entries) or _identical(entries))
    ]


def _batch_independent(entries: Sequence[Entry]) -> bool:
    return all(row.batch_independent for entry in entries for row in entry.source_runs)


def _identical(entries: Sequence[Entry]) -> bool:
    """Return whether each seed has the same numbers in all columns, as synchronized BN has."""
    numbers_of: dict[int, list[tuple[float | None, ...]]] = {}
    for entry in entries:
        for row in entry.runs:
            numbers = (row.train_loss, row.test_loss, row.test_top1)
            numbers_of.setdefault(row.seed, []).append(numbers)
    repeated = [numbers for numbers in numbers_of.values() if len(numbers) > 1]
    return bool(repeated) and all(len(set(numbers)) == 1 for numbers in repeated)


def differences(table: Table) -> list[str]:
    """Return footnotes on the largest batch minus the smallest, paired by seed.

    Rows that are one computation have none.
    """
    if not table.drawable:
        return []
    single = single_computation_rows(table)
    order = sorted(
        (column.batch, index) for index, column in enumerate(table.columns) if column.batch
    )
    notes = []
    for label, entries in table.lines.items():
        filled = [(batch, index) for batch, index in order if entries[index].values]
        if label in single or len(filled) < 2:
            continue
        (few, low), (many, high) = filled[0], filled[-1]
        if difference := paired_difference(entries[high].values, entries[low].values):
            mean, least, most = (format_difference(number, 1) for number in difference[:3])
            notes.append(
                f"{_text(label)}: batch={many} minus batch={few} is {mean}, 95 % confidence "
                f"interval [{least}, {most}] (paired t interval over {difference[3]} seeds)."
            )
    return notes


def _filled(entries: Sequence[Entry]) -> list[int]:
    return [index for index, entry in enumerate(entries) if entry.values]


def _text(label: Label) -> str:
    return " ".join(label)
