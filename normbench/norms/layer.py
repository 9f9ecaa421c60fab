"""What a normalizer is: the object that an architecture takes, and the layer that it makes.

Shape letters in this folder: N images of the forward pass, C channels, H W positions, G groups,
W workers (images per worker is N / W; the width of a map never needs a letter of its own here).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import choose_from

Role = Literal["weight", "bias", "gain", "shift", "residual"]

ACTIVATIONS = ("relu", "silu", "gelu", "tanh", "elu", "leaky_relu", "softplus", "relu6", "selu")


class Normalizer(ABC):
    """A normalizer as its yaml describes it. Architectures take it and never ask its name."""

    #: Each image's output depends on that image alone, in training and in evaluation.
    batch_independent: ClassVar[bool]
    #: What it asks of convolutions: nothing, "ws" (weight standardization) or "scaled_ws".
    conv: ClassVar[Literal["ws", "scaled_ws"] | None] = None
    #: What it asks of residual branches.
    residual: ClassVar[Literal["plain", "nf", "skipinit", "fixup"]] = "plain"

    @abstractmethod
    def layer(self, channels: int, act: str | None = "relu") -> "NormAct":
        """Joint normalization and activation of `channels` channels; None: no activation."""

    def capped(self, max_groups: int | None) -> Self:  # noqa: ARG002 (those with groups read it)
        """This normalizer with at most `max_groups` groups; itself if it has none."""
        return self


@dataclass(frozen=True)
class Grouped(Normalizer):
    """A normalizer whose statistics are those of groups of channels of one image.

    Args:
        groups: number of groups G; a layer uses the largest divisor of its channels up to it.
        eps: added to the variance, inside the square root.
    """

    groups: int = 32
    eps: float = 1e-5

    batch_independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(groups=self.groups, eps=self.eps)

    def capped(self, max_groups: int | None) -> Self:
        return self if max_groups is None else replace(self, groups=min(self.groups, max_groups))


class NormAct(nn.Module):
    """Normalization and activation in one layer, (N, C, H, W) -> (N, C, H, W).

    Parameters are the gain `weight` (C,), at first 1, and the shift `bias` (C,), at first 0.
    Statistics are taken in at least fp32; the output has the dtype of the input.
    """

    batch_independent: ClassVar[bool]
    roles: ClassVar[dict[str, Role]] = {"weight": "gain", "bias": "shift"}

    def __init__(self, channels: int, act: str | None) -> None:
        super().__init__()
        self.channels = channels
        self.act = act
        self.activation = activation(act)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def affine(self, y: Tensor) -> Tensor:
        """The learned gain and shift, per channel."""
        return y * per_channel(self.weight) + per_channel(self.bias)

    def reference(self, x: Tensor) -> Tensor:
        """The paper's equation, term by term in double precision; tests hold `forward` to it."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{self.channels}, act={self.act}"


def activation(name: str | None) -> Callable[[Tensor], Tensor]:
    """The activation function called `name` in torch.nn.functional, or the identity for None."""
    if name is None:
        return lambda x: x
    if name not in ACTIVATIONS:
        raise ValueError(f"act={name} is no activation; {choose_from(name, ACTIVATIONS)}")
    function: Callable[[Tensor], Tensor] = getattr(F, name)
    return function


def per_channel(parameter: Tensor) -> Tensor:
    """(C,) seen as (C, 1, 1), which broadcasts over (N, C, H, W)."""
    return parameter[:, None, None]


def wide(x: Tensor) -> Tensor:
    """`x` in a dtype good enough for statistics: half precision becomes fp32, fp64 stays."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def require_positive(**options: float) -> None:
    """Raise ValueError for the first of `options` that is not above 0."""
    for name, value in options.items():
        if value <= 0:
            raise ValueError(f"{name}={value}: it must be above 0")


def largest_divisor(channels: int, groups: int) -> int:
    """The largest number of groups up to `groups` that divides `channels`."""
    return next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
