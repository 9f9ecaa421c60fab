"""Recognize layers of torch, timm and torchvision: normalizations, activations, gates, dropout."""

from collections.abc import Callable

import timm.layers
import torch
import torchvision
from torch import Tensor, nn

from normbench.norms.base.activations import GAINS, activation
from normbench.norms.base.layer import NormAct
from normbench.norms.batch import TORCH_BATCH_NORMS

#: A gate, whose output between 0 and 1 multiplies; no normalizer may replace it.
GATE = "sigmoid"

INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
NORMS = (
    *TORCH_BATCH_NORMS,
    *INSTANCE_NORMS,
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
#: Python modules in which torch and timm define their activations.
ACTIVATION_MODULES = ("torch.nn.modules.activation", "timm.layers.activations")


def is_norm(layer: nn.Module | None) -> bool:
    """Whether `layer` is a normalization of torch, timm or torchvision."""
    return isinstance(layer, NORMS)


def is_batch_norm(layer: nn.Module) -> bool:
    """Whether `layer`, by whatever author, has batch statistics, or frozen ones of batches."""
    return hasattr(layer, "running_var") and not isinstance(layer, (NormAct, *INSTANCE_NORMS))


def is_activation(layer: nn.Module) -> bool:
    """Return True if `layer` is an activation of torch or timm, but not a gate."""
    return type(layer).__module__.startswith(ACTIVATION_MODULES) and not isinstance(layer, GATES)


def is_standardized(layer: nn.Module) -> bool:
    """Whether `layer` is a convolution of timm with standardized weights."""
    return isinstance(
        layer, timm.layers.StdConv2d | timm.layers.StdConv2dSame
    ) or is_scaled_standardized(layer)


def is_scaled_standardized(layer: nn.Module) -> bool:
    """Whether `layer` is a convolution of timm with scaled weight standardization."""
    return isinstance(layer, timm.layers.ScaledStdConv2d | timm.layers.ScaledStdConv2dSame)


def drop_rate(layer: nn.Module | None) -> float | None:
    """Return the rate of dropout or stochastic depth; None of any other layer."""
    if isinstance(layer, timm.layers.DropPath):
        return float(layer.drop_prob or 0.0)
    if isinstance(layer, timm.layers.DropBlock2d):
        return float(layer.drop_prob)
    if isinstance(layer, (*DROPOUTS, torchvision.ops.StochasticDepth)):
        return float(layer.p)
    return None


def normalizes_channels(layer: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether `layer` takes maps of `shape` with their channels second, (N, C, H, W)."""
    last = isinstance(layer, nn.LayerNorm | nn.RMSNorm | timm.layers.RmsNorm)
    # LayerNorm2d of timm and torchvision permute the axes themselves.
    return len(shape) == 4 and (not last or "2d" in type(layer).__name__)


def activation_name(layer: nn.Module | None) -> str | None:
    """Return the name of the activation that a module without parameters computes, or None."""
    if layer is None or not is_activation(layer) or next(layer.parameters(), None) is not None:
        return None
    return match_activation(layer)


def match_activation(function: Callable[[Tensor], Tensor]) -> str | None:
    """Return the name of the activation with the same values as `function`, or None."""
    u = torch.linspace(-8, 8, 65, device="cpu", dtype=torch.float64)
    with torch.no_grad():
        y = function(u.clone())
    if not isinstance(y, Tensor) or y.shape != u.shape:
        return None
    names = [name for name in GAINS if name != GATE]
    return next((name for name in names if torch.allclose(activation(name)(u), y)), None)
