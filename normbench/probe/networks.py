"""Networks to measure: of cells at initialization, of runs and of files.

Each has a label that names its differences from the others.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normbench.config.cells import GROUPS, Cell
from normbench.config.compose import compose
from normbench.config.plan import share_of_cores
from normbench.errors import BadInput, Impossible
from normbench.probe.options import ForwardPassOptions, RatiosOptions
from normbench.probe.request import ProbeRequest
from normbench.probe.trained_network import (
    RUN,
    TrainedRun,
    find_run,
    load_file,
    runs_with_checkpoints,
)
from normbench.records.probes import Record
from normbench.results import read
from normbench.training.datamodule import open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.hardware import use_full_precision, uses_gpu, weight_dtype

#: Words for the workers of a cell, which do not change a network that is not trained.
_WORKERS = ("protocol", "workers", "global_batch")


@dataclass(frozen=True)
class ProbedNetwork:
    """A network to measure: at initialization, or that of a run after `epoch`."""

    label: str
    cell: Cell
    create: Callable[[], nn.Module]
    epoch: int | None = None
    run: TrainedRun | None = None

    @property
    def device(self) -> torch.device:
        """The device that measures it."""
        return device_of(self.cell)

    def build(self) -> nn.Module:
        """Build the network on its device; new weights are drawn from the seed of the cell."""
        # Seed again for each network: those of one architecture begin with the same weights.
        torch.manual_seed(self.cell.seed)
        return self.create().to(self.device, weight_dtype(self.cell))

    @property
    def columns(self) -> Record:
        """The columns of a record that identify the network."""
        columns: Record = {"network": self.label, "seed": self.cell.seed}
        if self.run is not None:
            columns |= {"run": self.run.row.id, "epoch": self.epoch}
        return columns


def device_of(cell: Cell) -> torch.device:
    """Return the device of `trainer=`.

    Raises:
        BadInput: there is no such device.
    """
    if not uses_gpu(cell):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BadInput("trainer=gpu: no CUDA device is visible; use trainer=cpu or trainer=auto")
    return torch.device("cuda")


def require_classifier(cell: Cell, kind: str, *, gradients: bool = False) -> None:
    """Refuse the network of another task, and one whose gradients need a loss scale.

    Args:
        cell: of the run to measure.
        kind: of the probe, for the message.
        gradients: the probe takes gradients.

    Raises:
        ValueError: it is refused.
    """
    if cell.task.name != "classify":
        raise ValueError(f"task={cell.task.name}: the probe {kind} needs task=classify")
    if gradients and cell.precision == "16-mixed":
        raise ValueError(
            f"precision={cell.precision}: without a loss scale small gradients are 0, and {kind} "
            "has none; it takes runs in 32-true, bf16-mixed or 64-true"
        )


def use_all_cores() -> None:
    """Use all CPU cores and full precision, which the probe of speed does not."""
    torch.set_num_threads(share_of_cores(1))
    use_full_precision()


def compose_cells(words: Sequence[str]) -> list[Cell]:
    """Return the cells of a network's words, each with one worker unless they say otherwise."""
    keys = {word.partition("=")[0] for word in words}
    # A probe takes all its images for those of one worker.
    one_worker = [] if keys & set(_WORKERS) else ["protocol=fixed_workers", "workers=1"]
    cells, _ = compose(["-m", *words, *one_worker])
    return cells


def requested_networks(request: ProbeRequest) -> list[ProbedNetwork]:
    """Return all networks of a request."""
    source = request.options.ckpt
    # Words that name no file must be ids of runs.
    if source and not Path(source).is_file():
        return [
            ProbedNetwork(
                label if len(runs) == 1 else f"{label} seed={run.cell.seed}",
                run.cell,
                partial(run.network, epoch),
                epoch,
                run,
            )
            for label, runs in requested_runs(request).items()
            for run in runs
            for epoch in run.checkpoints
        ]
    networks = initial_networks(
        [(label, compose_cells(words)) for label, words in request.networks]
    )
    if not source:
        return networks
    if len(networks) > 1:
        raise BadInput(f"ckpt={source}: a file holds one network; {len(networks)} are described")
    (network,) = networks
    label = f"{network.label} of {source}"
    return [replace(network, label=label, create=partial(load_file, network.cell, Path(source)))]


def initial_networks(grids: Sequence[tuple[str, Sequence[Cell]]]) -> list[ProbedNetwork]:
    """Return the networks of labelled lists of cells, at initialization."""
    cells = [cell for _, group in grids for cell in group]
    differences = iter(label_cells(cells, seeds=True))
    networks = []
    for title, group in grids:
        for cell in group:
            label = next(differences)
            if title:
                label = title if len(group) == 1 else f"{title}, {label}"
            networks.append(ProbedNetwork(label, cell, Experiment(cell).build_network))
    return networks


def requested_runs(request: ProbeRequest) -> dict[str, list[TrainedRun]]:
    """Return the runs of ckpt= by label; the seeds of a cell share one.

    Raises:
        BadInput: no run is named, or one that does not exist.
    """
    word, root = request.options.ckpt, request.options.runs
    if not word and any(words for _, words in request.networks) and _takes_description(request):
        return _described_runs(request)
    (_, words), *others = request.networks
    if others:
        raise BadInput("vs cannot be used with ckpt=RUN; a run knows its own norm= and model=")
    if word.endswith((".pt", ".pth", ".ckpt", ".safetensors")):
        if Path(word).is_file():
            raise BadInput(
                f"ckpt={word}: {request.kind} needs a finished run, with its images and options; "
                "use ckpt=RUN, the id of a run with checkpoint=keep"
            )
        raise BadInput(f"ckpt={word}: there is no such file")
    ids = runs_with_checkpoints(root) if word == "all" else word.split(",")
    if not ids:
        raise BadInput(
            f"ckpt=all: no run below runs={root} has kept its network; train with checkpoint=keep"
        )
    if not all(RUN.fullmatch(each) for each in ids):
        raise BadInput(
            f"ckpt={word or 'nothing'}: {request.kind} needs a trained network; use ckpt=RUN, "
            "ckpt=RUN@EPOCH or ckpt=all, where RUN is the id of a run with checkpoint=keep; "
            f"`python -m normbench.status runs={root}` lists the ids"
        )
    runs = [find_run(each, root, words) for each in ids]
    by_label: dict[str, list[TrainedRun]] = defaultdict(list)
    labels = label_cells([run.cell for run in runs], seeds=False)
    for label, run in zip(labels, runs, strict=True):
        by_label[label].append(run)
    return by_label


def _takes_description(request: ProbeRequest) -> bool:
    return isinstance(request.options, RatiosOptions)


def _described_runs(request: ProbeRequest) -> dict[str, list[TrainedRun]]:
    """Return the finished runs that the words of the networks describe, by label.

    Raises:
        BadInput: a network has no such run.
    """
    root = request.options.runs
    described = [(label, compose(["-m", *words])[0]) for label, words in request.networks]
    labels = iter(label_cells([cell for _, cells in described for cell in cells], seeds=False))
    by_label: dict[str, list[TrainedRun]] = defaultdict(list)
    for title, cells in described:
        ids = {cell.id for cell in cells if read(root, cell.id)}
        for cell in cells:
            label = title or next(labels)
            if cell.id in ids:
                by_label[label].append(find_run(cell.id, root))
        if not ids:
            raise BadInput(
                f"{title or cells[0].title}: no finished run of {cells[0].title} below "
                f"runs={root}; train it with checkpoint=keep probe=ratios, or name runs by ckpt=RUN"
            )
    return by_label


def measure_runs(
    request: ProbeRequest, measure: Callable[[str, TrainedRun], Iterable[Record]]
) -> list[Record]:
    """Return the records that `measure` yields for the label and run of each requested run.

    Runs that it refuses by a ValueError, Impossible or BadInput are printed.

    Raises:
        BadInput: it refuses all runs.
    """
    records: list[Record] = []
    refusals = []
    for label, runs in requested_runs(request).items():
        for run in runs:
            # To stderr: stdout has the results alone.
            print(f"{label} seed={run.cell.seed} ({run.row.id})", file=sys.stderr, flush=True)
            try:
                records += measure(label, run)
            except (ValueError, Impossible, BadInput) as reason:
                refusals.append(f"{label} ({run.row.id}) is n/a: {reason}")
    if not records:
        raise BadInput(f"ckpt={request.options.ckpt}: {'; '.join(refusals)}")
    print("\n".join(refusals))
    return records


def label_cells(cells: Sequence[Cell], *, seeds: bool) -> list[str]:
    """Return a label for each cell: its normalizer and the settings that not all cells share.

    `seeds` says whether the seed is one of these settings.
    """
    settings = [_settings(cell, seeds=seeds) for cell in cells]
    # Every label begins with the normalizer, so differences leave it out.
    keys = dict.fromkeys(key for each in settings for key in each if key != "norm")
    differ = [key for key in keys if len({str(each.get(key)) for each in settings}) > 1]
    labels = []
    for each in settings:
        words = [f"{key.partition('.')[2] or key}={each[key]}" for key in differ if key in each]
        labels.append(" ".join([each["norm"], *words]))
    return labels


def _settings(cell: Cell, *, seeds: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for group in GROUPS:
        choice = getattr(cell, group)
        settings[group] = choice.name
        settings |= {f"{group}.{key}": value for key, value in choice.changed.items()}
    fixed = "workers" if cell.protocol == "fixed_workers" else "global_batch"
    plain = ("batch", fixed, "protocol", "precision", "init_from", "init_only")
    return settings | {name: getattr(cell, name) for name in (*plain, *(["seed"] * seeds))}


def input_images(options: ForwardPassOptions, network: ProbedNetwork) -> Tensor:
    """Return the images (N, C, H, W) of a forward pass: N(0, 1), or augmented training images.

    Raises:
        BadInput: image= is set for images of a data set.
    """
    experiment, side = Experiment(network.cell), options.image
    if options.input == "data":
        if side:
            raise BadInput(f"image={side} needs input=normal; use data.size for input=data")
        x = open_datamodule(experiment).sample_training_images(options.images)
    else:
        channels, height, width = experiment.data.image_shape
        size = (side, side) if side else (height, width)
        # On the CPU, so that all devices measure the same images.
        generator = torch.Generator().manual_seed(network.cell.seed)
        x = torch.randn(options.images, channels, *size, generator=generator)
    return x.to(network.device, weight_dtype(network.cell))
