"""Targets of worker processes in tests."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# Recorded before the target imports anything: what the server has imported.
PRELOADED = [name for name in ("torch", "pytorch_lightning", "hydra") if name in sys.modules]


def describe(argument: Any, report: Callable[[Any], None]) -> dict[str, Any]:
    """Return properties of this process."""
    import torch

    report("half way")
    return {
        "argument": argument,
        "server": os.getppid(),
        "preloaded": PRELOADED,
        "leads_its_session": os.getsid(0) == os.getpid(),
        "environment": os.environ.get("NORMBENCH_TEST"),
        "torch_threads": torch.get_num_threads(),
        "python_threads": [
            t.name for t in threading.enumerate() if t is not threading.main_thread()
        ],
    }


def fail(argument: Any, report: Callable[[Any], None]) -> None:
    print("printed before the failure")
    raise ValueError(f"no {argument}\nsecond line")


def vanish(argument: Any, report: Callable[[Any], None]) -> None:
    os._exit(argument)


def sleep(argument: Any, report: Callable[[Any], None]) -> None:
    report("asleep")
    time.sleep(argument)


def leave_a_child(argument: Any, report: Callable[[Any], None]) -> None:
    """Return while a child of this process lives on for some seconds, as a data loader may."""
    if os.fork() == 0:
        time.sleep(argument)
        os._exit(0)


def act_by_rank(argument: dict[str, str], report: Callable[[Any], None]) -> str:
    """Do what `argument` says for this rank: fail, return at once, or return later."""
    from normbench.errors import OutOfMemory

    kind = argument[os.environ["RANK"]]
    if kind == "fail":
        raise ValueError("no luck")
    if kind == "memory":
        raise OutOfMemory("no room")
    time.sleep({"at once": 0, "later": 4, "never": 600}[kind])
    return kind
