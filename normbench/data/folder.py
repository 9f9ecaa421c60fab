"""Any photographs in folders: root/train/CLASS/*, and root/test or root/val to test on."""

from dataclasses import dataclass
from functools import cached_property

from normbench.data.official_files import OfficialFiles
from normbench.data.photographs import (
    FileSplit,
    Photographs,
    class_folders,
    find_test_folder,
    list_images,
)

REMEDY = "data.root=FOLDER names a folder of train/CLASS/* and test/CLASS/* (or val)"


@dataclass(frozen=True)
class ImageFolder(Photographs):
    """A user's images in torchvision's layout.

    Args:
        root: folder of train/CLASS/* and of test/CLASS/* or val/CLASS/*.
        name: name of these images in ids and tables, wherever their folder is; null: the folder.
    """

    name: str | None = None

    @property
    def _files(self) -> OfficialFiles:
        return OfficialFiles("image_folder", self.folder, {}, REMEDY)

    @cached_property
    def _classes(self) -> list[str]:
        return class_folders(self._files, "train")

    @property
    def classes(self) -> int:
        return len(self._classes)

    def list_files(self) -> tuple[FileSplit, FileSplit]:
        test = find_test_folder(self._files)
        if unknown := sorted(set(class_folders(self._files, test)) - set(self._classes)):
            raise self._files.unusable(f"{test}/{unknown[0]}", "is a class that train/ lacks")
        train, test_images = (
            list_images(self._files, folder, self._classes) for folder in ("train", test)
        )
        return train, test_images
