"""What a probe of a forward pass sees in each of the networks that are asked for."""

import sys
from typing import Any

from normbench.errors import BadInput, Impossible, choose_from
from normbench.measurements.power import set_eps
from normbench.measurements.summary_lines import LINES
from normbench.models.random_net import RandomNet
from normbench.probe.networks import Subject, images_of, subjects, use_all_cores
from normbench.probe.output import leave
from normbench.probe.request import Asked
from normbench.run_files import Record
from normbench.training.trainer import forward_context

STATISTICS = ("batch", "running")


def looked(asked: Asked) -> list[Record]:
    """The lines of every network that the probe can look at.

    Raises:
        BadInput: it can look at none.
    """
    lines: list[Record] = []
    reasons = []
    use_all_cores()
    every = subjects(asked)
    for number, subject in enumerate(every, 1):
        at = "" if subject.epoch is None else f" after epoch {subject.epoch}"
        print(f"{number} of {len(every)}: {subject.label}{at}", file=sys.stderr, flush=True)
        try:
            lines += _lines_of(asked, subject)
        except Impossible as reason:
            first = str(reason).partition("\n")[0]  # torch.fx adds where it was
            reasons.append(f"{subject.label} is n/a: {first}")
    if not lines:
        raise BadInput("; ".join(dict.fromkeys(reasons)))
    print("\n".join(dict.fromkeys(reasons)))
    for run in {each.run.row.id: each.run for each in every if each.run is not None}.values():
        if own := [line for line in lines if line.get("run") == run.row.id]:
            leave(asked, run, own)
    return lines


def _lines_of(asked: Asked, subject: Subject) -> list[Record]:
    statistics: Any = asked.option("statistics", "batch")
    if statistics not in STATISTICS:
        raise BadInput(f"statistics={statistics}: {choose_from(statistics, STATISTICS)}")
    network = subject.network()
    if (eps := asked.option("eps")) and not set_eps(network, _number("eps", eps)):
        raise Impossible(f"eps={eps}: none of its layers has an eps")
    images = images_of(asked, subject)
    with forward_context(subject.cell, subject.device):
        found = LINES[asked.kind](network, images, statistics)
    if asked.kind == "power" and isinstance(network, RandomNet):
        for line in found:
            line["bound"] = network.rho ** (line["depth"] - 1)
    return [{**subject.own, **line} for line in found]


def _number(name: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise BadInput(f"{name}={word}: a number from 0 to below 1, as {name}=1e-5")
    return value
