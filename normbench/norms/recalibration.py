"""Precise running statistics: computed over K training batches with the current weights.

The moving averages of a training include statistics of outdated weights. Here the weights are
frozen and K batches pass through the network; each layer averages mean and mean square of its
inputs:

    running_mean = E[x],   running_var = E[x^2] - E[x]^2

A formula (`norm=graph`) takes moments of values that it computes; their running statistics become
the means of those of the batches.

    from normbench.norms.recalibration import recalibrate
    recalibrate(network, batches)

This is the "batch average" evaluation of switchable normalization (Luo et al. 2019, section 3) and
PreciseBN (Wu and Johnson 2021, section 3); `recipe.recalibration=K` does it at the end of a run. Do
not use it for batch renormalization, whose training reads its moving averages. Layers without batch
statistics (group, layer and instance normalization) gain running statistics this way, for
`normbench.norms.inference`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms.base.moments import channel_moments, merge_moments
from normbench.norms.base.running import RunningStatistics
from normbench.norms.group import GroupNormAct


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    mean_over_devices: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> int:
    """Replace the running statistics of `model` by those of `batches`; parameters stay.

    Meanwhile layers with running statistics normalize as in training, per worker (`set_workers`);
    all other modules, such as dropout, are in evaluation mode. Afterwards every module returns to
    its mode. The buffers that group normalization gains are part of its state dict from then on, so
    a saved state fits only a recalibrated network.

    Args:
        model: on the device of the batches.
        batches: images (N, C, H, W) of a forward pass each, or tuples that begin with them, as from
            a DataLoader; all batches have equal weight.
        mean_over_devices: returns the mean of a tensor over the processes that have batches.

    Returns:
        The number of layers with new statistics.

    Raises:
        ValueError: the network has no such layer, or there is no batch.
    """
    layers = [layer for layer in model.modules() if _takes_statistics(layer)]
    if not layers:
        raise ValueError(
            "the network has no layer with running statistics, nor one that could have them"
        )
    reached = _average_inputs(model, layers, batches)
    for layer, moments in reached.items():
        if isinstance(layer, RunningStatistics) and not layer.of_input:
            for statistic in layer.linear_statistics():
                statistic.copy_(mean_over_devices(statistic))
            continue
        mean, square = mean_over_devices(moments)
        _write_statistics(layer, mean, (square - mean.square()).clamp(min=0.0))
    return len(reached)


def _average_inputs(
    model: nn.Module, layers: Sequence[nn.Module], batches: Iterable[Tensor | Sequence[Tensor]]
) -> dict[nn.Module, Tensor]:
    """Return E[x] and E[x^2] (2, C) of each layer's inputs, in double precision.

    Layers with statistics of other values have their mean over the batches afterwards. Layers that
    an evaluation does not call, as those of an auxiliary head, are left out.
    """
    sums: dict[nn.Module, Tensor] = {}
    counts = Counter[nn.Module]()

    def add(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # Workers have equally many images, so their mean is the mean over all images.
        if isinstance(layer, RunningStatistics):
            of_images = layer.image_moments(inputs[0])
        else:
            of_images = channel_moments(inputs[0])
        mean, var = merge_moments(*of_images, dim=0)
        moments = torch.stack([mean, var + mean.square()]).double()
        sums[layer] = sums.get(layer, 0) + moments
        counts[layer] += 1

    before: list[tuple[Any, str, Any]] = [(m, "training", m.training) for m in model.modules()]
    tracking: list[Any] = [layer for layer in layers if hasattr(layer, "momentum")]
    before += [(layer, "momentum", layer.momentum) for layer in tracking]
    counters = [layer for layer in tracking if hasattr(layer, "num_batches_tracked")]  # torch's
    before += [(each, "num_batches_tracked", each.num_batches_tracked.clone()) for each in counters]
    hooks = [layer.register_forward_pre_hook(add) for layer in layers]
    try:
        model.eval()
        for layer in tracking:
            layer.train()
            layer.momentum = 0.0  # the statistics are written at the end
        of_values = [layer for layer in tracking if not getattr(layer, "of_input", True)]
        for number, batch in enumerate(batches, 1):
            for layer in of_values:
                layer.momentum = 1 / number  # so the running statistic is the mean
            model(batch if isinstance(batch, Tensor) else batch[0])
    finally:
        for hook in hooks:
            hook.remove()
        for module, name, value in before:
            setattr(module, name, value)
    if not sums:
        raise ValueError("there is no batch, or no batch reaches a layer")
    return {layer: moments / counts[layer] for layer, moments in sums.items()}


def _takes_statistics(layer: nn.Module) -> bool:
    if getattr(layer, "keeps_statistics", False):
        return False
    if isinstance(layer, RunningStatistics) and not layer.of_input:
        return True
    tracks = isinstance(layer, RunningStatistics | nn.BatchNorm2d | nn.SyncBatchNorm)
    if tracks and getattr(layer, "running_var", None) is not None:
        return True
    return isinstance(layer, GroupNormAct | nn.GroupNorm)


def _write_statistics(layer: nn.Module, mean: Tensor, var: Tensor) -> None:
    weight: Tensor | None = getattr(layer, "weight", None)
    for name, statistic in (("running_mean", mean), ("running_var", var)):
        buffer: Tensor | None = getattr(layer, name, None)
        if buffer is not None:
            buffer.copy_(statistic)
        elif isinstance(layer, GroupNormAct | nn.GroupNorm):
            wide = weight is not None and weight.dtype == torch.float64
            layer.register_buffer(name, statistic if wide else statistic.float())
