"""Proxy normalization of the activation (Labatie, Masters, Eaton-Rosen and Luschi 2021, eq. 7).

    z = act(weight * y + bias)                          y from LN, GN, IN or BN, before their affine
    p = act(weight * (proxy_bias + (1 + proxy_weight) * u) + bias),   u ~ N(0, 1)
    out = (z - mean(p)) / sqrt(var(p) + proxy_eps)

all per channel: the statistics are those of an activated Gaussian proxy, so no image's statistics
enter. proxy_bias and proxy_weight (C,), initially 0, are the paper's additional parameters;
`additional: false` omits them. u are the `samples` midpoints of equal shares of probability;
gradients flow through mean and var into all four parameters. Evaluation differs only where the
normalization itself does.

Placement: on every activation that a normalization precedes directly, so in v2 blocks, and in v1
blocks not after the addition; not inside squeeze-excite. The layer before the final mean over
positions (`Normalizer.final_layer`) leaves out the division (appendix A.1). A layer without
activation, as the last of an MBConv block, is not proxy-normalized; with the additional parameters
it keeps a gain alone, without them gain and shift (appendix A.1).

The paper decays the additional parameters in all networks, gain and shift only in its ResNets.

Elsewhere:

- Graphcore's groups of channels are strided (`grouping: strided`).
- Graphcore's code has 200 samples, unofficial ports 256; both underestimate var(p) by 1 %.
- In Graphcore's MBConv blocks squeeze-excite sees the activation before the division.
- The package `proxynorm` 0.1.0 is another layer: as many samples as channels, offset by 0.03 rather
  than 1/2, unbiased variances and no additional parameters.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from normbench.norms.base.closed_form import apply_map, pays_for
from normbench.norms.base.layer import (
    Affine,
    Constants,
    NormAct,
    Normalizer,
    Normalizing,
    Role,
)
from normbench.norms.base.moments import channel_moments
from normbench.norms.base.options import positive
from normbench.norms.base.tensors import upcast
from normbench.norms.batch import BatchNorm, BatchNormAct
from normbench.norms.group import GroupNorm, GroupNormAct, InstanceNorm, LayerNorm


class ProxyAct(Normalizing):
    """Mixin for a layer with `normalize`: its activation is proxy-normalized."""

    roles: ClassVar[dict[str, Role]] = {
        **Normalizing.roles,
        "proxy_weight": "proxy",
        "proxy_bias": "proxy",
    }
    weight: nn.Parameter
    bias: nn.Parameter
    proxy_weight: nn.Parameter | None
    proxy_bias: nn.Parameter | None

    def __init__(self, channels: int, act: str, options: "Proxied", *, scale: bool) -> None:
        super().__init__(channels, act, options)  # type: ignore[arg-type, call-arg]
        self.samples, self.proxy_eps, self.scale = options.samples, options.proxy_eps, scale
        for name in ("proxy_weight", "proxy_bias"):
            zeros = nn.Parameter(torch.zeros(channels)) if options.additional else None
            self.register_parameter(name, zeros)

    def activation(self, y: Tensor) -> Tensor:
        return apply_map(self.act, y, None, None, *self.output_affine())

    def output_affine(self) -> tuple[Tensor | None, Tensor]:
        mean, var = self.proxy_moments()
        if not self.scale:
            return None, -mean
        gain = torch.rsqrt(var + self.proxy_eps)
        return gain, -mean * gain

    def proxy_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and (biased) variance (C,) of the activated proxy, in at least fp32."""
        weight, bias = upcast(self.weight), upcast(self.bias)
        u = midpoints(self.samples, weight)
        if self.proxy_weight is not None and self.proxy_bias is not None:
            u = upcast(self.proxy_bias)[:, None] + (1 + upcast(self.proxy_weight))[:, None] * u
        proxy = self.function(weight[:, None] * u + bias[:, None])  # (C, samples)
        mean, var = channel_moments(proxy[None, :, :, None])
        return mean[0], var[0]

    def without_proxy(self) -> Normalizing:
        """Return the layer that the proxy normalization follows, with its initial parameters."""
        raise NotImplementedError

    @torch.no_grad()
    def inference_layers(self) -> list[NormAct]:
        """Return the layer without its proxy, and gain and shift by the proxy's moments."""
        if self.weighs_examples:
            return [self]
        gain, shift = self.output_affine()
        core, affine = self.without_proxy().to(self.weight), Affine(self.channels, None)
        core.inherit_parameters(self)
        affine.weight = None if gain is None else nn.Parameter(gain)
        affine.bias = nn.Parameter(shift)
        return [core, affine]

    def split_front(self) -> tuple[Constants, nn.Module] | None:
        return None  # `inference_layers` takes the proxy away first

    def reference(self, x: Tensor) -> Tensor:
        z = self.function(self.affine(self.reference_normalize(x.double())))
        # Midpoint i of n shares of probability, by the standard normal's quantile function.
        share = (torch.arange(self.samples, dtype=torch.float64) + 0.5) / self.samples
        u = torch.special.ndtri(share.to(x.device))
        weight, bias = self.weight.double()[:, None], self.bias.double()[:, None]
        if self.proxy_weight is not None and self.proxy_bias is not None:
            u = self.proxy_bias.double()[:, None] + (1 + self.proxy_weight.double())[:, None] * u
        proxy = self.function(weight * u + bias)  # (C, samples)
        mean = proxy.sum(1, keepdim=True) / self.samples
        var = ((proxy - mean) ** 2).sum(1, keepdim=True) / self.samples
        out = z - mean[..., None]  # (C, 1, 1) broadcasts over maps
        return out / torch.sqrt(var[..., None] + self.proxy_eps) if self.scale else out


class ProxyGroupNormAct(ProxyAct, GroupNormAct):
    """The layer on group, layer and instance normalization."""

    def norm_act(self, x: Tensor) -> Tensor:
        if self.weighs_examples or not pays_for(x):
            return super().norm_act(x)  # torch's own group normalization, and the proxy
        mean, var = self.moments(x)
        return self.map_standardized(x, mean, torch.rsqrt(var + self.eps))

    def without_proxy(self) -> Normalizing:
        grouping: Literal["strided"] | None = "strided" if self.strided else None
        return GroupNormAct(self.channels, self.act, GroupNorm(self.groups, self.eps, grouping))


class ProxyBatchNormAct(ProxyAct, BatchNormAct):
    """The layer on batch normalization."""

    def without_proxy(self) -> Normalizing:
        return BatchNormAct(self.channels, self.act, BatchNorm(eps=self.eps))


@dataclass(frozen=True)
class Proxied(Normalizer):
    """Mixin that adds proxy normalization to a normalizer.

    Args:
        additional: learn the proxy's mean and deviation.
        samples: number of samples of the proxy.
        proxy_eps: added to the proxy's variance, inside the square root.
    """

    additional: bool = True
    samples: int = positive(256)  # of ports that follow the paper; the authors' code has 200
    proxy_eps: float = positive(0.03)  # the authors' code
    proxied: ClassVar[type[ProxyAct]] = ProxyGroupNormAct
    batch_invariant: ClassVar[bool] = False

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return self._build(channels, act, scale=True)

    def final_layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return self._build(channels, act, scale=False)

    def _build(self, channels: int, act: str | None, *, scale: bool) -> NormAct:
        if act is not None:
            return self.proxied(channels, act, self, scale=scale)
        layer = super().layer(channels, None)  # type: ignore[safe-super]
        if self.additional:  # a gain alone, appendix A.1
            layer.bias = None
        return layer


@dataclass(frozen=True)
class GroupNormPN(Proxied, GroupNorm):
    """Group normalization with proxy-normalized activation."""


@dataclass(frozen=True)
class LayerNormPN(Proxied, LayerNorm):
    """Layer normalization with proxy-normalized activation."""


@dataclass(frozen=True)
class InstanceNormPN(Proxied, InstanceNorm):
    """Instance normalization with proxy-normalized activation."""


@dataclass(frozen=True)
class BatchNormPN(Proxied, BatchNorm):
    """Batch normalization with proxy-normalized activation."""

    proxied: ClassVar[type[ProxyAct]] = ProxyBatchNormAct


def midpoints(samples: int, like: Tensor) -> Tensor:
    """Return sqrt(2) * erfinv(2 (i + 1/2) / n - 1), i = 0 ... n - 1: midpoints of N(0, 1)."""
    share = (torch.arange(samples, dtype=like.dtype, device=like.device) + 0.5) / samples
    return 2**0.5 * torch.erfinv(2 * share - 1)
