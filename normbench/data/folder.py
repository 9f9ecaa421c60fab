"""Any photographs in folders: root/train/CLASS/*.jpg, and root/val or root/test to be tested on."""

from dataclasses import dataclass
from functools import cached_property

from normbench.data.files import Files, Folders, class_folders, listed
from normbench.errors import BadInput

WHERE = "data.root=FOLDER names a folder of train/CLASS/*.jpg and test/CLASS/*.jpg (or val)"


@dataclass(frozen=True)
class ImageFolder(Folders):
    """Images of a user's own, in torchvision's layout.

    Args:
        root: folder of train/CLASS/*.jpg and of test/CLASS/*.jpg or val/CLASS/*.jpg.
        name: what these images are called, in tables too; then they are the same wherever they lie.
            Without a name they are known by their folder.
    """

    name: str | None = None

    @cached_property
    def _classes(self) -> list[str]:
        return class_folders("image_folder", self.folder / "train", WHERE)

    @property
    def classes(self) -> int:
        return len(self._classes)

    def listing(self) -> tuple[Files, Files]:
        tested = next((name for name in ("test", "val") if (self.folder / name).is_dir()), None)
        if tested is None:
            raise BadInput(f"data=image_folder: {self.folder} has neither test/ nor val/; {WHERE}")
        folder = self.folder / tested
        others = class_folders("image_folder", folder, WHERE)
        if more := sorted(set(others) - set(self._classes)):
            raise BadInput(
                f"data=image_folder: {folder / more[0]} is a class that train/ has not; {WHERE}"
            )
        train, test = (
            listed("image_folder", each, self._classes, WHERE)
            for each in (self.folder / "train", folder)
        )
        return train, test
