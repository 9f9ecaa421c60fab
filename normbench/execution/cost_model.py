"""Cost of cells: trainings, training images, multiply-adds and hours.

Nothing is trained, and of official data sets no file is read. Networks are built on the meta
device, where shapes are computed and no numbers.

Hours follow from the speed of finished rows of the same network, or else are scaled by
multiply-adds from ResNet-50.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from normbench.config.cells import Cell
from normbench.errors import BadInput, Impossible
from normbench.execution.networks import Networks, describe_pair
from normbench.execution.requirements import require_images, require_learning_rate
from normbench.execution.reuse import shareable_rows
from normbench.models.network_info import NetworkInfo
from normbench.norms.base.running import NetworkStatistics
from normbench.results import Row
from normbench.training.example_weight import ALPHAS, lacks_statistics, statistics_steps
from normbench.training.experiment import Experiment

PASSES = 3  # forward passes that take as long as forward and backward of one training image
SHORTEST = 0.01  # the fewest hours that are printed as a number
#: Training images a second of ResNet-50 with batch normalization at 224x224 pixels: 5.24 steps of
#: 64 images on one V100 of 16 GB (Brock et al. 2021, NF-ResNets, table 4; of 16 images 16.42).
V100 = 5.24 * 64
RESNET50 = 4.09e9  # multiply-adds of that network for an image, forward
#: Convolutions in groups of w channels take as long as WIDTH / w times their multiply-adds without
#: groups: each number that is read enters fewer products. With it EfficientNet-B0, of 0.35e9
#: multiply-adds and 0.0345e9 in groups of 1, takes its 2.61 steps of 64 images (ibid., table 5).
#: The other EfficientNets and the NF-RegNets, in groups of 8, come within a factor of 1.4 of that
#: table at the largest batch that it has of them. ResNeXts, in groups of 4 to 32, are not in it and
#: follow the same rule rather than multiply-adds alone: ResNeXt-50 is 2.4 times slower than
#: ResNet-50 by the one and as fast by the other; on another device it was 1.5 times slower
#: (github.com/knjcode/mxnet-finetuner, docs/benchmark.md), and overestimating does less harm.
WIDTH = 228
SCALED = "scaled"  # source of a rate that was not measured


@dataclass(frozen=True)
class Rate:
    """Speed of a training.

    Args:
        images: training images a second.
        hours: unit of the hours, as in "3.5 hours of ...".
        source: where the speed comes from.
    """

    images: float
    hours: str
    source: str


@dataclass(frozen=True)
class Computation:
    """A training, which may serve several cells.

    Args:
        title: normalizer, architecture and data.
        images: training images, counted each time they are seen.
        statistics: training images of which running statistics are computed afterwards.
        evaluated: images of evaluations.
        macs: multiply-adds of a training image, forward.
        dense: multiply-adds without groups that take as long.
        macs_evaluated: multiply-adds of an image of an evaluation.
        worker_independent: the division of images among workers changes nothing.
        rate: speed of the training.
        finished: it has a row.
    """

    title: str
    images: int
    statistics: int
    evaluated: int
    macs: int
    dense: float
    macs_evaluated: int
    worker_independent: bool
    rate: Rate
    finished: bool = False

    @property
    def work(self) -> int:
        """Multiply-adds of training and evaluations."""
        trained = (PASSES * self.images + self.statistics) * self.macs
        return trained + self.evaluated * self.macs_evaluated

    @property
    def hours(self) -> float:
        """Hours on its device."""
        return self.work / (PASSES * self.macs) / self.rate.images / 3600


@dataclass(frozen=True)
class Estimate:
    """Cost of a number of cells; `impossible` ones of them cannot work and are not trained.

    `seeds` has the fewest and the most seeds of cells that differ in the seed alone.
    """

    cells: int
    seeds: tuple[int, int]
    impossible: int
    trained: tuple[Computation, ...]

    @property
    def computations(self) -> int:
        """Number of trainings."""
        return len(self.trained)

    @property
    def images(self) -> int:
        """Training images of all trainings."""
        return sum(each.images for each in self.trained)

    @property
    def work(self) -> int:
        """Multiply-adds of all trainings and their evaluations."""
        return sum(each.work for each in self.trained)

    @property
    def hours(self) -> dict[str, float]:
        """Hours on each device, one run after another."""
        hours: dict[str, float] = defaultdict(float)
        for each in self.trained:
            hours[each.rate.hours] += each.hours
        return dict(hours)

    @property
    def spent(self) -> str:
        """The hours in words, as in the head of a sweep."""
        return " and ".join(
            f"less than {SHORTEST} {device}"
            if hours < SHORTEST
            else f"about {round_number(hours)} {device}"
            for device, hours in self.hours.items()
        )

    @property
    def left(self) -> "Estimate":
        """The estimate without trainings that have a row."""
        return replace(self, trained=tuple(each for each in self.trained if not each.finished))


def round_number(number: float) -> str:
    """Return two significant digits: 4,600 or 0.041."""
    return f"{float(f'{number:.2g}'):,.12g}"


def estimate(
    cells: Sequence[Cell], rows: Iterable[Row] = (), rate: float | None = None
) -> Estimate:
    """Estimate the cost of `cells`.

    Args:
        cells: as composed.
        rows: finished runs, whose speeds are used.
        rate: training images a second of ResNet-50 on a device of the user's.

    Raises:
        BadInput: they cannot be used, or none of them can work.
    """
    costs = Costs(rows, rate)
    trained: dict[str, Computation] = {}
    impossible: list[str] = []
    seeds = Counter(replace(cell, seed=0).id for cell in cells).values()
    for cell in cells:
        try:
            key, computation = costs.find(cell)
        except Impossible as reason:  # other cells of the grid still have a cost
            impossible.append(f"{cell.title} cannot work: {reason}")
            continue
        first = trained.setdefault(key, computation)
        if computation.finished:
            trained[key] = replace(first, finished=True)
    if not trained:
        raise BadInput(impossible[0])
    ends = min(seeds), max(seeds)
    return Estimate(len(cells), ends, len(impossible), tuple(trained.values()))


class Costs:
    """Computations of cells; what several cells share is looked at once.

    Args:
        rows: finished runs, whose speeds are used.
        rate: training images a second of ResNet-50 on a device of the user's.
    """

    def __init__(self, rows: Iterable[Row] = (), rate: float | None = None) -> None:
        rows = list(rows)
        self.rates = Rates(rows, rate)
        self.finished = {row.id for row in rows if row.final} | shareable_rows(rows).keys()
        self.networks = Networks()
        self.sizes: dict[str, tuple[int, int, int]] = {}  # images of the splits, by data set
        self.computations: dict[str, Computation] = {}  # by id of the cell with seed 0

    def find(self, cell: Cell) -> tuple[str, Computation]:
        """Return what is trained for `cell`, with a key that cells share if it serves all of them.

        Raises:
            BadInput: an option or a size that no run can use.
            Impossible: it cannot work.
        """
        seedless = replace(cell, seed=0).id
        if seedless not in self.computations:
            self.computations[seedless] = self._compute(Experiment(cell))
        computation = self.computations[seedless]
        key = cell.computation if computation.worker_independent else cell.id
        finished = not self.finished.isdisjoint({key, cell.id})
        return key, replace(computation, finished=finished)

    def _compute(self, experiment: Experiment) -> Computation:
        cell = experiment.cell
        data = repr(cell.data)
        if data not in self.sizes:
            self.sizes[data] = experiment.data.sizes
        train, val, test = self.sizes[data]
        require_learning_rate(cell, experiment.recipe)
        require_images(cell, train)
        steps, epochs = _training_length(experiment, train)
        info = self.networks.inspect(experiment.without_dropping())
        dense = dense_macs(info.trained_macs, info.grouped_macs)
        return Computation(
            title=f"{describe_pair(cell)} on {cell.data.name}",
            images=steps * cell.global_batch,
            statistics=_statistics_images(experiment, info),
            evaluated=epochs * val + _images_after_training(experiment, val, test),
            macs=info.trained_macs,
            dense=dense,
            macs_evaluated=info.macs,
            worker_independent=experiment.is_worker_independent(info),
            rate=self.rates.find(cell, dense),
        )


def _statistics_images(experiment: Experiment, info: NetworkInfo) -> int:
    """Return the training images of which running statistics are computed after the training."""
    recipe, global_batch = experiment.recipe, experiment.cell.global_batch
    steps = 0
    if recipe.recalibration and NetworkStatistics(info.network):
        steps += recipe.recalibration
    if recipe.example_weight and lacks_statistics(info.network):
        steps += statistics_steps(global_batch)
    return steps * global_batch


def _images_after_training(experiment: Experiment, val: int, test: int) -> int:
    """Return the images of evaluations after the training, from held-out and test images."""
    recipe = experiment.recipe
    if recipe.example_weight:
        return len(ALPHAS) * val + 2 * test  # the test with the usual weight, then the best one
    return test + (val if recipe.recalibration else 0)


def _training_length(experiment: Experiment, images: int) -> tuple[int, int]:
    """Return the optimizer steps of a training and its epochs, counting the last one if begun.

    Steps that another run has taken, by init_from=RUN@EPOCH, are not taken again, unless this run
    takes only some parameters from it, as a dense task may from a classifier.
    """
    cell = experiment.cell
    per_epoch = images // cell.global_batch
    steps = experiment.recipe.count_steps(images, cell.global_batch)
    begins_anew = cell.init_only or not experiment.task.by_image
    epoch = "" if begins_anew else (cell.init_from or "").rpartition("@")[2]
    left = max(0, steps - per_epoch * int(epoch)) if epoch.isdecimal() else steps
    return left, -(-left // per_epoch)


class Rates:
    """Speeds measured in rows; without a row, scaled by multiply-adds from ResNet-50.

    Args:
        rows: of finished runs.
        resnet50: images a second of ResNet-50 on a device of the user's; None: on a V100.
    """

    def __init__(self, rows: Iterable[Row], resnet50: float | None = None) -> None:
        self.rows: dict[str, list[Row]] = defaultdict(list)  # by `_speed_key`
        self.resnet50, self.hours = V100, "GPU hours of one V100"
        if resnet50 is not None:
            self.resnet50, self.hours = resnet50, f"hours of one device of rate={resnet50:g}"
        for row in rows:
            # A copy was not timed, and the speed of a stack is not that of one run.
            if row.images_per_second and row.shared_with is None and row.stacked_seeds == 1:
                self.rows[_speed_key(row.config)].append(row)

    def find(self, cell: Cell, dense: float) -> Rate:
        """Return the speed of `cell`, whose network takes as long as `dense` multiply-adds."""
        rows = self.rows.get(_speed_key(cell.identity), [])
        same_norm = [row for row in rows if row.norm == cell.norm.name]
        candidates = same_norm or rows
        if not candidates:
            return Rate(self.resnet50 * RESNET50 / dense, self.hours, SCALED)
        layout = (cell.batch, cell.workers)  # a network may take four times as long at batch=4
        nearest = [row for row in candidates if (row.batch, row.workers) == layout] or candidates
        ((device, _),) = Counter(row.devices for row in nearest).most_common(1)
        speed = median(row.images_per_second or 0.0 for row in nearest if row.devices == device)
        source = "measured" if same_norm else "measured, other normalizers"
        return Rate(speed, f"hours of {device}, as measured", source)


def dense_macs(macs: int, grouped: Mapping[int, int]) -> float:
    """Return the multiply-adds of ungrouped convolutions that would take the same time.

    Args:
        macs: of a network.
        grouped: those of them in convolutions with groups, by the channels of a group.
    """
    return macs + sum(part * max(0.0, WIDTH / width - 1) for width, part in grouped.items())


def _speed_key(config: dict[str, Any]) -> str:
    """Return the same key for runs whose speeds differ by normalizer and batch alone, about."""
    data, recipe = config.get("data", {}), config.get("recipe", {})
    rest = [data.get("name"), data.get("size"), recipe.get("crop"), config.get("precision")]
    return json.dumps([config.get("model"), config.get("task"), *rest], sort_keys=True)
