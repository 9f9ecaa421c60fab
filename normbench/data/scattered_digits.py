"""Scattered digits: scenes that are composed while they are read, for dense tasks.

The digits of scikit-learn are divided into those of training, validation and test. A training scene
is another one in every epoch; the scenes of an evaluation are always the same.
"""

from dataclasses import dataclass, replace

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from normbench.data.augment import contrast, crop, noise
from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset, Split, Splits, TensorSplit, fixed_draws, hold_out
from normbench.data.digits import Digits
from normbench.data.maps import encode_depth
from normbench.data.scenes import SIDES, compose_scenes


@dataclass(frozen=True)
class SceneSplit:
    """Scenes of `side` pixels, composed of digits (N, 1, 8, 8), 0 to 16.

    `numbers` are those by which scenes of an evaluation are drawn.
    """

    digits: TensorSplit
    numbers: Tensor
    side: int

    @property
    def labels(self) -> Tensor:
        """(N,) int64, all 0: a scene has no class of its own."""
        return torch.zeros(len(self.numbers), dtype=torch.int64)

    def take(self, indices: Tensor) -> "SceneSplit":
        return replace(self, numbers=self.numbers[indices])

    def read(self, indices: Tensor, draws: Draws | None) -> Tensor:
        """Return scenes with their maps (N, 1 + 4, H, W) uint8, of an evaluation without `draws`.

        The maps are those of `normbench.data.maps`.
        """
        scenes = compose_scenes(self.digits, draws or fixed_draws(self.numbers[indices]), self.side)
        maps = torch.stack([scenes.classes + 1, scenes.instances], dim=1)
        return torch.cat([scenes.images, maps, encode_depth(scenes.depth)], dim=1)


@dataclass(frozen=True)
class ScatteredDigits(Dataset):
    """Scenes of three to eight digits of several sizes, of which near ones hide others.

    Args:
        scenes: of an epoch of training and validation together; the digits are drawn anew in every
            epoch of training.
        test_scenes: number of scenes to test on.
        size: side of a scene in pixels, at least that of the largest digit.
        noise: standard deviation of Gaussian noise; black is 0, white 1.
        contrast: standard deviation of the logarithm of a factor by which each scene is multiplied;
            null: all scenes have the same contrast.
        padding: pixels around a training scene, black and void, before a random window of the old
            size is cut; 0 takes the scene as it is.
    """

    scenes: PositiveInt = 4000
    test_scenes: PositiveInt = 400
    size: PositiveInt = 64
    noise: NonNegativeFloat = 0.1
    contrast: NonNegativeFloat | None = 0.6
    padding: NonNegativeInt = 0

    classes = 11  # the background and ten digits
    maps = 4
    limits = "Scenes of scikit-learn's digits: a demonstration, and no evidence about photographs."

    def __post_init__(self) -> None:
        if self.size < SIDES[-1]:
            raise ValueError(
                f"size={self.size}: the largest digit has {SIDES[-1]} pixels; size=64 works"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (1, self.size, self.size)

    @property
    def official_sizes(self) -> tuple[int, int]:
        return self.scenes, self.test_scenes

    def load(self) -> tuple[SceneSplit, SceneSplit]:
        train, test = Digits().load()
        return (
            SceneSplit(train, torch.arange(self.scenes), self.size),
            # Numbers of their own, so that no scene is one of the validation.
            SceneSplit(test, self.scenes + torch.arange(self.test_scenes), self.size),
        )

    def splits(self, official: tuple[Split, Split] | None = None) -> Splits:
        train, val, test = super().splits(official)
        assert isinstance(train, SceneSplit)
        assert isinstance(val, SceneSplit)
        kept, held_out = hold_out(train.digits.labels, self.val)
        return Splits(
            replace(train, digits=train.digits.take(kept)),
            replace(val, digits=val.digits.take(held_out)),
            test,
        )

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        return crop(images, draws, 0 if self.side else self.padding, self.side)

    def train_input(self, images: Tensor, draws: Draws) -> Tensor:
        images = noise(images / 255, draws, self.noise)
        return contrast(images, draws, self.contrast)

    def eval_input(self, images: Tensor, indices: Tensor) -> Tensor:
        return self.train_input(images, fixed_draws(indices))
