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
from normbench.norms.base.moments import expand_groups, expand_sets, merge_channels, merge_images
from normbench.norms.batch import BatchNormAct, SyncBatchNormAct
from normbench.norms.evonorm import EvoNormBAct, EvoNormSAct
from normbench.norms.frn import FilterResponseNormAct
from normbench.norms.group import GroupNormAct
from normbench.norms.kernels.per_sample import SampleOptions, fits, per_sample
from normbench.norms.kernels.per_worker import WorkerOptions, per_worker
from normbench.norms.kernels.tiles import ACTIVATIONS, Parameters
from normbench.norms.proxy import ProxyAct, ProxyBatchNormAct, ProxyGroupNormAct
from normbench.norms.switchable import SwitchableNormAct
from normbench.norms.whole_step import is_synchronized

#: S series: True if statistics are variances, False if they are mean squares.
_CENTERED = {"d2.6": True, "d2.5": True, "d2.2": False}
#: B series: the bound, and True if its statistic is a variance.
_BOUNDS = {
    "d1.6": ("gate * x + second", True),
    "d1.1": ("(x + 1) * second", False),
    "d1.7": ("second - x", False),
}


def set_triton(module: nn.Module) -> None:
    """Compute the layers of `module` by kernels, where they exist."""
    for layer in module.modules():
        if isinstance(layer, NormAct):
            layer.kernel = run_kernel


def has_kernel(layer: nn.Module) -> bool:
    """Return True if a kernel exists for the class of `layer`."""
    return type(layer) in _KERNELS


def run_kernel(layer: NormAct, x: Tensor) -> Tensor | None:
    """Return the output of `layer` by its kernel, or None if there is none."""
    kernel = _KERNELS.get(type(layer))
    if kernel is None or not kernels.supports(x) or torch.compiler.is_compiling():
        return None
    return kernel(layer, x)


def _group_norm(layer: GroupNormAct, x: Tensor) -> Tensor | None:
    if layer.act not in ACTIVATIONS or layer.weighs_examples or layer.strided:
        return None
    options = SampleOptions(layer.groups, layer.eps, act=layer.act)
    return _one_image(x, options, Parameters(layer.weight, layer.bias, **_proxy(layer)))


def _filter_response_norm(layer: FilterResponseNormAct, x: Tensor) -> Tensor | None:
    if layer.eps is not None:
        return None  # learned eps is for 1x1 maps, which are cheap
    act = None if layer.tau is None else "tlu"
    options = SampleOptions(layer.channels, layer.least, center=False, act=act)
    return _one_image(x, options, Parameters(layer.weight, layer.bias, tau=layer.tau))


def _evonorm_s(layer: EvoNormSAct, x: Tensor) -> Tensor | None:
    if layer.which not in _CENTERED:
        return None
    options = SampleOptions(layer.groups, layer.eps, center=_CENTERED[layer.which], gated=True)
    return _one_image(x, options, Parameters(layer.weight, layer.bias, gate=layer.v))


def _one_image(x: Tensor, options: SampleOptions, parameters: Parameters) -> Tensor:
    """Use one kernel, or moments of channels if a group is too large for it."""
    if fits(x, options, parameters):
        return per_sample(x, options, parameters)

    def coefficients(mean: Tensor, var: Tensor, *weight: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = merge_channels(mean, var, options.groups)
        power = var if options.center else var + mean.square()
        scale = expand_groups(torch.rsqrt(power + options.eps), x.shape[1])
        shifted = options.center and not options.gated
        first = expand_groups(mean, x.shape[1]) if shifted else torch.zeros_like(scale.detach())
        return first, scale * weight[0] if weight else scale

    weight = () if parameters.weight is None else (parameters.weight,)
    worker_options = WorkerOptions(options.act, options.gated)
    return per_worker(x, worker_options, parameters._replace(weight=None), coefficients, *weight)


def _batch_norm(layer: BatchNormAct, x: Tensor) -> Tensor | None:
    if not layer.training or layer.act not in ACTIVATIONS:
        return None  # in evaluation a fixed affine map: torch's kernel is as fast
    if is_synchronized(layer) and not layer.holds_whole_step:
        return None
    sets = layer.sets(len(x))
    values = len(x) // sets * x.shape[2] * x.shape[3]

    def coefficients(mean: Tensor, var: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = merge_images(mean, var, sets)
        layer.track(mean=mean, var=var * (values / (values - 1)))
        scale = torch.rsqrt(var + layer.eps) * weight
        return expand_sets(mean, len(x)), expand_sets(scale, len(x))

    assert layer.weight is not None
    parameters = Parameters(bias=layer.bias, **_proxy(layer))
    return per_worker(x, WorkerOptions(layer.act), parameters, coefficients, layer.weight)


def _evonorm_b(layer: EvoNormBAct, x: Tensor) -> Tensor | None:
    if layer.which not in _BOUNDS:
        return None
    bound, centered = _BOUNDS[layer.which]

    def coefficients(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        power = var if centered else var + mean.square()
        batch_var = _batch_var(layer, mean, var)
        return torch.sqrt(batch_var + layer.eps), torch.sqrt(power + layer.eps)

    parameters = Parameters(layer.weight, layer.bias, gate=layer.v)
    return per_worker(x, WorkerOptions(bound=bound), parameters, coefficients)


def _batch_var(layer: EvoNormBAct, mean: Tensor, var: Tensor) -> Tensor:
    """Return the variance (N, C) of each channel over its worker, or the running one (1, C)."""
    if not layer.training:
        return layer.running_var[None].to(var.dtype)
    _, worker_var = merge_images(mean, var, layer.workers)
    layer.track(var=worker_var)
    return expand_sets(worker_var, len(mean))


def _switchable_norm(layer: SwitchableNormAct, x: Tensor) -> Tensor | None:
    if layer.act not in ACTIVATIONS:
        return None
    if is_synchronized(layer) and not layer.holds_whole_step:
        return None
    positions = x.shape[2] * x.shape[3]

    def coefficients(
        mean: Tensor, var: Tensor, p: Tensor, q: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        mean, scale = layer.mix_moments((mean, var), positions, (p, q), track=True)
        return mean, scale * weight

    assert layer.weight is not None
    options, parameters = WorkerOptions(layer.act), Parameters(bias=layer.bias)
    return per_worker(x, options, parameters, coefficients, *layer.ratios(), layer.weight)


def _proxy(layer: NormAct) -> dict[str, Tensor]:
    """Return shift and scale of proxy normalization as parameters of a kernel, if there are any."""
    if not isinstance(layer, ProxyAct):
        return {}
    mean, var = layer.proxy_moments()
    scale = torch.rsqrt(var + layer.proxy_eps) if layer.scale else torch.ones_like(mean)
    return {"shift": mean, "scale": scale}


#: By exact class: a subclass may compute something else.
_KERNELS: dict[type[NormAct], Callable[[Any, Tensor], Tensor | None]] = {
    BatchNormAct: _batch_norm,
    EvoNormBAct: _evonorm_b,
    EvoNormSAct: _evonorm_s,
    FilterResponseNormAct: _filter_response_norm,
    GroupNormAct: _group_norm,
    ProxyBatchNormAct: _batch_norm,
    ProxyGroupNormAct: _group_norm,
    SwitchableNormAct: _switchable_norm,
    SyncBatchNormAct: _batch_norm,
}
