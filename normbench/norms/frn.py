"""Filter response normalization with its activation TLU (Singh and Krishnan 2020, eq. 1 to 4).

    y = x / sqrt(mean(x^2) + |eps|),   z = max(weight * y + bias, tau)

with the mean square of each channel of an image over its positions, axes (h, w); nothing is
centered. The threshold `tau` (C,) is learned, initially 0. On a 1x1 map y is close to sign(x), with
gradients up to 1 / sqrt(eps), and training breaks down; there the paper learns eps: |eps| is
1e-6 + |e| with one learned scalar e, initially 1e-4. Nothing differs in evaluation.

Placement: normalization and TLU together replace batch normalization and ReLU. Without activation,
as before a residual addition, there is no tau; the activation after the addition is a TLU with its
own tau.

Elsewhere:

- timm has eps 1e-5, no learned part, and an unused argument `rms`; it squares in the input's dtype,
  so fp16 overflows beyond 255.
- TensorFlow Addons' TLU has a tau per position.
- Ports start the learned part at 1e-6 per channel; one Keras port has eps 1e-15.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from normbench.norms.base import reference_ops
from normbench.norms.base.closed_form import apply_map
from normbench.norms.base.layer import NormAct, Normalizer, Normalizing, Role
from normbench.norms.base.moments import group_mean_squares
from normbench.norms.base.options import positive
from normbench.norms.base.tensors import per_channel, upcast


@dataclass(frozen=True)
class FilterResponseNorm(Normalizer):
    """Division by the root mean square of each channel of one image.

    Args:
        eps: added to the mean square, inside the square root.
        learned_eps: add |e| too, with e learned, initially 1e-4: for 1x1 maps.
    """

    eps: float = positive(1e-6)  # the paper's
    learned_eps: bool = False
    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return FilterResponseNormAct(channels, act, self.eps, learned=self.learned_eps)

    def activation(self, channels: int, act: str = "relu") -> nn.Module:  # noqa: ARG002
        """Return a thresholded linear unit, whichever activation it replaces."""
        return ThresholdedLinear(channels)


class FilterResponseNormAct(Normalizing):
    """The layer; its activation is TLU, whichever `act` it replaces."""

    batch_independent = True
    roles: ClassVar[dict[str, Role]] = {**Normalizing.roles, "tau": "shift", "eps": "scalar"}
    weight: nn.Parameter
    bias: nn.Parameter
    tau: nn.Parameter | None
    eps: nn.Parameter | None

    def __init__(self, channels: int, act: str | None, eps: float, *, learned: bool) -> None:
        super().__init__(channels, act)
        self.least = eps
        tau = None if act is None else nn.Parameter(torch.zeros(channels))
        self.register_parameter("tau", tau)
        self.register_parameter("eps", nn.Parameter(torch.full((1,), 1e-4)) if learned else None)

    def norm_act(self, x: Tensor) -> Tensor:
        weight, bias = upcast(self.weight), upcast(self.bias)
        factor = self._inverse_rms(x) * weight
        if self.tau is None:
            return apply_map(None, x, factor, bias)
        tau = upcast(self.tau)
        return apply_map("relu", x, factor, bias - tau, shift=tau)  # max(y, tau)

    def normalize(self, x: Tensor) -> Tensor:
        return x * per_channel(self._inverse_rms(x))

    def _inverse_rms(self, x: Tensor) -> Tensor:
        """Return the inverse root of the mean square (N, C) plus eps."""
        eps: Tensor | float = self.least if self.eps is None else self.least + self.eps.abs()
        return torch.rsqrt(group_mean_squares(x, self.channels) + eps)

    def activation(self, y: Tensor) -> Tensor:
        return y if self.tau is None else threshold(y, self.tau)

    def reference(self, x: Tensor) -> Tensor:
        y = self.affine(self.reference_normalize(x.double()))
        if self.tau is None:
            return y
        tau = per_channel(self.tau.double())
        return torch.relu(y - tau) + tau  # TLU as the paper derives it

    def reference_normalize(self, x: Tensor) -> Tensor:
        eps = self.least if self.eps is None else self.least + torch.abs(self.eps.double())
        return x / torch.sqrt(reference_ops.mean(x**2, reference_ops.POSITIONS) + eps)


class ThresholdedLinear(nn.Module):
    """TLU: max(x, tau) with a learned threshold per channel, initially 0."""

    roles: ClassVar[dict[str, Role]] = {"tau": "shift"}

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return threshold(x, self.tau)


def threshold(x: Tensor, tau: Tensor) -> Tensor:
    """Return max(x, tau) for tau (C,), which has the gradient where both are equal."""
    tau = per_channel(tau)
    return (torch.relu(x - tau) + tau).to(x.dtype)  # tau may be fp32 under autocast
