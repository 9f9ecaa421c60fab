"""Networks of many cells on the meta device, where shapes are computed and no numbers."""

import traceback
from collections.abc import Callable, Hashable
from pathlib import Path

import torch

from normbench.config.cells import Cell, Choice
from normbench.errors import BadInput, Impossible, one_line
from normbench.models.network_info import NetworkInfo
from normbench.training.experiment import Experiment


class Networks:
    """The networks of many cells, each built once on the meta device.

    Args:
        log: file that receives tracebacks, for messages; None: there is none.
    """

    def __init__(self, log: Path | None = None) -> None:
        self.log = log
        self.infos: dict[str, NetworkInfo] = {}
        self.refusals: dict[Hashable, str] = {}  # by network, and by network and images; "": none

    def inspect(self, experiment: Experiment) -> NetworkInfo:
        """Build the network of an experiment and run a forward pass of training on shapes.

        The images of all workers take part: synchronized statistics work where those of a single
        worker would not.

        Raises:
            Impossible: the network cannot work with such images or so few of them.
            BadInput: an option is wrong, or the code of the network fails.
        """
        cell, key = experiment.cell, network_key(experiment)

        def build() -> None:
            self.infos[key] = experiment.info

        self._require(key, cell, build)
        info = self.infos[key]

        def run() -> None:
            with torch.device("meta"):  # code of a user's may create tensors
                info.try_training(cell.workers, cell.global_batch)

        # Where no image influences another one, their number refuses nothing.
        images = () if info.batch_independent else (cell.batch, cell.workers)
        self._require((key, *images, "run"), cell, run)
        return info

    def _require(self, key: Hashable, cell: Cell, attempt: Callable[[], None]) -> None:
        """Raise what `attempt` raises, for this cell and the next ones with the same `key`."""
        if key not in self.refusals:
            self.refusals[key] = self._explain_refusal(cell, attempt)
        if self.refusals[key]:
            raise Impossible(self.refusals[key])

    def _explain_refusal(self, cell: Cell, attempt: Callable[[], None]) -> str:
        """Return why `attempt` is impossible, or "".

        Raises:
            BadInput: an option is wrong, or the code of the network fails.
        """
        try:
            attempt()
        except Impossible as reason:
            return str(reason)
        except BadInput:
            raise
        except Exception as error:  # code of a user's own can fail in any way
            if self.log:
                traceback.print_exc()
            trace = f"; the traceback is in {self.log}" if self.log else ""
            raise BadInput(
                f"{cell.title}: its network cannot be built and run ({one_line(error)}){trace}"
            ) from error
        return ""


def network_key(experiment: Experiment) -> str:
    """Return a key of the network: cells with equal keys have equal networks and image shapes.

    Raises:
        Impossible: the level of regularization sets an option that the model does not have.
    """
    cell, data, reg = experiment.cell, experiment.data, experiment.reg
    dropping = experiment.drop_rates, reg.norm_dropout, reg.rescale
    shapes = data.classes, data.image_shape, data.train_shape
    return repr((cell.norm, cell.model, cell.task, dropping, shapes))


def step_key(experiment: Experiment) -> str:
    """Return a key of the network and the images of a step."""
    return f"{network_key(experiment)} {experiment.cell.batch} {experiment.cell.workers}"


def describe_pair(cell: Cell) -> str:
    """Return normalizer and model with the options that differ from their yaml."""
    return f"{_describe_choice(cell.norm)} in {_describe_choice(cell.model)}"


def _describe_choice(choice: Choice) -> str:
    changed = [f"{key}={value}" for key, value in choice.changed.items()]
    return " ".join([choice.name, *changed])
