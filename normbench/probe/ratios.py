"""Ratios of switchable normalization in runs: over epochs, and how far networks are apart."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import torch

from normbench.measurements.ratios import HEAD, divergence, measure, table
from normbench.norms.switchable import MEMBERS
from normbench.probe.claims import pair_name
from normbench.probe.networks import measure_runs
from normbench.probe.output import print_table, write_results, write_run_results
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import TrainedRun
from normbench.records.probes import PROBES, Record, group_by, last_epoch, read_records
from normbench.report.probe_columns import CHANGE
from normbench.training.experiment import Experiment


def run(request: ProbeRequest) -> None:
    """Read the ratios of the requested runs over all epochs; print and write them.

    Raises:
        BadInput: no run has switchable normalization.
    """

    def measure_run(label: str, trained: TrainedRun) -> list[Record]:
        of_run = list(run_records(trained, label))
        write_run_results(request, trained, of_run)
        return of_run

    records = list(with_changes(measure_runs(request, measure_run)))
    final = last_epoch(records, "network", "run")
    print_table(table(final), HEAD)
    pairs = {pair_name(request.networks[0][0], other) for other, _ in request.networks[1:]}
    of_pairs = [each for each in request.claims if each.curves[0].network in pairs]
    of_networks = [each for each in request.claims if each not in of_pairs]
    write_results(replace(request, claims=of_networks), records)
    if divergences := list(_divergences(final)):
        rows = [[*[*each.values()][:-1], f"{each['divergence']:.3g}"] for each in divergences]
        print_table(rows, ["networks", "of", "group", "D(one || other)"])
        stem = f"{request.stem}_apart"
        apart = replace(request, stem=stem, kind="ratios_apart", claims=of_pairs)
        write_results(apart, divergences)


def run_records(trained: TrainedRun, label: str) -> Iterator[Record]:
    """Yield the records of the run's training, and of its checkpoints for all other epochs."""
    network: Record = {"network": label, "run": trained.row.id, "seed": trained.cell.seed}
    path = trained.folder / PROBES / "ratios.csv"
    # RUN@EPOCH names one epoch, and this file has all of them.
    of_training = read_records(path) if trained.all_epochs and path.exists() else []
    for record in of_training:
        yield {**record, **network, "step": trained.step(record["epoch"])}
    # Only its shape is read.
    image = torch.empty(1, *Experiment(trained.cell).data.image_shape)
    for epoch in sorted(trained.checkpoints.keys() - {each["epoch"] for each in of_training}):
        for record in measure(trained.network(epoch), image):
            yield {**network, "epoch": epoch, **record, "step": trained.step(epoch)}


def with_changes(records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records of runs with the column `CHANGE`, those of a layer in their order."""
    for of_layer in group_by(records, "network", "seed", "run", "layer", "of").values():
        ordered = sorted(of_layer, key=lambda record: record["epoch"])
        first, total = ordered[0]["step"], 0.0
        yield {**ordered[0], CHANGE: None}
        for before, record in pairwise(ordered):
            total += sum(abs(record[member] - before[member]) for member in MEMBERS) / 2
            yield {**record, CHANGE: 1000 * total / (record["step"] - first)}


def _divergences(records: Sequence[Record]) -> Iterator[Record]:
    """Yield the divergences of each network, as means over seeds, from the first one.

    Of a single network its seeds are compared. Layers correspond by their names; networks that
    share none are not compared.
    """
    networks = group_by(records, "network")
    if len(networks) == 1:
        networks = {
            f"seed {of_run[0]['seed']}": of_run for of_run in group_by(records, "run").values()
        }
    (first_name, first), *others = networks.items()
    for other_name, other in others:
        of_other = group_by(other, "layer", "of")
        layers = [
            {
                "group": one[0]["group"],
                "of": of,
                "divergence": _divergence(one, of_other[layer, of]),
            }
            for (layer, of), one in group_by(first, "layer", "of").items()
            if (layer, of) in of_other
        ]
        for of, chosen in group_by(layers, "of").items():
            for group, in_group in [*group_by(chosen, "group").items(), ("all", chosen)]:
                mean = fmean(layer["divergence"] for layer in in_group)
                pair = pair_name(first_name, other_name)
                yield {"network": pair, "of": of, "group": group, "divergence": mean}


def _divergence(one: Sequence[Record], other: Sequence[Record]) -> float:
    """Return the divergence of two layers, each with the records of its seeds."""
    p, q = ([fmean(record[m] for record in seeds) for m in MEMBERS] for seeds in (one, other))
    return divergence(p, q)
