"""Corruptions of test images: noise, blur and less contrast, each at five strengths.

Strengths are those of CIFAR-10-C (Hendrycks and Dietterich 2019, Benchmarking Neural Network
Robustness to Common Corruptions and Perturbations, and the authors' code). They are for images of
32 pixels: a blur of one pixel destroys more of smaller images. Blurred images are mirrored at their
borders.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from normbench.data.counter_rng import Draws

STRENGTHS = range(1, 6)

_NOISE = (0.04, 0.06, 0.08, 0.09, 0.10)  # standard deviations, white being 1
_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # standard deviations of a Gaussian, in pixels
_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # factors


def corrupt(
    images: Tensor, corruption: str, strength: int, draws: Draws, white: int = 255
) -> Tensor:
    """Return corrupted images (N, C, H, W), uint8 as `images`.

    Args:
        images: (N, C, H, W) uint8.
        corruption: one of `CORRUPTIONS`.
        strength: one of `STRENGTHS`.
        draws: random numbers of these images.
        white: value of a white pixel.
    """
    values = CORRUPTIONS[corruption](images.float() / white, strength - 1, draws)
    return (white * values).round().clamp(0, white).to(torch.uint8)


def _add_noise(values: Tensor, place: int, draws: Draws) -> Tensor:
    return values + _NOISE[place] * draws.normal("corruption", *values.shape[1:])


def _blur(values: Tensor, place: int, _draws: Draws) -> Tensor:
    sigma = _BLUR[place]
    radius = min(round(4 * sigma), min(values.shape[2:]) - 1)  # at most what can be mirrored
    blurred: Tensor = TF.gaussian_blur(values, [2 * radius + 1] * 2, [sigma] * 2)
    return blurred


def _reduce_contrast(values: Tensor, place: int, _draws: Draws) -> Tensor:
    mean = values.mean((2, 3), keepdim=True)
    return mean + _CONTRAST[place] * (values - mean)


CORRUPTIONS: dict[str, Callable[[Tensor, int, Draws], Tensor]] = {
    "noise": _add_noise,
    "blur": _blur,
    "contrast": _reduce_contrast,
}
