"""Implementations of a network's layers: `trainer.impl`."""

from typing import Literal

from torch import nn

Implementation = Literal["eager", "compile", "triton"]


def set_implementation(network: nn.Module, impl: Implementation) -> None:
    """Choose how the layers of `network` are computed.

    Args:
        network: a network or a single layer in its initial state, which is eager.
        impl: eager computes operation by operation. compile uses torch.compile. triton uses the
            kernels of layers that have one (`normbench.norms.kernels.dispatch`).
    """
    if impl == "compile":
        network.compile()
    elif impl == "triton":
        from normbench.norms.kernels.dispatch import set_triton  # Triton may not be installed

        set_triton(network)
