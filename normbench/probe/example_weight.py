"""Inference example weighing of kept networks."""

import sys
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from normbench.errors import BadInput, Impossible
from normbench.measurements import example_weight
from normbench.norms.group import GroupNormAct
from normbench.norms.recalibration import recalibrate
from normbench.probe.networks import device_of, runs_of, use_all_cores
from normbench.probe.output import finish, leave, show
from normbench.probe.request import Asked
from normbench.probe.trained_network import Kept
from normbench.run_files import Record
from normbench.training.trainer import dtype_of, forward_context, loaders_of

STEPS = 50  # of images from which layers without running statistics get theirs


def look(asked: Asked) -> None:
    """Inference example weighing of kept networks."""
    use_all_cores()
    alphas = _alphas(asked.option("alphas"))
    lines: list[Record] = []
    shown, reasons = [], []
    for label, runs in runs_of(asked).items():
        for run in runs:
            print(f"{label} seed={run.cell.seed} ({run.row.id})", file=sys.stderr, flush=True)
            try:
                found = _curve(run, alphas)
            except (ValueError, Impossible) as reason:
                reasons.append(f"{label} ({run.row.id}) is n/a: {reason}")
                continue
            own = list(_curve_lines(label, run, found))
            lines += own
            shown += [[label, run.row.id, run.cell.seed, *cells] for cells in _gained(found)]
            tested = {f"test_{m}": getattr(found.at(a), m) for m, a in found.best.items()}
            chosen = next(p for p in found.points if p.alpha == found.best["top1"])
            leave(asked, run, own, weights=found.best, val_top1=chosen.top1, **tested)
    if not lines:
        raise BadInput(f"ckpt={asked.option('ckpt')}: {'; '.join(reasons)}")
    print("\n".join(reasons))
    head = ["network", "run", "seed", "measure", "usual", "best alpha", "test, usual", "test, best",
            "change"]  # fmt: skip
    show(shown, head)
    finish(asked, lines)


def _gained(found: example_weight.Curve) -> Iterator[list[str]]:
    """For each measure the best alpha, and the test images under the usual one and under it."""
    for measure, alpha in found.best.items():
        before, after = (getattr(found.at(each), measure) for each in (found.usual, alpha))
        yield [
            measure,
            f"{found.usual:g}",
            f"{alpha:g}",
            f"{before:.4g}",
            f"{after:.4g}",
            f"{after - before:+.2g}",
        ]


def _curve(run: Kept, alphas: Sequence[float]) -> example_weight.Curve:
    loaders = loaders_of(run.cell)
    if not len(loaders.splits.val.labels):
        raise ValueError(
            "it held out no validation images (data.val=0), and alpha is not to be chosen on the "
            "test images"
        )
    device, dtype = device_of(run.cell), dtype_of(run.cell)
    network = run.network(run.last).to(device)

    def images(part: str) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in getattr(loaders, f"{part}_dataloader")():
            seen = loaders.on_after_batch_transfer(batch, 0)
            yield seen.images.to(device, dtype), seen.labels.to(device)

    with forward_context(run.cell, device):
        if _lacks_statistics(network):
            training = (x.to(device, dtype) for x in loaders.after_training(STEPS))
            recalibrate(network, training)
        return example_weight.curve(
            network, loaders.data.classes, lambda: images("val"), lambda: images("test"), alphas
        )


def _lacks_statistics(network: nn.Module) -> bool:
    """Whether its layers have statistics of groups of channels, and keep none."""
    return any(
        isinstance(layer, GroupNormAct | nn.GroupNorm) and not hasattr(layer, "running_mean")
        for layer in network.modules()
    )


def _curve_lines(label: str, run: Kept, found: example_weight.Curve) -> Iterator[Record]:
    own: Record = {"network": label, "run": run.row.id, "seed": run.cell.seed}
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
