"""Multiply-accumulates of a network, and a dry run of a training step.

Multiply-accumulates come from torch's FlopCounterMode: convolutions and matrix products, without
normalization, activation and sums, as in the tables of papers.
"""

from collections import Counter

import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from normbench.errors import Impossible

#: Messages of torch for maps smaller than a kernel.
_TOO_SMALL = ("Kernel size can't be greater than actual input size", "Output size is too small")


def count_macs(model: nn.Module, image: tuple[int, int, int]) -> tuple[int, Counter[int]]:
    """Return multiply-accumulates for one image (C, H, W), and the share of grouped convolutions.

    The latter are counted by the input channels of a group, which is 1 in depthwise convolutions.
    The model runs once, so put it on the meta device.
    """
    device = next(model.parameters()).device
    in_groups: Counter[int] = Counter()

    def convolution(x: list[int], weight: list[int], *options: int, out_shape: list[int]) -> int:
        *_, transposed, _, groups = options  # as torch.convolution has them
        flops = conv_flop_count(x, weight, out_shape, transposed=bool(transposed))
        if groups > 1:
            in_groups[weight[1]] += flops // 2  # weight (O, I / groups, kH, kW)
        return flops

    mapping = {torch.ops.aten.convolution: convolution}
    was_training = model.training
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    with counter, torch.no_grad():
        model.eval()(torch.empty(1, *image, device=device))
    model.train(was_training)
    return counter.get_total_flops() // 2, in_groups  # a multiply-add is two operations


def dry_run(model: nn.Module, images: int, image: tuple[int, int, int]) -> None:
    """Run one forward pass in training mode with `images` images (C, H, W); free on meta.

    Raises:
        Impossible: the images have a wrong size, or a normalizer refuses the maps.
    """
    try:
        model.train()(torch.empty(images, *image, device=next(model.parameters()).device))
    except (RuntimeError, AssertionError) as error:
        _, height, width = image
        if any(message in str(error) for message in _TOO_SMALL):
            raise Impossible(f"images of {height}x{width} are too small for it") from error
        if isinstance(model, fx.GraphModule):  # networks of timm may need their own size
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise Impossible(f"it does not run on images of {height}x{width}: {reason}") from error
        raise
