"""Street View House Numbers (Netzer et al. 2011): cropped colour digits of 32x32 pixels.

Read from the official .mat files: X (32, 32, 3, N) bytes and y (N, 1), in which 10 is the digit 0.
"""

from dataclasses import dataclass
from io import BytesIO

import torch
from scipy.io import loadmat
from torchvision import datasets as torchvision

from normbench.data.checksums import Official
from normbench.data.dataset import Arrays, Split

NAMES = {split: (name, md5) for split, (_, name, md5) in torchvision.SVHN.split_list.items()}


@dataclass(frozen=True)
class SVHN(Arrays):
    """73,257 training and 26,032 test images in 10 classes; with the extra ones 604,388 to train.

    Args:
        extra: train on the 531,131 easier images, too.
        verify: compare the files with the official MD5 sums.
        download: get the files where they are missing.
    """

    val: float = 0.0
    flip: bool = False
    extra: bool = False
    verify: bool = True
    download: bool = False

    classes = 10
    image = (3, 32, 32)
    moments = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))

    @property
    def official(self) -> tuple[int, int]:
        if not self.verify:
            return super().official
        return 604_388 if self.extra else 73_257, 26_032

    def load(self) -> tuple[Split, Split]:
        splits = ["train", *(["extra"] if self.extra else []), "test"]
        files = Official(
            "svhn",
            self.folder,
            dict(NAMES[split] for split in splits),
            "data.download=true gets it, or take ufldl.stanford.edu/housenumbers to data.root",
            self.verify,
        )
        if self.download:
            files.fetch(lambda root: [torchvision.SVHN(root, s, download=True) for s in splits])
        *train, test = (self._split(files, NAMES[split][0]) for split in splits)
        return Split(*(torch.cat(each) for each in zip(*train, strict=True))), test

    def _split(self, files: Official, name: str) -> Split:
        content = files.read(name)
        try:
            arrays = loadmat(BytesIO(content))
            images, labels = arrays["X"], arrays["y"].ravel() % 10
        except Exception as error:  # scipy raises whatever a damaged file leads its reader to
            problem = f"is no whole .mat file of X and y ({type(error).__name__}: {error})"
            raise files.unusable(name, problem) from None
        if images.shape[:3] != (32, 32, 3) or images.shape[3:] != labels.shape:
            shapes = f"X of {images.shape} for {labels.shape} of y"
            raise files.unusable(name, f"has {shapes}, not (32, 32, 3, N) for (N,)")
        # (H, W, C, N) -> (N, C, H, W)
        pixels = torch.from_numpy(images).permute(3, 2, 0, 1).contiguous()
        return Split(pixels, torch.from_numpy(labels).long())

    def _contents(self, split: str) -> list[str]:
        return ["extra"] if self.extra and split == "train" else []
