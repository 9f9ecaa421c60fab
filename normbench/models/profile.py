"""What can be known of a network before any time is measured: that it runs, its size and its work.

Counted by torch's own counter of floating-point operations, which knows convolutions and products
of matrices; normalization, activation and sums are not in it, as in the tables of papers.
"""

from collections import Counter

import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from normbench.errors import Impossible

#: How torch says that maps have become smaller than what should look at them.
_TOO_SMALL = ("Kernel size can't be greater than actual input size", "Output size is too small")


def parameters_and_macs(model: nn.Module, image: tuple[int, int, int]) -> tuple[int, int]:
    """Parameters, and multiply-accumulates of convolutions and linear layers for one (C, H, W).

    The model should lie on the meta device: it is run once.
    """
    return sum(p.numel() for p in model.parameters()), count_macs(model, image)[0]


def count_macs(model: nn.Module, image: tuple[int, int, int]) -> tuple[int, Counter[int]]:
    """Multiply-accumulates of convolutions and linear layers for one (C, H, W), and those of
    convolutions in groups alone, by the input channels of a group: 1 of depthwise ones.

    The model should lie on the meta device: it is run once.
    """
    device = next(model.parameters()).device
    in_groups: Counter[int] = Counter()

    def convolution(x: list[int], weight: list[int], *options: int, out_shape: list[int]) -> int:
        *_, transposed, _, groups = options  # as torch.convolution has them
        found = conv_flop_count(x, weight, out_shape, transposed=bool(transposed))
        if groups > 1:
            in_groups[weight[1]] += found // 2
        return found

    known = {torch.ops.aten.convolution: convolution}
    was_training = model.training
    counter = FlopCounterMode(display=False, custom_mapping=known)
    with counter, torch.no_grad():
        model.eval()(torch.empty(1, *image, device=device))
    model.train(was_training)
    return counter.get_total_flops() // 2, in_groups


def dry_run(model: nn.Module, images: int, image: tuple[int, int, int]) -> None:
    """One forward pass of training with `images` images (C, H, W); costs nothing on meta.

    Raises:
        Impossible: the images are of a wrong size, or a normalizer refuses the maps.
    """
    try:
        model.train()(torch.empty(images, *image, device=next(model.parameters()).device))
    except (RuntimeError, AssertionError) as error:
        _, height, width = image
        if any(sign in str(error) for sign in _TOO_SMALL):
            raise Impossible(f"images of {height}x{width} are too small for it") from error
        if isinstance(model, fx.GraphModule):  # some sizes are those of the library's networks
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise Impossible(f"it does not run on images of {height}x{width}: {reason}") from error
        raise
