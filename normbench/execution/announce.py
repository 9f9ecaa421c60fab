"""Print what a sweep is going to do, before it trains."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from normbench import results
from normbench.config.cells import Cell
from normbench.execution.job import PreflightResults, Summary
from normbench.execution.progress import print_line
from normbench.execution.scheduler import QueueEntry
from normbench.results import Row
from normbench.run_files import PROBES


def print_missing_files(finished: Sequence[Cell], rows: Mapping[str, Row], root: Path) -> None:
    """Print how many finished runs lack files that the command line asks for."""
    if number := sum(_lacks_checkpoints(cell, rows[cell.id], root) for cell in finished):
        print_line(
            f"{number} finished runs lack checkpoints that this command asks for; force=true "
            "trains them again"
        )
    if number := sum(_lacks_probes(cell, rows[cell.id], root) for cell in finished):
        print_line(
            f"{number} finished runs lack probes that this command asks for; force=true trains "
            "them again, and python -m normbench.probe measures those that kept their networks"
        )


def _lacks_checkpoints(cell: Cell, row: Row, root: Path) -> bool:
    names = [results.EPOCH_CHECKPOINT.format(epoch) for epoch in cell.checkpoint.epochs]
    names += [results.CHECKPOINT] if cell.checkpoint.keep else []
    run = row.shared_with or row.id
    return row.status == "ok" and not all(any(root.glob(f"*/{run}/{name}")) for name in names)


def _lacks_probes(cell: Cell, row: Row, root: Path) -> bool:
    run = row.shared_with or row.id
    patterns = (f"*/{run}/{PROBES}/{kind}.csv" for kind in cell.probe.kinds)
    trained = row.status in ("ok", "diverged")
    return trained and not all(any(root.glob(pattern)) for pattern in patterns)


def print_plans(entries: Sequence[QueueEntry], summary: Summary) -> None:
    """Print how many cells will be trained, and by which plans."""
    if sharing := summary.shared + sum(len(entry.sharing) for entry in entries):
        print_line(f"{len(entries)} to train; {sharing} share the row of the same computation")
    for plan, number in Counter(map(_describe_plan, entries)).items():
        print_line(f"plan of {'1 run' if number == 1 else f'{number} runs'}: {plan}")


def _describe_plan(entry: QueueEntry) -> str:
    """Return the plan, and the options for it that do not divide the workers."""
    plan, trainer = entry.job.plan, entry.cell.trainer
    limits = {"devices": trainer.devices, "per_forward": trainer.per_forward or 0}
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
            networks = "1 network" if number == 1 else f"{number} networks"
            print_line(f"{size} seeds stacked in {networks}")
    reasons = dict.fromkeys(preflight.cells[entry.cell.id].unstackable for entry in entries)
    for reason in filter(None, reasons):
        print_line(f"seeds not stacked: {reason}")
