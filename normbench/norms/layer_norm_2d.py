"""Layer normalization over the channels of each position, as ConvNeXt and transformers have it.

    y = (x - mean) / sqrt(var + eps),   z = act(weight * y + bias)

mean and (biased) var over all channels at each position of an image, axis (c) (Ba, Kiros and Hinton
2016, eq. 3, with a position as the case; Liu, Mao, Wu, Feichtenhofer, Darrell and Xie 2022). weight
and bias per channel. Nothing differs in evaluation.

Placement: that of batch normalization. Of a single channel y is 0.

Elsewhere: timm's `LayerNorm2d` is this layer; torch's `LayerNorm` normalizes the last axis, so it
is this layer where channels are last. `norm=ln` is another one: over channels and positions.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor, nn
from torch.nn import functional as F

from normbench.norms.base import reference_ops
from normbench.norms.base.layer import NormAct, Normalizer, Normalizing, is_channels_last
from normbench.norms.base.options import positive


@dataclass(frozen=True)
class LayerNorm2d(Normalizer):
    """Normalization over the channels of each position.

    Args:
        eps: added to the variance, inside the square root.
    """

    eps: float = positive(1e-6)  # ConvNeXt's
    batch_independent: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True

    def inherit_options(self, old: nn.Module) -> Self:
        """Return this normalizer with the eps of a replaced layer normalization, if none is set."""
        if not isinstance(old, nn.LayerNorm) or self.eps != type(self)().eps:
            return self
        return replace(self, eps=old.eps)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return LayerNorm2dAct(channels, act, self.eps)


class LayerNorm2dAct(Normalizing):
    batch_independent = True
    shown: ClassVar[tuple[str, ...]] = ("act", "eps")

    def __init__(self, channels: int, act: str | None, eps: float) -> None:
        super().__init__(channels, act)
        self.eps = eps

    def norm_act(self, x: Tensor) -> Tensor:
        return self.activation(self._normalize(x, self.weight, self.bias))

    def normalize(self, x: Tensor) -> Tensor:
        return self._normalize(x, None, None)

    def _normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        # torch normalizes the last axis. For half precision it computes the moments in fp32.
        y = F.layer_norm(x.movedim(1, -1), (self.channels,), weight, bias, self.eps)
        y = y.movedim(-1, 1)
        return y if is_channels_last(x) else y.contiguous()

    def reference_normalize(self, x: Tensor) -> Tensor:
        return reference_ops.standardize(x, (1,), self.eps)
