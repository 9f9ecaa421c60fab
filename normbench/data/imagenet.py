"""ImageNet (ILSVRC 2012; Russakovsky et al. 2015): photographs in 1,000 classes.

Tested on are the 50,000 official validation images, since the labels of the official test images
are unknown. They may lie in folders of their classes, or in one folder as the official archive has
them; then the official devkit says which class each is of.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import torch
from scipy.io import loadmat

from normbench.data.files import Files, Folders, class_folders, images_in, listed
from normbench.errors import BadInput

TRAIN, VALIDATION = 1_281_167, 50_000
DEVKIT = "ILSVRC2012_devkit_t12"
META, TRUTH = f"{DEVKIT}/data/meta.mat", f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt"
WHERE = (
    "get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and the devkit from image-net.org, "
    "unpack the first two as data.root/train/WNID/*.JPEG and data.root/val, and leave the devkit "
    "in data.root"
)


@dataclass(frozen=True)
class ImageNet(Folders):
    """1,281,167 training and 50,000 test images of the folder that torchvision reads, too.

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
        found = class_folders("imagenet", self.folder / "train", WHERE)
        if self.verify and len(found) != 1000:
            raise BadInput(
                f"data=imagenet: {self.folder / 'train'} has {len(found)} folders, ImageNet 1000 "
                f"classes (data.verify=false takes it as it is); {WHERE}"
            )
        return found

    @property
    def official(self) -> tuple[int, int]:
        return (TRAIN, VALIDATION) if self.verify else super().official

    def listing(self) -> tuple[Files, Files]:
        train = listed("imagenet", self.folder / "train", self._classes, WHERE)
        folder = self.folder / "val"
        flat = folder.is_dir() and any(folder.glob("*.JPEG"))
        test = self._flat(folder) if flat else listed("imagenet", folder, self._classes, WHERE)
        for name, part, count in (("train", train, TRAIN), ("val", test, VALIDATION)):
            if self.verify and len(part.paths) != count:
                raise BadInput(
                    f"data=imagenet: {self.folder / name} has {len(part.paths):,} images, ImageNet "
                    f"{count:,} (data.verify=false takes it as it is); {WHERE}"
                )
        return train, test

    def _flat(self, folder: Path) -> Files:
        """Images in the order of their names, with the labels of the devkit."""
        paths = images_in(folder)
        wnids, truth = _devkit(self.folder)
        if len(truth) != len(paths):
            raise BadInput(
                f"data=imagenet: {folder} has {len(paths)} images, {TRUTH} {len(truth)} labels; "
                f"{WHERE}"
            )
        places = {wnid: place for place, wnid in enumerate(self._classes)}
        if missing := sorted({wnids[number] for number in truth} - places.keys()):
            raise BadInput(
                f"data=imagenet: {self.folder / 'train' / missing[0]} is missing, a class of the "
                f"images in {folder}; {WHERE}"
            )
        labels = torch.tensor([places[wnids[number]] for number in truth], dtype=torch.int64)
        return Files(paths, labels)


def _devkit(root: Path) -> tuple[dict[int, str], list[int]]:
    """The WordNet ids of classes by their official numbers, and the numbers of all images."""
    contents = dict(_read(root))
    for name in (META, TRUTH):
        if name not in contents:
            raise BadInput(
                f"data=imagenet: {root / name} is missing, also in {DEVKIT}.tar.gz; {WHERE}"
            )
    try:
        synsets = loadmat(BytesIO(contents[META]), squeeze_me=True)["synsets"]
        leaves = synsets[synsets["num_children"] == 0]
        wnids = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in leaves}
    except Exception as error:  # scipy raises whatever a damaged file leads its reader to
        raise BadInput(
            f"data=imagenet: {root / META} cannot be read ({type(error).__name__}: {error}); "
            f"{WHERE}"
        ) from None
    try:
        truth = [int(line) for line in contents[TRUTH].split()]
        if unknown := sorted(set(truth) - wnids.keys()):
            raise ValueError(f"no class has the number {unknown[0]}")
    except ValueError as error:
        raise BadInput(
            f"data=imagenet: {root / TRUTH} is no list of numbers of classes ({error}); {WHERE}"
        ) from None
    return wnids, truth


def _read(root: Path) -> Iterator[tuple[str, bytes]]:
    """The files of the devkit, unpacked or not."""
    for name in (META, TRUTH):
        if (root / name).is_file():
            yield name, (root / name).read_bytes()
    archive = root / f"{DEVKIT}.tar.gz"
    if all((root / name).is_file() for name in (META, TRUTH)) or not archive.is_file():
        return
    try:
        with tarfile.open(archive) as content:
            for name in (META, TRUTH):
                if name in content.getnames() and (file := content.extractfile(name)) is not None:
                    yield name, file.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise BadInput(f"data=imagenet: {archive} is no whole archive ({error}); {WHERE}") from None
