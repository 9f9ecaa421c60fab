"""Residual blocks of both orders, with their convolutions, joins and initialization.

    post-activation (v1, He et al. 2016)    x = act(shortcut(x) + norm(conv(act(norm(conv(x))))))
    pre-activation (v2, He et al. 2016b)    x = shortcut(x) + conv(act(norm(conv(act(norm(x))))))

with two 3x3 convolutions (basic) or 1x1, 3x3, 1x1 (bottleneck), the stride on the first 3x3. Every
convolution has standardized weights if the normalizer needs them. The normalizer's residual scheme
joins branch and shortcut (`normbench.norms.base.residual`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import Impossible
from normbench.models.dropout import StochasticDepth
from normbench.norms.base.activations import activation
from normbench.norms.base.layer import Normalizer, Normalizing, Scale
from normbench.norms.base.residual import FixUp, NormalizerFree, Residual, SkipInit
from normbench.norms.base.same_padding import SameConv2d

Shortcut = Literal["identity", "projection"]
ZeroInit = Literal["all", "identity"]
Order = Literal["conv_norm_act", "norm_act_conv", "act_norm_conv"]
Schemes = tuple[type[Residual], ...]
#: A size of each stage. The command line checks such types, so constructors need not.
Stages = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]

#: Residual schemes that post-activation, pre-activation (and mobile), and other blocks support.
V1: Schemes = (Residual, FixUp)
V2: Schemes = (Residual, SkipInit, NormalizerFree)
PLAIN: Schemes = (Residual,)

TRUNCATED_STD = 0.8796256610342398  # of a standard normal that is cut off at -2 and 2


@dataclass(frozen=True)
class Conv:
    """The description of a convolution."""

    channels: int  # of the input
    width: int  # channels of the output
    size: int = 3  # of the kernel
    stride: int = 1  # in both directions
    groups: int = 1
    excite: float = 0.0  # hidden width of a following squeeze-excite as a share of `width`; 0: none
    excite_act: str = "relu"  # of its hidden units
    same: bool = False  # padding SAME of TensorFlow and JAX instead of one that keeps the size
    dilation: int = 1


def basic(channels: int, width: int, stride: int) -> tuple[Conv, ...]:
    """Return two 3x3 convolutions."""
    return Conv(channels, width, 3, stride), Conv(width, width)


def bottleneck(
    channels: int, inner: int, width: int, stride: int, groups: int = 1, excite: float = 0.0
) -> tuple[Conv, ...]:
    """Return 1x1 to `inner` channels, 3x3 in `groups`, 1x1 to `width`."""
    return (
        Conv(channels, inner, 1),
        Conv(inner, inner, 3, stride, groups, excite),
        Conv(inner, width, 1),
    )


class BlockV1(nn.Module):
    """A post-activation block: each convolution precedes its normalization.

    `convs` are those of the residual branch, `rate` is that of stochastic depth. Where shapes
    change, the shortcut is an identity (every second pixel, zeros for new channels) or a projection
    (a normalized 1x1 convolution).
    """

    def __init__(
        self,
        norm: Normalizer,
        convs: Sequence[Conv],
        shortcut: Shortcut,
        *,
        act: str = "relu",
        rate: float = 0.0,
    ) -> None:
        super().__init__()
        first, last = convs[0], convs[-1]
        self.before = nn.ModuleList(norm.residual.before_conv() for _ in convs)
        self.convs = nn.ModuleList(convolution(norm, conv) for conv in convs)
        self.norms = nn.ModuleList(norm.layer(conv.width, act) for conv in convs[:-1])
        self.norms.append(norm.layer(last.width, None))
        self.excite = excitation(norm, last)
        self.drop = StochasticDepth(rate)
        self.join = norm.residual.join()
        self.shortcut: nn.Module = nn.Identity()
        step = total_stride(convs)
        changes = first.channels != last.width or step > 1
        if changes and shortcut == "identity":
            self.shortcut = Pad(last.width - first.channels, step)  # the paper's option A
        elif changes:
            project = convolution(norm, Conv(first.channels, last.width, 1, step))
            self.shortcut = nn.Sequential(project, norm.layer(last.width, None))
        self.activation = norm.activation(last.width, act)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before[0](x)  # a shift in FixUp, else the identity
        branch = self.norms[0](self.convs[0](h))
        for before, conv, norm in list(zip(self.before, self.convs, self.norms, strict=True))[1:]:
            branch = norm(conv(before(branch)))
        branch = self.excite(branch)
        # A shortcut that is not the identity also follows the first `before` module.
        shortcut = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(h)
        out: Tensor = self.activation(self.join(shortcut, self.drop(branch)))
        return out


class BlockV2(nn.Module):
    """A pre-activation block: each convolution follows its normalization and activation.

    Where shapes change, the shortcut is a 1x1 convolution of the normalized and activated input. In
    NF that input is divided by its standard deviation at initialization, also before the shortcut's
    convolution, so that its variance is 1 again. With weight standardization a learned scale per
    channel follows the last convolution, which no normalization follows (Labatie et al. 2021,
    appendix A.1).

    `beta` is the input's standard deviation, or 1. With `pool` average pooling halves the
    shortcut's maps, as in NF-RegNet, instead of a stride.
    """

    def __init__(
        self,
        norm: Normalizer,
        convs: Sequence[Conv],
        beta: float = 1.0,
        *,
        act: str = "relu",
        order: Order = "norm_act_conv",
        pool: bool = False,
        rate: float = 0.0,
    ) -> None:
        super().__init__()
        first, last = convs[0], convs[-1]
        self.beta = beta  # a number, not a tensor: nothing to learn, save or move
        self.norms = nn.ModuleList(preactivation(norm, conv.channels, act, order) for conv in convs)
        self.convs = nn.ModuleList(convolution(norm, conv) for conv in convs)
        self.excite = nn.ModuleList(excitation(norm, conv) for conv in convs)
        scaled = norm.conv is not None and norm.conv.kind == "ws"
        self.scale = Scale(last.width) if scaled else nn.Identity()
        self.drop = StochasticDepth(rate)
        step = total_stride(convs)
        self.pool: nn.Module = nn.Identity()
        if pool and step > 1:  # at an odd border, the mean of the positions that exist
            self.pool, step = nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False), 1
        self.project: nn.Conv2d | None = None
        if first.channels != last.width or total_stride(convs) > 1:
            self.project = convolution(norm, Conv(first.channels, last.width, 1, step))
        self.join = norm.residual.join()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        h = h if self.beta == 1 else h / self.beta  # after the activation, as in the paper's code
        shortcut = x  # where no shape changes
        if self.project is not None:
            shortcut = self.project(self.pool(h))
        h = self.excite[0](self.convs[0](h))
        for norm, conv, excite in list(zip(self.norms, self.convs, self.excite, strict=True))[1:]:
            h = excite(conv(norm(h)))
        out: Tensor = self.join(shortcut, self.drop(self.scale(h)))
        return out


class SqueezeExcite(nn.Module):
    """Each channel times a gate computed from the means of all channels (Hu et al. 2018).

        s = mean of x over positions,   z = x * gain * sigmoid(W2 act(W1 s + b1) + b2)

    Hidden units are a `share` of C. `gain` is 2 in normalizer-free networks, because gates are 1/2
    on average.
    """

    def __init__(self, channels: int, share: float, gain: float, act: str = "relu") -> None:
        super().__init__()
        hidden = max(1, int(channels * share))  # narrow stages keep one unit
        self.reduce = nn.Linear(channels, hidden)
        self.expand = nn.Linear(hidden, channels)
        self.act = activation(act)
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.expand(self.act(self.reduce(x.mean(dim=(2, 3))))))
        return x * (self.gain * gate)[:, :, None, None]


class Pad(nn.Module):
    """Take every `stride`-th pixel, and append `channels` channels of zeros."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.channels))


def convolution(norm: Normalizer, conv: Conv, *, bias: bool = True) -> nn.Conv2d:
    """Return a convolution as the normalizer needs it, without bias if `bias` is false."""
    plain = nn.Conv2d(
        conv.channels, conv.width, conv.size, conv.stride, conv.dilation * (conv.size // 2),
        conv.dilation, conv.groups, bias and norm.conv_bias,
    )  # fmt: skip
    if conv.same and conv.stride > 1:  # with stride 1 both paddings are the same
        plain = SameConv2d(plain)
    return plain if norm.conv is None else norm.conv.apply(plain)


def add_biases(network: nn.Module, but: nn.Module | None = None) -> None:
    """Give a bias, initially 0, to convolutions that have none, `but` one of them."""
    for conv in network.modules():
        if isinstance(conv, nn.Conv2d) and conv.bias is None and conv is not but:
            conv.bias = nn.Parameter(conv.weight.new_zeros(conv.out_channels))


def excitation(norm: Normalizer, conv: Conv) -> nn.Module:
    """Return the squeeze-excite after `conv`, or the identity."""
    if not conv.excite:
        return nn.Identity()
    return SqueezeExcite(conv.width, conv.excite, norm.residual.gate_gain, conv.excite_act)


def preactivation(norm: Normalizer, channels: int, act: str, order: Order) -> nn.Module:
    """Return normalization and activation before a convolution of a pre-activation block.

    Raises:
        Impossible: `order` needs a layer without activation, which this normalizer does not have.
    """
    if order == "norm_act_conv":
        return norm.layer(channels, act)
    layer = norm.layer(channels, None)
    if not isinstance(layer, Normalizing):
        raise Impossible(
            f"order={order} needs a normalization without activation, and this normalizer has "
            "none: without an activation it normalizes nothing; order=norm_act_conv works"
        )
    return nn.Sequential(norm.activation(channels, act), layer)


def total_stride(convs: Sequence[Conv]) -> int:
    """Return the factor by which a branch shrinks its maps."""
    return max(conv.stride for conv in convs)  # one convolution of a branch has a stride


def initialize(
    network: nn.Module,
    norm: Normalizer,
    blocks: Iterable[nn.Module],
    head: nn.Linear,
    start: Callable[[Tensor], object] | None = None,
) -> None:
    """Initialize a network as in the papers, then as the normalizer's residual scheme asks.

    `start` initializes the weight of a convolution. Without it convolutions are N(0, 2 / fan-out),
    as in the papers' ResNets; torch's default has a sixth of that variance.
    """
    if head.weight.is_meta:
        return  # there are no numbers, and torch takes longer to draw none than to draw some
    start = start or partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            start(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    branches = [list(block.get_submodule("convs").children()) for block in blocks]
    norm.residual.initialize(network, branches, head)  # type: ignore[arg-type]


def zero_last_gains(blocks: Iterable[nn.Module], which: ZeroInit) -> None:
    """Start the gain of the last normalization of post-activation blocks at 0.

    Raises:
        Impossible: the layers have no gain.
    """
    for block in blocks:
        if which == "all" or isinstance(block.shortcut, nn.Identity):
            gain = block.get_submodule("norms")[-1].weight  # type: ignore[index]
            if gain is None:
                raise Impossible(
                    f"zero_init_last={which}: this normalizer has no gain at the end of residual "
                    "branches; zero_init_last=null works"
                )
            nn.init.zeros_(gain)


def fan_in_normal(weight: Tensor, gain: float) -> None:
    """Draw a weight from N(0, gain^2 / fan-in)."""
    nn.init.normal_(weight, std=gain * weight[0].numel() ** -0.5)


def truncated_fan_in_normal(weight: Tensor) -> None:
    """Draw a weight of variance 1 / fan-in from a normal cut off at two standard deviations.

    As TensorFlow's variance_scaling_initializer: the normal that is cut off is wider, so the
    variance is what it would be without the cut.
    """
    std = weight[0].numel() ** -0.5 / TRUNCATED_STD
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def require_residual(norm: Normalizer, offered: Schemes) -> None:
    """Raise Impossible for a normalizer whose residual branches are not among those `offered`."""
    if type(norm.residual) not in offered:
        v1, v2 = (", ".join(scheme.kind for scheme in schemes) for schemes in (V1, V2))
        raise Impossible(
            f"the normalizer asks for residual branches of kind {norm.residual}, which this model "
            f"does not have; post-activation models (model=resnet14, resnet50) have {v1}, and "
            f"pre-activation and mobile models (model=resnet14_v2, efficientnet_b0) {v2}"
        )
