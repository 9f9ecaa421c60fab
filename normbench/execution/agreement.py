"""What the first of several processes tells the others before a run: to train, or to go home.

torchrun and srun start all of them at once, but only the first looks at rows, locks and networks.
The word goes through a store of torch's beside the one that the training meets at.
"""

import os
from datetime import timedelta
from typing import Any

from torch import distributed

#: Until the first has spoken; it may import and check for a while.
PATIENCE = timedelta(minutes=10)


def lead(*, train: bool) -> None:
    """Tell all others, and wait until they have heard it."""
    store = _store(first=True)
    store.set("train", str(int(train)))
    store.wait(["heard"] if int(os.environ["WORLD_SIZE"]) > 1 else [], PATIENCE)


def follow() -> bool:
    """Whether there is something to train."""
    store = _store(first=False)
    train: bool = store.get("train") == b"1"
    if store.add("listeners", 1) == int(os.environ["WORLD_SIZE"]) - 1:
        store.set("heard", "1")
    return train


def _store(*, first: bool) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    return distributed.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=first, wait_for_workers=False, timeout=PATIENCE
    )
