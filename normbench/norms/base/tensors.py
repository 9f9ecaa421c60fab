"""Shapes and dtypes of statistics and parameters."""

import torch
from torch import Tensor


def per_channel(parameter: Tensor) -> Tensor:
    """View (C,) as (C, 1, 1), or (N, C) as (N, C, 1, 1), to broadcast over (N, C, H, W)."""
    return parameter[..., None, None]


def upcast(x: Tensor) -> Tensor:
    """Return `x` in a dtype for statistics: half precision becomes fp32, fp64 stays."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
