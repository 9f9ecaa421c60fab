"""Hard ratios of switchable normalization in snapshots of a training (Luo et al. 2019, figure 2).

A hard ratio is the member with the largest ratio. For each snapshot: the number of layers that
choose two members, one for means and another for variances, and of layers whose choice for means or
variances differs from that of the snapshot before.
"""

from collections.abc import Iterator, Sequence

from normbench.measurements.ratios import largest_member
from normbench.probe.networks import measure_runs
from normbench.probe.output import print_table, write_results
from normbench.probe.ratios import run_records
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import Record, group_by
from normbench.report.probe_columns import CHOICES

HEAD = ("network", "seed", "epoch", "layers", "with two members", "changed since the last one")


def run(request: ProbeRequest) -> None:
    """Read the hard ratios of the requested runs; print and write them.

    Raises:
        BadInput: no run has switchable normalization, or none has one of the epochs.
    """
    epochs = request.options.epochs

    def measure_run(label: str, trained: TrainedRun) -> list[Record]:
        chosen = [
            record
            for record in run_records(trained, label)
            if (record["epoch"] in epochs if epochs else record["epoch"] in trained.checkpoints)
        ]
        if not chosen:
            raise ValueError(f"epochs={','.join(map(str, epochs))}: none of them was measured")
        return chosen

    records = list(with_choices(measure_runs(request, measure_run)))
    print_table(list(_table(records)), HEAD)
    write_results(request, records)


def with_choices(records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records of snapshots with the columns `CHOICES`."""
    for of_run in group_by(records, "network", "seed", "run").values():
        before: dict[object, tuple[str, ...]] = {}
        for _, snapshot in sorted(group_by(of_run, "epoch").items()):
            members = {
                layer: tuple(largest_member(each) for each in both)
                for layer, both in group_by(snapshot, "layer").items()
            }
            for record in snapshot:
                chosen = members[record["layer"]]
                changed = chosen != before[record["layer"]] if before else None
                yield {**record, "distinct": len(set(chosen)) > 1, "changed": changed}
            before = members


def _table(records: Sequence[Record]) -> Iterator[list[object]]:
    """Yield a row for each snapshot of each run."""
    layers = [record for record in records if record["of"] == "mean"]
    snapshots = group_by(layers, "network", "seed", "run", "epoch")
    for (network, seed, _, epoch), snapshot in snapshots.items():
        two, changed = ([record[name] for record in snapshot] for name in CHOICES)
        shown = "" if None in changed else sum(changed)
        yield [network, seed, epoch, len(snapshot), sum(two), shown]
