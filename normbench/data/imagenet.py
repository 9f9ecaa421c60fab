"""ImageNet (ILSVRC 2012; Russakovsky et al. 2015): photographs in 1,000 classes.

Tested on are the 50,000 official validation images, since the labels of the official test images
are unknown. They may lie in folders of their classes, or in one folder as the official archive has
them; then torchvision reads from the official devkit which class each is of. torchvision's class
would write into `data.root` and move the images into folders, so the images are listed here.
"""

from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory

import torch
from torchvision.datasets.imagenet import ARCHIVE_META, load_meta_file, parse_devkit_archive

from normbench.data.official_files import OfficialFiles
from normbench.data.photographs import FileSplit, Photographs, class_folders, list_images
from normbench.errors import BadInput

TRAIN, VALIDATION = 1_281_167, 50_000
DEVKIT, _ = ARCHIVE_META["devkit"]
REMEDY = (
    "get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and the devkit from image-net.org, "
    "unpack the first two as data.root/train/WNID/*.JPEG and data.root/val, and leave the devkit "
    "in data.root"
)


@dataclass(frozen=True)
class ImageNet(Photographs):
    """1,281,167 training and 50,000 test images of a folder as torchvision has it.

    Args:
        root: folder of train/ and val/.
        verify: count the images.
    """

    verify: bool = True

    @property
    def classes(self) -> int:
        return 1000 if self.verify else len(self._classes)

    @cached_property
    def _classes(self) -> list[str]:
        names = class_folders("imagenet", self.folder / "train", REMEDY)
        if self.verify and len(names) != 1000:
            raise BadInput(
                f"data=imagenet: {self.folder / 'train'} has {len(names)} folders, ImageNet 1000 "
                f"classes (data.verify=false takes it as it is); {REMEDY}"
            )
        return names

    @property
    def official_sizes(self) -> tuple[int, int]:
        return (TRAIN, VALIDATION) if self.verify else super().official_sizes

    def list_files(self) -> tuple[FileSplit, FileSplit]:
        train = list_images("imagenet", self.folder / "train", self._classes, REMEDY)
        folder = self.folder / "val"
        if any(folder.glob("*.JPEG")):
            test = self._list_flat()
        else:
            test = list_images("imagenet", folder, self._classes, REMEDY)
        for name, split, count in (("train", train, TRAIN), ("val", test, VALIDATION)):
            if self.verify and len(split.paths) != count:
                raise BadInput(
                    f"data=imagenet: {self.folder / name} has {len(split.paths):,} images, "
                    f"ImageNet {count:,} (data.verify=false takes it as it is); {REMEDY}"
                )
        return train, test

    def _list_flat(self) -> FileSplit:
        """List the images of val/ in the order of their names, with the labels of the devkit."""
        images = list_images("imagenet", self.folder, ["val"], REMEDY)
        devkit = OfficialFiles("imagenet", self.folder, {DEVKIT: None}, REMEDY, verify=False)
        devkit.check()
        # torchvision compares the sum of the archive and writes what it has read, here elsewhere.
        with devkit.reading(DEVKIT), TemporaryDirectory() as scratch:
            parse_devkit_archive(scratch, str(self.folder.absolute() / DEVKIT))
            _, wnids = load_meta_file(scratch)
        if len(wnids) != len(images.paths):
            raise BadInput(
                f"data=imagenet: {self.folder / 'val'} has {len(images.paths)} images, {DEVKIT} "
                f"{len(wnids)} labels; {REMEDY}"
            )
        labels = {wnid: label for label, wnid in enumerate(self._classes)}
        if missing := sorted(set(wnids) - labels.keys()):
            raise BadInput(
                f"data=imagenet: {self.folder / 'train' / missing[0]} is missing, a class of the "
                f"images in {self.folder / 'val'}; {REMEDY}"
            )
        return FileSplit(images.paths, torch.tensor([labels[wnid] for wnid in wnids]))
