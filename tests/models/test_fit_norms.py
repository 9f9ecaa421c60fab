"""Gains and shifts of new normalizers, fitted to the layers that they replaced."""

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from normbench.catalog import swap
from normbench.errors import Impossible
from normbench.models.fit_norms import fit_norms
from normbench.norms.base.layer import Affine, NormAct, Normalizing
from normbench.norms.recalibration import recalibrate
from support.networks import network_of, noise, unchanged


def images(number: int = 64) -> Tensor:
    """Images with a mean, of several contrasts."""
    scale = torch.linspace(0.5, 2, number)[:, None, None, None]
    return (noise(number, 1, 16, 16) * scale + 0.5).double()


def trained(**more: Any) -> nn.Module:
    """A network with bn, with running statistics and gains and shifts other than 1 and 0."""
    network = network_of("bn", stem_stride=1, **more).double()
    for seed, layer in enumerate(m for m in network.modules() if isinstance(m, NormAct)):
        for parameter, centre in ((layer.weight, 1.0), (layer.bias, 0.0)):
            assert parameter is not None
            parameter.data = centre + 0.3 * noise(layer.channels, seed=seed).double()
    recalibrate(network, [images()])
    return network.eval()


def with_norm(norm: str, original: nn.Module, **more: Any) -> nn.Module:
    """A network of another normalizer with the weights, gains and shifts of `original`."""
    network = network_of(norm, stem_stride=1, **more).double().eval()
    network.load_state_dict(original.state_dict(), strict=False)
    return network


def inputs_and_outputs(network: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """What goes into and comes out of every module."""
    seen = {}
    handles = [
        module.register_forward_hook(
            lambda _, given, output, name=name: seen.update({name: (given[0], output)})
        )
        for name, module in network.named_modules()
    ]
    with torch.no_grad():
        network(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize(
    "norm", ["gn", "ln", "frn", "rms", "gn_ws", "in", "evonorm_s0", "evonorm_s1", "dyt"]
)
def test_every_gain_and_shift_is_that_of_the_least_squares(norm: str) -> None:
    """The residual of each channel has mean 0 and does not correlate with what is fitted."""
    original, x = trained(), images()
    network = with_norm(norm, original)
    fit_norms(network, original, x)
    old, new = inputs_and_outputs(original, x), inputs_and_outputs(network, x)
    checked = 0
    for name, layer in network.named_modules():
        if not isinstance(layer, NormAct):
            continue
        partner: Any = original.get_submodule(name)
        target, (given, _) = old[name][1], new[name]
        with torch.no_grad():
            if isinstance(layer, Normalizing):
                values = layer.normalize(given)
            elif isinstance(layer, Affine):
                values = given
            else:
                back = layer.split_back()
                assert back is not None
                values = back[0](given)
            if isinstance(layer, Normalizing | Affine) and isinstance(partner, Normalizing):
                target = partner.affine(partner.normalize(old[name][0]))
            residual = target - layer.affine(values)
        scale = target.square().mean()
        if layer.bias is not None:
            assert residual.mean((0, 2, 3)).square().max() < 1e-18 * scale
        if layer.weight is not None:
            product = (residual * values).mean((0, 2, 3))
            assert product.square().max() < 1e-18 * scale * values.square().mean()
        checked += 1
    assert checked >= 7


def test_the_same_normalizer_is_restored() -> None:
    original = trained()
    network = copy.deepcopy(original)
    for layer in network.modules():
        if isinstance(layer, NormAct):
            nn.init.constant_(layer.weight, 2.0)  # type: ignore[arg-type]
            nn.init.constant_(layer.bias, -1.0)  # type: ignore[arg-type]
    x = images()
    recalibrate(original, [x])  # the new layers have the statistics of these images
    fit_norms(network, original, x)
    for name, parameter in original.named_parameters():
        torch.testing.assert_close(network.get_parameter(name), parameter, rtol=1e-3, atol=1e-3)


def test_the_original_and_the_modes_stay() -> None:
    original = trained().train()
    with unchanged(original):
        network = with_norm("sn", original).train()
        fit_norms(network, original, images())
    assert all(module.training for module in network.modules())


def test_a_constant_channel_keeps_its_gain() -> None:
    original, network = (nn.Sequential(network_of(n).norm) for n in ("bn", "gn"))  # type: ignore[arg-type]
    x = noise(8, network[0].channels, 4, 4)  # type: ignore[arg-type]
    x[:, : 2 * x.shape[1] // 4] = 3 + 1e-8 * x[:, : 2 * x.shape[1] // 4]
    fit_norms(network, original, x)
    assert network[0].weight.abs().max() < 10  # type: ignore[operator]


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "vit_tiny_patch16_224"])
@pytest.mark.parametrize("norm", ["gn", "gn_ws", "rms"])
def test_networks_of_timm(name: str, norm: str) -> None:
    if norm == "gn_ws" and not name.startswith("resnet"):
        pytest.skip("its residual branches end with linear layers")
    options: dict[str, Any] = {"img_size": 32} if name.startswith("vit") else {}
    size = (3, 32, 32)
    network = timm.create_model(name, num_classes=10, **options).eval()
    original = swap(copy.deepcopy(network), "bn" if name == "resnet18" else "ln2d", image=size)
    x = noise(32, *size)
    if name == "resnet18":
        recalibrate(original, [x])
    original.eval()
    swapped = swap(network, norm, image=size).eval()
    with torch.no_grad():
        before = (swapped(x) - original(x)).square().mean()
        fit_norms(swapped, original, x)
        assert (swapped(x) - original(x)).square().mean() < before


def test_what_cannot_be_fitted_is_named() -> None:
    network, x = network_of("gn", stem_stride=1).double(), images()
    with pytest.raises(Impossible, match="has no normalizer of normbench of that name"):
        fit_norms(network, timm.create_model("resnet18"), x)
    with pytest.raises(Impossible, match="in the original network has no output to fit a gain to"):
        fit_norms(network, network_of("evonorm_s0", stem_stride=1).double(), x)
    original = trained(name="resnet14_v2")
    nf = with_norm("nf", original, name="resnet14_v2")
    with pytest.raises(Impossible, match="has no gain and shift to be fitted"):
        fit_norms(nf, original, x)
    with pytest.raises(Impossible, match="the proxy normalization of"):
        fit_norms(network_of("gn_pn", stem_stride=1).double(), trained(), x)
    shared: Any = network_of("bn", stem_stride=1).norm
    with pytest.raises(Impossible, match="0 is called more than once"):
        fit_norms(nn.Sequential(shared, shared), nn.Sequential(shared, shared), noise(4, 16, 4, 4))
