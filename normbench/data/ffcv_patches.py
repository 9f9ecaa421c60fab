"""FFCV without what it does to whoever imports it.

It sets torch's number of threads to its own, when it is imported and in every epoch; these are part
of a run's bits and not FFCV's to choose. And where there is a GPU it makes streams there, on the
first device, also for images that stay on the CPU.
"""

from importlib import import_module
from typing import Any

import torch


def _imported(name: str) -> Any:
    threads = torch.get_num_threads()
    try:
        return import_module(name)
    finally:
        torch.set_num_threads(threads)


ffcv = _imported("ffcv")
fields = _imported("ffcv.fields")
decoders = _imported("ffcv.fields.decoders")
libffcv = _imported("ffcv.libffcv")
epochs = _imported("ffcv.loader.epoch_iterator")
pipeline = _imported("ffcv.pipeline.compiler")
queries = _imported("ffcv.pipeline.allocation_query")
managers = _imported("ffcv.memory_managers.os_cache")
reader = _imported("ffcv.reader")
types = _imported("ffcv.types")
numba = _imported("numba")


def _set_threads(cls: Any, threads: int) -> None:
    cls.num_threads = min(max(1, threads), numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(cls.num_threads)


pipeline.Compiler.set_num_threads = classmethod(_set_threads)
epochs.IS_CUDA = False
