"""The cost of cells: what would be trained for them, on how many images, in how many hours.

Nothing is trained, and of official data sets no file is read. Networks are built on the meta
device, where shapes are computed and no numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from normbench.config.build import build
from normbench.config.cells import Cell
from normbench.data.dataset import Dataset
from normbench.errors import BadInput, Impossible, one_line
from normbench.execution.preflight import require_batch, require_images, short
from normbench.execution.rates import Rate, Rates, as_dense
from normbench.execution.reuse import shareable_rows
from normbench.models.profile import count_macs, dry_run
from normbench.norms.workers import set_workers
from normbench.results import Row
from normbench.training.recipe import Recipe
from normbench.training.trainer import dataset_of, independent, network_of

PASSES = 3  # that an image of training is worth: backward has two products for one of forward
LEAST = 0.01  # hours that are told as a number


@dataclass(frozen=True)
class Computation:
    """A training, whichever cells get its row.

    Args:
        what: normalizer, architecture and data.
        images: of training, each as often as it is seen.
        evaluated: images of evaluations.
        macs: multiply-adds of an image of training, forward.
        dense: multiply-adds without groups that take as long.
        macs_evaluated: those of an image of an evaluation.
        shared: how images are divided among workers changes nothing in it.
        rate: at which its images pass.
        finished: it has a row.
    """

    what: str
    images: int
    evaluated: int
    macs: int
    dense: float
    macs_evaluated: int
    shared: bool
    rate: Rate
    finished: bool = False

    @property
    def work(self) -> int:
        """Multiply-adds of training and evaluations."""
        return PASSES * self.images * self.macs + self.evaluated * self.macs_evaluated

    @property
    def hours(self) -> float:
        """Of its device."""
        return self.work / (PASSES * self.macs) / self.rate.images / 3600


@dataclass(frozen=True)
class Estimate:
    """The cost of so many cells; `impossible` ones of them cannot work and are not trained."""

    cells: int
    impossible: int
    trained: tuple[Computation, ...]

    @property
    def computations(self) -> int:
        """Trainings."""
        return len(self.trained)

    @property
    def images(self) -> int:
        """Of all trainings."""
        return sum(each.images for each in self.trained)

    @property
    def work(self) -> int:
        """Multiply-adds of all of them, with their evaluations."""
        return sum(each.work for each in self.trained)

    @property
    def hours(self) -> dict[str, float]:
        """Of each device, one run after another."""
        found: dict[str, float] = defaultdict(float)
        for each in self.trained:
            found[each.rate.hours] += each.hours
        return dict(found)

    @property
    def spent(self) -> str:
        """The hours in words."""
        return " and ".join(_told(hours, device) for device, hours in self.hours.items())

    @property
    def sentence(self) -> str:
        """For the head of a sweep, behind `# Cost: `."""
        return f"{self.spent} (normbench.cost)"

    @property
    def finished(self) -> int:
        """Trainings that have a row already; the numbers of all are with them."""
        return sum(each.finished for each in self.trained)

    @property
    def left(self) -> "Estimate":
        """The same without those."""
        return replace(self, trained=tuple(each for each in self.trained if not each.finished))


def rounded(number: float) -> str:
    """Two digits of it: 4,600 or 0.041."""
    return f"{float(f'{number:.2g}'):,.12g}"


def _told(hours: float, device: str) -> str:
    if hours < LEAST:
        return f"less than {LEAST} {device}"
    return f"about {rounded(hours)} {device}"


def estimate(
    cells: Sequence[Cell], rows: Iterable[Row] = (), rate: float | None = None
) -> Estimate:
    """What `cells` cost all together, as far as `rows` know how fast they are.

    Args:
        cells: as composed.
        rows: of finished runs.
        rate: training images a second of ResNet-50 on a device of the user's.

    Raises:
        BadInput: they cannot be used, or none of them can work.
    """
    rows, looks = list(rows), Looks(Rates(rows, rate))
    finished = {row.id for row in rows if row.final} | shareable_rows(rows).keys()
    trained: dict[str, Computation] = {}
    impossible: list[str] = []
    for cell in cells:
        try:
            found = looks.at(cell)
        except Impossible as reason:
            impossible.append(f"{cell.title} cannot work: {reason}")
            continue
        key = cell.computation if found.shared else cell.id
        found = trained.setdefault(key, found)
        if {key, cell.id} & finished:
            trained[key] = replace(found, finished=True)
    if not trained:
        raise BadInput(impossible[0])
    return Estimate(len(cells), len(impossible), tuple(trained.values()))


@dataclass(frozen=True)
class Network:
    """A network of shapes, with the multiply-adds of an image of training and of an evaluation."""

    module: nn.Module
    macs: int
    dense: float
    macs_evaluated: int
    shared: bool


class Looks:
    """What many cells have in common is looked at once."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.sizes: dict[str, tuple[int, int, int]] = {}
        self.networks: dict[str, Network] = {}
        self.known: dict[str, Computation] = {}

    def at(self, cell: Cell) -> Computation:
        """What is trained for `cell`.

        Raises:
            BadInput: an option or a size that no run can use.
            Impossible: it cannot work.
        """
        alike = replace(cell, seed=0).id
        if alike not in self.known:
            self.known[alike] = self._at(cell)
        return self.known[alike]

    def _at(self, cell: Cell) -> Computation:
        data, recipe = dataset_of(cell), build("recipe", cell.recipe.options)
        if repr(cell.data) not in self.sizes:
            self.sizes[repr(cell.data)] = data.sizes
        train, val, test = self.sizes[repr(cell.data)]
        require_batch(cell, recipe)
        require_images(cell, train)
        steps, epochs = _length(cell, recipe, train)
        network = self._network(cell, data)
        return Computation(
            what=f"{short(cell.norm)} in {short(cell.model)} on {cell.data.name}",
            images=steps * cell.global_batch,
            evaluated=epochs * val + test,
            macs=network.macs,
            dense=network.dense,
            macs_evaluated=network.macs_evaluated,
            shared=network.shared,
            rate=self.rates.of(cell, network.dense),
        )

    def _network(self, cell: Cell, data: Dataset) -> Network:
        """Built on the meta device, and run once in training with the images of a step."""
        key = repr((cell.norm, cell.model, cell.data, cell.reg, data.side))
        known = self.networks.get(key)
        try:
            with torch.device("meta"):
                module = network_of(cell, data) if known is None else known.module
                set_workers(module, cell.workers)
                dry_run(module, cell.global_batch, data.trained_image)
        except (BadInput, Impossible):
            raise
        except Exception as error:  # code of the user's own can fail in any way
            raise BadInput(
                f"{cell.title}: its network cannot be built and run ({one_line(error)})"
            ) from error
        if known is None:
            macs, in_groups = count_macs(module, data.trained_image)
            alike = data.image == data.trained_image
            evaluated = macs if alike else count_macs(module, data.image)[0]
            dense = as_dense(macs, in_groups)
            norm = build("norm", cell.norm.options)
            shared = independent(module, norm, "worker_independent")
            self.networks[key] = known = Network(module, macs, dense, evaluated, shared)
        return known


def _length(cell: Cell, recipe: Recipe, images: int) -> tuple[int, int]:
    """Optimizer steps of a training and the epochs that they take, the last begun one too.

    What another run has done before, by init_from=RUN@EPOCH, is not done again.
    """
    per_epoch, steps = images // cell.global_batch, recipe.steps(images, cell.global_batch)
    epoch = (cell.init_from or "").rpartition("@")[2]
    left = max(0, steps - per_epoch * int(epoch)) if epoch.isdecimal() else steps
    return left, -(-left // per_epoch)
