"""Residual schemes of networks without normalization in timm's mobile blocks (MBConv).

    with a shortcut     x + alpha * g * f(x / beta)         nf;  x + g * f(x) in skipinit
    without             f(x / beta)                         where channels or the stride change

    f(x) = project(excite(act(depthwise(act(expand(x))))))      excite(h) = 2 * gate(h) * h in nf

Brock, De and Smith 2021 apply "Scaled WS and our Normalizer-Free structure directly to the
EfficientNet backbone" (section 5.2) and describe neither blocks nor training. Our choices:

- The input of every block is divided by its standard deviation beta. A block without shortcut has
  no alpha and no scalar g, and its output has variance 1, so beta starts again at 1.
- Gates of squeeze-excite are doubled, as in NF-RegNets. Its two convolutions stay plain.
- Convolutions start as N(0, 1 / fan-in), also those of squeeze-excite, as in NF-ResNets.
- With `norm.weights=gaussian_depthwise`, depthwise convolutions have plain weights and a bias. The
  paper says that this raises the accuracy and makes trainings less stable.

With the gain of the branches set to 1 and noise as images, variances in EfficientNet-B0 are within
45 % of the predicted ones, and channels have nearly no mean. With plain depthwise convolutions both
grow with depth: at the end the variance is ten times the predicted one.

In skipinit convolutions have biases. The paper could not train EfficientNets with it (footnote 2).
"""

from typing import Any

import torch
from timm.models.efficientnet import EfficientNet, SqueezeExcite
from torch import Tensor, nn

from normbench.models.blocks import add_biases
from normbench.norms.base.layer import Normalizer
from normbench.norms.base.residual import Residual


class MobileBlock(nn.Module):
    """A block of timm whose branch and shortcut are joined by a residual scheme.

    Args:
        block: the block, which becomes the branch.
        scheme: the residual scheme.
        beta: the input's standard deviation at initialization, or 1.
    """

    def __init__(self, block: Any, scheme: Residual, beta: float) -> None:
        super().__init__()
        self.beta = beta
        self.join = scheme.join() if block.has_skip else None
        self.drop = block.drop_path
        block.has_skip = False
        self.branch: nn.Module = block

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.branch(x if self.beta == 1 else x / self.beta)
        if self.join is None:
            return h
        out: Tensor = self.join(x, self.drop(h))
        return out


class Gate(nn.Module):
    """gain * sigmoid(x)."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * torch.sigmoid(x)


def join_blocks(network: EfficientNet, norm: Normalizer) -> None:
    """Give the blocks of `network` the residual scheme of `norm`, and initialize it."""
    stages: list[Any] = list(network.blocks.children())
    blocks: list[Any] = [block for stage in stages for block in stage]
    betas = iter(norm.residual.deviations_of_blocks([block.has_skip for block in blocks]))
    for stage in stages:
        for place, block in enumerate(stage):
            if isinstance(getattr(block, "se", None), SqueezeExcite):
                block.se.gate = Gate(norm.residual.gate_gain)
            stage[place] = MobileBlock(block, norm.residual, next(betas))
    if norm.conv_bias:
        add_biases(network, but=network.conv_stem)
    norm.residual.initialize(network, [], network.classifier)
