"""Normalizers with weight standardization (Qiao et al. 2019).

    W_hat[o] = (W[o] - mean[o]) / sqrt(var[o] + ws_eps)

mean and (biased) var over all weights of the filter of output channel o, computed in every forward
pass with gradients through both (`normbench.norms.base.standardized_conv`). The layers are those of
gn, ln and bn, for gn_ws_pn that of gn_pn. Evaluation differs only where the layers do.

Placement: every convolution outside squeeze-excite, including the last of a v2 branch, which no
normalization follows; there Proxy Norm (A.1) adds a learned scale per channel.

Elsewhere:

- The authors' code divides by the unbiased deviation plus 1e-5; Big Transfer has eps = 1e-10 inside
  the root and the biased variance, as here; timm's `StdConv2d` 1e-6; Proxy Norm none.
- On a 3x3 depthwise filter of 9 weights unbiased and biased deviation differ by 6 %.
"""

from dataclasses import dataclass

from normbench.norms.base.layer import Normalizer
from normbench.norms.base.options import positive
from normbench.norms.base.standardized_conv import Standardization
from normbench.norms.batch import BatchNorm
from normbench.norms.group import GroupNorm, LayerNorm
from normbench.norms.proxy import GroupNormPN


@dataclass(frozen=True)
class Standardized(Normalizer):
    """Mixin that adds weight standardization to a normalizer.

    Args:
        ws_eps: added to the variance of a filter's weights, inside the square root.
    """

    ws_eps: float = positive(1e-10)  # Big Transfer

    @property
    def conv(self) -> Standardization:
        return Standardization("ws", self.ws_eps)


@dataclass(frozen=True)
class GroupNormWS(Standardized, GroupNorm):
    """Group normalization with weight standardization."""


@dataclass(frozen=True)
class LayerNormWS(Standardized, LayerNorm):
    """Layer normalization with weight standardization."""


@dataclass(frozen=True)
class BatchNormWS(Standardized, BatchNorm):
    """Batch normalization with weight standardization."""


@dataclass(frozen=True)
class GroupNormWSPN(Standardized, GroupNormPN):
    """Group normalization with weight standardization and proxy-normalized activation."""
