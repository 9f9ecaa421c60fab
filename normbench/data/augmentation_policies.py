"""Augmentation of images one by one: policies of timm and color jitter of torchvision.

    policy          RandAugment (Cubuk et al. 2020) and AutoAugment (Cubuk et al. 2019) by timm,
                    after the TensorFlow code of the papers: rand-m9-n2-p1.0 is two operations of
                    magnitude 9 of 10, each applied (without p1.0 with probability 0.5, timm's
                    default; of the code's 16 operations timm lacks Cutout); original is the paper's
                    policy for ImageNet, v0 that of EfficientNet's code
    color_jitter    brightness, contrast and saturation times 1 - s to 1 + s, in random order

Both draw from the generators of Python and numpy. These are seeded for each image by (seed, epoch,
image) and restored afterwards, so that an image is augmented the same way in any process.
"""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import functional as TF

from normbench.data.counter_rng import Draws

# timm ignores what it does not know in a name.
_NAMES = (
    r"rand(-(m(\d|10)|n[1-9]|mstd\d+(\.\d+)?|mmax\d+|p(0\.\d+|1\.0|1)|inc[01]|tweights))*"
    r"|(original|originalr|v0|v0r)(-mstd\d+(\.\d+)?)?"
)
GREY = (128, 128, 128)  # fills what an operation moves the image away from, as in timm


@dataclass(frozen=True)
class AugmentationPolicies:
    """A policy and color jitter of images (N, C, H, W) uint8, one after the other; C is 1 or 3.

    Raises:
        ValueError: timm knows no such policy, or `color_jitter` is out of range.
    """

    policy: str | None = None  # in timm's notation
    color_jitter: float | None = None  # s

    def __post_init__(self) -> None:
        if self.color_jitter is not None and not 0 < self.color_jitter <= 1:
            raise ValueError(
                f"color_jitter={self.color_jitter}: it is above 0 and at most 1, as 0.4; null does "
                "nothing"
            )
        if self.policy is not None and not re.fullmatch(_NAMES, self.policy):
            raise ValueError(
                f"policy={self.policy}: timm has no such policy; rand-m9-n2-p1.0, original, v0 and "
                "null work"
            )

    def __bool__(self) -> bool:
        return self.policy is not None or self.color_jitter is not None

    def __call__(self, images: Tensor, draws: Draws, white: int = 255) -> Tensor:
        """Return `images` augmented by their `draws`, of the same shape.

        Operations are of pixels up to 255, so images in which another value is `white` are scaled
        to that and back.
        """
        if not self or not len(images):
            return images
        images = _scale(images, 255 / white)
        seeds = (draws.uniform("distort", 2) * 2**24).long().tolist()  # all bits of an fp32 draw
        augmented = torch.stack(
            [self._augment(image, *pair) for image, pair in zip(images.cpu(), seeds, strict=True)]
        ).to(images.device)
        return _scale(augmented, white / 255)

    def _augment(self, image: Tensor, *seeds: int) -> Tensor:
        # A grey image stays grey; the libraries' operations need three channels.
        picture: Image.Image = TF.to_pil_image(image.expand(3, -1, -1))
        with _seeded(*seeds):
            if self.policy is not None:
                picture = self._operations(picture)
            if self.color_jitter is not None:
                picture = _jitter(picture, self.color_jitter)
        augmented: Tensor = TF.pil_to_tensor(picture)
        return augmented[: len(image)]  # one channel of a grey image

    @cached_property
    def _operations(self) -> Any:
        from timm.data import auto_augment  # here, as timm takes a second to import

        assert self.policy is not None
        options = {"img_mean": GREY}
        if self.policy.startswith("rand"):
            transform = auto_augment.rand_augment_transform(self.policy, options)
            operations = transform.ops
        else:
            transform = auto_augment.auto_augment_transform(self.policy, options)
            operations = [operation for pair in transform.policy for operation in pair]
        for operation in operations:
            if operation.aug_fn is auto_augment.posterize:
                operation.aug_fn = _posterize
        return transform


def _scale(images: Tensor, factor: float) -> Tensor:
    """Return uint8 images times a factor, rounded."""
    return images if factor == 1 else (factor * images.float()).round().to(torch.uint8)


def _posterize(picture: Image.Image, bits: int, **_: object) -> Image.Image:
    """Keep `bits` bits of each color; 0 bits are black, which newer versions of Pillow refuse."""
    if bits == 0:
        return Image.new(picture.mode, picture.size)
    return picture if bits >= 8 else ImageOps.posterize(picture, bits)


def _jitter(picture: Image.Image, strength: float) -> Image.Image:
    changes = [TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation]
    for change in random.sample(changes, len(changes)):
        picture = change(picture, random.uniform(1 - strength, 1 + strength))
    return picture


@contextmanager
def _seeded(first: int, second: int) -> Iterator[None]:
    """Seed the generators of Python and numpy, and restore them afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(first << 24 | second)  # 24 bits each, one number
    np.random.seed([first, second])
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
