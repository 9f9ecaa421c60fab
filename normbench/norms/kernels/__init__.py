"""Triton kernels of layers for CUDA devices: `trainer.impl=triton`. Begin with `dispatch`.

    per_sample    statistics of one image: gn, ln, in, frn, EvoNorm's S series, gn and ln with proxy
                  normalization. One kernel forward and one back; a group is read once
    per_worker    statistics of several images: bn, EvoNorm's B series, sn; and of one image if a
                  group does not fit into the registers. A kernel computes the moments of every
                  channel of every image, PyTorch the coefficients, a second kernel the output

The layers are defined in `normbench.norms`; here are only elementwise maps, sums and derivatives.
Maps (N, C, H, W) have either memory format; sums are in fp32, of fp64 maps in fp64. The backward
pass saves only the input and statistics. Where the two sides of a maximum are equal, a constant
bound gets no gradient and a learned threshold all of it, as without kernels. There are no second
derivatives.
"""

import os
from importlib.util import find_spec

from torch import Tensor


def supports(x: Tensor) -> bool:
    """Return True if kernels can run on `x`: on a CUDA device, or with Triton's interpreter."""
    return x.device.type == "cuda" or interpreted()


def interpreted() -> bool:
    """Return True if Triton interprets kernels in Python, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1" and available()


def available() -> bool:
    """Return True if Triton is installed."""
    return find_spec("triton") is not None
