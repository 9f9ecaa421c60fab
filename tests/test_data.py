"""Every data set of conf/data on what it promises, and Fashion-MNIST's files, good and bad."""

import gzip
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import FASHION_MNIST

from normbench.catalog import dataset, datasets
from normbench.data.augment import crop, flip, noise
from normbench.data.dataset import Dataset, hold_out
from normbench.data.digits import Digits
from normbench.data.fashion_mnist import FashionMNIST
from normbench.draws import Draws
from normbench.errors import BadInput


def idx(path: Path, values: torch.Tensor) -> None:
    """Write `values` as the official files are written."""
    header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + bytes(values.flatten().tolist())))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder of Fashion-MNIST's four files with 200 and 20 images."""
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 200), ("t10k", 20)):
        images = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        idx(tmp_path / f"{name}-images-idx3-ubyte.gz", images)
        idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", (torch.arange(count) % 10).to(torch.uint8))
    return tmp_path


@pytest.fixture
def data(request: pytest.FixtureRequest, small: Path) -> Dataset:
    """A data set, those that read files with small ones."""
    root = {"root": str(small)} if request.param == "fashion_mnist" else {}
    return dataset(request.param, **root)


@pytest.mark.parametrize("data", datasets(), indirect=True)
def test_splits_are_bytes_and_share_no_image(data: Dataset) -> None:
    train, val, test = data.splits()
    official, _ = data.load()
    parts = torch.cat([train.images.flatten(1), val.images.flatten(1)]).tolist()
    assert sorted(parts) == sorted(official.images.flatten(1).tolist())
    assert len(val.labels) == pytest.approx(data.val * len(official.labels), abs=1)
    for images, labels in (train, val, test):
        assert images.dtype == torch.uint8
        assert images.shape == (len(labels), *data.image)
        assert labels.dtype == torch.int64
        assert set(labels.tolist()) <= set(range(data.classes))
    again, _, _ = data.splits()
    assert torch.equal(train.images, again.images)


@pytest.mark.parametrize("data", datasets(), indirect=True)
def test_what_the_network_sees_is_fp32_of_the_promised_shape(data: Dataset) -> None:
    images = data.splits().train.images[:8]
    indices = torch.arange(8)
    shown = data.present(images, indices)
    assert (shown.dtype, shown.shape) == (torch.float32, (8, *data.image))
    assert torch.equal(shown, data.present(images, indices))
    first, second = (data.augment(images, Draws(0, epoch, indices)) for epoch in (0, 1))
    assert (first.dtype, first.shape) == (torch.float32, (8, *data.image))
    assert not torch.equal(first, second)
    assert data.limits


@pytest.mark.parametrize("data", datasets(), indirect=True)
@pytest.mark.parametrize("val", [-0.1, 1.0, 3])
def test_an_impossible_hold_out_is_refused(data: Dataset, val: float) -> None:
    with pytest.raises(ValueError, match="fraction of the training images"):
        type(data)(val=val)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5])
def test_the_hold_out_is_stratified(fraction: float) -> None:
    labels = torch.arange(200) % 10
    kept, held = hold_out(labels, fraction)
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(200))
    assert labels[held].bincount(minlength=10).tolist() == [20 * fraction] * 10


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_a_hold_out_without_every_class_is_refused(fraction: float) -> None:
    with pytest.raises(BadInput, match=r"data\.val=0.* of 1437 images in 10 classes"):
        Digits(val=fraction).splits()


def test_digits_have_the_published_sizes_and_noise() -> None:
    data = Digits(val=0.0)
    train, val, test = data.splits()
    assert (len(train.labels), len(val.labels), len(test.labels)) == (1437, 0, 360)
    assert train.images.max() == 16
    clean = test.images / 16
    difference = data.present(test.images, torch.arange(360)) - clean
    assert difference.std() == pytest.approx(0.3, rel=0.02)
    assert torch.equal(Digits(noise=0.0).present(test.images, torch.arange(360)), clean)


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_the_official_fashion_mnist() -> None:
    train, test = FashionMNIST().load()
    assert train.images.shape == (60_000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [6000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    shown = FashionMNIST().present(train.images, torch.arange(60_000))
    assert float(shown.mean()) == pytest.approx(0, abs=1e-3)
    assert float(shown.std()) == pytest.approx(1, abs=1e-3)


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def unzipped(path: Path) -> None:
    path.write_bytes(gzip.decompress(path.read_bytes()))


def short(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-5]))


def beyond(path: Path) -> None:
    idx(path, torch.full((20,), 10, dtype=torch.uint8))


def of_another_size(path: Path) -> None:
    idx(path, torch.zeros(200, 14, 14, dtype=torch.uint8))


def mislabelled(path: Path) -> None:
    idx(path, torch.zeros(7, dtype=torch.uint8))


def wrong_magic(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\0\0\x0d\x03" + gzip.decompress(path.read_bytes())[4:]))


@pytest.mark.parametrize(
    ("damage", "file", "says"),
    [
        (Path.unlink, IMAGES, "is missing"),
        (truncated, IMAGES, "cannot be read"),
        (unzipped, IMAGES, "cannot be read"),
        (short, IMAGES, "values, its header says"),
        (wrong_magic, IMAGES, "begins with 00 00 0d 03"),
        (beyond, LABELS, "has a label 10 beyond its 10 classes"),
        (of_another_size, IMAGES, "not of 28x28 pixels"),
        (mislabelled, LABELS, "7 labels for 20 images"),
    ],
)
def test_a_bad_file_is_named_with_the_way_to_get_it(
    small: Path, damage: Callable[[Path], None], file: str, says: str
) -> None:
    damage(small / file)
    with pytest.raises(BadInput, match=says) as error:
        FashionMNIST(root=str(small)).load()
    assert str(small / file) in str(error.value)
    assert "dataset-fashion-mnist" in str(error.value)
    assert "data.root=" in str(error.value)


def test_an_empty_folder_is_no_data_set(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(BadInput, match=r"train-images-idx3-ubyte\.gz is missing"):
        FashionMNIST(root=str(tmp_path)).load()


def draws(count: int) -> Draws:
    return Draws(0, 0, torch.arange(count))


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    images = torch.arange(1.0, 1 + 64 * 2 * 6 * 5).view(64, 2, 6, 5)
    cropped = crop(images, draws(64), 2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    places = set()
    for image, window in zip(padded, cropped, strict=True):
        found = [
            (row, column)
            for row in range(5)
            for column in range(5)
            if torch.equal(image[:, row : row + 6, column : column + 5], window)
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 15  # of 25 places, in 64 images
    assert crop(images, draws(64), 0) is images


def test_a_flip_mirrors_about_half_of_the_images() -> None:
    images = torch.rand(400, 1, 3, 4)
    flipped = flip(images, draws(400))
    mirrored = [torch.equal(a.flip(2), b) for a, b in zip(images, flipped, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(images, flipped, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 150 < sum(mirrored) < 250


def test_no_noise_changes_nothing() -> None:
    images = torch.rand(4, 1, 3, 4)
    assert noise(images, draws(4), 0.0) is images
