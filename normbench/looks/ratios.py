"""Ratios of switchable normalization in runs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import torch

from normbench.errors import BadInput
from normbench.kept import Kept
from normbench.looks.asked import Asked
from normbench.looks.subjects import runs_of
from normbench.looks.writing import finish, leave, show
from normbench.norms.switchable import MEMBERS
from normbench.probed import FOLDER, Line, by, read
from normbench.probes.ratios import divergence
from normbench.probes.watch import ratio_lines
from normbench.training import dataset_of


def look(asked: Asked) -> None:
    """Ratios of switchable normalization in runs, over the epochs that they kept or watched."""
    lines: list[Line] = []
    for label, runs in runs_of(asked).items():
        for run in runs:
            own = list(_ratios(run, label))
            lines += own
            leave(asked, run, own)
    shown = []
    for (network, of), chosen in by(_last(lines), "network", "of").items():
        for group, layers in [*by(chosen, "group").items(), ("all", chosen)]:
            shares = [f"{fmean(x[m] for x in layers):.3f}" for m in MEMBERS]
            apart = f"{fmean(x['divergence'] for x in layers):.3f}"
            seeds = len({x["seed"] for x in layers})
            shown.append([network, of, group, len(layers) // seeds, *shares, apart, seeds])
    head = ["network", "of", "receptive field", "layers", *MEMBERS, "D(mean || var)", "seeds"]
    show(shown, head)
    finish(asked, lines)
    if apart_lines := list(_between(_last(lines))):
        between = replace(asked, stem=f"{asked.stem}_apart", kind="ratios_apart")
        head = ["networks", "of", "receptive field", "D(one || other)"]
        show([list(line.values()) for line in apart_lines], head)
        finish(between, apart_lines)


def _ratios(run: Kept, label: str) -> Iterator[Line]:
    """What its states say, and of a whole run what was seen while it was trained."""
    own: Line = {"network": label, "seed": run.cell.seed}
    seen = run.folder / FOLDER / "ratios.csv"
    watched = read(seen) if run.whole and seen.exists() else []
    for line in watched:
        yield {**line, **own}
    image = torch.empty(1, *dataset_of(run.cell).image)
    for epoch in run.states.keys() - {line["epoch"] for line in watched}:
        try:
            for line in ratio_lines(run.network(epoch), image):
                yield {**own, "epoch": epoch, **line}
        except ValueError as reason:
            raise BadInput(f"ckpt={run.row.id}: {reason}; norm=sn has") from None


def _last(lines: Sequence[Line]) -> list[Line]:
    found = []
    for of_run in by(lines, "network", "seed").values():
        last = max(float(line["epoch"]) for line in of_run)
        found += [line for line in of_run if line["epoch"] == last]
    return found


def _between(lines: Sequence[Line]) -> Iterator[Line]:
    """How far each network's ratios, means over seeds, are from those of the first."""
    first, *others = by(lines, "network").items()
    for name, other in others:
        found: list[Line] = []
        for (depth, of), layers in by(other, "depth", "of").items():
            mates = [x for x in first[1] if (x["depth"], x["of"]) == (depth, of)]
            p, q = ([fmean(x[m] for x in each) for m in MEMBERS] for each in (mates, layers))
            found.append({"group": layers[0]["group"], "of": of, "divergence": divergence(p, q)})
        for of, chosen in by(found, "of").items():
            for group, layers in [*by(chosen, "group").items(), ("all", chosen)]:
                apart = fmean(x["divergence"] for x in layers)
                network = f"{first[0]} || {name}"
                yield {"network": network, "of": of, "group": group, "divergence": apart}
