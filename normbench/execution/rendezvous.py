"""The TCP stores of torch by which the ranks of a run find each other.

torchrun and srun start all ranks at once, but only rank 0 looks at rows, locks and networks, and
tells the others whether to train or exit. Its decision goes through a store at the port after the
one that the training uses.

torch's stores listen on all network interfaces. That of a run on one machine listens here only on
the loopback interface, which no other machine can reach.
"""

import os
import socket
from datetime import timedelta
from typing import Any

from torch import distributed

TIMEOUT = timedelta(minutes=10)  # rank 0 may import and check for a while before it decides
LOOPBACK = "127.0.0.1"
_stores: list[Any] = []  # a store stops listening when it is deleted


def stay_on_loopback() -> None:
    """Let the ranks of a run on one machine listen on loopback; call it before they connect.

    Several machines stay as they are; so do a store that torchrun serves, and the interfaces that
    the user has chosen.
    """
    if not _is_on_one_machine():
        return
    for backend in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    os.environ["MASTER_ADDR"] = LOOPBACK
    if os.environ["RANK"] == "0":
        _stores.append(_store(is_master=True, port=int(os.environ["MASTER_PORT"])))
    # Last: it makes torch connect all ranks to that store instead of starting its own.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"


def announce(*, train: bool) -> None:
    """Tell all other ranks the decision, and wait until they have received it."""
    store = _store(is_master=True, port=int(os.environ["MASTER_PORT"]) + 1)
    store.set("train", str(int(train)))
    store.wait(["received"] if int(os.environ["WORLD_SIZE"]) > 1 else [], TIMEOUT)


def await_decision() -> bool:
    """Return whether rank 0 has decided to train."""
    store = _store(is_master=False, port=int(os.environ["MASTER_PORT"]) + 1)
    train: bool = store.get("train") == b"1"
    # The last to read releases rank 0, whose process serves the store.
    if store.add("receivers", 1) == int(os.environ["WORLD_SIZE"]) - 1:
        store.set("received", "1")
    return train


def _is_on_one_machine() -> bool:
    return os.environ.get("GROUP_WORLD_SIZE") == "1"


def _store(*, is_master: bool, port: int) -> Any:
    address, options = os.environ["MASTER_ADDR"], dict[str, Any]()
    if _is_on_one_machine():
        address = LOOPBACK
        if is_master:
            listener = socket.create_server((LOOPBACK, port))
            options = {"master_listen_fd": listener.detach()}  # the store closes it
    return distributed.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=is_master, wait_for_workers=False, timeout=TIMEOUT, **options
    )
