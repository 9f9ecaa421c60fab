"""Sockets at which a run on one machine listens: no other machine can reach them."""

import os
import signal
from pathlib import Path

import pytest

from normbench.execution.process_group import ProcessGroup
from normbench.execution.rendezvous import open_store
from support.cells import LONG, run_folder
from support.commands import Command
from support.processes import is_training, run_when

TWO_RANKS = ("norm=bn", "batch=8", "trainer.devices=2", *LONG)
LISTENING = "0A"  # the state in /proc/net/tcp


def listening_addresses(pid: int) -> list[str]:
    """Addresses at which a process listens, in the hexadecimal digits of /proc/net/tcp."""
    links = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in links:
                addresses.append(fields[1].partition(":")[0])
    return addresses


@pytest.mark.parametrize(
    ("machines", "chosen", "interfaces"),
    [("1", {}, ("lo", "lo")), ("1", {"NCCL": "eth7"}, ("lo", "eth7")), ("2", {}, (None, None))],
)
def test_interfaces_of_gloo_and_nccl(
    monkeypatch: pytest.MonkeyPatch,
    machines: str,
    chosen: dict[str, str],
    interfaces: tuple[str | None, str | None],
) -> None:
    """Also where torchrun serves the store."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", machines)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    names = [f"{backend}_SOCKET_IFNAME" for backend in ("GLOO", "NCCL")]
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is restored at the end
        monkeypatch.delenv(name)
    for backend, interface in chosen.items():
        monkeypatch.setenv(f"{backend}_SOCKET_IFNAME", interface)
    open_store()
    assert tuple(map(os.environ.get, names)) == interfaces


@pytest.mark.slow
def test_the_ranks_of_a_run_listen_on_loopback(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    found: dict[int, list[str]] = {}

    def look_and_stop() -> None:
        try:
            (group,) = ProcessGroup.active
            for process in group.processes:
                found[process.process.pid or 0] = listening_addresses(process.process.pid or 0)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    folder = run_folder(*TWO_RANKS)
    stopper = run_when(lambda: is_training(folder), look_and_stop)
    assert command(*TWO_RANKS).code == 130
    stopper.join()
    assert len(found) == 2
    addresses = {address for each in found.values() for address in each}
    assert addresses == {"0100007F"}, found  # 127.0.0.1
