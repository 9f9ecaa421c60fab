"""Files for FFCV: in its format, and written whole or not at all."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from normbench.catalog import dataset
from normbench.data.dataset import TensorSplit
from normbench.data.photographs import FileSplit, Photographs, decode
from normbench.data.reading import Reader, open_splits
from normbench.errors import BadInput
from normbench.prepare import main
from support import dataset_files
from support.processes import processes, wait_for

pytestmark = pytest.mark.ffcv


def prepared(name: str, options: dataset_files.Options, *more: str) -> int:
    return main([*dataset_files.words(name, options), "readers=1", *more])


@pytest.fixture
def folder(tmp_path: Path) -> dataset_files.Options:
    """An image folder."""
    root = tmp_path / "images"
    root.mkdir()
    return dataset_files.image_folder(root)


def stored(data: Any, split: str) -> tuple[list[Any], list[int]]:
    """Images and labels of a file, read by FFCV's own decoders, photographs one by one."""
    from normbench.data.ffcv_patches import decoders, ffcv, reader

    path = str(data.prepared_file(split))
    labels = reader.Reader(path).metadata["f1"].tolist()
    if not isinstance(data, Photographs):
        every = {"image": [decoders.NDArrayDecoder()], "label": None}
        loader = ffcv.Loader(
            path, batch_size=len(labels), num_workers=1, drop_last=False, pipelines=every
        )
        ((arrays,),) = list(loader)
        return list(arrays.copy()), labels
    images = []
    for index in range(int(reader.Reader(path).num_samples)):
        decoder = decoders.SimpleRGBImageDecoder()
        # FFCV's simplest decoder takes images of one size: show it one.
        one = reader.Reader(path).metadata[index : index + 1]
        decoder.declare_state_and_memory = _of_one(decoder, one)
        loader = ffcv.Loader(
            path, batch_size=1, num_workers=1, indices=[index], drop_last=False,
            pipelines={"image": [decoder], "label": None},
        )  # fmt: skip
        ((image,),) = list(loader)
        images.append(image[0].copy())
    return images, labels


def _of_one(decoder: Any, metadata: Any) -> Any:
    usual = type(decoder).declare_state_and_memory

    def declare(state: Any) -> Any:
        decoder.metadata = metadata["f0"]
        return usual(decoder, state)

    return declare


def test_arrays_are_stored_as_they_are(tmp_path: Path) -> None:
    options = dataset_files.cifar10(tmp_path, images=3)
    assert prepared("cifar10", options) == 0
    data = dataset("cifar10", **options)
    images, labels = stored(data, "train")
    train, _ = data.load()
    assert isinstance(train, TensorSplit)
    assert np.array_equal(np.stack(images), train.images.numpy())
    assert labels == train.labels.tolist()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_photographs_are_stored_as_pixels_or_as_their_own_bytes(
    folder: dataset_files.Options, share: float
) -> None:
    options = {**folder, "jpeg": share}
    assert prepared("image_folder", options) == 0
    data = dataset("image_folder", **options)
    train, _ = data.load()
    assert isinstance(train, FileSplit)
    from normbench.data.ffcv_patches import reader

    found = reader.Reader(str(data.prepared_file("train")))
    content = data.prepared_file("train").read_bytes()
    sizes = dict(
        zip(found.alloc_table["ptr"].tolist(), found.alloc_table["size"].tolist(), strict=True)
    )
    compressed = 0
    for index, path in enumerate(train.paths):
        image = found.metadata["f0"][index]
        start = int(image["data_ptr"])
        own = content[start : start + sizes[start]]
        if image["mode"] == 1:
            assert own == decode(path).tobytes()
        elif path.endswith(".jpg"):
            compressed += 1
            assert own == Path(path).read_bytes()
        else:
            compressed += 1
            assert own[:2] == b"\xff\xd8"
        assert (image["width"], image["height"]) == decode(path).size
    assert compressed / len(train.paths) == pytest.approx(share, abs=0.15)
    assert found.metadata["f1"].tolist() == train.labels.tolist()


def test_ffcvs_own_decoder_reads_what_is_written(folder: dataset_files.Options) -> None:
    small = Path(folder["root"]) / "train"
    for superfluous in sorted(small.rglob("*.jpg"))[4:]:
        superfluous.unlink()
    for name in ("dog", "owl"):
        dataset_files.folders(small, [name], 1)
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    images, _ = stored(data, "train")
    train, _ = data.load()
    assert isinstance(train, FileSplit)
    for image, path in zip(images, train.paths, strict=True):
        assert np.array_equal(image, np.asarray(decode(path)))


def test_a_resolution_shrinks_and_jpeg_compresses_again(folder: dataset_files.Options) -> None:
    options = {**folder, "resolution": 30, "jpeg": 1.0}
    assert prepared("image_folder", options) == 0
    data = dataset("image_folder", **options)
    from normbench.data.ffcv_patches import reader

    known = reader.Reader(str(data.prepared_file("train"))).metadata["f0"]
    assert max(known["width"].max(), known["height"].max()) == 30
    assert (known["mode"] == 0).all()
    assert data.prepared_file("train").name == "imagefolder-train-resolution30-jpeg1.beton"


def test_a_current_file_is_not_written_again(
    folder: dataset_files.Options, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    path = data.prepared_file("train")
    before = path.stat().st_mtime_ns
    capsys.readouterr()
    assert prepared("image_folder", folder) == 0
    assert f"{path} is there, 62 images" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before
    dataset_files.jpeg(Path(folder["root"]) / "train/cat/new.jpg", 1)
    assert prepared("image_folder", folder) == 0
    assert f"{path} written, 63 images" in capsys.readouterr().out
    leftovers = [p.name for p in path.parent.glob("*.beton.*")]
    assert sorted(leftovers) == ["imagefolder-test.beton.json", "imagefolder-train.beton.json"]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def of_other_images(path: Path) -> None:
    dataset_files.jpeg(path.parent / "train/cat/new.jpg", 1)


def unsaid(path: Path) -> None:
    path.with_name(f"{path.name}.json").unlink()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (cut, "is truncated or damaged"),
        (of_other_images, "has other images than data.root has now"),
        (unsaid, "is not whole, or of unknown images"),
        (Path.unlink, "is missing"),
    ],
)
def test_a_file_of_other_images_is_refused_and_written_again(
    harm: Callable[[Path], None], says: str, folder: dataset_files.Options
) -> None:
    """Whoever asks for FFCV is told, and whoever leaves the choice open gets processes of torch."""
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    assert open_splits(data, "auto")[1] == "ffcv"
    path = data.prepared_file("train")
    harm(path)
    with pytest.raises(BadInput, match=rf"^loader=ffcv: {path} {says}"):
        open_splits(data, "ffcv")
    assert open_splits(data, "auto")[1] == "torch"
    assert prepared("image_folder", folder) == 0
    assert open_splits(data, "auto")[1] == "ffcv"


@pytest.mark.parametrize("end", [os.SEEK_SET, os.SEEK_END])
def test_a_damaged_table_is_one_sentence(folder: dataset_files.Options, end: int) -> None:
    """At its beginning there is the header, at its end where the images are."""
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    with data.prepared_file("train").open("r+b") as file:
        file.seek(-64 if end else 0, end)
        file.write(b"\x7f" * 64)
    with pytest.raises(
        BadInput, match=r"train\.beton is truncated or damaged, FFCV cannot read it"
    ):
        open_splits(data, "ffcv")


def test_a_jpeg_that_only_pillow_reads_is_compressed_again(folder: dataset_files.Options) -> None:
    path = Path(folder["root"]) / "train/dog/dog_0003.jpg"
    content = path.read_bytes()
    scan = content.index(b"\xff\xda")
    path.write_bytes(content[:scan] + b"\x00\x11\x22" + content[scan:])  # libjpeg warns of them
    with Image.open(path) as image:
        image.load()
    options = {**folder, "jpeg": 1.0}
    assert prepared("image_folder", options) == 0
    data = dataset("image_folder", **options)
    stored = data.prepared_file("train").read_bytes()
    assert content[scan:] not in stored
    other = Path(folder["root"]) / "train/dog/dog_0004.jpg"
    assert other.read_bytes() in stored
    splits, _ = open_splits(data, "ffcv")
    count = len(splits.train.labels)
    reading = Reader(data, splits.train, 0, processes=1)
    assert sum(map(len, reading.stream(torch.arange(count), 0, [count]))) == count


def leftovers(folder: Path) -> list[str]:
    """Names of the files that a failed prepare has left."""
    return [path.name for path in folder.glob("*.beton*")]


def shared_memory() -> set[str]:
    """Segments of shared memory, of which FFCV's writer has one."""
    return {path.name for path in Path("/dev/shm").glob("psm_*")}


def test_a_damaged_image_is_named_and_nothing_is_left(
    folder: dataset_files.Options, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(folder["root"])
    victim = root / "train/owl/owl_0003.jpg"
    content = victim.read_bytes()
    victim.write_bytes(content[:400])
    before = shared_memory()
    assert prepared("image_folder", folder) == 2
    assert f"{victim} is no image that can be read" in capsys.readouterr().err
    assert leftovers(root) == []
    assert shared_memory() == before
    assert active_children() == []
    victim.write_bytes(content)
    assert prepared("image_folder", folder) == 0


def test_a_process_that_is_killed_ends_the_writing(
    folder: dataset_files.Options, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """FFCV would wait for it forever, as for one that finds the disk full."""

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(ffcv_writer(), "encode", die)
    assert prepared("image_folder", folder) == 1
    assert "a process that writes" in capsys.readouterr().err
    assert leftovers(Path(folder["root"])) == []


def test_ctrl_c_leaves_nothing(
    folder: dataset_files.Options, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    parent, encode = os.getpid(), ffcv_writer().encode

    def interrupt(*arguments: Any, **options: Any) -> Any:
        os.kill(parent, signal.SIGINT)
        time.sleep(0.1)
        return encode(*arguments, **options)

    monkeypatch.setattr(ffcv_writer(), "encode", interrupt)
    before = shared_memory()
    assert prepared("image_folder", folder) == 130
    assert "writes the unfinished file again" in capsys.readouterr().err
    assert leftovers(Path(folder["root"])) == []
    assert shared_memory() == before
    assert active_children() == []


def ffcv_writer() -> Any:
    """The module, which imports FFCV."""
    from normbench.data import ffcv_writer

    return ffcv_writer


def test_after_kill_9_there_is_no_file_and_no_process(tmp_path: Path) -> None:
    """The next attempt begins anew."""
    root = tmp_path / "images"
    root.mkdir()
    dataset_files.folders(root / "train", ["a", "b"], 40)
    dataset_files.folders(root / "test", ["a", "b"], 2)
    words = ["data=image_folder", f"data.root={root}", "readers=2"]
    code = (
        "import sys, time, normbench.data.ffcv_writer as w, normbench.prepare as p\n"
        "encode = w.encode\n"
        "w.encode = lambda *a, **o: (time.sleep(0.1), encode(*a, **o))[1]\n"
        "sys.exit(p.main(sys.argv[1:]))"
    )
    path = dataset("image_folder", root=str(root)).prepared_file("train")
    unfinished = path.with_name(f"{path.name}.part")
    process = subprocess.Popen([sys.executable, "-c", code, *words], cwd=tmp_path)
    wait_for(lambda: unfinished.exists() and unfinished.stat().st_size > 0)
    process.kill()  # it alone: its processes end by themselves
    process.wait()
    assert not path.exists()
    wait_for(lambda: not processes(str(tmp_path)))
    assert main(words) == 0
    assert path.is_file()
    assert not unfinished.exists()


def test_two_do_not_write_one_file(
    folder: dataset_files.Options, capsys: pytest.CaptureFixture[str]
) -> None:
    data = dataset("image_folder", **folder)
    path = data.prepared_file("train")
    with path.with_name(f"{path.name}.part").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert prepared("image_folder", folder) == 2
    assert "is being written by another process" in capsys.readouterr().err
    assert prepared("image_folder", folder) == 0


def test_an_image_larger_than_a_page_names_what_would_work(
    folder: dataset_files.Options, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    dataset_files.jpeg(Path(folder["root"]) / "train/cat/large.jpg", 1, (900, 800))
    monkeypatch.setattr(ffcv_writer(), "LARGE_PAGE", 2**21)
    assert prepared("image_folder", folder) == 2
    assert "data.resolution=1000 reduces such images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["data=digits"], "data=digits of task=classify: its images are always in memory"),
        (["data=cifar10", "readers=many"], "readers=many: it is a whole number above 0"),
        (["data=cifar10", "readers=0"], "readers=0: it is a whole number above 0, as readers=8"),
        (["data=cifar11"], "data=cifar11 is unknown"),
        (["-m", "data=cifar10,cifar100"], "one data set is prepared at a time"),
        (["data=cifar10", "data.root=nowhere"], "is missing; data.download=true gets it"),
    ],
)
def test_words_that_cannot_be_used(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_the_number_of_threads_stays(folder: dataset_files.Options) -> None:
    """FFCV would set torch's when it is imported and in every epoch."""
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    splits, _ = open_splits(data, "ffcv")
    before = torch.get_num_threads()
    reading = Reader(data, splits.train, 0, processes=2)
    count = len(splits.train.labels)
    assert sum(map(len, reading.stream(torch.arange(count), 0, [count]))) == count
    assert torch.get_num_threads() == before


def test_an_abandoned_pass_leaves_no_thread(folder: dataset_files.Options) -> None:
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    splits, _ = open_splits(data, "ffcv")
    before = threading.active_count()
    order = torch.arange(len(splits.train.labels)).repeat(200)  # many times what its queue takes
    stream = Reader(data, splits.train, 0, processes=1).stream(order, 0, [8] * (len(order) // 8))
    assert len(next(stream)) == 8
    assert threading.active_count() > before
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_help_says_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "data.jpeg=SHARE" in capsys.readouterr().out
