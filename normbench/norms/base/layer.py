"""The interfaces of a normalizer, which an architecture takes, and of the layers it makes.

Shape letters in this package: N images of a forward pass, C channels, H W positions, G groups,
W workers (N / W images per worker).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from normbench.errors import Impossible
from normbench.norms.base.activations import activation, save_input_only
from normbench.norms.base.closed_form import apply_map
from normbench.norms.base.options import check_options, largest_divisor, positive, require_positive
from normbench.norms.base.residual import Residual
from normbench.norms.base.standardized_conv import Standardization
from normbench.norms.base.tensors import per_channel, upcast

#: A batch normalization by constants: mean, variance (C,), eps, gain, shift (C,).
Constants = tuple[Tensor, Tensor, float, Tensor | None, Tensor | None]
#: Gain and shift (C,), where there are any.
GainAndShift = tuple[Tensor | None, Tensor | None]
Role = Literal["weight", "bias", "gain", "shift", "scalar", "proxy", "ratio", "residual"]


class Normalizer(ABC):
    """A normalizer with the options of its yaml. Architectures take it and never ask its name."""

    def __post_init__(self) -> None:
        """Check the options; data classes call this."""
        check_options(self)

    #: True if an image's output and gradient have the same bits in batches of every size, on a CPU
    #: and with another activation than SiLU.
    batch_invariant: ClassVar[bool] = False

    @property
    @abstractmethod
    def batch_independent(self) -> bool:
        """True if an image's output depends on that image alone, in training and evaluation."""

    @property
    def worker_independent(self) -> bool:
        """True if the division of a step's images among workers changes nothing.

        So are batch-independent normalizers, and those with statistics of the whole step.
        """
        return self.batch_independent

    @property
    def conv(self) -> Standardization | None:
        """The weight standardization of the network's convolutions, or None."""
        return None

    @property
    def conv_bias(self) -> bool:
        """True if convolutions but the stem have a bias; a layer's shift makes it redundant."""
        return False

    @property
    def residual(self) -> Residual:
        """The residual scheme of the network's blocks."""
        return Residual()

    @abstractmethod
    def layer(self, channels: int, act: str | None = "relu") -> "NormAct":
        """Return normalization and activation of `channels` channels; None: no activation."""

    def final_layer(self, channels: int, act: str | None = "relu") -> "NormAct":
        """Return the layer whose activation goes into the final mean over all positions."""
        return self.layer(channels, act)

    def activation(self, channels: int, act: str = "relu") -> nn.Module:  # noqa: ARG002 (TLU)
        """Return an activation with no norm before it, as after the addition of a v1 block."""
        return Activation(act)

    def with_max_groups(self, max_groups: int | None) -> Self:  # noqa: ARG002 (Grouped reads it)
        """Return this normalizer with at most `max_groups` groups; itself if it has no groups."""
        return self

    @property
    def for_new_layers(self) -> "Normalizer":
        """The normalizer of layers that a network gets for a further task."""
        return self

    def inherit_options(self, old: nn.Module) -> Self:  # noqa: ARG002 (BatchNorm reads it)
        """Return this normalizer with the options of the layer of torch or timm it replaces."""
        return self


@dataclass(frozen=True)
class Grouped(Normalizer):
    """A normalizer with statistics over groups of channels.

    Args:
        groups: number of groups G; a layer uses the largest divisor of its channels up to it.
        eps: added to the variance, inside the square root.
    """

    groups: int = positive(32)  # the papers' number
    eps: float = positive(1e-5)

    def with_max_groups(self, max_groups: int | None) -> Self:
        return self if max_groups is None else replace(self, groups=min(self.groups, max_groups))

    def groups_of(self, channels: int) -> int:
        """Return the number of groups of a layer of `channels` channels."""
        return largest_divisor(channels, self.groups)


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


class NormAct(nn.Module):
    """Normalization and activation in one layer, (N, C, H, W) -> (N, C, H, W).

    Parameters are the gain `weight` (C,), initially 1, and the shift `bias` (C,), initially 0, if
    the subclass has them. Subclasses implement `norm_act` and `reference`.
    """

    batch_independent: bool
    #: Statistics cover all images of an optimizer step, of all devices and passes.
    whole_step: bool = False
    #: Another implementation, which returns None for an input that it does not support
    #: (`normbench.norms.kernels.dispatch`).
    kernel: "Callable[[NormAct, Tensor], Tensor | None] | None" = None
    #: Why the layer can only be trained from a checkpoint, or "".
    unfinished: str = ""
    #: Role of each parameter, for weight decay and learning rates.
    roles: ClassVar[dict[str, Role]] = {"weight": "gain", "bias": "shift"}
    #: Parameters and buffers that `inherit_parameters` copies.
    inherited: ClassVar[tuple[str, ...]] = ("weight", "bias")
    #: Attributes in the layer's `repr`: all options, as layers of one `repr` count as equal.
    shown: ClassVar[tuple[str, ...]] = ("act",)
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
        """Normalize and activate `x`.

        Raises:
            ValueError: `x` is not a batch of maps with the layer's channels, or is empty.
            Impossible: maps of this shape cannot be normalized, such as single values.
        """
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(f"expected maps (N, {self.channels}, H, W), got {tuple(x.shape)}")
        if x.numel() == 0:
            raise ValueError(f"a batch of shape {tuple(x.shape)} is empty")
        if reason := self.refusal(x.shape):
            raise Impossible(reason)
        if self.kernel is not None and (output := self.kernel(self, x)) is not None:
            return output
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """Return the formula's output in the dtype and memory format of `x`."""
        return cast_like(self.norm_act(x), x)

    @property
    def worker_independent(self) -> bool:
        """See `Normalizer.worker_independent`."""
        return self.batch_independent

    def refusal(self, shape: torch.Size) -> str:  # noqa: ARG002 (most layers take any)
        """Return why maps of this shape cannot be normalized, or ""."""
        return ""

    def norm_act(self, x: Tensor) -> Tensor:
        """Normalize and activate; the result may have a wider dtype or another memory format."""
        raise NotImplementedError

    def affine(self, y: Tensor) -> Tensor:
        """Apply the learned gain and shift per channel, where the layer has them."""
        if self.weight is not None:
            y = y * per_channel(self.weight)
        return y if self.bias is None else y + per_channel(self.bias)

    def activation(self, y: Tensor) -> Tensor:
        """Apply the activation that follows gain and shift."""
        return self.function(y)

    def reference(self, x: Tensor) -> Tensor:
        """Compute the paper's equation term by term in double precision, for tests of `forward`."""
        raise NotImplementedError

    def inference_layers(self) -> "list[NormAct]":
        """Return layers that together compute the same in evaluation.

        What does not depend on the images is computed once. Default: the layer itself.
        """
        return [self]

    def split_front(self) -> tuple[Constants, nn.Module] | None:
        """Return a batch normalization by constants and the rest, if evaluation begins with one."""
        return None

    def split_back(self) -> tuple[nn.Module, GainAndShift] | None:
        """Return all but the last gain and shift, and these, if evaluation ends with them."""
        return None

    def split_affine(self) -> tuple[nn.Module, GainAndShift]:
        """Return a copy without gain and shift, and these: `split_back` where they come last."""
        rest = copy.deepcopy(self)
        rest.weight = rest.bias = None
        return rest, (self.weight, self.bias)

    @torch.no_grad()
    def inherit_parameters(self, old: nn.Module) -> None:
        """Copy what the layer inherits from the replaced layer `old`, where shapes are equal."""
        for name in self.inherited:
            target, source = getattr(self, name, None), getattr(old, name, None)
            if target is not None and source is not None and target.shape == source.shape:
                target.copy_(source)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        buffers = dict(self.named_buffers(recurse=False))  # before `fn` rounds them
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in buffers.items():
            after = self.get_buffer(name)
            if after.dtype.itemsize < 4:  # .half() and .bfloat16() must not round statistics
                dtype = torch.float32 if before.is_floating_point() else before.dtype
                setattr(self, name, before.to(after.device, dtype))
        return self

    def extra_repr(self) -> str:
        shown = (f", {name}={getattr(self, name)}" for name in self.shown)
        return f"{self.channels}{''.join(shown)}"


class Normalizing(NormAct):
    """A layer that is activation(affine(normalize(x)))."""

    #: Weight of an image in its own statistics in evaluation (`normbench.norms.inference`), a float
    #: in layers that support it.
    example_weight: Any = None

    @property
    def weighs_examples(self) -> bool:
        """True in an evaluation with another weight than that of the plain layer."""
        return not self.training and self.example_weight != type(self).example_weight

    def norm_act(self, x: Tensor) -> Tensor:
        return self.activation(self.affine(self.normalize(x)))

    def map_standardized(self, x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return activation(affine((x - mean) * scale)); both broadcast to (N, C).

        As x * a + b, so values lose digits where |mean| is thousands of deviations.
        """
        return self.map_scaled(x, scale, -mean * scale)

    def map_scaled(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """Return activation(affine(x * scale + shift)); both broadcast to (N, C).

        The activation is `act` with `output_affine`; a layer with another one overrides this.
        """
        if self.weight is not None:
            weight = upcast(self.weight)
            scale, shift = scale * weight, shift * weight
        if self.bias is not None:
            shift = shift + self.bias
        return apply_map(self.act, x, scale, shift, *self.output_affine())

    def output_affine(self) -> GainAndShift:
        """Return a gain and a shift (C,) that follow the activation, or None."""
        return None, None

    def normalize(self, x: Tensor) -> Tensor:
        """Return the input normalized, before gain, shift and activation; update no statistics."""
        raise NotImplementedError

    def reference(self, x: Tensor) -> Tensor:
        if self.example_weight != type(self).example_weight:
            raise ValueError("example weighing has no reference; reset the example weight first")
        return self.activation(self.affine(self.reference_normalize(x.double())))

    def reference_normalize(self, x: Tensor) -> Tensor:
        """Compute the paper's equation for `normalize`, term by term in double precision."""
        raise NotImplementedError


class Affine(NormAct):
    """Gain, shift and activation without normalization."""

    batch_independent = True

    def norm_act(self, x: Tensor) -> Tensor:
        if self.weight is None and self.bias is None:
            return save_input_only(self.activation, x)
        return self.activation(self.affine(x))

    def split_front(self) -> tuple[Constants, nn.Module] | None:
        like = self.bias if self.weight is None else self.weight
        if like is None:
            return None
        constants = (torch.zeros_like(like), torch.ones_like(like), 0.0, self.weight, self.bias)
        return constants, Activation(self.act)

    def reference(self, x: Tensor) -> Tensor:
        weight = torch.ones(self.channels) if self.weight is None else self.weight
        bias = torch.zeros(self.channels) if self.bias is None else self.bias
        maps = x.double().unbind(1)
        z = [self.function(maps[c] * weight[c] + bias[c]) for c in range(self.channels)]
        return torch.stack(z, dim=1)


class Scale(Affine):
    """A gain per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, None, shift=False)


def cast_like(y: Tensor, x: Tensor) -> Tensor:
    """Return `y` in the dtype and memory format of `x`."""
    y = y.to(x.dtype)
    # As a view of contiguous (N, H, W, C), since vmap knows no memory format.
    return y.movedim(1, -1).contiguous().movedim(-1, 1) if is_channels_last(x) else y


def is_channels_last(x: Tensor) -> bool:
    """Return True if the channels of a position are adjacent, not the positions of a channel."""
    if x.dim() != 4:
        return False
    # By strides, which are known under vmap (stacked seeds), as the memory format is not.
    _, channels, height, width = x.shape
    return (
        not x.is_contiguous()
        and x.stride(1) == 1
        and height * width > 1
        and (width == 1 or x.stride(3) == channels)
        and (height == 1 or x.stride(2) == width * channels)
    )
