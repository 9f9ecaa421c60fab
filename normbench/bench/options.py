"""Options of every benchmark. Imports no torch, so that --help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from normbench.config.cli import option


@dataclass(frozen=True)
class BenchOptions:
    """Options of all kinds."""

    rounds: int = option(7, "measurements of each, in turn", most=10**6)
    out: Path | None = option(
        None, "CSV file to write, with machine, versions and commit, as in reports/bench", "FILE"
    )


@dataclass(frozen=True)
class BenchLayersOptions(BenchOptions):
    """Time of a forward and a backward pass of every normalizer's layer, relative to torch's batch
    normalization and ReLU; the memory that it saves for the backward pass, in maps of its input's
    size."""

    norm: tuple[str, ...] = option((), "normalizers (all)")
    impl: tuple[Literal["eager", "compile", "triton"], ...] = option(
        (), "implementations (all that work on the device; triton needs CUDA)", "IMPL,..."
    )
    peers: bool = option(True, "time layers of torch and timm, too")
    shape: tuple[str, ...] = option(("4x256x56x56", "32x256x14x14"), "maps", "NxCxHxW,...")
    act: str = option("relu", "activation after the normalization")
    dtype: Literal["float32", "bfloat16"] = option("float32", "type of the maps")
    device: Literal["cpu", "cuda"] = option("cpu", "device of the layers")
    format: Literal["contiguous", "channels_last"] = option("contiguous", "memory format")
    threads: int = option(1, "CPU threads", most=1024)


@dataclass(frozen=True)
class BenchStepOptions(BenchOptions):
    """Processor time of an optimizer step relative to a bare PyTorch loop; on a GPU wall time, with
    and without CUDA graphs. WORDS of one cell, as norm=gn batch=4."""

    device: Literal["cpu", "cuda"] = option("cpu", "device of the training")
    steps: int = option(300, "optimizer steps of a training")
    threads: int = option(1, "CPU threads", most=1024)


@dataclass(frozen=True)
class BenchSeedsOptions(BenchOptions):
    """Processor time of stacked seeds relative to the same seeds one after the other. WORDS of one
    cell, as norm=gn batch=4."""

    seeds: tuple[int, ...] = option((3, 8), "numbers of seeds")
    steps: int = option(300, "optimizer steps of a training")
    threads: int = option(1, "CPU threads", most=1024)


@dataclass(frozen=True)
class BenchSweepOptions(BenchOptions):
    """Wall time of a sweep, and of one command per cell, one after the other; from the command to
    the first step, and from a run's row to the next run's first step. WORDS of a grid of lists, as
    norm=bn,gn seed=0,1,2."""

    against: Path | None = option(None, "another checkout of normbench, whose sweep is timed, too")


@dataclass(frozen=True)
class BenchReportOptions(BenchOptions):
    """Time of making tables from made-up rows, relative to parsing their JSON."""

    rows: int = option(10_000, "made-up rows")


@dataclass(frozen=True)
class BenchWorkersOptions(BenchOptions):
    """Speed of a run under several plans, relative to the first. WORDS of one cell, as
    protocol=fixed_workers workers=8 norm=bn batch=4."""

    plans: tuple[str, ...] = option(
        (), "devices x per_forward x accumulation; their product is the workers", "PLAN,..."
    )
    cores: int | None = option(
        None, "CPU cores that all processes share (those of this machine)", most=1024
    )


@dataclass(frozen=True)
class BenchLoaderOptions(BenchOptions):
    """Speed of several loaders, relative to the first; nothing is trained. WORDS of one cell, as
    data=cifar10 trainer.readers=2 batch=4."""

    loaders: tuple[Literal["usual", "memory", "torch", "ffcv"], ...] = option(
        (), "memory, torch, ffcv, and usual: a DataLoader as in PyTorch's tutorials, which loads "
        "`batch` images at a time in trainer.readers processes. All but memory need a data set of "
        "files, as data=fashion_mnist. With a few hundred images most of the time is their start",
        "L,...",
    )  # fmt: skip
    cores: int | None = option(
        None, "CPU cores that all processes share (those of this machine)", most=1024
    )
