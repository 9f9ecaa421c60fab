"""Precise running statistics: those of K training batches under the weights as they are.

The moving averages of a training belong to weights that have changed since. Here the weights are
frozen, K batches go through the network, and for each layer mean and mean square of what it sees
are added up per worker and divided by their number:

    running_mean = E[x],   running_var = E[x^2] - E[x]^2

    from normbench.norms.recalibration import recalibrate
    recalibrate(network, batches)

This is the "batch average" evaluation of switchable normalization (Luo et al. 2019, section 3) and
PreciseBN (Wu and Johnson 2021, section 3); `recipe.recalibration=K` does it at the end of a run. It
is nothing for batch renormalization, whose training reads its moving averages. Layers with
statistics of images alone, group normalization and its relatives, get running statistics of their
own this way, for `normbench.norms.inference`.
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
    mean_over_devices: Callable[[Tensor], Tensor] = lambda own: own,
) -> int:
    """Replace the running statistics of `model` by those of `batches`; weights are untouched.

    Layers with running statistics normalize as in training, per worker as `set_workers` said, and
    all else, dropout for one, is as in evaluation. Afterwards every module is in the mode in which
    it was. What group normalization gets here is part of its state from then on: a saved state goes
    into a network that was recalibrated too.

    Args:
        model: on the device of the batches.
        batches: images (N, C, H, W) of as many forward passes, or tuples that begin with them, as
            a DataLoader gives; each batch counts the same.
        mean_over_devices: where several processes have batches of their own, the mean of a tensor
            over all of them.

    Returns:
        How many layers have new statistics.

    Raises:
        ValueError: the network has no such layer, or there is no batch.
    """
    layers = [layer for layer in model.modules() if _has_statistics(layer)]
    if not layers:
        raise ValueError("the network has no layer that keeps running statistics or could")
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
        undo.callback(_set_counters, counters, counted)  # torch's layers count what they see
        undo.callback(_set_momenta, momenta)
        model.eval()
        for layer in momenta:
            layer.train()
        _set_momenta(dict.fromkeys(momenta, 0.0))  # they move when all is known, not before
        for batch in batches:
            model(batch if isinstance(batch, Tensor) else batch[0])
    for layer, found in sums.items():
        if not found.batches:
            raise ValueError("there is no batch, or a layer that no batch reaches")
        _keep(layer, *found.moments(mean_over_devices))
    return len(layers)


class _Sums:
    """Sums of means and mean squares (C,) of a layer's inputs, in double precision."""

    def __init__(self) -> None:
        self.batches = 0
        self.mean: Tensor | float = 0.0
        self.square: Tensor | float = 0.0

    def hook(self, _layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        # Workers have equally many images, so the mean over workers is that over all images.
        mean, var = merge_moments(*channel_moments(upcast(given[0])), dim=0)
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


def _keep(layer: nn.Module, mean: Tensor, var: Tensor) -> None:
    found = {"running_mean": mean, "running_var": var}
    own = dict(layer.named_buffers(recurse=False))
    if isinstance(layer, GroupNormAct | nn.GroupNorm) and not own:
        weight: Tensor | None = getattr(layer, "weight", None)
        dtype = (
            torch.float64 if weight is not None and weight.dtype.itemsize == 8 else torch.float32
        )
        for name, statistic in found.items():
            layer.register_buffer(name, statistic.to(dtype))
        return
    for name, buffer in own.items():
        if name in found:
            buffer.copy_(found[name])


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training


def _set_counters(counters: list[Tensor], counted: list[Tensor]) -> None:
    for counter, count in zip(counters, counted, strict=True):
        counter.copy_(count)


def _set_momenta(momenta: dict[Any, float]) -> None:
    for layer, momentum in momenta.items():
        layer.momentum = momentum
