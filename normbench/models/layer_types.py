"""Recognize layers of torch, timm and torchvision: normalizations, activations, gates, dropout."""

from collections.abc import Callable

import timm.layers
import torch
import torchvision
from torch import Tensor, nn

from normbench.norms.base.activations import GAINS, activation
from normbench.norms.base.same_padding import SameConv2d
from normbench.norms.base.standardized_conv import StandardizedConv2d
from normbench.norms.batch import TORCH_BATCH_NORMS, TORCH_INSTANCE_NORMS

#: A gate, whose output between 0 and 1 multiplies; no normalizer may replace it.
GATE = "sigmoid"

DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
NORMS = (
    *TORCH_BATCH_NORMS,
    *TORCH_INSTANCE_NORMS,
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
#: Normalizations of the last axes.
LAST_AXIS_NORMS = (nn.LayerNorm, nn.RMSNorm, timm.layers.RmsNorm)
#: Convolutions of timm with standardized weights.
SCALED_STANDARDIZED_CONVS = (timm.layers.ScaledStdConv2d, timm.layers.ScaledStdConv2dSame)
STANDARDIZED_CONVS = (
    timm.layers.StdConv2d,
    timm.layers.StdConv2dSame,
    *SCALED_STANDARDIZED_CONVS,
)
_SAME_CONVS = (
    SameConv2d,
    timm.layers.Conv2dSame,
    timm.layers.StdConv2dSame,
    timm.layers.ScaledStdConv2dSame,
)
GATES = (nn.Sigmoid, nn.Hardsigmoid, nn.Softmax, timm.layers.Sigmoid, timm.layers.HardSigmoid)
#: Python modules in which torch and timm define their activations and gates.
_ACTIVATION_MODULES = ("torch.nn.modules.activation", "timm.layers.activations")


def is_norm(layer: nn.Module | None) -> bool:
    """Return True for a normalization of torch, timm or torchvision."""
    return isinstance(layer, NORMS)


def is_activation(layer: nn.Module) -> bool:
    """Return True for an activation of torch or timm, and False for a gate."""
    return is_activation_or_gate(layer) and not isinstance(layer, GATES)


def is_activation_or_gate(layer: nn.Module) -> bool:
    """Return True for an activation or gate of torch or timm."""
    return type(layer).__module__.startswith(_ACTIVATION_MODULES)  # they share no base class


def drop_rate(layer: nn.Module | None) -> float | None:
    """Return the rate of dropout or stochastic depth; None of any other layer."""
    if isinstance(layer, timm.layers.DropPath):
        return float(layer.drop_prob or 0.0)
    if isinstance(layer, timm.layers.DropBlock2d):
        return float(layer.drop_prob)
    if isinstance(layer, (*DROPOUTS, torchvision.ops.StochasticDepth)):
        return float(layer.p)
    return None


def channel_axis(layer: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Return the axis of the channels that a normalization has in an input of one image.

    Args:
        layer: of `NORMS`.
        shape: (1, C, H, W), or with channels last (1, C), (1, T, C) or (1, H, W, C).

    Returns:
        1 or -1; None if the layer normalizes other axes, or if the first axis is not the images.
    """
    if len(shape) == 2 and isinstance(layer, nn.BatchNorm1d | nn.SyncBatchNorm):
        return -1 if shape[0] == 1 else None
    # LayerNorm2d of timm and torchvision permute the axes themselves.
    if not isinstance(layer, LAST_AXIS_NORMS) or "2d" in type(layer).__name__:
        return 1 if len(shape) == 4 else None
    images_first = 2 <= len(shape) <= 4 and shape[0] == 1
    return -1 if images_first and tuple(layer.normalized_shape) == shape[-1:] else None


def activation_name(layer: nn.Module | None) -> str | None:
    """Return the name of the activation that a module without parameters computes, or None."""
    if layer is None or not is_activation(layer) or next(layer.parameters(), None) is not None:
        return None
    return match_activation(layer)


def match_activation(function: Callable[[Tensor], Tensor]) -> str | None:
    """Return the name of the activation with the same values as `function`, or None."""
    # Wider than the kinks of all activations.
    u = torch.linspace(-8, 8, 65, device="cpu", dtype=torch.float64)
    with torch.no_grad():
        y = function(u.clone())  # which may overwrite it
    if not isinstance(y, Tensor) or y.shape != u.shape:  # a GLU, for example, halves the shape
        return None
    names = [name for name in GAINS if name != GATE]
    return next((name for name in names if torch.allclose(activation(name)(u), y)), None)


def pads_same(conv: nn.Conv2d) -> bool:
    """Return True if a convolution pads in its forward pass, by its own sizes."""
    return isinstance(conv, _SAME_CONVS) or (isinstance(conv, StandardizedConv2d) and conv.same)
