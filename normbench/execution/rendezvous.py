"""The TCP store of torch by which the ranks of a run find each other.

torchrun and srun start all ranks at once, but only rank 0 looks at rows, locks and networks. It
tells the others through the store whether to train or exit, before the training uses that store.

torchrun serves the store itself. Otherwise rank 0 does, at `MASTER_PORT` and no other port: the
next one may belong to anybody. torch's stores listen on all network interfaces. That of a run on
one machine listens here only on the loopback interface, which no other machine can reach.
"""

import os
import socket
from datetime import timedelta
from typing import Any

from torch import distributed

TIMEOUT = timedelta(minutes=10)  # rank 0 may import and check for a while before it decides
LOOPBACK = "127.0.0.1"
_stores: list[Any] = []  # a store stops listening when it is deleted


def open_store() -> None:
    """Serve the store in rank 0, and let all ranks use it; call it before torch connects them.

    The ranks of a run on one machine exchange tensors on loopback, unless the user has chosen
    interfaces. The store listens there, too, unless torchrun serves it.

    Raises:
        OSError: another process listens at `MASTER_PORT`.
    """
    on_one_machine = os.environ.get("GROUP_WORLD_SIZE") == "1"
    if on_one_machine:
        for backend in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    if on_one_machine:
        os.environ["MASTER_ADDR"] = LOOPBACK
    if os.environ["RANK"] == "0":
        _stores.append(_serve(LOOPBACK if on_one_machine else ""))
    # Last: it makes torch connect all ranks to that store instead of starting its own.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"


def announce(*, train: bool) -> None:
    """Tell all other ranks the decision, and wait until they have received it."""
    store = _decisions()
    store.set("train", str(int(train)))
    store.wait(["received"] if int(os.environ["WORLD_SIZE"]) > 1 else [], TIMEOUT)


def await_decision() -> bool:
    """Return whether rank 0 has decided to train."""
    store = _decisions()
    train: bool = store.get("train") == b"1"
    # The last to read releases rank 0, whose process may serve the store.
    if store.add("receivers", 1) == int(os.environ["WORLD_SIZE"]) - 1:
        store.set("received", "1")
    return train


def _serve(host: str) -> Any:
    """Return a store that listens at the address `host`, at all of this machine if empty."""
    address = host, int(os.environ["MASTER_PORT"])
    if not host and socket.has_dualstack_ipv6():
        listener = socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        listener = socket.create_server(address)
    return _connect(is_master=True, master_listen_fd=listener.detach())  # the store closes it


def _decisions() -> Any:
    """Return the part of the store in which rank 0 decides.

    torchrun keeps its store when it starts all ranks again, so each attempt has a part of its own.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = _connect(is_master=False)
    return distributed.PrefixStore(f"normbench/attempt_{attempt}", store)  # type: ignore[attr-defined]


def _connect(**options: Any) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return distributed.TCPStore(  # type: ignore[attr-defined]
        address, port, wait_for_workers=False, timeout=TIMEOUT, **options
    )
