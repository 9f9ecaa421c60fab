"""Inference example weighing (Summers and Dinneen 2020, section 3.1), for trained networks.

In evaluation the normalization statistics are those of the image itself with a weight alpha, and
the running ones with 1 - alpha:

    mean = (1 - alpha) * m + alpha * E[x_i]
    var  = (1 - alpha) * v + alpha * s_i^2 + alpha * (1 - alpha) * (E[x_i] - m)^2

with running statistics m and v, and mean E[x_i] and variance s_i^2 of the image, over the channels
of a group in grouped layers. alpha = 0 is plain batch normalization, alpha = 1 instance
normalization. For group normalization alpha = 1 is the plain layer; below 1 it needs the running
statistics that `recalibrate` adds. No parameter changes. The best alpha is not 1 / batch; the paper
tunes it on validation images.

    from normbench.norms.inference import set_example_weight
    set_example_weight(network.eval(), 0.1)
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms.base.running import RunningStatistics, normalize_weighted, running_moments
from normbench.norms.base.tensors import per_channel
from normbench.norms.group import GroupNormAct

#: Attribute of layers of torch or timm with the handle that removes the hook.
_HANDLE = "_normbench_example_weight"


def set_example_weight(model: nn.Module, alpha: float) -> int:
    """Weight every image by `alpha` in its own statistics when `model` is evaluated.

    Affects normbench's batch, group, layer and instance normalization, their ghost, batch-group,
    synchronized, renormalized, proxy-normalized and switchable variants, and BatchNorm2d,
    SyncBatchNorm and GroupNorm of torch with timm's subclasses. Other layers stay as they are: the
    EvoNorm B series, which has no running mean, and torch's InstanceNorm2d and LayerNorm.

    Returns:
        The number of affected layers.

    Raises:
        ValueError: `alpha` is outside 0 to 1, no layer is affected, or a layer lacks running
            statistics; `normbench.norms.recalibration.recalibrate` adds them.
    """
    if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha}: an image's weight is from 0 to 1")
    layers = weighable_layers(model)
    if not layers:
        raise ValueError("the network has no layer that supports an example weight")
    for name, layer in layers.items():
        plain = alpha == 1 and isinstance(layer, GroupNormAct | nn.GroupNorm)
        if not plain and getattr(layer, "running_mean", None) is None:
            raise ValueError(
                f"the layer {name or 'itself'} has no running statistics; recalibrate(model, "
                "batches) adds them, unless track_running_stats=False"
            )
    for layer in layers.values():
        _set_weight(layer, alpha)
    return len(layers)


def weighable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of `model` that support an example weight, by name."""
    return {name: layer for name, layer in model.named_modules() if _supports_weight(layer)}


def _supports_weight(layer: nn.Module) -> bool:
    if isinstance(layer, RunningStatistics):
        return hasattr(layer, "running_mean")
    foreign = isinstance(layer, nn.BatchNorm2d | nn.SyncBatchNorm | nn.GroupNorm)
    return foreign or isinstance(layer, GroupNormAct)


def _set_weight(layer: nn.Module, alpha: float) -> None:
    if isinstance(layer, RunningStatistics | GroupNormAct):
        layer.example_weight = alpha
        return
    if (handle := getattr(layer, _HANDLE, None)) is not None:
        handle.remove()  # of an earlier alpha
    if isinstance(layer, nn.GroupNorm):
        handle = layer.register_forward_hook(partial(_group_norm, alpha)) if alpha < 1 else None
    else:
        handle = layer.register_forward_pre_hook(partial(_batch_norm, alpha)) if alpha else None
    setattr(layer, _HANDLE, handle)


def _batch_norm(alpha: float, layer: Any, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
    """Pre-hook: replace the input by one whose plain normalization is the weighted one."""
    if layer.training:
        return None
    (x,) = inputs
    m, v = running_moments(layer)
    y = normalize_weighted(layer, x, layer.num_features, alpha)
    # The layer undoes this and continues with y, including a fused activation.
    return ((y * per_channel(torch.sqrt(v + layer.eps)) + per_channel(m)).to(x.dtype),)


def _group_norm(alpha: float, layer: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
    """Hook: replace the output by the weighted normalization."""
    if layer.training:
        return None
    (x,) = inputs
    y = normalize_weighted(layer, x, layer.num_groups, alpha)
    if layer.affine:
        y = y * per_channel(layer.weight) + per_channel(layer.bias)
    for fused in ("drop", "act"):  # of timm's GroupNormAct
        y = getattr(layer, fused, nn.Identity())(y)
    return y.to(output.dtype)
