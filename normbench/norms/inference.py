"""Inference example weighing (Summers and Dinneen 2020, section 3.1), for trained networks.

In evaluation every image counts in its own normalization statistics with a weight alpha, and the
running statistics with 1 - alpha:

    mean = (1 - alpha) * m + alpha * E[x_i]
    var  = (1 - alpha) * v + alpha * s_i^2 + alpha * (1 - alpha) * (E[x_i] - m)^2

m and v the running statistics, E[x_i] and s_i^2 those of the image, over the channels of a group
where there are groups. alpha = 0 is plain batch normalization, alpha = 1 instance normalization; of
group normalization 1 is the plain layer, and below 1 running statistics mix in, which `recalibrate`
brings. No weight changes. The best alpha is not 1 / batch; the paper tunes it on validation images.

    from normbench.norms.inference import set_example_weight
    set_example_weight(network.eval(), 0.1)
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import per_channel, upcast
from normbench.norms.base.moments import normalize_by
from normbench.norms.base.running import RunningStatistics, running_moments, weighted_moments
from normbench.norms.group import GroupNormAct

#: Where a handle lies that takes the weighing away from a layer of torch or timm.
_HANDLE = "_normbench_example_weight"


def set_example_weight(model: nn.Module, alpha: float) -> int:
    """Let every image count with `alpha` in its own statistics when `model` is evaluated.

    Reaches batch, group, layer and instance normalization of normbench with their ghost,
    batch-group, synchronized, renormalized, proxy-normalized and switchable relatives, and torch's
    BatchNorm2d, SyncBatchNorm and GroupNorm with what timm makes of them. All others stay as they
    are: EvoNorm's B layers, which keep no running mean, and torch's InstanceNorm2d and LayerNorm.

    Returns:
        How many layers were reached.

    Raises:
        ValueError: `alpha` is not from 0 to 1, no layer is reached, or a layer has no running
            statistics, which `normbench.norms.recalibration.recalibrate` would give it.
    """
    if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha}: an image's weight is from 0 to 1")
    reached = [(name, layer) for name, layer in model.named_modules() if _mixes(layer)]
    if not reached:
        raise ValueError("the network has no layer that could mix statistics of one image in")
    for name, layer in reached:
        plain = alpha == 1 and isinstance(layer, GroupNormAct | nn.GroupNorm)
        if not plain and getattr(layer, "running_mean", None) is None:
            raise ValueError(
                f"the layer {name or 'itself'} keeps no running statistics: recalibrate(model, "
                "batches) takes them from training images, unless track_running_stats=False"
            )
    for _, layer in reached:
        _weigh(layer, alpha)
    return len(reached)


def _mixes(layer: nn.Module) -> bool:
    if isinstance(layer, RunningStatistics):
        return hasattr(layer, "running_mean")
    foreign = isinstance(layer, nn.BatchNorm2d | nn.SyncBatchNorm | nn.GroupNorm)
    return foreign or isinstance(layer, GroupNormAct)


def _weigh(layer: nn.Module, alpha: float) -> None:
    if isinstance(layer, RunningStatistics | GroupNormAct):
        layer.example_weight = alpha
        return
    if (handle := getattr(layer, _HANDLE, None)) is not None:
        handle.remove()
    if isinstance(layer, nn.GroupNorm):
        handle = layer.register_forward_hook(partial(_group_norm, alpha)) if alpha < 1 else None
    else:
        handle = layer.register_forward_pre_hook(partial(_batch_norm, alpha)) if alpha else None
    setattr(layer, _HANDLE, handle)


def _batch_norm(alpha: float, layer: Any, given: tuple[Tensor]) -> tuple[Tensor] | None:
    """A hook that hands a layer the input whose plain normalization is the weighed one."""
    if layer.training:
        return None
    (x,) = given
    m, v = running_moments(layer)
    y = upcast(x)
    y = normalize_by(y, weighted_moments(layer, y, layer.num_features, alpha), layer.eps)
    # The layer, whatever activation it has within, undoes this and goes on with y.
    return ((y * per_channel(torch.sqrt(v + layer.eps)) + per_channel(m)).to(x.dtype),)


def _group_norm(alpha: float, layer: Any, given: tuple[Tensor], output: Tensor) -> Tensor | None:
    """A hook that puts the weighed normalization in the place of a layer's output."""
    if layer.training:
        return None
    (x,) = given
    y = upcast(x)
    y = normalize_by(y, weighted_moments(layer, y, layer.num_groups, alpha), layer.eps)
    if layer.affine:
        y = y * per_channel(layer.weight) + per_channel(layer.bias)
    for fused in ("drop", "act"):  # of timm's GroupNormAct
        y = getattr(layer, fused, nn.Identity())(y)
    return y.to(output.dtype)
