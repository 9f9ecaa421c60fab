"""Memory that tensors take while something runs, on any device.

On a GPU torch's allocator knows. On the CPU it keeps no count, so every storage that an operation
returns is counted from then until it is freed; scratch memory within one operation is not seen.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak(run: Callable[[], object], device: torch.device) -> int:
    """Bytes that `run` takes at most beside what lay there before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        most: int = torch.cuda.max_memory_allocated(device)
        return most - before
    counted = _Counting()
    with counted:
        run()
    return counted.most


def kept(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Bytes that lie there for the backward pass of `layer` on a map like `x`, its output not
    counted, which the next convolution keeps anyway; on the CPU and of eager layers."""
    leaf = x.detach().requires_grad_()
    counted = _Counting()
    with counted:
        given = leaf.clone()  # no leaf, so that it goes if nobody keeps it
        out = layer(given)
        del given
        gc.collect()
    return counted.now - out.untyped_storage().nbytes()


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = self.now = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor) and _key(each) not in given | self.known:
                self._count(each.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
