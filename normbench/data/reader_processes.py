"""Processes of torch's DataLoader that read images beside the run."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from normbench.errors import BadInput


@dataclass(frozen=True)
class Request:
    """Images that are read next."""

    indices: Tensor  # (N,) in their split
    epoch: int | None  # of the training; None: an evaluation, in which nothing is drawn
    images: Tensor | None = None  # (N, C, H, W) uint8 if they are read already and only augmented


class _Work(Dataset[Tensor | BadInput]):
    """A function of requests as a data set, whose indices are the requests."""

    def __init__(self, work: Callable[[Request], Tensor]) -> None:
        self.work = work

    def __getitem__(self, request: Request) -> Tensor | BadInput:
        try:
            return self.work(request)
        except BadInput as error:
            return error  # DataLoader would raise it with a traceback in its message


def map_in_processes(
    work: Callable[[Request], Tensor], requests: Iterable[Request], processes: int
) -> Iterator[Tensor]:
    """Yield what `work` returns for each of `requests`, in order.

    `requests` are iterated ahead of the results. With 0 `processes` this process does the work.

    Raises:
        BadInput: `work` raised it.
    """
    if not processes:
        yield from map(work, requests)
        return
    parent = os.getpid()
    # Forked: the split is in memory already, and nothing has to be imported again.
    results = DataLoader(
        _Work(work), sampler=requests, batch_size=None, num_workers=processes, prefetch_factor=4,
        multiprocessing_context=get_context("fork"), worker_init_fn=lambda _: end_with(parent),
        generator=torch.Generator(),  # a seed drawn from torch's would change the run's numbers
    )  # fmt: skip
    for result in results:
        if isinstance(result, BadInput):
            raise result
        yield result


def end_with(parent: int) -> None:
    """Ignore Ctrl-C, which the process `parent` handles, and end this process with that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    # torch's own watch waits until its results are fetched, and no process is left to do that.
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)  # a thread cannot end its process by an exception
