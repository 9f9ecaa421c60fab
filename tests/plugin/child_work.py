"""What children do in the tests of processes."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# Looked at before anything of the work is imported: was it there already?
PRELOADED = [name for name in ("torch", "pytorch_lightning", "hydra") if name in sys.modules]


def describe(request: Any, tell: Callable[[Any], None]) -> dict[str, Any]:
    """What this process is like."""
    import torch

    tell("half way")
    return {
        "request": request,
        "preloaded": PRELOADED,
        "leads_its_session": os.getsid(0) == os.getpid(),
        "environment": os.environ.get("NORMBENCH_TEST"),
        "torch_threads": torch.get_num_threads(),
        "python_threads": [
            t.name for t in threading.enumerate() if t is not threading.main_thread()
        ],
    }


def fail(request: Any, tell: Callable[[Any], None]) -> None:
    print("said before the failure")
    raise ValueError(f"no {request}\nsecond line")


def vanish(request: Any, tell: Callable[[Any], None]) -> None:
    os._exit(request)


def sleep(request: Any, tell: Callable[[Any], None]) -> None:
    tell("asleep")
    time.sleep(request)


def part(request: dict[str, str], tell: Callable[[Any], None]) -> str:
    """What one rank does: `request` says, by rank, to fail, to return at once or to take longer."""
    from normbench.errors import OutOfMemory

    kind = request[os.environ["RANK"]]
    if kind == "fail":
        raise ValueError("no luck")
    if kind == "memory":
        raise OutOfMemory("no room")
    time.sleep({"at once": 0, "later": 4, "never": 600}[kind])
    return kind
