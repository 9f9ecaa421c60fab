"""A normalizer of a user's own, found by --config-dir; its layers fail after some steps."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import NormAct, Normalizer


@dataclass(frozen=True)
class Broken(Normalizer):
    """Fails in its third forward pass on a device that holds numbers."""

    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> "BrokenAct":
        return BrokenAct(channels, act)


class BrokenAct(NormAct):
    batch_independent = True
    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += x.device.type != "meta"
        if self.passes == 3:
            raise RuntimeError("this layer is broken on purpose")
        return self.affine(x)


@dataclass(frozen=True)
class Vanishing(Normalizer):
    """Ends its process without a message to the scheduler."""

    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> "VanishingAct":
        return VanishingAct(channels, act)


class VanishingAct(NormAct):
    batch_independent = True

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "meta":
            os._exit(0)
        return self.affine(x)


@dataclass(frozen=True)
class CountingThreads(Normalizer):
    """Fails if torch computes with another number of threads."""

    threads: int
    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> "CountingThreadsAct":
        return CountingThreadsAct(channels, act, threads=self.threads)


class CountingThreadsAct(NormAct):
    batch_independent = True

    def __init__(self, channels: int, act: str | None, *, threads: int) -> None:
        super().__init__(channels, act)
        self.threads = threads

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "meta" and torch.get_num_threads() != self.threads:
            raise RuntimeError(f"{torch.get_num_threads()} threads")
        return self.affine(x / (1 + x.abs().mean()))


@dataclass(frozen=True)
class Untested(Normalizer):
    """Gain, shift and activation; not a number in evaluation."""

    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> "UntestedAct":
        return UntestedAct(channels, act)


class UntestedAct(NormAct):
    batch_independent = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.affine(x / (1 + x.abs().mean())))
        return y if self.training else y * float("nan")


@dataclass(frozen=True)
class Unbuildable(Normalizer):
    """Has no layers."""

    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        raise LookupError(f"no layer of {channels} channels")


@dataclass(frozen=True)
class Partial(Normalizer):
    """Fails in its third forward pass, on one rank alone."""

    batch_independent: ClassVar[bool] = False

    def layer(self, channels: int, act: str | None = "relu") -> "PartialAct":
        return PartialAct(channels, act)


class PartialAct(BrokenAct):
    batch_independent = False

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if os.environ.get("RANK") == "1" else self.affine(x)


@dataclass(frozen=True)
class Greedy(Normalizer):
    """Asks for more memory than any machine has when a pass has more images than `most`, or if
    `alone` whenever it is of several networks at once."""

    most: int = 32
    alone: bool = False
    bytes_asked: int = 2**60
    batch_independent: ClassVar[bool] = False

    def layer(self, channels: int, act: str | None = "relu") -> "GreedyAct":
        return GreedyAct(channels, act, self.most, self.bytes_asked, alone=self.alone)


class GreedyAct(NormAct):
    batch_independent = False

    def __init__(
        self, channels: int, act: str | None, most: int, bytes_asked: int, *, alone: bool
    ) -> None:
        super().__init__(channels, act)
        self.most, self.bytes_asked, self.alone = most, bytes_asked, alone

    def forward(self, x: Tensor) -> Tensor:
        crowded = self.alone and torch._C._functorch.is_batchedtensor(x)
        if self.training and (len(x) > self.most or crowded) and x.device.type != "meta":
            torch.empty(self.bytes_asked, dtype=torch.uint8, device=x.device)
        return self.activation(self.affine(x / (1 + x.abs().mean((1, 2, 3), keepdim=True))))


@dataclass(frozen=True)
class Foreign(Normalizer):
    """Batch statistics in layers that are none of ours."""

    batch_independent: ClassVar[bool] = False

    def layer(self, channels: int, act: str | None = "relu") -> Any:
        return ForeignAct(channels)


class ForeignAct(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True)
        return torch.relu((x - mean) / torch.sqrt(var + 1e-5))


@dataclass(frozen=True)
class Sluggish(Normalizer):
    """Takes a minute in every forward pass, and leaves a file beside the log of its run before."""

    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> "SluggishAct":
        return SluggishAct(channels, act)


class SluggishAct(NormAct):
    batch_independent = True

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "meta":
            Path("/proc/self/fd/1").readlink().with_name("sluggish").touch()
            time.sleep(60)
        return self.affine(x)
