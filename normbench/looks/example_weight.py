"""Inference example weighing of kept networks."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from normbench.errors import BadInput
from normbench.kept import Kept
from normbench.looks.asked import Asked
from normbench.looks.subjects import runs_of, use_all_cores
from normbench.looks.writing import finish, leave, show
from normbench.norms.group import GroupNormAct
from normbench.norms.recalibration import recalibrate
from normbench.probed import Line
from normbench.probes import example_weight
from normbench.training import loaders_of, on_gpu

STEPS = 50  # of images from which layers without running statistics get theirs


def look(asked: Asked) -> None:
    """Inference example weighing of kept networks."""
    use_all_cores()
    alphas = _alphas(asked.option("alphas"))
    lines: list[Line] = []
    shown = []
    for label, runs in runs_of(asked).items():
        for run in runs:
            found = _curve(run, alphas)
            own = list(_curve_lines(label, run, found))
            lines += own
            for measure, alpha in found.best.items():
                before, after = (getattr(found.at(a), measure) for a in (found.usual, alpha))
                shown.append(
                    [label, run.row.id, run.cell.seed, measure, f"{alpha:g}",
                     f"{before:.4g}", f"{after:.4g}", f"{after - before:+.4g}"]
                )  # fmt: skip
            best = {name: found.at(alpha) for name, alpha in found.best.items()}
            tested = {f"test_{name}": getattr(point, name) for name, point in best.items()}
            chosen = next(p for p in found.points if p.alpha == found.best["top1"])
            leave(asked, run, own, weights=found.best, val_top1=chosen.top1, **tested)
    head = [
        "network",
        "run",
        "seed",
        "measure",
        "best alpha",
        "test, usual alpha",
        "test, best",
        "gain",
    ]
    show(shown, head)
    finish(asked, lines)


def _curve(run: Kept, alphas: Sequence[float]) -> example_weight.Curve:
    loaders = loaders_of(run.cell)
    if not len(loaders.splits.val.labels):
        raise BadInput(
            f"ckpt={run.row.id}: it held out no validation images (data.val=0), and alpha is not "
            "to be chosen on the test images"
        )
    network = run.network(run.last)
    device = torch.device("cuda" if on_gpu(run.cell) else "cpu")
    network = network.to(device)

    def images(part: str) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in getattr(loaders, f"{part}_dataloader")():
            shown = loaders.on_after_batch_transfer(batch, 0)
            yield shown.images.to(device), shown.labels.to(device)

    try:
        if _lacks_statistics(network):
            recalibrate(network, (x.to(device) for x in loaders.after_training(STEPS)))
        return example_weight.curve(
            network, loaders.data.classes, lambda: images("val"), lambda: images("test"), alphas
        )
    except ValueError as reason:
        raise BadInput(f"ckpt={run.row.id}: {reason}") from None


def _lacks_statistics(network: nn.Module) -> bool:
    """Whether its layers have statistics of groups of channels, and keep none."""
    return any(
        isinstance(layer, GroupNormAct | nn.GroupNorm) and not hasattr(layer, "running_mean")
        for layer in network.modules()
    )


def _curve_lines(label: str, run: Kept, found: example_weight.Curve) -> Iterator[Line]:
    own: Line = {"network": label, "run": run.row.id, "seed": run.cell.seed}
    for point in (*found.points, *found.tested):
        chosen = [name for name, alpha in found.best.items() if alpha == point.alpha]
        yield {**own, **vars(point), "best": " ".join(chosen)}


def _alphas(word: str) -> Sequence[float]:
    if not word:
        return example_weight.ALPHAS
    try:
        found = [float(each) for each in word.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each <= 1 for each in found):
        raise BadInput(f"alphas={word}: weights from 0 to 1, as alphas=0,0.1,0.5,1")
    return found
