"""Layers of every normalizer, their inputs and the tolerances of comparisons."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms.base.layer import NormAct, Normalizer

#: Largest |a - b| / max(1, |b|) between two ways to compute the same.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 8e-3,
    torch.bfloat16: 4e-2,
}


def perturbed_layer(
    norm: Normalizer, channels: int, act: str | None, dtype: torch.dtype
) -> NormAct:
    """Return a layer with parameters and running statistics as they might be after training."""
    layer = norm.layer(channels, act).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise.to(dtype))
        for name, buffer in layer.named_buffers():
            if name.startswith("running"):
                noise = torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
                buffer.copy_(noise + (-0.5 if "mean" in name else 0.5))
    return layer


def images(shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal noise of mean 0.7 and standard deviation 2 that requires gradients."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(*shape, generator=generator, dtype=torch.float64) + 0.7
    return x.to(dtype).requires_grad_()


def trained_parameters(layer: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that have gradients; gains of frozen BN have none."""
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]


def values_and_gradients(layer: nn.Module, x: Tensor, output: Tensor) -> list[Tensor]:
    """Return `output` and the gradients of a weighted sum of it at `x` and the parameters."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device)
    weights = weights.view_as(output)
    inputs = [x, *trained_parameters(layer)]
    gradients = torch.autograd.grad((output * weights).sum(), inputs, allow_unused=True)
    return [output, *(torch.zeros_like(x[:1]) if each is None else each for each in gradients)]


def norm_layers(network: nn.Module) -> list[Any]:
    """Return the layers of `network` that a normalizer made."""
    return [layer for layer in network.modules() if isinstance(layer, NormAct)]
