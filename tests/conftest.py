"""What tests share: a command line that runs in this process, so one fork server serves all."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import local_slurm
import pytest
import torch
from torch import nn

if not torch.cuda.is_available():  # before anything imports Triton
    os.environ["TRITON_INTERPRET"] = "1"

from normbench.__main__ import main
from normbench.catalog import model, normalizer
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.errors import Impossible
from normbench.execution import worker_process
from normbench.execution.sweep import PRELOADED
from normbench.norms.base.layer import NormAct
from normbench.probe import __main__ as probe
from normbench.results import Row, read

PLUGIN = Path(__file__).parent / "plugin"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

#: A training of two seconds on one thread becomes one of a quarter.
SHORT = ("recipe.images=2560", "logger=none", "trainer=cpu")

torch.set_num_threads(1)


#: What takes longest comes first, so that no worker of pytest-xdist is left with it at the end.
LONGEST = (
    "test_cluster", "test_plans", "test_house", "test_tables", "test_probe_command", "test_resume",
    "test_sweep",
    "test_reading", "test_ranks", "test_training", "test_pages", "test_prepare", "test_wandb",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order of their time, as `--no-loadscope-reorder` keeps it."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@dataclass(frozen=True)
class Finished:
    """What a command line printed, and how it ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Finished]
Look = Callable[..., Finished]


@pytest.fixture(scope="session", autouse=True)
def _server() -> Iterator[None]:
    """Nothing of the tests outlives them. Children find the modules of tests/plugin."""
    sys.path.insert(0, str(PLUGIN))
    yield
    worker_process.stop_server()


@pytest.fixture(scope="session")
def _forks() -> None:
    """The server stays where it was started, so it is not in the folder of some test."""
    worker_process.start_server(PRELOADED)


@pytest.fixture
def command(
    _forks: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """`python -m normbench ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")

    def run(*arguments: str) -> Finished:
        code = main(arguments)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return run


@pytest.fixture
def look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Look:
    """`python -m normbench.probe ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def run(*arguments: str) -> Finished:
        code = probe.main(arguments)
        torch.set_num_threads(threads)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[], list[Row]]:
    """The rows that a command has left."""
    return lambda: read(tmp_path / "runs")


def at_home(norm: str) -> dict[str, Any]:
    """Options of a small network in which `norm` can be trained: it may want another than usual."""
    for options in (
        {"name": "resnet14"},
        {"name": "resnet14_v2"},
        {"name": "resnet14", "stem_stride": 1},
    ):
        try:
            with torch.device("meta"):
                network = model(norm=normalizer(norm), num_classes=10, in_chans=1, **options)
                network(torch.empty(8, 1, 8, 8))
        except Impossible:
            continue
        return options
    raise LookupError(f"no network of these tests takes {norm}")


def in_its_network(norm: str) -> list[str]:
    """The same as arguments of a command line."""
    options = at_home(norm)
    more = [f"model.{key}={value}" for key, value in options.items() if key != "name"]
    return [f"norm={norm}", f"model={options['name']}", *more]


def cell(*arguments: str) -> Cell:
    """The one cell of a command line."""
    (only,), _ = compose(list(arguments))
    return only


def processes(needle: str) -> list[int]:
    """Ids of the living processes that have `needle` in their command line or as their folder."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command_line = (folder / "cmdline").read_bytes().decode(errors="replace")
                place = str((folder / "cwd").readlink())
            except OSError:
                continue  # gone meanwhile
            if command_line and (needle in command_line or place.startswith(needle)):
                found.append(int(folder.name))
    return found


def norms(network: nn.Module) -> list[Any]:
    """The layers of `network` that a normalizer made."""
    return [layer for layer in network.modules() if isinstance(layer, NormAct)]


@pytest.fixture(scope="session")
def _slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if reason := local_slurm.unavailable():
        pytest.skip(reason)
    with local_slurm.slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def slurm(_slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm of one node that this process and its children talk to; for tests marked `slurm`."""
    for name, value in _slurm.items():
        monkeypatch.setenv(name, value)
