"""Any photographs in folders: root/train/CLASS/*.jpg, and root/test or root/val to test on."""

from dataclasses import dataclass
from functools import cached_property

from normbench.data.photographs import FileSplit, Photographs, class_folders, list_images
from normbench.errors import BadInput

REMEDY = "data.root=FOLDER names a folder of train/CLASS/*.jpg and test/CLASS/*.jpg (or val)"


@dataclass(frozen=True)
class ImageFolder(Photographs):
    """A user's images in torchvision's layout.

    Args:
        root: folder of train/CLASS/*.jpg and of test/CLASS/*.jpg or val/CLASS/*.jpg.
        name: of these images, in tables too, wherever their folder is; null: the folder names them.
    """

    name: str | None = None

    @cached_property
    def _classes(self) -> list[str]:
        return class_folders("image_folder", self.folder / "train", REMEDY)

    @property
    def classes(self) -> int:
        return len(self._classes)

    def list_files(self) -> tuple[FileSplit, FileSplit]:
        name = next((name for name in ("test", "val") if (self.folder / name).is_dir()), None)
        if name is None:
            raise BadInput(f"data=image_folder: {self.folder} has neither test/ nor val/; {REMEDY}")
        folder = self.folder / name
        tested = class_folders("image_folder", folder, REMEDY)
        if unknown := sorted(set(tested) - set(self._classes)):
            raise BadInput(
                f"data=image_folder: {folder / unknown[0]} is a class that train/ lacks; {REMEDY}"
            )
        train, test = (
            list_images("image_folder", each, self._classes, REMEDY)
            for each in (self.folder / "train", folder)
        )
        return train, test
