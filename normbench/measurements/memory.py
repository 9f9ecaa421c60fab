"""Memory of tensors while a function runs, on any device.

On a GPU torch's allocator counts. On a CPU torch keeps no count: every storage that an operation
returns counts until it is freed, and scratch memory within an operation is not seen.
"""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def peak_memory(run: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that `run` allocates at any moment, without those allocated before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        peak: int = torch.cuda.max_memory_allocated(device)
        return peak - before
    counter = _StorageCounter()
    with counter:
        run()
    return counter.peak


def memory_for_backward(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the bytes that an eager `layer` saves for its backward pass on a map like `x`.

    On a CPU only. The layer's output is not counted: the next convolution saves it anyway.
    """
    leaf = x.detach().requires_grad_()
    counter = _StorageCounter()
    with counter:
        copy = leaf.clone()  # no leaf, so it is freed unless the layer saves it
        output = layer(copy)
        del copy
        # A cycle of references would count as memory that the layer holds.
        gc.collect()
    return counter.current - output.untyped_storage().nbytes()


class _StorageCounter(TorchDispatchMode):
    """Count the bytes of the storages that operations create, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self.current = 0
        self.counted: set[int] = set()  # addresses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # By address: a view has the storage of its input, which counts already.
        inputs = {storage.data_ptr() for storage in _storages([args, kwargs])}
        output = func(*args, **(kwargs or {}))
        for storage in _storages(output):
            if storage.data_ptr() not in inputs | self.counted:
                self._add(storage)
        return output

    def _add(self, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        self.counted.add(address)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._remove, address, size)

    def _remove(self, address: int, size: int) -> None:
        self.counted.discard(address)
        self.current -= size


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of the tensors in nested arguments or results of an operation."""
    if isinstance(value, Tensor):
        yield value.untyped_storage()
    elif isinstance(value, Mapping):
        yield from _storages([*value.values()])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _storages(each)
