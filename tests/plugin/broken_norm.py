"""A normalizer of a user's own, found by --config-dir; its layers fail after some steps."""

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
