"""Rank 0 tells the other ranks of a run whether to train or exit.

torchrun and srun start all ranks at once, but only rank 0 looks at rows, locks and networks. Its
decision goes through a TCP store of torch, at the port after the one that the training uses.
"""

import os
from datetime import timedelta
from typing import Any

from torch import distributed

TIMEOUT = timedelta(minutes=10)  # rank 0 may import and check for a while before it decides


def announce(*, train: bool) -> None:
    """Tell all other ranks the decision, and wait until they have received it."""
    store = _store(is_master=True)
    store.set("train", str(int(train)))
    store.wait(["received"] if int(os.environ["WORLD_SIZE"]) > 1 else [], TIMEOUT)


def await_decision() -> bool:
    """Return whether rank 0 has decided to train."""
    store = _store(is_master=False)
    train: bool = store.get("train") == b"1"
    # The last to read releases rank 0, whose process serves the store.
    if store.add("receivers", 1) == int(os.environ["WORLD_SIZE"]) - 1:
        store.set("received", "1")
    return train


def _store(*, is_master: bool) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    return distributed.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=is_master, wait_for_workers=False, timeout=TIMEOUT
    )
