"""What a network costs before any time is measured: parameters and multiply-accumulates."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count(model: nn.Module, image: tuple[int, int, int]) -> tuple[int, int]:
    """Parameters, and multiply-accumulates of convolutions and linear layers for one (C, H, W).

    The model should lie on the meta device: it is run once.
    """
    device = next(model.parameters()).device
    was_training = model.training
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.eval()(torch.empty(1, *image, device=device))
    model.train(was_training)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2
