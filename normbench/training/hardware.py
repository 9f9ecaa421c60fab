"""Devices, precision and compilers: what decides how fast a cell is trained."""

import os
import platform
import resource
import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from normbench.config.cells import Cell


def uses_gpu(cell: Cell) -> bool:
    """Return True if `cell` is trained on a GPU; `accelerator=auto` takes one if visible."""
    accelerator = cell.trainer.accelerator
    return accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available())


def device_type(cell: Cell) -> Literal["cuda", "cpu"]:
    """Return the kind of device on which `cell` is trained."""
    return "cuda" if uses_gpu(cell) else "cpu"


def current_rank() -> int:
    """Return the rank of this process in its run."""
    return int(os.environ.get("RANK", 0))


def weight_dtype(cell: Cell) -> torch.dtype:
    """Return the data type of weights and images."""
    return torch.float64 if cell.precision == "64-true" else torch.float32


def autocast_context(cell: Cell, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass outside of a trainer: autocast if precision is mixed."""
    dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    if cell.precision not in dtypes:
        return nullcontext()
    return torch.autocast(device.type, dtypes[cell.precision])


def use_full_precision() -> None:
    """Disable TF32, so that fp32 convolutions on a GPU have a mantissa of 23 bits and not of 10.

    Uninitialized memory is not filled in deterministic mode: nothing is read before it is written.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def missing_compiler(cell: Cell) -> str:
    """Return the compiler that torch.compile lacks here, C for a GPU and C++ for a CPU, or ""."""
    variable, defaults = ("CC", ("gcc", "clang")) if uses_gpu(cell) else ("CXX", ("g++",))
    compilers = (name,) if (name := os.environ.get(variable)) else defaults
    return "" if any(map(shutil.which, compilers)) else f"{compilers[0]} ({variable} names another)"


def host_memory() -> int:
    """Return the bytes of main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def measure_devices(cell: Cell, devices: int) -> dict[str, Any]:
    """Return the fields of a row about its devices: name, memory of one, and peak memory."""
    if uses_gpu(cell):
        device = torch.cuda.get_device_properties(0)
        return {
            "devices": f"{devices} x {device.name}",
            "device_memory": device.total_memory,
            "peak_memory": torch.cuda.max_memory_allocated(),
        }
    return {
        "devices": f"{devices} x cpu ({platform.machine()})",
        "device_memory": host_memory(),
        # Linux gives it in KiB.
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
