"""Fit the gains and shifts of new normalizers to the layers that they replaced.

    original = catalog.swap(copy.deepcopy(network), "bn")
    swapped = catalog.swap(network, "gn")
    fit_norms(swapped, original, images)

A new layer copies gain and shift of the old one, but its normalized channels have other means and
deviations. `fit_norms` sets gain and shift of each channel to the least-squares fit to what the old
layer computes before its activation, over images and positions, layer after layer: the later ones
see the maps that the earlier ones now compute. It takes one forward pass of each network and no
gradient.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import Impossible
from normbench.norms.base.layer import Affine, NormAct, Normalizing, Scale
from normbench.norms.base.tensors import upcast
from normbench.norms.measuring import measuring


@torch.no_grad()
def fit_norms(network: nn.Module, original: nn.Module, images: Tensor) -> None:
    """Fit gain and shift of every normalizer of `network` to the one of that name in `original`.

    Args:
        network: with the new normalizers; its gains and shifts change.
        original: the trained network with layers of normbench: `swap` with the normalizer that it
            was trained with.
        images: (N, C, H, W), some hundreds; the maps of all layers are in memory at once.

    `original` computes as in an evaluation; batch statistics of new layers are those of `images`.
    If new layers have running statistics, call `normbench.norms.recalibration.recalibrate`
    afterwards. Where gain and shift follow the activation, as in EvoNorm, they are fitted to the
    activated maps.

    Raises:
        Impossible: a layer has no counterpart in `original`, neither gain nor shift, a proxy
            normalization, or is called more than once.
    """
    layers = {name: m for name, m in network.named_modules() if isinstance(m, NormAct)}
    modules = dict(original.named_modules())
    counterparts = {name: _find_counterpart(name, layers[name], modules) for name in layers}
    normalize = {name: _without_affine(name, layer) for name, layer in layers.items()}
    targets: dict[str, Tensor] = {}

    def keep_target(name: str, counterpart: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        if name in targets:
            raise Impossible(f"{name} is called more than once, so one gain fits no single output")
        if isinstance(counterpart, Normalizing) and isinstance(layers[name], Normalizing | Affine):
            output = counterpart.affine(counterpart.normalize(inputs[0]))  # before the activation
        targets[name] = output

    def fit(name: str, layer: NormAct, inputs: tuple[Tensor]) -> None:
        values = normalize[name](inputs[0])
        _fit_affine(layer, upcast(values), upcast(targets.pop(name)))

    with ExitStack() as hooks, measuring(original, "running"):
        for name, counterpart in counterparts.items():
            hooks.callback(counterpart.register_forward_hook(partial(keep_target, name)).remove)
        original(images)
    with ExitStack() as hooks, measuring(network, "batch"):
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_pre_hook(partial(fit, name)).remove)
        network(images)


def _find_counterpart(name: str, layer: NormAct, modules: dict[str, nn.Module]) -> nn.Module:
    """Return the module of the original network whose output a layer is fitted to.

    Raises:
        Impossible: there is none.
    """
    if isinstance(layer, Scale):  # the gain behind a standardized convolution, which has no norm
        name = name if name in modules else name.removesuffix("_scale")
    elif not isinstance(modules.get(name), NormAct):
        raise Impossible(
            f"{name}: the original network has no normalizer of normbench of that name; pass the "
            'same architecture, as by swap(network, "bn")'
        )
    elif not isinstance(modules[name], Normalizing) or _has_proxy(modules[name]):
        kind = type(modules[name]).__name__
        raise Impossible(f"{name}: {kind} in the original network has no output to fit a gain to")
    return modules[name]


def _has_proxy(layer: nn.Module) -> bool:
    """Return True if proxy normalization follows the activation."""
    return isinstance(layer, Normalizing) and layer.output_affine() != (None, None)


def _without_affine(name: str, layer: NormAct) -> Callable[[Tensor], Tensor]:
    """Return what a layer computes before gain and shift.

    Raises:
        Impossible: it has none of its own, or what follows them changes them.
    """
    kind = type(layer).__name__
    if _has_proxy(layer):
        raise Impossible(
            f"{name}: the proxy normalization of {kind} changes the activated maps, which no gain "
            "and shift before it undo"
        )
    if layer.weight is not None or layer.bias is not None:
        if isinstance(layer, Normalizing):
            return layer.normalize
        if isinstance(layer, Affine):
            return nn.Identity()
        if back := layer.split_back():
            return back[0]
    raise Impossible(f"{name}: {kind} has no gain and shift to be fitted")


def _fit_affine(layer: NormAct, values: Tensor, targets: Tensor) -> None:
    """Set gain and shift of `layer` by least squares: values (N, C, H, W) to targets."""
    dims = (0, 2, 3)
    mean, target_mean = values.mean(dims), targets.mean(dims)
    if layer.bias is None:  # through the origin
        mean, target_mean = torch.zeros_like(mean), torch.zeros_like(target_mean)
    centred = values - mean[:, None, None]
    power = centred.square().mean(dims)
    slope = (centred * (targets - target_mean[:, None, None])).mean(dims) / power
    if layer.weight is not None:
        # A channel that is constant up to rounding does not determine the gain.
        varies = power > torch.finfo(power.dtype).eps * values.square().mean(dims)
        layer.weight.copy_(torch.where(varies, slope, layer.weight))
    if layer.bias is not None:
        gain = 1 if layer.weight is None else layer.weight
        layer.bias.copy_(target_mean - gain * mean)
