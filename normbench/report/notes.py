"""What has to stand below a table for its numbers to be read rightly."""

from collections.abc import Sequence

from normbench.report.statistics import paired_difference
from normbench.report.table import Cell, Table

MARK = "†"


def notes(table: Table) -> list[str]:
    """The sentences below `table`, most important first."""
    label = table.spec.label
    found = [f"{label} after the last epoch: mean ± sample standard deviation (number of seeds)."]
    if any(row.status == "diverged" for row in table.runs):
        found.append(
            "div.: a loss was not finite, or the final training loss not 1 % below "
            "ln(classes), what guessing gives."
        )
    found += impossible(table)
    if same := one_computation(table):
        found.append(
            f"{MARK} {', '.join(same)}: under protocol=fixed_global_batch one and the same "
            "computation for a seed in every column, because none of its statistics depends on "
            "images per worker; that such a row is flat proves nothing."
        )
    if shared := sum(row.shared_with is not None for row in table.runs):
        found.append(
            f"{shared} of the {len(table.runs)} cells' runs were not trained: they are the very "
            "same computation as another run, whose row they share (shared_with)."
        )
    if used := groups_in_use(table):
        found.append(f"Groups in the layers of this network: {used}.")
    if ours := sorted({value for row in table.runs for value in row.unverified}):
        found.append(
            f"Unverified, as no source gives these values of the protocol: {', '.join(ours)}."
        )
    found += differences(table)
    found += sorted({row.limits for row in table.runs if row.limits})
    found.append(_provenance(table))
    return found


def impossible(table: Table) -> list[str]:
    """Why cells cannot work: one sentence for each reason."""
    labels: dict[str, list[str]] = {}
    for label, cells in table.lines.items():
        for reason in {row.reason for c in cells for row in c.runs if row.status == "impossible"}:
            labels.setdefault(reason, []).append(label)
    return [f"n/a, {', '.join(found)}: {reason}." for reason, found in labels.items()]


def groups_in_use(table: Table) -> str:
    """The group counts of each normalizer that has groups: the network may cap what was asked."""
    used = {}
    for label, cells in table.lines.items():
        counts = {count for cell in cells for row in cell.runs for count in row.groups}
        if counts:
            used[label] = ", ".join(map(str, sorted(counts)))
    return "; ".join(f"{label} {counts}" for label, counts in used.items())


def _provenance(table: Table) -> str:
    """Where the runs come from; a "+" behind a commit says that files differed from it."""
    known = {row.commit[:12] + row.commit[40:] for row in table.runs if row.commit}
    sweeps = ", ".join(sorted({row.sweep for row in table.runs}))
    commits = ", ".join(sorted(known)) or "unknown"
    return f"Runs: {len(table.runs)}, sweep {sweeps}, commit {commits}."


def one_computation(table: Table) -> list[str]:
    """Rows of the table whose columns are one computation by construction."""
    if table.setting["protocol"] != "fixed_global_batch" or table.spec.columns != "batch":
        return []
    return [
        label
        for label, cells in table.lines.items()
        if len(_filled(cells)) > 1 and (_batch_independent(cells) or _identical(cells))
    ]


def _batch_independent(cells: Sequence[Cell]) -> bool:
    return all(row.batch_independent for cell in cells for row in cell.runs)


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
    """The widest column minus the narrowest, for rows of several computations."""
    same = one_computation(table)
    found = []
    for label, cells in table.lines.items():
        filled = _filled(cells)
        if label in same or len(filled) < 2:
            continue
        low, high = filled[0], filled[-1]
        if difference := paired_difference(cells[high].values, cells[low].values):
            mean, least, most, count = difference
            axis, columns = table.spec.columns, table.columns
            found.append(
                f"{label}: {axis}={columns[high]} minus {axis}={columns[low]} is {mean:+.1f}, 95 % "
                f"interval [{least:+.1f}, {most:+.1f}] (t interval of {count} pairs by seed)."
            )
    return found


def _filled(cells: Sequence[Cell]) -> list[int]:
    return [index for index, cell in enumerate(cells) if cell.values]
