"""Processes of torch's DataLoader that read images beside the run."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from normbench.errors import BadInput


@dataclass(frozen=True)
class Request:
    """Images that are read next.

    Args:
        indices: (N,) in their split.
        epoch: of the training; None: an evaluation, in which nothing is drawn.
        images: (N, C, H, W) uint8 if they are read already and only augmented.
    """

    indices: Tensor
    epoch: int | None
    images: Tensor | None = None


def map_in_processes(
    work: Callable[[Request], Tensor], requests: Iterable[Request], processes: int
) -> Iterator[Tensor]:
    """Yield what `work` returns for each of `requests`, in order.

    Args:
        work: done with each request.
        requests: drawn one by one, ahead of the results.
        processes: that work; 0: this one does.

    Raises:
        BadInput: `work` raised it.
    """
    if not processes:
        yield from map(work, requests)
        return
    # Forked: the split is in memory already, and nothing has to be imported again.
    results = DataLoader(
        _Work(work), sampler=_Requests(requests), batch_size=None, collate_fn=_identity,
        num_workers=processes, prefetch_factor=4, multiprocessing_context=get_context("fork"),
        worker_init_fn=partial(_begin, os.getpid()),
        generator=torch.Generator(),  # a seed drawn from torch's would change the run's numbers
    )  # fmt: skip
    for result in results:
        if isinstance(result, _Failure):
            raise BadInput(result.message)
        yield result


@dataclass(frozen=True)
class _Failure:
    """The message of a BadInput raised in another process, where its type would be lost."""

    message: str


class _Work(Dataset[Tensor]):
    """A function as the data set of a DataLoader."""

    def __init__(self, work: Callable[[Request], Tensor]) -> None:
        self.work = work

    def __getitem__(self, request: Any) -> Any:
        try:
            return self.work(request)
        except BadInput as error:
            return _Failure(str(error))


class _Requests(Sampler[Any]):
    """Requests as the indices of a DataLoader."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.requests = requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


def _identity(value: Any) -> Any:
    return value


def _begin(parent: int, _number: int) -> None:
    end_with(parent)


def end_with(parent: int) -> None:
    """Let this process ignore Ctrl-C, which the process `parent` handles, and end with that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    # torch's own watch waits until its results are taken, which nobody will do any more.
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
