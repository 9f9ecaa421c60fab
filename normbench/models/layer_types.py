"""What a layer of torch, timm or torchvision is: a normalization, an activation, a gate, a drop."""

from collections.abc import Callable

import timm.layers
import torch
import torchvision
from torch import Tensor, nn

from normbench.norms.base.activations import GAINS, activation
from normbench.norms.base.layer import NormAct

#: Bounded between 0 and 1 it is a gate, whose output multiplies; no normalizer may replace it.
GATE = "sigmoid"

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    timm.layers.FrozenBatchNormAct2d,
    timm.layers.FilterResponseNormAct2d,
    timm.layers.EvoNorm2dB0,
    timm.layers.EvoNorm2dS0,
    timm.layers.RmsNorm,
    timm.layers.RmsNorm2d,
    timm.layers.SimpleNorm2d,
    torchvision.ops.FrozenBatchNorm2d,
)
GATES = (nn.Sigmoid, nn.Hardsigmoid, nn.Softmax, timm.layers.Sigmoid, timm.layers.HardSigmoid)
#: Where torch and timm keep the modules of their activations.
ACTIVATION_MODULES = ("torch.nn.modules.activation", "timm.layers.activations")


def is_norm(layer: nn.Module | None) -> bool:
    """Whether it is a normalization of torch, timm or torchvision."""
    return isinstance(layer, NORMS)


def is_batch_norm(layer: nn.Module) -> bool:
    """Whether its statistics are those of a batch, or once were, whoever wrote it."""
    ours = isinstance(layer, NormAct | nn.modules.instancenorm._InstanceNorm)
    return "running_var" in layer._buffers and not ours


def is_activation(layer: nn.Module) -> bool:
    """Whether it is an activation of torch or timm, and no gate."""
    return type(layer).__module__.startswith(ACTIVATION_MODULES) and not isinstance(layer, GATES)


def is_standardized(layer: nn.Module) -> bool:
    """Whether it is a convolution of timm's with standardized weights."""
    return isinstance(
        layer, timm.layers.StdConv2d | timm.layers.StdConv2dSame
    ) or is_scaled_standardized(layer)


def is_scaled_standardized(layer: nn.Module) -> bool:
    """Whether it is one with scaled weight standardization, as normalizer-free networks have."""
    return isinstance(layer, timm.layers.ScaledStdConv2d | timm.layers.ScaledStdConv2dSame)


def drop_rate(layer: nn.Module | None) -> float | None:
    """Of a layer that drops values or paths at random: its rate."""
    if isinstance(layer, timm.layers.DropPath):
        return float(layer.drop_prob or 0.0)
    if isinstance(layer, timm.layers.DropBlock2d):
        return float(layer.drop_prob)
    if isinstance(layer, nn.modules.dropout._DropoutNd | torchvision.ops.StochasticDepth):
        return float(layer.p)
    return None


def normalizes_channels(layer: nn.Module, given: tuple[int, ...]) -> bool:
    """Whether it takes maps (N, C, H, W) of shape `given` with their channels second."""
    last = isinstance(layer, nn.LayerNorm | nn.RMSNorm | timm.layers.RmsNorm)
    # LayerNorm2d of timm and torchvision turn the axes themselves, and are called so.
    return len(given) == 4 and (not last or "2d" in type(layer).__name__)


def activation_name(layer: nn.Module | None) -> str | None:
    """The name of the activation that a module without parameters computes, or None."""
    if layer is None or not is_activation(layer) or next(layer.parameters(), None) is not None:
        return None
    return match_activation(layer)


def match_activation(function: Callable[[Tensor], Tensor]) -> str | None:
    """Which of our activations computes the same numbers: no name says so as surely."""
    u = torch.linspace(-8, 8, 65, device="cpu", dtype=torch.float64)
    with torch.no_grad():
        y = function(u.clone())
    if not isinstance(y, Tensor) or y.shape != u.shape:
        return None
    names = [name for name in GAINS if name != GATE]
    return next((name for name in names if torch.allclose(activation(name)(u), y)), None)
