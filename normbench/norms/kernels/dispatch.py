"""Dispatch layers to the kernels of `normbench.norms.kernels`: `trainer.impl=triton`.

    from normbench.norms.kernels.dispatch import set_triton
    set_triton(network)

A layer without a kernel for its class, activation, mode and device computes its formula in PyTorch.
Kernels sum in another order, so values agree within rounding, not bit for bit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms import kernels
from normbench.norms.base.layer import NormAct
from normbench.norms.base.moments import (
    expand_groups,
    expand_sets,
    merge_channels,
    merge_moments,
    split_sets,
)
from normbench.norms.batch import BatchNormAct, SyncBatchNormAct
from normbench.norms.evonorm import EvoNormBAct, EvoNormSAct
from normbench.norms.frn import FilterResponseNormAct
from normbench.norms.group import GroupNormAct
from normbench.norms.kernels.per_sample import Sample, fits, per_sample
from normbench.norms.kernels.per_worker import Worker, per_worker
from normbench.norms.kernels.tiles import ACTIVATIONS
from normbench.norms.proxy import ProxyAct, ProxyBatchNormAct, ProxyGroupNormAct
from normbench.norms.switchable import SwitchableNormAct

#: S series: whether statistics are variances, not mean squares.
_CENTERED = {"d2.6": True, "d2.5": True, "d2.2": False}
#: B series: the bound, and whether its statistic is a variance.
_BOUNDS = {
    "d1.6": ("gate * x + second", True),
    "d1.1": ("(x + 1) * second", False),
    "d1.7": ("second - x", False),
}


Kernel = Callable[[Any, Tensor], Tensor | None]
_kernels: dict[type[NormAct], Kernel] = {}  # by exact class: a subclass may compute something else


def _register(layer: type[NormAct]) -> Callable[[Kernel], Kernel]:
    """Register a kernel for layers of exactly this class."""

    def register(kernel: Kernel) -> Kernel:
        _kernels[layer] = kernel
        return kernel

    return register


def set_triton(module: nn.Module) -> None:
    """Compute the layers of `module` by kernels, where they exist."""
    for layer in module.modules():
        if isinstance(layer, NormAct):
            layer.kernel = run_kernel


def has_kernel(layer: nn.Module) -> bool:
    """Return True if a kernel exists for the class of `layer`."""
    return type(layer) in _kernels


def run_kernel(layer: NormAct, x: Tensor) -> Tensor | None:
    """Return the output of `layer` by its kernel, or None if there is none."""
    kernel = _kernels.get(type(layer))
    if kernel is None or not kernels.supports(x) or torch.compiler.is_compiling():
        return None
    return kernel(layer, x)


@_register(GroupNormAct)
def _(layer: GroupNormAct, x: Tensor) -> Tensor | None:
    return _of_groups(layer, x, None)


@_register(ProxyGroupNormAct)
def _(layer: ProxyGroupNormAct, x: Tensor) -> Tensor | None:
    return _of_groups(layer, x, _proxy(layer))


def _of_groups(
    layer: GroupNormAct, x: Tensor, proxy: tuple[Tensor, Tensor] | None
) -> Tensor | None:
    if layer.act not in ACTIVATIONS or (not layer.training and layer.example_weight != 1):
        return None
    options = Sample(layer.groups, layer.eps, act=layer.act)
    return _of_image(x, options, layer.weight, bias=layer.bias, proxy=proxy)


def _of_image(
    x: Tensor,
    options: Sample,
    weight: Tensor | None,
    proxy: tuple[Tensor, Tensor] | None = None,
    **others: Any,
) -> Tensor:
    """Use one kernel, or moments of channels if a group is too large for it."""
    if fits(x, options, proxy=proxy is not None):
        return per_sample(x, options, weight=weight, proxy=proxy, **others)

    def coefficients(mean: Tensor, var: Tensor, *weight: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = merge_channels(mean, var, options.groups)
        power = var if options.center else var + mean.square()
        scale = expand_groups(torch.rsqrt(power + options.eps), x.shape[1])
        shifted = options.center and not options.gated
        first = expand_groups(mean, x.shape[1]) if shifted else torch.zeros_like(scale.detach())
        return first, scale * weight[0] if weight else scale

    own = () if weight is None else (weight,)
    return per_worker(
        x, Worker(options.act, options.gated), coefficients, own=own, proxy=proxy, **others
    )


def _proxy(layer: ProxyAct) -> tuple[Tensor, Tensor]:
    mean, var = layer.proxy_moments()
    return mean, torch.rsqrt(var + layer.proxy_eps) if layer.scale else torch.ones_like(mean)


@_register(FilterResponseNormAct)
def _(layer: FilterResponseNormAct, x: Tensor) -> Tensor | None:
    if layer.eps is not None:
        return None  # learned eps is for 1x1 maps, which are cheap
    act = None if layer.tau is None else "tlu"
    options = Sample(layer.channels, layer.least, center=False, act=act)
    return _of_image(x, options, layer.weight, bias=layer.bias, tau=layer.tau)


@_register(EvoNormSAct)
def _(layer: EvoNormSAct, x: Tensor) -> Tensor | None:
    if layer.which not in _CENTERED:
        return None
    options = Sample(layer.groups, layer.eps, center=_CENTERED[layer.which], gated=True)
    return _of_image(x, options, layer.weight, bias=layer.bias, gate=layer.v)


@_register(BatchNormAct)
def _(layer: BatchNormAct, x: Tensor) -> Tensor | None:
    return _of_batch(layer, x, None)


@_register(ProxyBatchNormAct)
def _(layer: ProxyBatchNormAct, x: Tensor) -> Tensor | None:
    return _of_batch(layer, x, _proxy(layer)) if layer.training else None


@_register(SyncBatchNormAct)
def _(layer: SyncBatchNormAct, x: Tensor) -> Tensor | None:
    return None if torch.distributed.is_initialized() else _of_batch(layer, x, None)


def _of_batch(layer: BatchNormAct, x: Tensor, proxy: tuple[Tensor, Tensor] | None) -> Tensor | None:
    if not layer.training or layer.act not in ACTIVATIONS:
        return None  # in evaluation a fixed affine map: torch's kernel is as fast
    sets = layer.sets(len(x))
    values = len(x) // sets * x.shape[2] * x.shape[3]

    def coefficients(mean: Tensor, var: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = merge_moments(split_sets(mean, sets), split_sets(var, sets), dim=0)
        layer.track(mean=mean, var=var * (values / (values - 1)))
        scale = torch.rsqrt(var + layer.eps) * weight
        return expand_sets(mean, len(x)), expand_sets(scale, len(x))

    assert layer.weight is not None
    options = Worker(act=layer.act)
    return per_worker(x, options, coefficients, own=(layer.weight,), bias=layer.bias, proxy=proxy)


@_register(EvoNormBAct)
def _(layer: EvoNormBAct, x: Tensor) -> Tensor | None:
    if layer.which not in _BOUNDS:
        return None
    bound, centered = _BOUNDS[layer.which]

    def coefficients(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        own = var if centered else var + mean.square()
        return torch.sqrt(_var_of_batch(layer, mean, var) + layer.eps), torch.sqrt(own + layer.eps)

    options = Worker(bound=bound)
    return per_worker(x, options, coefficients, weight=layer.weight, bias=layer.bias, gate=layer.v)


def _var_of_batch(layer: EvoNormBAct, mean: Tensor, var: Tensor) -> Tensor:
    if not layer.training:
        return layer.running_var[None].to(var.dtype)
    _, of_worker = merge_moments(
        split_sets(mean, layer.workers), split_sets(var, layer.workers), dim=0
    )
    layer.track(var=of_worker)
    return expand_sets(of_worker, len(mean))


@_register(SwitchableNormAct)
def _(layer: SwitchableNormAct, x: Tensor) -> Tensor | None:
    if layer.act not in ACTIVATIONS:
        return None
    positions = x.shape[2] * x.shape[3]

    def coefficients(
        mean: Tensor, var: Tensor, p: Tensor, q: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean, scale = layer.mixture((mean, var), positions, (p, q), track=True)
        return mean, scale * weight

    assert layer.weight is not None
    own = (*layer.ratios(), layer.weight)
    return per_worker(x, Worker(act=layer.act), coefficients, own=own, bias=layer.bias)
