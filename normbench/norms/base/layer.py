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

from normbench.errors import Impossible
from normbench.norms.base.activations import activation, alone
from normbench.norms.base.recompute import Recomputable, recomputed
from normbench.norms.base.residual import Residual
from normbench.norms.base.standardized_conv import Standardization

Role = Literal["weight", "bias", "gain", "shift", "scalar", "proxy", "ratio", "residual"]


class Normalizer(ABC):
    """A normalizer as its yaml describes it. Architectures take it and never ask its name."""

    @property
    @abstractmethod
    def batch_independent(self) -> bool:
        """Each image's output depends on that image alone, in training and in evaluation."""

    @property
    def worker_independent(self) -> bool:
        """How images are divided among workers changes nothing, as long as the step has the same.

        So of batch-independent normalizers, and of those that see the whole step at once.
        """
        return self.batch_independent

    @property
    def conv(self) -> Standardization | None:
        """What it asks of convolutions: nothing, or a standardization of their weights."""
        return None

    @property
    def conv_bias(self) -> bool:
        """Whether convolutions have a bias, the stem aside; a layer's shift makes it needless."""
        return False

    @property
    def residual(self) -> Residual:
        """What it asks of residual branches."""
        return Residual()

    @abstractmethod
    def layer(self, channels: int, act: str | None = "relu") -> "NormAct":
        """Joint normalization and activation of `channels` channels; None: no activation."""

    def final_layer(self, channels: int, act: str | None = "relu") -> "NormAct":
        """The layer whose activation goes into the final mean over all positions."""
        return self.layer(channels, act)

    def activation(self, channels: int, act: str = "relu") -> nn.Module:  # noqa: ARG002 (TLU)
        """An activation that no normalization precedes, as after the addition of a v1 block."""
        return Activation(act)

    def with_max_groups(self, max_groups: int | None) -> Self:  # noqa: ARG002 (those with groups read it)
        """This normalizer with at most `max_groups` groups; itself if it has none."""
        return self

    def inherit_options(self, old: nn.Module) -> Self:  # noqa: ARG002 (those of its kind read it)
        """This normalizer with what `old`, a normalization of torch or timm, says of its kind."""
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

    def with_max_groups(self, max_groups: int | None) -> Self:
        return self if max_groups is None else replace(self, groups=min(self.groups, max_groups))


class Activation(nn.Module):
    """An activation function as a module."""

    def __init__(self, act: str | None) -> None:
        super().__init__()
        self.act = act
        self.function = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return f"{self.act}"


class NormAct(Recomputable, nn.Module):
    """Normalization and activation in one layer, (N, C, H, W) -> (N, C, H, W).

    Parameters are the gain `weight` (C,), at first 1, and the shift `bias` (C,), at first 0, unless
    a subclass says that it has none. Statistics are taken in at least fp32; the output has the
    dtype and the memory format of the input. Subclasses write `norm_act` and `reference`.
    """

    batch_independent: bool
    #: Its statistics are those of all images of an optimizer step, so that all share one pass.
    whole_step: bool = False
    #: Computes the map in another way, or says by None that it cannot
    #: (`normbench.norms.kernels.dispatch`).
    kernel: "Callable[[NormAct, Tensor], Tensor | None] | None" = None
    #: Why a training cannot begin with the layer as it is, but only from a checkpoint.
    unfinished: str = ""
    roles: ClassVar[dict[str, Role]] = {"weight": "gain", "bias": "shift"}
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self, channels: int, act: str | None, *, gain: bool = True, shift: bool = True
    ) -> None:
        super().__init__()
        require_positive(channels=channels)
        self.channels = channels
        self.act = act
        self.function = activation(act)
        ones, zeros = torch.ones(channels), torch.zeros(channels)
        self.register_parameter("weight", nn.Parameter(ones) if gain else None)
        self.register_parameter("bias", nn.Parameter(zeros) if shift else None)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's map.

        Raises:
            ValueError: `x` is no batch of maps with the layer's channels, or holds no image.
            Impossible: the statistics would be those of single values.
        """
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(f"maps (N, {self.channels}, H, W) are expected, not {tuple(x.shape)}")
        if x.numel() == 0:
            raise ValueError(f"a batch of shape {tuple(x.shape)} holds nothing to normalize")
        if reason := self.refusal(x.shape):
            raise Impossible(reason)
        if self.kernel is not None and (found := self.kernel(self, x)) is not None:
            return found
        if self.recompute and self.worth_recomputing and torch.is_grad_enabled():
            return recomputed(self, x)
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        return cast_like(self.norm_act(x), x)

    @property
    def worker_independent(self) -> bool:
        """As `Normalizer.worker_independent`."""
        return self.batch_independent

    def refusal(self, shape: torch.Size) -> str:  # noqa: ARG002 (most layers take any)
        """Why maps of this shape cannot be normalized, or nothing."""
        return ""

    def norm_act(self, x: Tensor) -> Tensor:
        """Normalization and activation; may come out wider and in another memory format."""
        raise NotImplementedError

    def affine(self, y: Tensor) -> Tensor:
        """The learned gain and shift, per channel, where the layer has them."""
        if self.weight is not None:
            y = y * per_channel(self.weight)
        return y if self.bias is None else y + per_channel(self.bias)

    def activation(self, y: Tensor) -> Tensor:
        """What follows gain and shift."""
        return self.function(y)

    def reference(self, x: Tensor) -> Tensor:
        """The paper's equation, term by term in double precision; tests hold `forward` to it."""
        raise NotImplementedError

    def adopt(self, old: nn.Module) -> None:
        """Start with the gain and shift of `old`, as far as both have them."""
        self._copy(old, "weight", "bias")

    def _copy(self, old: nn.Module, *names: str) -> None:
        for name in names:
            mine, theirs = getattr(self, name, None), getattr(old, name, None)
            if mine is not None and theirs is not None and mine.shape == theirs.shape:
                with torch.no_grad():
                    mine.copy_(theirs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in kept.items():
            after = self.get_buffer(name)
            if after.dtype.itemsize < 4:  # .half() and .bfloat16() are for parameters alone
                setattr(self, name, before.to(after.device))
        return self

    def extra_repr(self) -> str:
        groups = f", groups={self.groups}" if hasattr(self, "groups") else ""
        weight = getattr(self, "example_weight", None)
        usual = getattr(type(self), "example_weight", None)
        weighed = f", example_weight={weight}" if weight != usual else ""
        return f"{self.channels}, act={self.act}{groups}{weighed}"


class Normalizing(NormAct):
    """A layer that is activation(affine(normalize(x)))."""

    example_weight: float | None = None  # of an image in its own statistics, in evaluation

    def norm_act(self, x: Tensor) -> Tensor:
        return self.activation(self.affine(self.normalize(x)))

    def normalize(self, x: Tensor) -> Tensor:
        """The normalized input, before gain, shift and activation; moves no running statistics."""
        raise NotImplementedError

    def reference(self, x: Tensor) -> Tensor:
        if self.example_weight != type(self).example_weight:
            raise ValueError("example weighing is no part of the layer, so no reference has it")
        return self.activation(self.affine(self.reference_normalize(x.double())))

    def reference_normalize(self, x: Tensor) -> Tensor:
        """The paper's equation for `normalize`, term by term, for `x` in double precision."""
        raise NotImplementedError


class Affine(NormAct):
    """Gain, shift and activation alone: nothing is normalized."""

    batch_independent = True

    @property
    def worth_recomputing(self) -> bool:
        return self.weight is not None and not saves_only_output(self.act)

    def norm_act(self, x: Tensor) -> Tensor:
        if self.weight is None and self.bias is None:
            return alone(self.activation, x)
        return self.activation(self.affine(x))

    def reference(self, x: Tensor) -> Tensor:
        weight = torch.ones(self.channels) if self.weight is None else self.weight
        bias = torch.zeros(self.channels) if self.bias is None else self.bias
        maps = x.double().unbind(1)
        z = [self.function(maps[c] * weight[c] + bias[c]) for c in range(self.channels)]
        return torch.stack(z, dim=1)


class Scale(Affine):
    """A gain per channel alone."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, None, shift=False)


def per_channel(parameter: Tensor) -> Tensor:
    """(C,) seen as (C, 1, 1), or (N, C) as (N, C, 1, 1), which broadcasts over (N, C, H, W)."""
    return parameter[..., None, None]


def upcast(x: Tensor) -> Tensor:
    """`x` in a dtype good enough for statistics: half precision becomes fp32, fp64 stays."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def cast_like(y: Tensor, x: Tensor) -> Tensor:
    """`y` in the dtype and the memory format of `x`."""
    # In this order: of the maps of several seeds at once vmap knows strides and no such format.
    channels_last = (
        not x.is_contiguous()
        and x.stride(1) == 1
        and x.shape[2:].numel() > 1
        and x.is_contiguous(memory_format=torch.channels_last)
    )
    y = y.to(x.dtype)
    return y.contiguous(memory_format=torch.channels_last) if channels_last else y


def saves_only_output(act: str | None) -> bool:
    """Whether an activation needs no map but its output, which the next convolution keeps, too."""
    return act in (None, "relu", "identity")


def require_positive(**options: float) -> None:
    """Raise ValueError for the first of `options` that is not above 0."""
    for name, value in options.items():
        if value <= 0:
            raise ValueError(f"{name}={value}: it must be above 0")


def require_share(**options: float) -> None:
    """Raise ValueError for the first of `options` that is not above 0 and up to 1."""
    for name, value in options.items():
        if not 0 < value <= 1:
            raise ValueError(f"{name}={value}: it must be above 0 and at most 1")


def largest_divisor(channels: int, groups: int) -> int:
    """The largest number of groups up to `groups` that divides `channels`."""
    require_positive(channels=channels, groups=groups)
    return next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
