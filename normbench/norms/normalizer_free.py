"""Networks without normalization layers: the control, NF, SkipInit and FixUp.

    none        z = act(weight * x + bias)      what is left when normalization is taken away
    nf          z = gain(act) * act(x)          Brock, De and Smith 2021, section 3.2
    skipinit    z = act(x)                      De and Smith 2020; convolutions have biases
    fixup       z = act(x + bias)               Zhang, Dauphin and Ma 2019; bias one scalar

gain(act) = 1 / sqrt(Var act(u)), u ~ N(0, 1), preserves the variance of a standard normal input
(`normbench.norms.base.activations`); without activation the layer of nf is the identity. nf needs
convolutions with scaled weight standardization (`normbench.norms.base.standardized_conv`),

    W_hat[o] = gain[o] * (W[o] - mean[o]) / sqrt(max(fan-in * var[o], ws_eps))

whose gains, initially 1, and biases replace those of a layer; with `weights: gaussian` the
convolutions are plain, with `weights: gaussian_depthwise` only the depthwise ones, as the paper
tries in EfficientNet. nf, skipinit and fixup need residual branches of their own
(`normbench.norms.base.residual`), which an architecture provides:

    nf          x + alpha * g * f(x / beta)     beta^2 the variance of x at initialization
    skipinit    x + g * f(x)                    g one learned scalar, initially 0, here and in nf
    fixup       x + s * f(x) + b                scalars s and b; shifts before each convolution too

Nothing differs in evaluation.

Placement: nf and skipinit in pre-activation blocks (v2) and mobile blocks
(`normbench.models.mobile_blocks`), fixup in post-activation blocks (v1). In nf's pre-activation
blocks the activation precedes the division by beta, as in the paper's code.

Elsewhere:

- timm's NF networks put the activation's gain into the convolutions and the stem, have no
  SkipInit scalar, and rescale branches that stochastic depth keeps; the paper does none of this.
- The paper's PyTorch listing uses unbiased variances of the weights and adds eps = 1e-4 to
  I * var; its JAX code takes the maximum of both, as here.
- DeepMind's FixUp adds the scalar shift to identity shortcuts too; the official code does not.
- The official FixUp code trains scalars and the classifier's bias at a tenth of the learning rate,
  as here (`rate`); DeepMind's has one rate for all, and decays none of its scalars.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from normbench.norms.base.activations import gain, save_input_only
from normbench.norms.base.layer import (
    Activation,
    Affine,
    Constants,
    GainAndShift,
    NormAct,
    Normalizer,
    Role,
)
from normbench.norms.base.options import positive
from normbench.norms.base.residual import FixUp, NormalizerFree, Residual, SkipInit
from normbench.norms.base.standardized_conv import Standardization


@dataclass(frozen=True)
class NoNorm(Normalizer):
    """The control: gain, shift and activation without normalization."""

    batch_independent: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return Affine(channels, act)


@dataclass(frozen=True)
class NF(Normalizer):
    """Normalizer-free: weights and activations preserve variance, residual variances are known.

    Args:
        alpha: factor of every residual branch.
        skip_gain: multiply every residual branch by a learned scalar too, initially 0.
        ws_eps: lower bound of fan-in times the variance of a filter's weights.
        gain: factor of every activation; null: the activation's own gain.
        weights: gaussian leaves convolutions plain, initialized as N(0, 1 / fan-in), which with
            gain sqrt(2) and ReLU is He's initialization. gaussian_depthwise does so with depthwise
            convolutions alone. null: scaled weight standardization.
        gate: factor of squeeze-excite gates; null: 2, as gates are 1/2 on average.
    """

    alpha: float = positive(0.2)  # the paper's
    skip_gain: bool = True
    ws_eps: float = positive(1e-4)  # the paper's code
    gain: float | None = positive(None)
    weights: Literal["gaussian", "gaussian_depthwise"] | None = None
    gate: float | None = positive(None)
    batch_independent: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True

    @property
    def conv(self) -> Standardization | None:
        if self.weights == "gaussian":
            return None
        return Standardization("scaled_ws", self.ws_eps, depthwise=self.weights is None)

    @property
    def conv_bias(self) -> bool:
        return self.weights is not None  # standardized convolutions have their own bias

    @property
    def residual(self) -> NormalizerFree:
        gate = {} if self.gate is None else {"gate": self.gate}
        return NormalizerFree(self.alpha, self.skip_gain, **gate)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return GainedAct(channels, act, self.gain)

    def activation(self, channels: int, act: str = "relu") -> nn.Module:
        return GainedAct(channels, act, self.gain)


@dataclass(frozen=True)
class SkipInitNorm(NoNorm):
    """No normalization; residual branches that start at 0."""

    @property
    def residual(self) -> Residual:
        return SkipInit()

    @property
    def conv_bias(self) -> bool:
        return True

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return Affine(channels, act, gain=False, shift=False)


@dataclass(frozen=True)
class FixUpNorm(NoNorm):
    """No normalization; residual branches that start at 0, with scalar shifts and scales.

    Args:
        rate: learning rate of the scalars and the classifier's bias, relative to all else.
    """

    rate: float = positive(0.1)  # the authors' code

    @property
    def residual(self) -> Residual:
        return FixUp(self.rate)

    def layer(self, channels: int, act: str | None = "relu") -> NormAct:
        return ShiftedAct(channels, act, self.rate)


class GainedAct(NormAct):
    """The activation times its gain; no parameters, no `normalize`."""

    batch_independent = True

    def __init__(self, channels: int, act: str | None, factor: float | None = None) -> None:
        super().__init__(channels, act, gain=False, shift=False)
        self.override = None if act is None else factor
        self.factor = gain(act) if self.override is None else self.override

    def norm_act(self, x: Tensor) -> Tensor:
        return save_input_only(lambda x: self.activation(x) * self.factor, x)

    def split_back(self) -> tuple[nn.Module, GainAndShift] | None:
        if self.factor == 1:
            return None
        gains = torch.full((self.channels,), self.factor, dtype=torch.float64)
        return Activation(self.act), (gains, None)

    def reference(self, x: Tensor) -> Tensor:
        if self.act is None:
            return x.double()
        if self.override is not None:
            return self.function(x.double()) * self.override
        # E over u ~ N(0, 1) by Simpson's rule, with nodes at the kinks of all activations.
        u = torch.linspace(-12, 12, 24001, dtype=torch.float64, device=x.device)
        density = torch.exp(-(u**2) / 2)
        density[1:-1:2] *= 4
        density[2:-1:2] *= 2
        density /= density.sum()  # the weights of the rule sum to 1
        mean = (density * self.function(u)).sum()
        var = (density * (self.function(u) - mean) ** 2).sum()
        return self.function(x.double()) / torch.sqrt(var)


class ShiftedAct(NormAct):
    """A scalar shift and the activation; the identity without activation (FixUp's last conv)."""

    batch_independent = True
    roles: ClassVar[dict[str, Role]] = {"bias": "residual"}

    def __init__(self, channels: int, act: str | None, rate: float) -> None:
        super().__init__(channels, act, gain=False, shift=False)
        self.rates = {"bias": rate}
        self.register_parameter("bias", None if act is None else nn.Parameter(torch.zeros(())))

    def norm_act(self, x: Tensor) -> Tensor:
        return save_input_only(
            lambda x: self.activation(x if self.bias is None else x + self.bias), x
        )

    def split_front(self) -> tuple[Constants, nn.Module] | None:
        if self.bias is None:
            return None
        shift = self.bias.repeat(self.channels)
        constants = (torch.zeros_like(shift), torch.ones_like(shift), 0.0, None, shift)
        return constants, Activation(self.act)

    def reference(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return x.double()
        return self.function(torch.add(x.double(), self.bias.double().expand_as(x)))
