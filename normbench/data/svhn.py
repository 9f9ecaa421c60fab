"""Street View House Numbers (Netzer et al. 2011): cropped color digits of 32x32 pixels.

Read by torchvision from the official .mat files, in which the label 10 is the digit 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torchvision import datasets as torchvision

from normbench.data.dataset import HeldOut, SmallImages, TensorSplit, concatenate
from normbench.data.official_files import OfficialFiles


@dataclass(frozen=True)
class SVHN(SmallImages):
    """73,257 training and 26,032 test images in 10 classes; with the extra ones 604,388 to train.

    Args:
        extra: train on the 531,131 easier images, too.
        verify: compare the files with the official MD5 sums.
        download: get the files where they are missing.
    """

    val: HeldOut = 0.0
    flip: bool = False  # a mirrored digit is another or none
    extra: bool = False
    verify: bool = True
    download: bool = False

    classes = 10
    image_shape = (3, 32, 32)
    moments = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))

    @property
    def official_sizes(self) -> tuple[int, int]:
        if not self.verify:
            return super().official_sizes
        return 604_388 if self.extra else 73_257, 26_032

    def load(self) -> tuple[TensorSplit, TensorSplit]:
        splits = ["train", *(["extra"] if self.extra else []), "test"]
        sums = {split: torchvision.SVHN.split_list[split][1:] for split in splits}
        files = OfficialFiles(
            "svhn",
            self.folder,
            dict(sums.values()),
            "data.download=true gets it, or take ufldl.stanford.edu/housenumbers to data.root",
            self.verify,
        )
        if self.download:
            files.download(
                lambda: [torchvision.SVHN(self.folder, split, download=True) for split in splits]
            )
        files.check()
        *train, test = (self._read_split(files, split, sums[split][0]) for split in splits)
        return concatenate(train), test

    def _read_split(self, files: OfficialFiles, split: str, name: str) -> TensorSplit:
        """Read the file `name` of `split` by torchvision."""
        with files.reading(name):
            content = _Reader(self.folder, split)
            images, labels = (torch.from_numpy(each) for each in (content.data, content.labels))
        return files.split(name, images, labels.view(-1), self.image_shape, self.classes)

    def file_options(self, split: str) -> list[str]:
        return ["extra"] if self.extra and split == "train" else []


class _Reader(torchvision.SVHN):  # type: ignore[misc]
    """torchvision's reader without the MD5 sums, which `OfficialFiles` has compared."""

    split_list: ClassVar = {
        split: [url, name, None] for split, (url, name, _) in torchvision.SVHN.split_list.items()
    }
