"""The stability criterion: reject layers whose gradients explode under adversarial weights.

Gradient ascent on the weights of all convolutions maximizes the norm of the loss's gradient with
respect to them,

    w <- w + 0.1 * d ||dL/dw|| / dw

on the training images of the first step. A layer is rejected if the norm exceeds a bound within the
steps. Rate, steps (100) and bound (1e8) are the main paper's, unverified here. Networks must be
deep: in ResNet-20 the norm of layers that normalize stays below 1e5, and that of others exceeds
1e8; in ResNet-8 it exceeds 1e8 for both.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RATE = 0.1


def worst_gradient(
    network: nn.Module, x: Tensor, labels: Tensor, steps: int, bound: float
) -> float:
    """Return the norm of the gradient after the ascent, or the first one above `bound`.

    The weights of `network` change.

    Args:
        network: in training mode, images (N, C, H, W) -> logits.
        x: images.
        labels: their classes (N,).
        steps: of gradient ascent.
        bound: above which the ascent ends; a norm that is not finite is above it.
    """
    weights = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d)]
    norm = _gradient_norm(network, weights, x, labels)
    for _ in range(steps):
        if not norm.item() <= bound:
            break
        ascent = torch.autograd.grad(norm, weights, allow_unused=True)
        with torch.no_grad():
            for weight, direction in zip(weights, ascent, strict=True):
                if direction is not None:
                    weight.add_(direction, alpha=RATE)
        norm = _gradient_norm(network, weights, x, labels)
    return norm.item() if norm.isfinite() else math.inf


def _gradient_norm(network: nn.Module, weights: list[Tensor], x: Tensor, labels: Tensor) -> Tensor:
    loss = F.cross_entropy(network(x), labels)
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    norm: Tensor = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    return norm
