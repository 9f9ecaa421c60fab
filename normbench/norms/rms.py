"""Root-mean-square normalization over the channels of each position (Zhang and Sennrich 2019).

    y = x / sqrt(mean(x^2) + eps),   z = act(weight * y)

with the mean square over all channels at each position of an image, axis (c). There is a gain and,
as in the paper's eq. 4, no shift. Nothing differs in evaluation.

Placement: that of batch normalization.

Elsewhere: timm's `RmsNorm2d` is this layer; its `SimpleNorm2d` has the variance instead of the mean
square; torch's `RMSNorm` normalizes the last axis, with the dtype's epsilon as eps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from normbench.norms.base import reference_ops
from normbench.norms.base.closed_form import CLOSED_FORMS, ClosedForm, MaybeTensor, evaluate
from normbench.norms.base.layer import NormAct, Normalizer, Normalizing
from normbench.norms.base.options import positive
from normbench.norms.base.tensors import per_channel, upcast


@dataclass(frozen=True)
class RmsNorm(Normalizer):
    """Division by the root mean square over the channels of each position.

    Args:
        eps: added to the mean square, inside the square root.
    """

    eps: float = positive(1e-6)  # timm's RmsNorm2d
    batch_independent: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return RmsNormAct(channels, act, self.eps)


class RmsNormAct(Normalizing):
    batch_independent = True

    def __init__(self, channels: int, act: str | None, eps: float) -> None:
        super().__init__(channels, act, shift=False)  # eq. 4 has none
        self.eps = eps

    def norm_act(self, x: Tensor) -> Tensor:
        return self.activation(channel_rms_norm(x, self.weight, self.eps))

    def normalize(self, x: Tensor) -> Tensor:
        return channel_rms_norm(x, None, self.eps)

    def reference_normalize(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(reference_ops.mean(x**2, (1,)) + self.eps)


def channel_rms_norm(x: Tensor, weight: MaybeTensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, in fp32 at least.

    Means are over the channels of each position.
    """
    if weight is not None:
        weight = upcast(weight).expand(x.shape[:2])
    output: Tensor = evaluate("rms", eps, x, weight)
    return output


def _rms(eps: float, x: Tensor, weight: MaybeTensor) -> Tensor:
    y = x * _inverse_rms(eps, x)
    return y if weight is None else y.mul_(per_channel(weight))


def _inverse_rms(eps: float, x: Tensor) -> Tensor:
    values = upcast(x)
    return torch.rsqrt((values * values).mean(1, keepdim=True) + eps)


def _rms_backward(
    eps: float, gradients: Sequence[Tensor], x: Tensor, weight: MaybeTensor
) -> list[MaybeTensor]:
    g = upcast(gradients[0])
    inverse = _inverse_rms(eps, x)
    y = x * inverse
    product = y * g
    if weight is None:
        to_weight, dx = None, g.clone()
    else:
        to_weight, dx = product.sum((2, 3)), g * per_channel(weight)
        product.mul_(per_channel(weight))
    dx.sub_(y.mul_(product.mean(1, keepdim=True))).mul_(inverse)
    return [dx.to(x.dtype), to_weight]


CLOSED_FORMS["rms"] = ClosedForm(_rms, _rms_backward, _rms)
