"""ImageNet (ILSVRC 2012; Russakovsky et al. 2015): photographs in 1,000 classes.

The test images are the 50,000 official validation images, since the labels of the official test
images are unknown. They may be in folders of their classes, or in one folder as in the official
archive; then torchvision reads their labels from the official devkit. torchvision's own data set
would write into `data.root` and move the images into folders, so the images are listed here.
"""

from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory

import torch
from torchvision.datasets.imagenet import ARCHIVE_META, load_meta_file, parse_devkit_archive

from normbench.data.official_files import OfficialFiles
from normbench.data.photographs import FileSplit, Photographs, class_folders, list_images

CLASSES, TRAIN, VALIDATION = 1_000, 1_281_167, 50_000
DEVKIT, _ = ARCHIVE_META["devkit"]
REMEDY = (
    f"get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and {DEVKIT} from image-net.org, unpack "
    "the first two as data.root/train/WNID/*.JPEG and data.root/val, and put the third into "
    "data.root as it is"
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
        return CLASSES if self.verify else len(self._classes)

    @property
    def _files(self) -> OfficialFiles:
        return OfficialFiles("imagenet", self.folder, {DEVKIT: None}, REMEDY, verify=False)

    @cached_property
    def _classes(self) -> list[str]:
        names = class_folders(self._files, "train")
        if self.verify:
            self._files.require_count("train", len(names), "folders, ImageNet", CLASSES)
        return names

    @property
    def official_sizes(self) -> tuple[int, int]:
        return (TRAIN, VALIDATION) if self.verify else super().official_sizes

    def list_files(self) -> tuple[FileSplit, FileSplit]:
        train = list_images(self._files, "train", self._classes)
        if any((self.folder / "val").glob("*.JPEG")):
            test = self._list_flat()
        else:
            test = list_images(self._files, "val", self._classes)
        if self.verify:
            for name, split, count in (("train", train, TRAIN), ("val", test, VALIDATION)):
                self._files.require_count(name, len(split.paths), "images, ImageNet", count)
        return train, test

    def _list_flat(self) -> FileSplit:
        """List the images of val/ in the order of their names, with the labels of the devkit."""
        files = self._files
        images = list_images(files, "", ["val"])  # as a class of its own, for the order alone
        files.check()
        # torchvision compares the sum of the archive and writes what it has read, here elsewhere.
        with files.reading(DEVKIT), TemporaryDirectory() as scratch:
            parse_devkit_archive(scratch, str(self.folder.absolute() / DEVKIT))
            _, wnids = load_meta_file(scratch)
        if len(wnids) != len(images.paths):
            counts = f"{len(images.paths)} images, {DEVKIT} {len(wnids)} labels"
            raise files.unusable("val", f"has {counts}")
        labels = {wnid: label for label, wnid in enumerate(self._classes)}
        if missing := sorted(set(wnids) - labels.keys()):
            problem = f"is missing, a class of the images in {self.folder / 'val'}"
            raise files.unusable(f"train/{missing[0]}", problem)
        return FileSplit(images.paths, torch.tensor([labels[wnid] for wnid in wnids]))
