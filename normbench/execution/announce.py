"""Print what a sweep is going to do, before it trains."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from normbench import results
from normbench.config.cells import Cell
from normbench.errors import count
from normbench.execution.job import PreflightResults, Summary
from normbench.execution.progress import print_line
from normbench.execution.scheduler import QueueEntry
from normbench.records.probes import PROBES
from normbench.results import Row


def print_missing_files(finished: Sequence[Cell], rows: Mapping[str, Row], root: Path) -> None:
    """Print how many finished runs lack files that the command line asks for."""
    without_checkpoints = without_probes = 0
    for cell in finished:
        row = rows[cell.id]
        checkpoints = [results.EPOCH_CHECKPOINT.format(epoch) for epoch in cell.checkpoint.epochs]
        checkpoints += [results.CHECKPOINT] if cell.checkpoint.keep else []
        probes = [f"{PROBES}/{kind}.csv" for kind in cell.probe.kinds]
        # A run that diverged may have ended before its checkpoints.
        without_checkpoints += row.status == "ok" and _lacks(row, checkpoints, root)
        without_probes += row.status in ("ok", "diverged") and _lacks(row, probes, root)
    lack = "finished runs lack {} that this command asks for; force=true trains them again"
    if without_checkpoints:
        print_line(f"{without_checkpoints} {lack.format('checkpoints')}")
    if without_probes:
        measured = "python -m normbench.probe measures those that kept their networks"
        print_line(f"{without_probes} {lack.format('probes')}, and {measured}")


def _lacks(row: Row, names: Sequence[str], root: Path) -> bool:
    """Return whether one of these files is missing in the folder of the run that was trained."""
    run = row.shared_with or row.id  # a copied row has no files of its own
    return not all(any(root.glob(f"*/{run}/{name}")) for name in names)


def print_plans(entries: Sequence[QueueEntry], summary: Summary) -> None:
    """Print how many cells will be trained, and by which plans."""
    if summary.shared:
        print_line(f"{summary.shared} copied from finished runs of the same computation")
    if sharing := sum(len(entry.sharing) for entry in entries):
        print_line(f"{len(entries)} to train; {sharing} share the row of the same computation")
    for plan, number in Counter(map(_describe_plan, entries)).items():
        print_line(f"plan of {count(number, 'run')}: {plan}")


def _describe_plan(entry: QueueEntry) -> str:
    """Return the plan, and the options for it that do not divide the workers."""
    plan, trainer = entry.job.plan, entry.cell.trainer
    limits = {"devices": trainer.devices, "per_forward": trainer.per_forward or 0}  # 0: no limit
    unused = [
        f"trainer.{name}={limit} does not divide them"
        for name, limit in limits.items()
        if limit > getattr(plan, name)
    ]
    return "; ".join([str(plan), *unused])


def print_stacks(entries: Sequence[QueueEntry], preflight: PreflightResults) -> None:
    """Print which seeds are stacked into one network, and why others are not."""
    seeds = Counter(entry.memory_key for entry in entries if entry.stackable)
    for size, number in sorted(Counter(seeds.values()).items()):
        if size > 1:
            print_line(f"{size} seeds stacked in {count(number, 'network')}")
    reasons = dict.fromkeys(preflight.cells[entry.cell.id].unstackable for entry in entries)
    for reason in filter(None, reasons):
        print_line(f"seeds not stacked: {reason}")
