"""A normalizer of a user's own, found by --config-dir; its layers fail after some steps."""

import os
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from normbench.norms.layer import NormAct, Normalizer


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
    """Ends its process without a word."""

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
