"""Files of every data set in its real format, a few images each."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

Options = dict[str, Any]

#: Debian's package dataset-fashion-mnist puts the official files here.
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes of which no two images are alike."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(path: Path, values: torch.Tensor) -> None:
    """Write `values` as the official files of Fashion-MNIST are written."""
    header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + bytes(values.flatten().tolist())))


def fashion_mnist(root: Path) -> Options:
    """Four idx files with 200 and 20 images."""
    for seed, (name, count) in enumerate((("train", 200), ("t10k", 20))):
        images = torch.from_numpy(noise(count, 28, 28, seed=seed))
        idx(root / f"{name}-images-idx3-ubyte.gz", images)
        idx(root / f"{name}-labels-idx1-ubyte.gz", (torch.arange(count) % 10).to(torch.uint8))
    return {"root": str(root)}


def pickled(path: Path, count: int, seed: int, **labels: int) -> None:
    """A batch of CIFAR: `labels` are the keys of labels with their numbers of classes."""
    known = {key: (np.arange(count) % classes).tolist() for key, classes in labels.items()}
    light = (np.arange(count) % min(labels.values()) * 12 % 128).astype(np.uint8)  # to be learned
    content = {
        "batch_label": "a batch",
        "data": noise(count, 3072, seed=seed) // 2 + light[:, None],
        "filenames": [f"{number}.png" for number in range(count)],
        **known,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def cifar10(root: Path, images: int = 40) -> Options:
    """Five batches of training images and one of test images, as Python pickles, and the meta."""
    for number in range(1, 6):
        pickled(root / f"cifar-10-batches-py/data_batch_{number}", images, number, labels=10)
    pickled(root / "cifar-10-batches-py/test_batch", 20, 9, labels=10)
    names = {"label_names": [f"label {number}" for number in range(10)]}
    (root / "cifar-10-batches-py/batches.meta").write_bytes(pickle.dumps(names))
    return {"root": str(root), "verify": False}


def cifar100(root: Path) -> Options:
    """One pickle each of training and test images, with fine and coarse labels."""
    for name, count, seed in (("train", 400, 1), ("test", 100, 2)):
        pickled(root / f"cifar-100-python/{name}", count, seed, fine_labels=100, coarse_labels=20)
    names = {"fine_label_names": [f"label {number}" for number in range(100)]}
    (root / "cifar-100-python/meta").write_bytes(pickle.dumps(names))
    return {"root": str(root), "verify": False}


def svhn(root: Path) -> Options:
    """MATLAB files; the digit 0 has the label 10."""
    for seed, (split, count) in enumerate((("train", 60), ("test", 20), ("extra", 100))):
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        images = noise(32, 32, 3, count, seed=seed)
        savemat(root / f"{split}_32x32.mat", {"X": images, "y": labels}, do_compression=True)
    return {"root": str(root), "verify": False}


def jpeg(path: Path, seed: int, size: tuple[int, int] = (60, 48)) -> None:
    """A photograph of smooth noise, (width, height) pixels."""
    coarse = Image.fromarray(noise(6, 6, 3, seed=seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse.resize(size, Image.Resampling.BICUBIC).save(path, quality=90)


SIZES = ((60, 48), (40, 80), (33, 33), (90, 50))


def folders(root: Path, classes: list[str], images: int, ending: str = ".jpg") -> None:
    """`images` photographs of every class, of several sizes."""
    for place, name in enumerate(classes):
        for number in range(images):
            seed = 1000 * place + number
            jpeg(root / name / f"{name}_{number:04d}{ending}", seed, SIZES[seed % len(SIZES)])


def image_folder(root: Path) -> Options:
    """train/ and test/ of three classes, one of whose images are PNG, grey and with alpha."""
    folders(root / "train", ["cat", "dog", "owl"], 20)
    folders(root / "test", ["cat", "dog", "owl"], 5)
    Image.fromarray(noise(30, 40)).save(root / "train/owl/grey.png")
    Image.fromarray(noise(30, 40, 4), "RGBA").save(root / "train/owl/alpha.png")
    return {"root": str(root), "size": 24}


WNIDS = ["n01440764", "n01443537", "n01484850"]


def imagenet(root: Path) -> Options:
    """train/ and val/ of three classes."""
    folders(root / "train", WNIDS, 12, ".JPEG")
    folders(root / "val", WNIDS, 4, ".JPEG")
    return {"root": str(root), "size": 24, "verify": False}


def devkit(root: Path, truth: list[int | str]) -> None:
    """Write the official devkit: numbers of classes, of which one is no leaf, and of images."""
    text = ("WNID", "words", "gloss")
    fields = [("ILSVRC2012_ID", int), *((name, object) for name in text), ("num_children", int)]
    rows = [
        (3, WNIDS[0], "tench, Tinca tinca", "a fish", 0), (1, WNIDS[1], "goldfish", "a fish", 0),
        (2, WNIDS[2], "great white shark", "a fish", 0), (4, "n00001740", "entity", "all", 3),
    ]  # fmt: skip
    buffer = io.BytesIO()
    savemat(buffer, {"synsets": np.array(rows, dtype=fields)[:, None]})
    contents = {
        "meta.mat": buffer.getvalue(),
        "ILSVRC2012_validation_ground_truth.txt": "".join(f"{n}\n" for n in truth).encode(),
    }
    with tarfile.open(root / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"ILSVRC2012_devkit_t12/data/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def flat_imagenet(root: Path) -> Options:
    """val/ without folders, as the official archive has it, and the devkit."""
    folders(root / "train", WNIDS, 4, ".JPEG")
    for number in range(1, 7):
        jpeg(root / f"val/ILSVRC2012_val_{number:08d}.JPEG", number)
    devkit(root, [3, 1, 2, 2, 1, 3])
    return {"root": str(root), "size": 24, "verify": False}


def caltech256(root: Path) -> Options:
    """256 classes of four images each, and the clutter, which is no class."""
    parent = root / "caltech256/256_ObjectCategories"
    for number in range(1, 257):
        folder = parent / f"{number:03d}.thing-{number}"
        for image in range(1, 5):
            jpeg(folder / f"{number:03d}_{image:04d}.jpg", 10 * number + image, (20, 16))
    jpeg(parent / "257.clutter/257_0001.jpg", 0, (20, 16))
    return {"root": str(root), "size": 16, "train": 2, "test": 2, "verify": False, "val": 0.5}


def write_photograph(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(HEIGHT, WIDTH, 3, seed=seed)).save(path, quality=95)


def write_map(path: Path, values: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    if path.parent.name == "SegmentationClass":  # of VOC: numbers of colors in a palette
        image.putpalette([*range(256)] * 3)
    image.save(path)


def stripes(values: list[int]) -> NDArray[np.uint8]:
    """A map with these values from left to right."""
    row = np.resize(np.repeat(values, -(-WIDTH // len(values))), WIDTH)
    return np.tile(row.astype(np.uint8), (HEIGHT, 1))


def pascal_voc(root: Path) -> Options:
    """Images to train on and one to test on; SBD adds some, and has one of either."""
    voc, sbd = root / "VOCdevkit/VOC2012", root / "benchmark_RELEASE/dataset"
    lists = {"train": TRAINED, "val": ["t"]}
    for name, members in lists.items():
        path = voc / f"ImageSets/Segmentation/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(members) + "\n")
    for seed, name in enumerate(("t", *TRAINED, *ADDED)):
        write_photograph(voc / f"JPEGImages/{name}.jpg", seed)
        if name not in ADDED:
            write_map(voc / f"SegmentationClass/{name}.png", stripes([0, 20, 255]))
    for name in ("a0", "t", *ADDED):
        path = sbd / f"cls/{name}.mat"
        path.parent.mkdir(parents=True, exist_ok=True)
        savemat(path, {"GTcls": {"Segmentation": stripes([0, 7])}})
    (sbd / "train.txt").write_text("a0\nt\n")
    (sbd / "val.txt").write_text("\n".join(ADDED))
    return {"root": str(root), "verify": False, "size": 24}


def ade20k(root: Path) -> Options:
    """Training images and one to test on."""
    for part, names in (("training", TRAINED), ("validation", ["t"])):
        for seed, name in enumerate(names):
            top = root / "ADEChallengeData2016"
            write_photograph(top / f"images/{part}/ADE_{name}.jpg", seed)
            write_map(top / f"annotations/{part}/ADE_{name}.png", stripes([0, 1, 150]))
    return {"root": str(root), "verify": False, "size": 24}


def cityscapes(root: Path) -> Options:
    """Training images of two cities and one to test on."""
    cities = [*(("train", city) for city in ("aachen", "ulm") for _ in range(6)), ("val", "lindau")]
    for seed, (part, city) in enumerate(cities):
        name = f"{part}/{city}/{city}_{seed}"
        write_photograph(root / f"leftImg8bit/{name}_leftImg8bit.png", seed)
        write_map(root / f"gtFine/{name}_gtFine_labelIds.png", stripes([7, 33, 4]))
    return {"root": str(root), "verify": False, "size": 24}


def mask_folder(root: Path) -> Options:
    """Training images and one to test on."""
    for part, names in (("train", TRAINED), ("val", ["t"])):
        for seed, name in enumerate(names):
            write_photograph(root / f"{part}/images/{name}.jpg", seed)
            write_map(root / f"{part}/masks/{name}.png", stripes([0, 4, 255]))
    return {"root": str(root), "classes": 5, "size": 24, "val": 0.0}


#: Numbers of categories in COCO have gaps.
CATEGORIES = [1, 3, 90]


def box_outline(left: int, top: int, right: int, bottom: int) -> list[list[float]]:
    """A rectangle as a polygon of COCO."""
    return [[left, top, right, top, right, bottom, left, bottom]]


def coco(root: Path) -> Options:
    """Images with a large object, a small one in front of it and a crowd; one image has none."""
    for part, names in (("train2017", ["empty", *TRAINED]), ("val2017", ["t", "u"])):
        images, annotations = [], []
        for number, name in enumerate(names, 10):
            write_photograph(root / part / f"{name}.jpg", number)
            images.append(
                {"id": number, "file_name": f"{name}.jpg", "width": WIDTH, "height": HEIGHT}
            )
            crowd = {"counts": [WIDTH * HEIGHT - 2 * HEIGHT, 2 * HEIGHT], "size": [HEIGHT, WIDTH]}
            objects: list[tuple[int, Any, float, int]] = [
                (90, box_outline(8, 4, 14, 9), 30.0, 0), (3, box_outline(5, 2, 20, 16), 210.0, 0),
                (1, crowd, 2.0 * HEIGHT, 1),
            ]  # fmt: skip
            for category, outline, area, is_crowd in () if name == "empty" else objects:
                annotations.append(
                    {
                        "image_id": number, "category_id": category, "segmentation": outline,
                        "area": area, "iscrowd": is_crowd, "bbox": [0, 0, 1, 1],
                    }
                )  # fmt: skip
        categories = [{"id": number} for number in reversed(CATEGORIES)]
        content = {"images": images[::-1], "annotations": annotations, "categories": categories}
        path = root / f"annotations/instances_{part}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return {"root": str(root), "verify": False, "size": 24}


def nyu_depth(root: Path) -> Options:
    """Fourteen shots in a file of HDF5, as MATLAB writes it; depth grows from left to right."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(root / "nyu_depth_v2_labeled.mat", "w") as content:
        content["images"] = noise(14, 3, WIDTH, HEIGHT)
        columns = np.linspace(0.5, 9.5, WIDTH, dtype=np.float32)[None, :, None]
        content["depths"] = np.tile(columns, (14, 1, HEIGHT))
    numbers = {"trainNdxs": np.arange(1, 13)[:, None], "testNdxs": np.array([[13], [14]])}
    savemat(root / "splits.mat", numbers)
    return {"root": str(root), "verify": False, "size": [8, 12]}


def scattered_digits(_root: Path) -> Options:
    """Few and small scenes."""
    return {"scenes": 40, "test_scenes": 10, "size": 40}


def digits(_root: Path) -> Options:
    """Nothing: they ship with scikit-learn."""
    return {}


#: Images of Pascal VOC and ADE20K to train on, and those that SBD adds.
TRAINED = [f"a{number}" for number in range(10)]
ADDED = ["c0", "c1"]
HEIGHT, WIDTH = 20, 30  # of photographs with maps

MAKERS: Mapping[str, Callable[[Path], Options]] = {
    "ade20k": ade20k,
    "caltech256": caltech256,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cityscapes": cityscapes,
    "coco": coco,
    "digits": digits,
    "digits_contrast": digits,
    "fashion_mnist": fashion_mnist,
    "image_folder": image_folder,
    "imagenet": imagenet,
    "mask_folder": mask_folder,
    "nyu_depth": nyu_depth,
    "pascal_voc": pascal_voc,
    "scattered_digits": scattered_digits,
    "svhn": svhn,
}


def words(data: str, options: Options) -> list[str]:
    """The same as arguments of a command line."""
    typed = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in options.items()
    }
    return [f"data={data}", *(f"data.{key}={value}" for key, value in typed.items())]


def md5(path: Path) -> str:
    """Of a file."""
    return hashlib.md5(path.read_bytes()).hexdigest()
