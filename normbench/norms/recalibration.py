"""Precise running statistics: computed over K training batches under the current weights.

The moving averages of a training include statistics of outdated weights. Here the weights are
frozen and K batches pass through the network; each layer averages mean and mean square of its
inputs:

    running_mean = E[x],   running_var = E[x^2] - E[x]^2

    from normbench.norms.recalibration import recalibrate
    recalibrate(network, batches)

This is the "batch average" evaluation of switchable normalization (Luo et al. 2019, section 3) and
PreciseBN (Wu and Johnson 2021, section 3); `recipe.recalibration=K` does it at the end of a run. Do
not use it for batch renormalization, whose training reads its moving averages. Layers without batch
statistics (group, layer and instance normalization) gain running statistics this way, for
`normbench.norms.inference`.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import upcast
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
        mean_over_devices: if several processes have batches, return the mean of a tensor over them.

    Returns:
        The number of layers with new statistics.

    Raises:
        ValueError: the network has no such layer, or there is no batch.
    """
    layers = [layer for layer in model.modules() if _has_statistics(layer)]
    if not layers:
        raise ValueError(
            "the network has no layer with running statistics, nor one that could have them"
        )
    sums = {layer: _Sums() for layer in layers}
    modes = {module: module.training for module in model.modules()}
    counters = [b for key, b in model.named_buffers() if key.endswith("num_batches_tracked")]
    counted = [counter.clone() for counter in counters]
    momenta: dict[Any, float] = {
        layer: layer.momentum  # type: ignore[misc]
        for layer in layers
        if hasattr(layer, "momentum")
    }
    with ExitStack() as undo:
        for layer in layers:
            undo.callback(layer.register_forward_pre_hook(sums[layer].hook).remove)
        undo.callback(_set_modes, modes)
        undo.callback(_set_counters, counters, counted)  # torch's layers count batches
        undo.callback(_set_momenta, momenta)
        model.eval()
        for layer in momenta:
            layer.train()
        _set_momenta(dict.fromkeys(momenta, 0.0))  # the statistics are written at the end
        for batch in batches:
            model(batch if isinstance(batch, Tensor) else batch[0])
    for layer, total in sums.items():
        if not total.batches:
            raise ValueError("there is no batch, or no batch reaches a layer")
        _write(layer, *total.moments(mean_over_devices))
    return len(layers)


class _Sums:
    """Sums of means and mean squares (C,) of a layer's inputs, in double precision."""

    def __init__(self) -> None:
        self.batches = 0
        self.mean: Tensor | float = 0.0
        self.square: Tensor | float = 0.0

    def hook(self, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # Workers have equally many images, so their mean is the mean over all images.
        mean, var = merge_moments(*channel_moments(upcast(inputs[0])), dim=0)
        self.mean = self.mean + mean.double()
        self.square = self.square + (var + mean.square()).double()
        self.batches += 1

    def moments(self, over_devices: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        assert isinstance(self.mean, Tensor)
        assert isinstance(self.square, Tensor)
        mean, square = over_devices(torch.stack([self.mean, self.square]) / self.batches)
        return mean, (square - mean.square()).clamp(min=0.0)


def _has_statistics(layer: nn.Module) -> bool:
    grouped = isinstance(layer, GroupNormAct | nn.GroupNorm)
    kept = isinstance(layer, RunningStatistics | nn.BatchNorm2d | nn.SyncBatchNorm)
    return grouped or (kept and getattr(layer, "running_var", None) is not None)


def _write(layer: nn.Module, mean: Tensor, var: Tensor) -> None:
    statistics = {"running_mean": mean, "running_var": var}
    buffers = dict(layer.named_buffers(recurse=False))
    if isinstance(layer, GroupNormAct | nn.GroupNorm) and not buffers:
        weight: Tensor | None = getattr(layer, "weight", None)
        dtype = (
            torch.float64 if weight is not None and weight.dtype.itemsize == 8 else torch.float32
        )
        for name, statistic in statistics.items():
            layer.register_buffer(name, statistic.to(dtype))
        return
    for name, buffer in buffers.items():
        if name in statistics:
            buffer.copy_(statistics[name])


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training


def _set_counters(counters: list[Tensor], counted: list[Tensor]) -> None:
    for counter, count in zip(counters, counted, strict=True):
        counter.copy_(count)


def _set_momenta(momenta: dict[Any, float]) -> None:
    for layer, momentum in momenta.items():
        layer.momentum = momentum
