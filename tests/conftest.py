"""Fixtures: command lines that run in this process, so that one fork server serves all tests."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():  # before anything imports Triton
    os.environ["TRITON_INTERPRET"] = "1"

from normbench.__main__ import main
from normbench.execution import worker_process
from normbench.execution.sweep import PRELOAD
from normbench.norms.base import closed_form
from normbench.probe import __main__ as probe
from normbench.results import read
from support import local_slurm
from support.cells import PLUGIN
from support.commands import Command, Finished, Probe, Rows, in_process

torch.set_num_threads(1)

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: What takes longest comes first, so that no worker of pytest-xdist is left with it at the end.
LONGEST = (
    "test_slurm", "test_plans", "test_paper_tables", "test_figures",
    "test_trained_networks",
    "test_resume", "test_sweep", "test_reading", "test_process_group", "test_training", "test_docs",
    "test_prepare", "test_wandb_logger",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by their duration, and skip tests of FFCV and of a GPU where there is none."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    reasons = {
        "ffcv": "" if find_spec("ffcv") else "FFCV is not installed",
        "gpu": "" if torch.cuda.is_available() else "no CUDA device",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Let no garbage collection visit again what imports have left: a million objects of torch."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _plugin_path() -> None:
    """Let worker processes import the modules of tests/plugin."""
    sys.path.insert(0, str(PLUGIN))


@pytest.fixture(autouse=True)
def _closed_forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layers in tests of layers use closed forms, although their maps are small."""
    if request.path.parent.name == "norms":
        monkeypatch.setattr(closed_form, "SMALLEST", 0)


@pytest.fixture(scope="session")
def _fork_server() -> None:
    """Start the fork server before any test changes the working directory."""
    worker_process.start_server(PRELOAD)


#: Drawings of one empty pixel; W&B reads the size of a png.
EMPTY = {
    "svg": b"<svg></svg>",
    "png": bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
        "0000000a49444154789c63f80f0001010100b138f6140000000049454e44ae426082"
    ),
}


@pytest.fixture
def _figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an empty drawing in the place of every figure, unless the test is marked `figures`.

    Every command that trains draws two, in three formats, which takes longer than the training.
    """
    if request.node.get_closest_marker("figures") is None:
        for module in ("figure", "probe_figures"):
            monkeypatch.setattr(
                f"normbench.report.{module}.save_figure",
                lambda _, forms: {form: EMPTY.get(form, b"") for form in forms},
            )


@pytest.fixture
def command(
    _fork_server: None,
    _figures: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """`python -m normbench ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return in_process(main, capsys)


@pytest.fixture
def probe_command(
    _figures: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Probe:
    """`python -m normbench.probe ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # Workers of pytest-xdist already use all cores; more threads than cores make each other wait.
    monkeypatch.setattr("normbench.probe.networks.share_of_cores", lambda _: 1)
    monkeypatch.setattr("normbench.probe.speed.SECONDS", 0.01)  # tests compare no speeds
    threads = torch.get_num_threads()

    def run(*arguments: str) -> Finished:
        code = probe.main(arguments)
        torch.set_num_threads(threads)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """The rows that a command has left."""
    return lambda: read(tmp_path / "runs")


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
