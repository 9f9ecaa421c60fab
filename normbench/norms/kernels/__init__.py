"""Layers as Triton kernels, for CUDA devices: `trainer.impl=triton`.

    per_sample    statistics of one image: gn, ln, in, frn, EvoNorm's S series, gn and ln with proxy
                  normalization. One kernel forward and one back; a group is read once
    per_worker    statistics of several images: bn, EvoNorm's B series, sn; and of one image where a
                  group does not fit into the registers. Moments of every channel of every image,
                  then what follows from them in PyTorch, then the map

What a family of layers computes is in `normbench.norms`; here are maps, sums and derivatives alone.
Maps (N, C, H, W) lie in either memory format; sums are taken in fp32, of fp64 in fp64. Nothing but
the input and statistics is kept for the backward pass. Half of a gradient goes to each side where
two are equal, as in `torch.maximum`. Nothing here has a second derivative.
"""

import os
from importlib.util import find_spec

from torch import Tensor


def take(x: Tensor) -> bool:
    """Whether the kernels take `x`: on a CUDA device, or where Triton's interpreter stands in."""
    return x.device.type == "cuda" or interpreted()


def interpreted() -> bool:
    """Whether Triton computes kernels step by step in Python, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1" and available()


def available() -> bool:
    """Whether there is a Triton to compile kernels with."""
    return find_spec("triton") is not None
