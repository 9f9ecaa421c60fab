"""What has to stand below a table for its numbers to be read rightly."""

from collections.abc import Sequence

from normbench.report.statistics import paired_difference
from normbench.report.table import Cell, Table, signed
from normbench.report.table_spec import Label, Spec

MARK = "†"  # of a row that is one computation
SHARED = "‡"  # of a cell with runs that were not trained


def notes(table: Table) -> list[str]:
    """The sentences below `table`, most important first."""
    found = [_numbers(table)]
    found += _of_the_paper(table)
    if any(row.status == "diverged" for row in table.runs):
        found.append(
            "div.: a loss was not finite, or the final training loss not 1 % below "
            "ln(classes), what guessing gives."
        )
    if any(row.status == "oom" for row in table.runs):
        found.append("OOM: it did not fit into the memory of the device.")
    found += impossible(table)
    if same := one_computation(table):
        found.append(
            f"{MARK} {', '.join(map(_said, same))}: under protocol=fixed_global_batch one and the "
            "same computation for a seed in every column, because none of its statistics depends "
            "on images per worker; that such a row is flat proves nothing."
        )
    if shared := sum(row.shared_with is not None for row in table.runs):
        marked = f"{SHARED} " if shared_cells(table) else ""
        found.append(
            f"{marked}{shared} of the {len(table.runs)} cells' runs were not trained: they are the "
            "very same computation as another run, whose row they share (shared_with)."
        )
    if older := sum(cell.older for cell in table.cells):
        found.append(f"{older} older runs of other options are left out.")
    if used := groups_in_use(table):
        found.append(f"Groups in the layers of this network: {used}.")
    if ours := sorted({value for row in table.runs for value in row.unverified}):
        found.append(
            f"Unverified, as no source gives these values of the protocol: {', '.join(ours)}."
        )
    found += differences(table)
    found += sorted({row.data_limits for row in table.runs if row.data_limits})
    if table.runs:
        found.append(_provenance(table))
    return found


def _numbers(table: Table) -> str:
    statistic = table.spec.statistic
    when = " after the last epoch" if table.spec.metric.accuracy else ""
    label = table.spec.label[0].upper() + table.spec.label[1:]
    return f"{label}{when}: {statistic} ± sample standard deviation (number of seeds)."


def _of_the_paper(table: Table) -> list[str]:
    """What the numbers in brackets are, and whether ours may be compared with them."""
    spec = table.spec
    if not spec.published:
        return []
    which = f"Beside ours the paper's numbers: {spec.source}{_runs_behind(spec)}"
    found = []
    if not table.runs:
        found.append(f"{which}. None of it has been trained here.")
    elif table.deviations:
        found.append(
            f"{which}. No differences are given, as our setting is another one: "
            f"{', '.join(table.deviations)}."
        )
    else:
        found.append(f"{which}; behind it ours minus the paper's.")
    if any(number.unverified for number in spec.published.values()):
        found.append("?: not in the text of the paper that we have, and unverified.")
    return [*found, *spec.notes]


def _runs_behind(spec: Spec) -> str:
    """How many runs a number of the paper is of; a size needs none."""
    if not spec.metric.learned:
        return ""
    words = "it does not say of how many runs"
    if spec.seeds is not None:
        words = f"of {spec.seeds}{'' if isinstance(spec.seeds, str) else ' runs'}"
    return f", {spec.statistic} ({words})"


def shared_cells(table: Table) -> list[tuple[Label, int]]:
    """Cells with runs that were not trained, unless their whole row is one computation."""
    same = one_computation(table)
    return [
        (label, index)
        for label, cells in table.lines.items()
        if label not in same
        for index, cell in enumerate(cells)
        if cell.shared
    ]


def impossible(table: Table) -> list[str]:
    """Why cells cannot work: one sentence for each reason."""
    labels: dict[str, list[str]] = {}
    for label, cells in table.lines.items():
        for reason in {row.reason for c in cells for row in c.runs if row.status == "impossible"}:
            labels.setdefault(reason, []).append(_said(label))
    return [f"n/a, {', '.join(found)}: {reason}." for reason, found in labels.items()]


def groups_in_use(table: Table) -> str:
    """The group counts of each normalizer that has groups: the network may cap what was asked."""
    used = {}
    for label, cells in table.lines.items():
        counts = {count for cell in cells for row in cell.runs for count in row.groups}
        if counts:
            used[_said(label)] = ", ".join(map(str, sorted(counts)))
    return "; ".join(f"{label} {counts}" for label, counts in used.items())


def _provenance(table: Table) -> str:
    """Where the runs come from; a "+" behind a commit says that files differed from it."""
    known = {short(row.commit) for row in table.runs if row.commit}
    sweeps = ", ".join(sorted({row.sweep for row in table.runs}))
    commits = ", ".join(sorted(known)) or "unknown"
    return f"Runs: {len(table.runs)}, sweep {sweeps}, commit {commits}."


def short(commit: str) -> str:
    """Enough of a commit to find it, with the "+" of files that differed."""
    return commit[:12] + commit[40:]


def one_computation(table: Table) -> list[Label]:
    """Rows of the table whose columns are one computation by construction."""
    over_batch = len({column.batch for column in table.columns} - {None}) > 1
    if table.setting.get("protocol") != "fixed_global_batch" or not over_batch:
        return []
    return [
        label
        for label, cells in table.lines.items()
        if len(_filled(cells)) > 1 and (_batch_independent(cells) or _identical(cells))
    ]


def _batch_independent(cells: Sequence[Cell]) -> bool:
    return all(row.batch_independent for cell in cells for row in cell.behind)


def _identical(cells: Sequence[Cell]) -> bool:
    """Whether a seed's numbers are the same to the last digit in all columns: synchronized bn."""
    found: dict[int, list[tuple[float | None, ...]]] = {}
    for cell in cells:
        for row in cell.runs:
            numbers = (row.train_loss, row.test_loss, row.test_top1)
            found.setdefault(row.seed, []).append(numbers)
    repeated = [numbers for numbers in found.values() if len(numbers) > 1]
    return bool(repeated) and all(len(set(numbers)) == 1 for numbers in repeated)


def differences(table: Table) -> list[str]:
    """The most images per worker minus the fewest, for rows of several computations."""
    if not table.drawable:
        return []
    same = one_computation(table)
    order = sorted(
        (column.batch, index) for index, column in enumerate(table.columns) if column.batch
    )
    found = []
    for label, cells in table.lines.items():
        filled = [(batch, index) for batch, index in order if cells[index].values]
        if label in same or len(filled) < 2:
            continue
        (few, low), (many, high) = filled[0], filled[-1]
        if difference := paired_difference(cells[high].values, cells[low].values):
            mean, least, most, count = difference
            found.append(
                f"{_said(label)}: batch={many} minus batch={few} is {signed(mean, 1)}, 95 % "
                f"interval [{signed(least, 1)}, {signed(most, 1)}] "
                f"(t interval of {count} pairs by seed)."
            )
    return found


def _filled(cells: Sequence[Cell]) -> list[int]:
    return [index for index, cell in enumerate(cells) if cell.values]


def _said(label: Label) -> str:
    return " ".join(label)
