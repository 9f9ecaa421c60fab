"""NYU Depth v2 (Silberman et al. 2012): photographs of rooms, with a depth in meters everywhere.

These are the 1,449 labelled images, 795 of them to train on. They are halved and cut to a window.
An image that is resized by s shows a scene that is s times nearer, so its depth is divided by s
(Eigen et al. 2014).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import PositiveInt
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from normbench.data.counter_rng import Draws
from normbench.data.dataset import standardize
from normbench.data.labelled_photographs import Factor, LabelledPhotographs, LabelledSplit
from normbench.data.maps import DEPTH, encode_depth
from normbench.errors import BadInput

IMAGES, SPLITS = "nyu_depth_v2_labeled.mat", "splits.mat"
DEEPEST = 15.9  # meters; maps hold less than 16, and the camera sees 10
#: Colors in training (Brock et al. 2021, appendix H.2).
GRAY, BRIGHTNESS, SATURATION, HUE = 0.3, 0.1255, (0.5, 1.5), 0.2


class Shot(NamedTuple):
    """An image in a file of MATLAB."""

    path: Path
    place: int


@dataclass(frozen=True)
class NyuDepth(LabelledPhotographs):
    """795 training images and 654 test images.

    Args:
        size: height and width of the windows.
        colors: change the colors of training images at random: 30 % become grey, brightness
            changes by up to 0.1255, saturation by factors from 0.5 to 1.5, hue by up to 0.2 of a
            turn.
    """

    size: tuple[PositiveInt, PositiveInt] = (228, 304)
    scales: tuple[Factor, Factor] = (1.0, 1.0)
    centered: bool = True
    colors: bool = True

    classes = 1  # depth has none
    maps = 4
    known_maps = (DEPTH, DEPTH + 1)
    key = "nyu_depth"
    title = "NYU Depth"
    remedy = (
        "get nyu_depth_v2_labeled.mat and splits.mat from cs.nyu.edu/~fergus/datasets/"
        "nyu_depth_v2.html and put them in data.root"
    )
    parts = {"trainNdxs": 795, "testNdxs": 654}  # noqa: RUF012

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (3, *self.size)

    def load(self) -> tuple[LabelledSplit, LabelledSplit]:
        from scipy.io import loadmat  # half a second

        with self.files.reading(IMAGES), _open(self.folder / IMAGES) as content:
            images = min(len(content["images"]), len(content["depths"]))
        with self.files.reading(SPLITS):
            content = loadmat(self.folder / SPLITS)
            numbers = {name: content[name].ravel().astype(int) - 1 for name in self.parts}
        for name, places in numbers.items():
            self.require_count(name, SPLITS, len(places))
            if not 0 <= min(places) <= max(places) < images:
                problem = f"has {name} beyond the {images} images of {IMAGES}"
                raise self.files.unusable(SPLITS, problem)
        train, test = (self._split(places.tolist()) for places in numbers.values())
        return train, test

    def _split(self, places: Sequence[int]) -> LabelledSplit:
        return LabelledSplit([Shot(self.folder / IMAGES, place) for place in places], self)

    def fit(self, image: Image.Image) -> float:  # noqa: ARG002 (of any size)
        return 0.5

    def read(self, source: Shot, factor: float) -> tuple[Image.Image, NDArray[np.uint8]]:
        with self.files.reading(IMAGES), _open(source.path) as content:
            # MATLAB stores columns first: (3, W, H) and (W, H).
            pixels = np.asarray(content["images"][source.place]).T
            depth = np.asarray(content["depths"][source.place], np.float32).T
            image = Image.fromarray(np.ascontiguousarray(pixels))
        maps = torch.zeros(self.maps, *depth.shape, dtype=torch.uint8)
        scaled = torch.tensor(depth / factor).clamp(min=0)
        scaled[scaled > DEEPEST] = 0  # unknown: maps hold no larger depth
        maps[DEPTH:] = encode_depth(scaled[None])[0]
        return image, maps.numpy()

    def train_input(self, images: Tensor, draws: Draws) -> Tensor:
        if self.colors:
            images = torch.stack(
                [
                    _change_colors(image, *numbers)
                    for image, numbers in zip(
                        images, draws.uniform("colors", 4).tolist(), strict=True
                    )
                ]
            )
        return standardize(images, *self.moments)


def _change_colors(
    image: Tensor, gray: float, brightness: float, saturation: float, hue: float
) -> Tensor:
    """Return an image (3, H, W) uint8 in other colors, by four numbers in [0, 1)."""
    if gray < GRAY:
        image = TF.rgb_to_grayscale(image, num_output_channels=3)
    shift = round(255 * BRIGHTNESS * (2 * brightness - 1))
    image = (image.short() + shift).clamp(0, 255).to(torch.uint8)
    low, high = SATURATION
    image = TF.adjust_saturation(image, low + (high - low) * saturation)
    changed: Tensor = TF.adjust_hue(image, HUE * (2 * hue - 1))
    return changed


def _open(path: Path) -> Any:
    """Open a file of MATLAB 7.3, which is one of HDF5.

    Raises:
        BadInput: the package for it is not installed.
    """
    try:
        import h5py
    except ModuleNotFoundError:
        raise BadInput(
            "data=nyu_depth: its file is read by h5py, which is not installed; "
            "pip install h5py works"
        ) from None
    return h5py.File(path)
