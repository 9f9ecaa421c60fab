"""The handwritten digits that ship with scikit-learn: 1,797 grey images of 8x8 pixels, 0 to 16.

Clean digits are too easy to tell normalizers apart, so Gaussian noise is added, and the contrast of
an image may vary: fresh in every epoch of training, one fixed sample in evaluations.
"""

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from normbench.data.augment import contrast, crop, noise
from normbench.data.counter_rng import Draws
from normbench.data.dataset import SPLIT_SEED, Dataset, TensorSplit, fixed_draws


@dataclass(frozen=True)
class Digits(Dataset):
    """1,437 training and 360 test images, split by class with a fixed seed.

    Args:
        noise: standard deviation of the noise; black is 0, white 1.
        contrast: standard deviation of the logarithm of a factor by which each image is multiplied
            after the noise; null: all images have the same contrast.
    """

    white = 16
    noise: NonNegativeFloat = 0.3
    contrast: NonNegativeFloat | None = None

    classes = 10
    image_shape = (1, 8, 8)
    official_sizes = (1_437, 360)
    limits = (
        "Digits of 8x8 pixels with noise, 360 of them to test: a demonstration, and no evidence "
        "about photographs or ImageNet."
    )

    def load(self) -> tuple[TensorSplit, TensorSplit]:
        from sklearn.datasets import load_digits  # a second that sizes alone do not need
        from sklearn.model_selection import train_test_split

        official = load_digits()  # pixels are 0.0, 1.0 ... 16.0, so bytes hold them
        images = torch.from_numpy(official.images).to(torch.uint8)[:, None]
        labels = torch.from_numpy(official.target).long()
        train, test = train_test_split(
            range(len(labels)), test_size=360, stratify=official.target, random_state=SPLIT_SEED
        )
        digits = TensorSplit(images, labels)
        return digits.take(torch.tensor(train)), digits.take(torch.tensor(test))

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        return crop(images, draws, 0, self.side)

    def train_input(self, images: Tensor, draws: Draws) -> Tensor:
        images = noise(images / self.white, draws, self.noise)
        return contrast(images, draws, self.contrast)

    def eval_input(self, images: Tensor, indices: Tensor) -> Tensor:
        return self.train_input(images, fixed_draws(indices))
