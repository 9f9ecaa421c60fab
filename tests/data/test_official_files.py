"""The official files of every data set, read, verified, damaged in every way, and fetched."""

import gzip
import io
import os
import pickle
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import loadmat, savemat
from torchvision import datasets as torchvision
from torchvision.datasets.imagenet import ARCHIVE_META

from normbench.catalog import dataset
from normbench.data.dataset import hold_out
from normbench.data.fashion_mnist import FashionMNIST
from normbench.data.photographs import FileSplit, decode
from normbench.errors import BadInput
from support import dataset_files


def load(data: str, options: dataset_files.Options) -> Any:
    """The official training and test images."""
    return dataset(data, **options).load()


@pytest.mark.parametrize(
    ("name", "key", "train", "test"),
    [
        (
            "cifar10", "labels",
            [f"cifar-10-batches-py/data_batch_{n}" for n in range(1, 6)],
            ["cifar-10-batches-py/test_batch"],
        ),
        ("cifar100", "fine_labels", ["cifar-100-python/train"], ["cifar-100-python/test"]),
    ],
)  # fmt: skip
def test_cifar_has_the_images_of_its_pickles_in_their_order(
    name: str, key: str, train: list[str], test: list[str], tmp_path: Path
) -> None:
    splits = load(name, dataset_files.MAKERS[name](tmp_path))
    for split, names in zip(splits, (train, test), strict=True):
        contents = [pickle.loads((tmp_path / file).read_bytes()) for file in names]
        pixels = np.concatenate([content["data"] for content in contents])
        assert torch.equal(split.images, torch.from_numpy(pixels.reshape(-1, 3, 32, 32)))
        assert split.images.is_contiguous()
        assert split.labels.tolist() == [label for content in contents for label in content[key]]


@pytest.mark.parametrize("extra", [False, True])
def test_svhn_has_the_images_of_its_matrices_in_their_order(extra: bool, tmp_path: Path) -> None:
    options = dataset_files.svhn(tmp_path)
    train, test = load("svhn", {**options, "extra": extra})
    for split, names in ((train, ["train", "extra"][: 1 + extra]), (test, ["test"])):
        contents = [loadmat(tmp_path / f"{name}_32x32.mat") for name in names]
        pixels = np.concatenate([content["X"].transpose(3, 2, 0, 1) for content in contents])
        assert torch.equal(split.images, torch.from_numpy(pixels))
        labels = np.concatenate([content["y"][:, 0] for content in contents])
        assert split.labels.tolist() == (labels % 10).tolist()  # 10 is the digit 0


def test_fashion_mnist_has_the_images_of_its_files_in_their_order(tmp_path: Path) -> None:
    splits = load("fashion_mnist", dataset_files.fashion_mnist(tmp_path))
    for split, name in zip(splits, ("train", "t10k"), strict=True):
        images, labels = (
            gzip.decompress((tmp_path / f"{name}-{kind}-ubyte.gz").read_bytes())
            for kind in ("images-idx3", "labels-idx1")
        )
        assert split.images.numpy().tobytes() == images[16:]
        assert split.images.shape[1:] == (1, 28, 28)
        assert split.labels.tolist() == list(labels[8:])


def test_folders_are_listed_as_torchvision_does(tmp_path: Path) -> None:
    options = dataset_files.image_folder(tmp_path)
    for part, name in zip(load("image_folder", options), ("train", "test"), strict=True):
        other = torchvision.ImageFolder(str(tmp_path / name))
        assert [*zip(part.paths, part.labels.tolist(), strict=True)] == other.samples
    assert dataset("image_folder", **options).classes == 3


@pytest.fixture
def accept_devkit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make the sum of an archive the official one of ImageNet's devkit."""

    def accept(archive: Path) -> None:
        monkeypatch.setitem(ARCHIVE_META, "devkit", (archive.name, dataset_files.md5(archive)))

    return accept


def test_flat_validation_images_have_the_devkits_labels(
    tmp_path: Path, accept_devkit: Callable[[Path], None]
) -> None:
    options = dataset_files.flat_imagenet(tmp_path)
    accept_devkit(tmp_path / DEVKIT)
    before = sorted(path.name for path in tmp_path.iterdir())
    _, test = load("imagenet", options)
    assert [Path(path).stem[-1] for path in test.paths] == list("123456")
    assert test.labels.tolist() == [0, 1, 2, 2, 1, 0]  # numbers 3, 1, 2 are the folders' 0, 1, 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before  # which may be read-only


def test_caltech_has_equally_many_images_per_class_and_no_clutter(tmp_path: Path) -> None:
    options = dataset_files.caltech256(tmp_path)
    train, val, test = dataset("caltech256", **options).splits()
    assert train.labels.bincount().tolist() == [1] * 256
    assert val.labels.bincount().tolist() == [1] * 256
    assert test.labels.bincount().tolist() == [2] * 256
    paths = [path for part in (train, val, test) for path in part.paths]  # type: ignore[attr-defined]
    assert len(set(paths)) == 4 * 256
    assert not any("clutter" in path for path in paths)


def test_four_things_splits_have_the_papers_sizes() -> None:
    """40,000 and 10,000 of CIFAR-100; 80/20 of SVHN's 604,388; 40, 10 and 30 of Caltech-256."""
    labels = torch.arange(50_000) % 100
    assert [len(p) for p in hold_out(labels, 0.2)] == [40_000, 10_000]
    labels = torch.arange(73_257 + 531_131) % 10
    kept, held = hold_out(labels, 0.2)
    assert (len(kept), len(held)) == (483_510, 120_878)
    data = dataset("caltech256")
    assert (data.train, data.test, data.val) == (50, 30, 0.2)  # type: ignore[attr-defined]


DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
FASHION = "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
CIFAR10 = "cifar-10-batches-py/data_batch_3"
CIFAR100 = "cifar-100-python/train"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 3])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def unzipped(path: Path) -> None:
    path.write_bytes(gzip.decompress(path.read_bytes()))


def short(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-5]))


def beyond(path: Path) -> None:
    dataset_files.idx(path, torch.full((20,), 10, dtype=torch.uint8))


def of_another_size(path: Path) -> None:
    dataset_files.idx(path, torch.zeros(200, 14, 14, dtype=torch.uint8))


def mislabelled(path: Path) -> None:
    dataset_files.idx(path, torch.zeros(7, dtype=torch.uint8))


def wrong_magic(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\0\0\x0d\x03" + gzip.decompress(path.read_bytes())[4:]))


def changed(path: Path, **changes: Any) -> None:
    """Another content of a pickle; None takes a key away."""
    content = {**pickle.loads(path.read_bytes()), **changes}
    path.write_bytes(pickle.dumps({k: v for k, v in content.items() if v is not None}))


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def evil(path: Path) -> None:
    path.write_bytes(pickle.dumps(Evil()))


def other_arrays(path: Path, **arrays: Any) -> None:
    savemat(path, arrays)


def text(path: Path) -> None:
    path.write_bytes(b"hello")


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def bare(path: Path) -> None:
    for image in path.iterdir():
        image.unlink()


def more_images(path: Path) -> None:
    shutil.copy(next(path.glob("*.JPEG")), path / "ILSVRC2012_val_00000099.JPEG")


def no_truth(path: Path) -> None:
    path.unlink()
    dataset_files.devkit(path.parent, [3, 1, 2, 2, 1, 77])


def odd_truth(path: Path) -> None:
    path.unlink()
    dataset_files.devkit(path.parent, [3, 1, 2, 2, 1, "n"])


def no_meta(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("readme.txt"), io.BytesIO())


DAMAGES: list[tuple[str, str, Callable[[Path], object], str]] = [
    ("fashion_mnist", FASHION[0], gone, "is missing"),
    ("fashion_mnist", FASHION[0], truncated, "cannot be read"),
    ("fashion_mnist", FASHION[0], unzipped, "cannot be read"),
    ("fashion_mnist", FASHION[0], short, "cannot be read .RuntimeError: shape .* is invalid"),
    ("fashion_mnist", FASHION[0], wrong_magic, "cannot be read"),
    ("fashion_mnist", FASHION[1], beyond, "has labels 10 to 10, not 0 to 9"),
    ("fashion_mnist", FASHION[0], of_another_size, "not of 28x28 pixels"),
    ("fashion_mnist", FASHION[1], mislabelled, "7 labels for 20 images"),
    ("cifar10", CIFAR10, gone, "is missing"),
    ("cifar10", CIFAR10, truncated, "cannot be read"),
    ("cifar10", CIFAR10, emptied, "cannot be read .EOFError"),
    ("cifar10", CIFAR10, text, "cannot be read .UnpicklingError"),
    ("cifar10", CIFAR10, evil, "it asks for posix.system"),
    ("cifar10", CIFAR10, partial(changed, data=None), "cannot be read .KeyError: 'data'"),
    ("cifar10", CIFAR10, partial(changed, labels=[0]), "1 labels for 40 images"),
    ("cifar10", CIFAR10, partial(changed, labels=[10] * 40), "has labels 10 to 10, not 0 to 9"),
    ("cifar10", CIFAR10, partial(changed, data=dataset_files.noise(40, 3000)), "cannot reshape"),
    ("cifar10", "cifar-10-batches-py/batches.meta", gone, "batches.meta is missing"),
    ("cifar10", "cifar-10-batches-py/batches.meta", evil, "it asks for posix.system"),
    (
        "cifar100",
        CIFAR100,
        partial(changed, fine_labels=None),
        "cannot be read .KeyError: 'fine_labels'",
    ),
    ("cifar100", CIFAR100, truncated, "cannot be read"),
    ("svhn", "train_32x32.mat", gone, "is missing"),
    ("svhn", "train_32x32.mat", truncated, "cannot be read"),
    ("svhn", "test_32x32.mat", text, "cannot be read .MatReadError"),
    ("svhn", "test_32x32.mat", partial(other_arrays, X=np.zeros(3)), "cannot be read"),
    (
        "svhn",
        "test_32x32.mat",
        partial(other_arrays, X=np.zeros((32, 32, 3, 20)), y=np.ones((20, 1))),
        r"has images \(3, 32, 32\) of torch.float64, not \(3, 32, 32\) of bytes",
    ),
    (
        "svhn",
        "test_32x32.mat",
        partial(other_arrays, X=dataset_files.noise(32, 32, 3, 20), y=np.ones((7, 1))),
        "has 7 labels for 20 images",
    ),
    ("image_folder", "train", gone, "cannot be listed"),
    ("image_folder", "test", gone, "has neither test/ nor val/"),
    ("image_folder", "test/dog", gone, "is missing or has no images"),
    ("image_folder", "train/dog", gone, "test/dog is a class that train/ lacks"),
    ("imagenet", "train", gone, "cannot be listed"),
    ("imagenet", "train/n01443537", bare, "is missing or has no images"),
    ("imagenet", "val/n01443537", gone, "is missing or has no images"),
    ("imagenet", "val", gone, "is missing or has no images"),
    ("flat_imagenet", DEVKIT, gone, "tar.gz is missing"),
    ("flat_imagenet", DEVKIT, truncated, "cannot be read"),
    ("flat_imagenet", DEVKIT, no_meta, "cannot be read .No such file or directory: .*meta.mat"),
    ("flat_imagenet", DEVKIT, no_truth, "cannot be read .KeyError: 77"),
    ("flat_imagenet", DEVKIT, odd_truth, "cannot be read .ValueError: invalid literal"),
    ("flat_imagenet", "val", more_images, "has 7 images, .* 6 labels"),
    ("flat_imagenet", "train/n01440764", gone, "n01440764 is missing, a class of the images"),
    ("caltech256", "caltech256/256_ObjectCategories", gone, "cannot be listed"),
    ("caltech256", "caltech256/256_ObjectCategories/007.thing-7", gone, "has 255 classes"),
    ("caltech256", "caltech256/256_ObjectCategories/007.thing-7", bare, "has no images"),
]


@pytest.mark.parametrize(
    ("data", "file", "damage", "says"),
    DAMAGES,
    ids=[f"{data}-{Path(file).name}-{says[:24]}" for data, file, _, says in DAMAGES],
)
def test_a_damaged_file_is_named_with_a_remedy(
    tmp_path: Path, data: str, file: str, damage: Callable[[Path], object], says: str,
    accept_devkit: Callable[[Path], None],
) -> None:  # fmt: skip
    make = dataset_files.flat_imagenet if data == "flat_imagenet" else dataset_files.MAKERS[data]
    options = make(tmp_path)
    damage(tmp_path / file)
    if (tmp_path / DEVKIT).exists():
        accept_devkit(tmp_path / DEVKIT)
    with pytest.raises(BadInput, match=says) as error:
        load(data.removeprefix("flat_"), options)
    sentence = str(error.value)
    assert sentence.startswith(f"data={data.removeprefix('flat_')}: {tmp_path}")
    assert "data.root" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_files_must_have_the_official_sums(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**dataset_files.MAKERS[name](tmp_path), "verify": True}
    with pytest.raises(BadInput, match=r"has MD5 [0-9a-f]{32}, the official file [0-9a-f]{32}"):
        load(name, options)
    sums = {path.name: dataset_files.md5(path) for path in tmp_path.rglob("*") if path.is_file()}
    if name == "svhn":
        official = {
            split: [url, file, sums[file]]
            for split, (url, file, _) in torchvision.SVHN.split_list.items()
        }
        monkeypatch.setattr(torchvision.SVHN, "split_list", official)
    else:
        reader = {"cifar10": torchvision.CIFAR10, "cifar100": torchvision.CIFAR100}[name]
        for entries in ("train_list", "test_list"):
            official_list = [[file, sums[file]] for file, _ in getattr(reader, entries)]
            monkeypatch.setattr(reader, entries, official_list)
        meta = {**reader.meta, "md5": sums[reader.meta["filename"]]}
        monkeypatch.setattr(reader, "meta", meta)
    train, _ = load(name, options)
    assert len(train.labels)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("imagenet", "has 3 folders, ImageNet 1,000"),
        ("caltech256", "has 1,024 images without clutter, Caltech-256 29,780"),
    ],
)
def test_folders_are_counted(name: str, says: str, tmp_path: Path) -> None:
    options = {**dataset_files.MAKERS[name](tmp_path), "verify": True}
    with pytest.raises(BadInput, match=says) as error:
        load(name, options)
    assert "data.verify=false takes it as it is" in str(error.value)


def test_a_class_of_too_few_images_is_refused(tmp_path: Path) -> None:
    options = dataset_files.caltech256(tmp_path)
    with pytest.raises(BadInput, match=r"data\.train=50 data\.test=2: .* has 4 images"):
        load("caltech256", {**options, "train": 50})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


@pytest.mark.parametrize("damage", [cut, emptied, text, gone])
def test_an_unreadable_image_is_named(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    dataset_files.jpeg(tmp_path / "one.jpg", 0)
    damage(tmp_path / "one.jpg")
    with pytest.raises(BadInput, match=str(tmp_path / "one.jpg")):
        decode(str(tmp_path / "one.jpg"))


def test_images_of_any_mode_become_rgb(tmp_path: Path) -> None:
    for mode in ("L", "RGBA", "P", "CMYK", "1", "LA"):
        ending = "tif" if mode == "CMYK" else "png"
        Image.new(mode, (5, 4)).save(tmp_path / f"one.{ending}")
        image = decode(str(tmp_path / f"one.{ending}"))
        assert (image.mode, image.size) == ("RGB", (5, 4))


def test_a_resolution_shrinks_larger_images(tmp_path: Path) -> None:
    dataset_files.jpeg(tmp_path / "one.jpg", 0, (60, 48))
    for longest, size in ((None, (60, 48)), (60, (60, 48)), (30, (30, 24)), (1000, (60, 48))):
        part = FileSplit([str(tmp_path / "one.jpg")], torch.zeros(1, dtype=torch.int64), longest)
        assert part.image(0).size == size


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a web server on this machine, and the folder that it serves."""
    folder = tmp_path_factory.mktemp("served")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}", folder
    web.shutdown()
    thread.join()
    web.server_close()


def test_a_missing_archive_is_downloaded_once(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    source = tmp_path / "source"
    source.mkdir()
    dataset_files.cifar100(source)
    meta = source / "cifar-100-python/meta"
    with tarfile.open(folder / "cifar-100-python.tar.gz", "w:gz") as archive:
        archive.add(source / "cifar-100-python", "cifar-100-python")
    theirs = torchvision.CIFAR100
    monkeypatch.setattr(theirs, "url", f"{address}/cifar-100-python.tar.gz")
    monkeypatch.setattr(theirs, "tgz_md5", dataset_files.md5(folder / "cifar-100-python.tar.gz"))
    for entries in ("train_list", "test_list"):
        sums = [
            [n, dataset_files.md5(source / f"cifar-100-python/{n}")]
            for n, _ in getattr(theirs, entries)
        ]
        monkeypatch.setattr(theirs, entries, sums)
    monkeypatch.setattr(theirs, "meta", {**theirs.meta, "md5": dataset_files.md5(meta)})
    options = {"root": str(tmp_path / "root")}
    with pytest.raises(BadInput, match=r"is missing; data\.download=true gets it"):
        load("cifar100", options)
    train, _ = load("cifar100", {**options, "download": True})
    assert len(train.labels) == 400
    (folder / "cifar-100-python.tar.gz").unlink()
    again, _ = load("cifar100", {**options, "download": True})
    assert torch.equal(again.images, train.images)


def test_a_download_that_fails_says_so(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.CIFAR10, "url", f"{server[0]}/nothing.tar.gz")
    with pytest.raises(BadInput, match=r"the download failed .*404.*; data\.download=true gets it"):
        load("cifar10", {"root": str(tmp_path), "download": True})
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"data\.download=true: .* cannot be written"):
        load("cifar10", {"root": str(tmp_path / "file/below"), "download": True})


def test_chosen_classes_of_fashion_mnist_have_new_numbers(tmp_path: Path) -> None:
    options = dataset_files.fashion_mnist(tmp_path)
    every, chosen = FashionMNIST(**options), FashionMNIST(**options, labels=(7, 2))
    for all_images, some in zip(every.load(), chosen.load(), strict=True):
        for number, label in enumerate((7, 2)):
            images = all_images.images[all_images.labels == label]
            assert torch.equal(some.images[some.labels == number], images)
        assert len(some.labels) == int(((all_images.labels == 7) | (all_images.labels == 2)).sum())
    assert chosen.classes == 2
    assert chosen.official_sizes == (12_000, 2_000)
    assert chosen.prepared_file("train") != every.prepared_file("train")
