"""Run commands in folders of their own: a process that imports once, and forks for each of them.

    python -m faults.sandbox [torch] [MODULE ...]

reads requests from stdin, a line of JSON each, and answers each with a line. `Sandbox` talks to it.
"""

import base64
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from faults.judge import SECONDS, Outcome
from faults.watch import Watch

TESTS = Path(__file__).parents[1]
#: Commands that promise to be without torch.
WITHOUT_TORCH = ("normbench", "normbench.status", "normbench.report", "normbench.studies")
WITH_TORCH = (
    "normbench.cost", "normbench.decide", "normbench.prepare", "normbench.catalog",
    "normbench.probe", "normbench.bench", "normbench.dashboard", "normbench.search",
)  # fmt: skip
#: Modules that the commands import late.
LATE = {
    False: (
        "normbench.report.page", "normbench.report.figure", "normbench.report.probe_figures",
        "scipy.stats", "charset_normalizer", "matplotlib.backends.backend_svg",
    ),
    True: (
        "normbench.bench.layers", "normbench.bench.step", "normbench.bench.sweep",
        "normbench.bench.report", "normbench.bench.plans_and_loaders", "normbench.bench.seeds",
        "normbench.probe.forward_pass", "normbench.probe.ratios", "normbench.probe.speed",
        "normbench.probe.example_weight", "normbench.probe.gains", "normbench.dashboard.panels",
        "normbench.models.timm_models", "normbench.execution.preflight",
    ),
}  # fmt: skip
MEMORY = {False: 6 * 2**30, True: 20 * 2**30}  # address space; torch reserves much of it
#: Functions that train or measure for as long as somebody asks. A command ends there, after the
#: seconds beside them.
SEAMS = (
    ("normbench.execution.worker_process", "start_server", 0),
    ("normbench.bench.layers", "_time_layers", 0),  # torch.compile cannot be stopped
    ("normbench.bench.step", "measure_in_turn", 2),
    ("normbench.bench.seeds", "measure_in_turn", 2),
    ("normbench.bench.sweep", "measure_in_turn", 0),
    ("normbench.bench.report", "measure_in_turn", 2),
    ("normbench.bench.plans_and_loaders", "measure_in_turn", 0),
    ("normbench.probe.forward_pass", "_measure", 2),
    ("normbench.probe.speed", "measure_speeds", 2),
    ("normbench.probe.gains", "run", 5),
)
REACHED = "everything was accepted\n"  # what is printed at a seam


class Driver:
    """A process that runs commands, each in a folder of its own below `folder`."""

    folder: Path
    process: subprocess.Popen[bytes]
    number = 0  # of the latest folder

    def __exit__(
        self, _kind: type | None, _error: BaseException | None, _place: TracebackType | None
    ) -> None:
        self.process.communicate()  # its stdin ends, and so does it

    def new_folder(self) -> Path:
        """Return an empty folder for a command, whose parent is empty, too."""
        self.number += 1
        folder = self.folder / f"{self.number:06}" / "work"
        folder.mkdir(parents=True)
        return folder


class Sandbox(Driver):
    """A process that runs commands in folders of their own.

    Args:
        folder: for the folders of the commands.
        torch: it has imported torch.
        modules: commands beside those of normbench.
        seconds: after which a command is killed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        torch: bool = False,
        modules: Sequence[str] = (),
        seconds: float = SECONDS,
    ) -> None:
        self.folder, self.seconds = folder, seconds
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.sandbox", *["torch"][:torch], *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
            env={
                **os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(folder)]),
                "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            },
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def run(
        self,
        folder: Path,
        command: str,
        words: Sequence[str],
        environment: Mapping[str, str | None] | None = None,
        encoding: str = "utf-8",
        *,
        draws: bool = True,
    ) -> Outcome:
        """Run `command`, a module, with `words` in `folder`.

        Args:
            folder: from `new_folder`.
            command: a module.
            words: of the command line.
            environment: variables; None unsets one.
            encoding: of stdout and stderr.
            draws: figures are drawn, which takes seconds; otherwise they are empty.
        """
        request = {
            "folder": str(folder), "command": command, "words": [*words],
            "environment": dict(environment or {}), "encoding": encoding, "seconds": self.seconds,
            "draws": draws,
        }  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return Outcome(
            answer["code"], base64.b64decode(answer["out"]), base64.b64decode(answer["err"]),
            answer["seconds"], tuple(answer["written"]), answer["where"],
        )  # fmt: skip


class Reached(BaseException):
    """A command has come to the point at which it would train or measure."""


def serve(modules: Sequence[str], *, torch: bool) -> None:
    """Answer requests until stdin ends."""
    for name in (*WITHOUT_TORCH, *(WITH_TORCH if torch else ()), *modules):
        importlib.import_module(f"{name}.__main__" if _is_package(name) else name)
    for name in LATE[False] + (LATE[True] if torch else ()):
        importlib.import_module(name)
    for name, function, seconds in SEAMS:
        if module := sys.modules.get(name):
            setattr(module, function, _limit(getattr(module, function), seconds))
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy all pages
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line), torch=torch)) + "\n")
        answers.flush()


def _is_package(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def _limit(function: Callable[..., Any], seconds: int) -> Callable[..., Any]:
    """Return a function that raises `Reached` after `seconds`, or at once."""

    def stop(*_: object) -> NoReturn:
        raise Reached

    def limited(*arguments: Any, **options: Any) -> Any:
        if not seconds:
            raise Reached
        signal.signal(signal.SIGALRM, stop)
        # Again and again: torch.compile catches whatever is raised inside.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1)
        try:
            return function(*arguments, **options)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return limited


def _answer(request: dict[str, Any], *, torch: bool) -> dict[str, Any]:
    """Run a command in a forked process; return its outcome as JSON."""
    folder = Path(request["folder"])
    files = {name: folder.parent / name for name in ("out", "err", "where", "written")}
    for name in ("home", "tmp"):
        (folder.parent / name).mkdir(exist_ok=True)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork copies one thread alone"
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _run_and_exit(request, files, torch=torch)
    code, late = _wait(child, request["seconds"])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    seconds = time.monotonic() - started
    texts = {name: path.read_bytes() if path.exists() else b"" for name, path in files.items()}
    written = [json.loads(line) for line in texts["written"].splitlines()]
    if late:
        texts["where"] = texts["where"] or b"an unknown place"
    else:
        written += [f"{path} and leaves it" for path in (folder.parent / "tmp").iterdir()]
    return {
        "code": code, "seconds": seconds, "where": texts["where"].decode(errors="replace"),
        "out": _as_utf8(texts["out"], request), "err": _as_utf8(texts["err"], request),
        "written": [*dict.fromkeys(written)],
    }  # fmt: skip


def _as_utf8(text: bytes, request: Mapping[str, Any]) -> str:
    if request["encoding"] != "utf-8":
        text = text.decode(request["encoding"], "replace").encode()
    return base64.b64encode(text).decode()


def _wait(child: int, seconds: float) -> tuple[int, bool]:
    """Return the exit code of `child`, and whether it was killed after `seconds`."""
    handle = os.pidfd_open(child)
    if late := not select.select([handle], [], [], seconds)[0]:
        os.kill(child, signal.SIGUSR2)  # it writes where it is
        select.select([handle], [], [], 0.5)
        os.kill(child, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), late


def _run_and_exit(request: dict[str, Any], files: Mapping[str, Path], *, torch: bool) -> NoReturn:
    code = 99
    try:
        _enter(request, files, torch=torch)
        code = _run(request["command"], request["words"])
    finally:
        os._exit(code)


def _enter(request: dict[str, Any], files: Mapping[str, Path], *, torch: bool) -> None:
    """Become a process as a shell would start it in the folder of a request."""
    os.setsid()
    _obey_modes()
    folder = Path(request["folder"])
    where, written = (files[name].open("w") for name in ("where", "written"))
    faulthandler.register(signal.SIGUSR2, where, all_threads=False)
    for name, number, flags in (
        ("out", 1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ("err", 2, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), (os.devnull, 0, os.O_RDONLY),
    ):  # fmt: skip
        file = os.open(files.get(name, os.devnull), flags, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    _set_environment(request["environment"], folder.parent)
    encoding = request["encoding"]
    sys.stdin = os.fdopen(0, encoding=encoding, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    if not request["draws"]:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # no processes that draw
        for name in ("figure", "probe_figures"):
            module = sys.modules[f"normbench.report.{name}"]
            module.save_figure = lambda _, forms: dict.fromkeys(forms, b"<svg></svg>")  # type: ignore[attr-defined]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY[torch], MEMORY[torch]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sys.addaudithook(Watch(folder.parent, request["words"], written).hook)


def _obey_modes() -> None:
    """Give up what lets root read and write any file, as if it were another user.

    Its files keep their owner, unlike after seteuid, so that this process can use them.
    """
    libc, version = ctypes.CDLL(None, use_errno=True), 0x20080522
    header = (ctypes.c_uint32 * 2)(version, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    libc.capget(header, sets)
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _set_environment(environment: Mapping[str, str | None], root: Path) -> None:
    basic = {
        "PATH": os.environ["PATH"], "HOME": str(root / "home"), "TMPDIR": str(root / "tmp"),
        "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "HYDRA_FULL_ERROR": "1",
    }  # fmt: skip
    os.environ.clear()
    os.environ.update({k: v for k, v in {**basic, **environment}.items() if v is not None})
    tempfile.tempdir = None


def _run(command: str, words: Sequence[str]) -> int:
    """Call the main function of a command as `python -m` does; return the exit code."""
    from normbench.config import cli

    name = f"{command}.__main__" if f"{command}.__main__" in sys.modules else command
    sys.argv = [str(sys.modules[name].__file__), *words]
    try:
        try:
            cli.run(sys.modules[name].main)
        except SystemExit as end:
            code = end.code
        except Reached:
            print(REACHED, end="")
            code = 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
        code = code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        traceback.print_exc()
        code = 120  # as Python's own
    return int(code)


def clear(folder: Path) -> None:
    """Remove the folder of a command, and what is beside it."""
    shutil.rmtree(folder.parent, ignore_errors=True)


if __name__ == "__main__":
    serve([word for word in sys.argv[1:] if word != "torch"], torch="torch" in sys.argv)
    os._exit(0)  # torch's libraries would print what they have not freed
