"""The networks that a probe looks at: those of cells at initialization, of runs, and of files.

Each has a label that says in what it differs from the others.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normbench.config.cells import GROUPS, Cell
from normbench.config.compose import compose
from normbench.config.plan import share_of_cores
from normbench.errors import BadInput, choose_from, counted
from normbench.probe.request import Asked
from normbench.probe.trained_network import RUN, Kept, all_kept, kept, of_file
from normbench.run_files import Record
from normbench.training.trainer import dataset_of, dtype_of, exact, loaders_of, network_of, on_gpu

USUAL_INPUT = {"spp": "normal"}
USUAL_IMAGES = {"spp": "8"}
#: Of the cell of a network that is only looked at nothing depends on these.
_LAYOUT = ("protocol", "workers", "global_batch")


@dataclass(frozen=True)
class Subject:
    """A network to look at; of a run, as it was after `epoch`."""

    label: str
    cell: Cell
    build: Callable[[], nn.Module]
    epoch: int | None = None
    run: Kept | None = None

    @property
    def device(self) -> torch.device:
        """Where it is looked at."""
        return device_of(self.cell)

    def network(self) -> nn.Module:
        """Built from the cell's seed, so that it is the one with which a training begins."""
        torch.manual_seed(self.cell.seed)
        return self.build().to(self.device, dtype_of(self.cell))

    @property
    def own(self) -> Record:
        """The columns that say which network a line is of."""
        found: Record = {"network": self.label, "seed": self.cell.seed}
        if self.run is not None:
            found |= {"run": self.run.row.id, "epoch": self.epoch}
        return found


def device_of(cell: Cell) -> torch.device:
    """Where the network of `cell` is looked at.

    Raises:
        BadInput: there is no such device.
    """
    if not on_gpu(cell):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BadInput("trainer=gpu: no CUDA device is visible; trainer=cpu or auto works")
    return torch.device("cuda")


def use_all_cores() -> None:
    """A probe is alone on the machine; what is timed is not asked this way."""
    torch.set_num_threads(share_of_cores(1))
    exact()


def composed(words: Sequence[str]) -> list[Cell]:
    """The cells of a network's words, a worker each unless they say otherwise."""
    said = {word.partition("=")[0] for word in words}
    alone = [] if said & set(_LAYOUT) else ["protocol=fixed_workers", "workers=1"]
    cells, _ = compose(["-m", *words, *alone])
    return cells


def subjects(asked: Asked) -> list[Subject]:
    """All networks that are asked for."""
    source = asked.option("ckpt")
    if source and not Path(source).is_file():
        return [
            Subject(label, run.cell, lambda run=run, at=epoch: run.network(at), epoch, run)  # type: ignore[misc]
            for label, runs in runs_of(asked).items()
            for run in runs
            for epoch in run.states
        ]
    found = fresh(_grids(asked))
    if not source:
        return found
    if len(found) > 1:
        raise BadInput(f"ckpt={source}: a file is of one network, and {len(found)} are asked for")
    cell, label = found[0].cell, f"{found[0].label} of {source}"
    return [replace(found[0], label=label, build=lambda: of_file(cell, Path(source)))]


def _grids(asked: Asked) -> list[tuple[str, list[Cell]]]:
    """The cells of each network or grid."""
    return [(label, composed(words)) for label, words in asked.networks]


def fresh(grids: Sequence[tuple[str, Sequence[Cell]]]) -> list[Subject]:
    """Networks at initialization, each cell's."""
    cells = [cell for _, group in grids for cell in group]
    names = iter(labels(cells, seeds=True))
    found = []
    for label, group in grids:
        for cell in group:
            own = next(names)
            shown = own if not label else label if len(group) == 1 else f"{label}, {own}"
            found.append(Subject(shown, cell, lambda cell=cell: network_of(cell, dataset_of(cell))))  # type: ignore[misc]
    return found


def runs_of(asked: Asked) -> dict[str, list[Kept]]:
    """The runs of ckpt=, seeds of one cell under one label.

    Raises:
        BadInput: no run is named, or one that is not there.
    """
    word = asked.option("ckpt")
    (_, words), *others = asked.networks
    if others:
        raise BadInput("ckpt=RUN: a run says by itself what it is, and vs has nothing to add")
    given = dict(each.partition("=")[::2] for each in words)
    root = Path(given.get("runs") or "runs")
    ids = all_kept(root) if word == "all" else word.split(",")
    if word.endswith((".pt", ".pth", ".ckpt")):
        raise BadInput(f"ckpt={word}: there is no such file")
    if not word or not all(RUN.fullmatch(each) for each in ids):
        raise BadInput(
            f"ckpt={word or 'nothing'}: {asked.kind} looks into trained networks; ckpt=RUN, "
            "ckpt=RUN@EPOCH or ckpt=all, RUN being the id of a run with checkpoint=keep, which "
            f"`python -m normbench.status runs={root}` lists"
        )
    if not ids:
        raise BadInput(f"ckpt=all: no run below runs={root} has kept its network (checkpoint=keep)")
    found = [kept(each, root, words) for each in ids]
    named: dict[str, list[Kept]] = defaultdict(list)
    for label, run in zip(labels([run.cell for run in found], seeds=False), found, strict=True):
        named[label].append(run)
    return named


def labels(cells: Sequence[Cell], *, seeds: bool) -> list[str]:
    """In what each differs from the others, the normalizer always; seeds, if it is asked for."""
    told = [_told(cell, seeds=seeds) for cell in cells]
    keys = list(dict.fromkeys(key for each in told for key in each))
    differ = [key for key in keys if len({str(each.get(key)) for each in told}) > 1]
    shown = [key for key in differ if key != "norm"]
    return [
        " ".join(
            [
                str(each["norm"]),
                *(f"{k.partition('.')[2] or k}={each[k]}" for k in shown if k in each),
            ]
        )
        for each in told
    ]


def _told(cell: Cell, *, seeds: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group in GROUPS:
        choice = getattr(cell, group)
        found[group] = choice.name
        found |= {f"{group}.{key}": value for key, value in choice.changed.items()}
    said = "workers" if cell.protocol == "fixed_workers" else "global_batch"
    plain = ("batch", said, "protocol", "precision", "init_from", *(["seed"] if seeds else []))
    return found | {name: getattr(cell, name) for name in plain}


def images_of(asked: Asked, subject: Subject) -> Tensor:
    """What goes through a network: N(0, 1), or augmented images of its training set, (N, C, H, W).

    Raises:
        BadInput: the words say neither, or ask for pixels of images that have their own.
    """
    number = counted("images", asked.option("images", USUAL_IMAGES.get(asked.kind, "256")), 8)
    source = asked.option("input", USUAL_INPUT.get(asked.kind, "data"))
    if source not in ("normal", "data"):
        raise BadInput(f"input={source}: {choose_from(source, ('normal', 'data'))}")
    side = asked.option("image")
    if source == "data":
        if side:
            raise BadInput(f"image={side}: of input=normal; data.size is that of the data set's")
        x = loaders_of(subject.cell).some(number)
    else:
        channels, height, width = dataset_of(subject.cell).image
        height = width = counted("image", side, 224) if side else height
        generator = torch.Generator().manual_seed(subject.cell.seed)
        x = torch.randn(number, channels, height, width, generator=generator)
    return x.to(subject.device, dtype_of(subject.cell))
