"""The records that a sweep, its scheduler and its worker processes exchange. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normbench.config.cells import Accelerator, Cell, Settings
from normbench.config.plan import Plan
from normbench.results import Row


@dataclass
class Summary:
    """The result of a sweep: numbers of cells, by the origin of their rows."""

    reused: int = 0
    trained: int = 0
    shared: int = 0
    failed: list[str] = field(default_factory=list)  # a line for each
    wandb_failures: list[str] = field(default_factory=list)  # a line for each
    interrupted: int = 0  # number of the signal, or 0
    stopped: list[str] = field(default_factory=list)  # a line for each run that was interrupted
    rows: list[Row] | None = None  # all rows, if this command had nothing to train


@dataclass(frozen=True)
class Job:
    """A run as the scheduler starts it. It is pickled for the processes that train it.

    Args:
        cell: to train.
        folder: of the run.
        plan: layout of its workers on devices.
        sweep: the sweep that the row belongs to.
        commit: of the source tree.
        force: train although there is a row.
        resume: continue from the last checkpoint, if there is one.
        computation: equal for all cells that compute the same; empty: no other cell can.
        init_checkpoint: the checkpoint that `cell.init_from` names.
        network_fields: fields of the row that the preflight has read from the network.
        external_ranks: torchrun or srun started the ranks, so rank 0 tells the others whether to
            train.
    """

    cell: Cell
    folder: Path
    plan: Plan
    sweep: str
    commit: str = ""
    force: bool = False
    resume: bool = True
    computation: str = ""
    init_checkpoint: Path | None = None
    network_fields: Mapping[str, Any] | None = None
    external_ranks: bool = False

    @property
    def log(self) -> Path:
        """The file for the output of rank 0."""
        return self.folder / "log.txt"


@dataclass(frozen=True)
class PreflightRequest:
    """Cells that `normbench.execution.preflight` checks, and what it must know beside them.

    Args:
        cells: of the command line.
        settings: of the command line.
        processes: ranks of a run on this machine; None: all of them.
        checkpoints: by id of a cell, the checkpoint that its `init_from` names.
    """

    cells: Sequence[Cell]
    settings: Settings
    processes: int | None
    checkpoints: Mapping[str, Path]

    @property
    def log(self) -> Path:
        """The file that receives tracebacks."""
        return Path(self.settings.runs) / "check.log"


@dataclass(frozen=True)
class CellCheck:
    """The verdict of the preflight on one cell.

    Args:
        impossible: the reason why it cannot work; empty if it can.
        worker_independent: its computation does not depend on the division into workers.
        single_pass: all images of a step must share one forward pass.
        unstackable: the reason why its seeds cannot be stacked; empty if they can.
        coverage: of a network of a library, the part that the normalizer reaches, as a line.
        network_fields: fields of the row that follow from the network.
    """

    impossible: str = ""
    worker_independent: bool = False
    single_pass: bool = False
    unstackable: str = ""
    coverage: str = ""
    network_fields: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PreflightResults:
    """The checks of cells, by id, and the devices of this machine.

    Args:
        cells: checks by id of the cell.
        accelerator: what trainer=auto means.
        gpus: number of CUDA devices.
        memory: bytes of one device, or of the host.
    """

    cells: dict[str, CellCheck]
    accelerator: Accelerator
    gpus: int
    memory: int
