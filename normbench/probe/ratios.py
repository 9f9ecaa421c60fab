"""Ratios of switchable normalization in runs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import torch

from normbench.errors import BadInput, Impossible
from normbench.measurements.ratios import divergence
from normbench.measurements.summary_lines import ratio_lines
from normbench.norms.switchable import MEMBERS
from normbench.probe.networks import runs_of
from normbench.probe.output import finish, leave, show
from normbench.probe.request import Asked
from normbench.probe.trained_network import Kept
from normbench.run_files import PROBES, Record, group_by, last_epoch, read_records
from normbench.training.trainer import dataset_of


def look(asked: Asked) -> None:
    """Ratios of switchable normalization in runs, over the epochs that they kept or watched."""
    lines: list[Record] = []
    reasons = []
    for label, runs in runs_of(asked).items():
        for run in runs:
            try:
                own = list(_ratios(run, label))
            except (ValueError, Impossible) as reason:
                reasons.append(f"{label} ({run.row.id}) is n/a: {reason}")
                continue
            lines += own
            leave(asked, run, own)
    if not lines:
        raise BadInput(f"ckpt={asked.option('ckpt')}: {'; '.join(reasons)}; norm=sn has")
    print("\n".join(reasons))
    final = last_epoch(lines, "network", "run")
    shown = []
    for (network, of), chosen in group_by(final, "network", "of").items():
        for group, layers in [*group_by(chosen, "group").items(), ("all", chosen)]:
            shares = [f"{fmean(x[m] for x in layers):.3f}" for m in MEMBERS]
            apart = f"{fmean(x['divergence'] for x in layers):.3f}"
            seeds = len(group_by(layers, "run"))
            shown.append([network, of, group, len(layers) // seeds, *shares, apart, seeds])
    head = ["network", "of", "receptive field", "layers", *MEMBERS, "D(mean || var)", "seeds"]
    show(shown, head)
    finish(asked, lines)
    if between := list(_between(final)):
        table = [[*[*line.values()][:-1], f"{line['divergence']:.3g}"] for line in between]
        show(table, ["networks", "of", "receptive field", "D(one || other)"])
        finish(replace(asked, stem=f"{asked.stem}_apart", kind="ratios_apart"), between)


def _ratios(run: Kept, label: str) -> Iterator[Record]:
    """What was seen of a whole run while it was trained, and what its states say of the rest."""
    own: Record = {"network": label, "run": run.row.id, "seed": run.cell.seed}
    seen = run.folder / PROBES / "ratios.csv"
    watched = read_records(seen) if run.whole and seen.exists() else []
    for line in watched:
        yield {**line, **own}
    image = torch.empty(1, *dataset_of(run.cell).image)
    for epoch in run.states.keys() - {line["epoch"] for line in watched}:
        for line in ratio_lines(run.network(epoch), image):
            yield {**own, "epoch": epoch, **line}


def _between(lines: Sequence[Record]) -> Iterator[Record]:
    """How far the ratios of each network, means over seeds, are from those of the first.

    Where all are seeds of one network, those of each run. Layers meet by their names; networks that
    share none are not compared.
    """
    networks = group_by(lines, "network")
    if len(networks) == 1:
        networks = {f"seed {own[0]['seed']}": own for own in group_by(lines, "run").values()}
    (name, first), *others = networks.items()
    for other, layers in others:
        theirs = group_by(layers, "layer", "of")
        found = [
            {"group": own[0]["group"], "of": of, "divergence": _divergence(own, theirs[layer, of])}
            for (layer, of), own in group_by(first, "layer", "of").items()
            if (layer, of) in theirs
        ]
        for of, chosen in group_by(found, "of").items():
            for group, apart in [*group_by(chosen, "group").items(), ("all", chosen)]:
                mean = fmean(line["divergence"] for line in apart)
                pair = f"{name} || {other}"
                yield {"network": pair, "of": of, "group": group, "divergence": mean}


def _divergence(one: Sequence[Record], other: Sequence[Record]) -> float:
    p, q = ([fmean(line[m] for line in each) for m in MEMBERS] for each in (one, other))
    return divergence(p, q)
