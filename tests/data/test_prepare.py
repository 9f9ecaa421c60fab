"""Files for FFCV: its very format, written whole or not at all, and gone on with after kill -9."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from normbench.catalog import dataset
from normbench.data.dataset import Split
from normbench.data.files import Files, Folders, decoded
from normbench.data.reading import Reader, opened
from normbench.errors import BadInput
from normbench.prepare import main
from support import dataset_files
from support.processes import processes, wait_for

pytestmark = pytest.mark.ffcv


def prepared(name: str, options: dataset_files.Options, *more: str) -> int:
    return main([*dataset_files.words(name, options), "readers=0", *more])


@pytest.fixture
def folder(tmp_path: Path) -> dataset_files.Options:
    """An image folder."""
    root = tmp_path / "images"
    root.mkdir()
    return dataset_files.image_folder(root)


def stored(data: Any, split: str) -> tuple[list[Any], list[int]]:
    """Images and labels of a file, read by FFCV's own decoders, photographs one by one."""
    from normbench.data.ffcv_patches import decoders, ffcv, reader

    path = str(data.stored(split))
    labels = reader.Reader(path).metadata["f1"].tolist()
    if not isinstance(data, Folders):
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
    assert isinstance(train, Split)
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
    assert isinstance(train, Files)
    from normbench.data.ffcv_patches import reader

    found = reader.Reader(str(data.stored("train")))
    content = data.stored("train").read_bytes()
    sizes = dict(
        zip(found.alloc_table["ptr"].tolist(), found.alloc_table["size"].tolist(), strict=True)
    )
    compressed = 0
    for index, path in enumerate(train.paths):
        image = found.metadata["f0"][index]
        start = int(image["data_ptr"])
        own = content[start : start + sizes[start]]
        if image["mode"] == 1:
            assert own == decoded(path).tobytes()
        elif path.endswith(".jpg"):
            compressed += 1
            assert own == Path(path).read_bytes()
        else:
            compressed += 1
            assert own[:2] == b"\xff\xd8"
        assert (image["width"], image["height"]) == decoded(path).size
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
    assert isinstance(train, Files)
    for image, path in zip(images, train.paths, strict=True):
        assert np.array_equal(image, np.asarray(decoded(path)))


def test_a_resolution_reduces_and_jpeg_compresses_anew(folder: dataset_files.Options) -> None:
    options = {**folder, "resolution": 30, "jpeg": 1.0}
    assert prepared("image_folder", options) == 0
    data = dataset("image_folder", **options)
    from normbench.data.ffcv_patches import reader

    known = reader.Reader(str(data.stored("train"))).metadata["f0"]
    assert max(known["width"].max(), known["height"].max()) == 30
    assert (known["mode"] == 0).all()
    assert data.stored("train").name == "imagefolder-train-resolution30-jpeg1.beton"


def test_what_is_there_is_not_written_again(
    folder: dataset_files.Options, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    path = data.stored("train")
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
def test_a_file_that_is_not_of_these_images_is_refused_and_written_anew(
    harm: Callable[[Path], None], says: str, folder: dataset_files.Options
) -> None:
    """Whoever asks for FFCV is told, and whoever leaves the choice open gets processes of torch."""
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    assert opened(data, "auto")[1] == "ffcv"
    path = data.stored("train")
    harm(path)
    with pytest.raises(BadInput, match=rf"^loader=ffcv: {path} {says}"):
        opened(data, "ffcv")
    assert opened(data, "auto")[1] == "torch"
    assert prepared("image_folder", folder) == 0
    assert opened(data, "auto")[1] == "ffcv"


@pytest.mark.parametrize("end", [os.SEEK_SET, os.SEEK_END])
def test_a_damaged_table_is_one_sentence(folder: dataset_files.Options, end: int) -> None:
    """At its beginning there is the header, at its end where the images are."""
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    with data.stored("train").open("r+b") as file:
        file.seek(-64 if end else 0, end)
        file.write(b"\x7f" * 64)
    with pytest.raises(
        BadInput, match=r"train\.beton is truncated or damaged, FFCV cannot read it"
    ):
        opened(data, "ffcv")


def test_a_jpeg_that_only_pillow_reads_is_compressed_anew(folder: dataset_files.Options) -> None:
    path = Path(folder["root"]) / "train/dog/dog_0003.jpg"
    content = path.read_bytes()
    scan = content.index(b"\xff\xda")
    path.write_bytes(content[:scan] + b"\x00\x11\x22" + content[scan:])  # libjpeg warns of them
    with Image.open(path) as image:
        image.load()
    options = {**folder, "jpeg": 1.0}
    assert prepared("image_folder", options) == 0
    data = dataset("image_folder", **options)
    stored = data.stored("train").read_bytes()
    assert content[scan:] not in stored
    other = Path(folder["root"]) / "train/dog/dog_0004.jpg"
    assert other.read_bytes() in stored
    splits, _ = opened(data, "ffcv")
    count = len(splits.train.labels)
    reading = Reader(data, splits.train, 0, processes=1)
    assert sum(map(len, reading.stream(torch.arange(count), 0, [count]))) == count


@pytest.fixture
def store(folder: dataset_files.Options) -> Any:
    """The file of its training images, not yet written."""
    from normbench.data.ffcv_writer import Store

    data = dataset("image_folder", **folder)
    return Store(data.stored("train"), data.load()[0])


def test_an_interruption_in_the_last_moment_costs_nothing(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("normbench.data.ffcv_writer.describe", stop)
        with pytest.raises(KeyboardInterrupt):
            store.write(0, lambda _: None)
    written: list[int] = []
    assert not store.finished
    store.write(0, written.append)
    assert set(written) == {len(store.part.labels)}
    assert store.finished


def test_a_journal_of_a_file_that_is_gone_begins_anew(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(0, lambda _: None)
    whole = store.path.read_bytes()

    def stop(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr("normbench.data.ffcv_writer.BLOCK", 20)
    with pytest.raises(KeyboardInterrupt):
        store.write(0, stop)
    unfinished = store.path.with_name(f"{store.path.name}.part")
    assert store.path.with_name(f"{store.path.name}.journal").exists()
    unfinished.unlink()
    written: list[int] = []
    store.write(0, written.append)
    assert written[0] == 0
    assert store.path.read_bytes() == whole


def test_a_damaged_image_is_named_and_what_is_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from normbench.data import ffcv_writer

    monkeypatch.setattr(ffcv_writer, "BLOCK", 10)
    folder = dataset_files.image_folder(tmp_path)
    victim = tmp_path / "train/owl/owl_0003.jpg"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:400])
    assert prepared("image_folder", folder) == 2
    assert f"{victim} is no image that can be read" in capsys.readouterr().err
    data = dataset("image_folder", **folder)
    assert not data.stored("train").exists()
    written: list[int] = []
    victim.write_bytes(whole)
    train, _ = data.load()
    ffcv_writer.Store(data.stored("train"), train).write(0, written.append)
    assert written[0] == 40  # four blocks of ten were safe
    assert written[-1] == 62


def test_what_several_kills_leave_is_the_same_file(tmp_path: Path) -> None:
    """kill -9 at several moments; the file appears only when it is whole."""
    root = tmp_path / "images"
    root.mkdir()
    dataset_files.folders(root / "train", ["a", "b"], 400)
    dataset_files.folders(root / "test", ["a", "b"], 2)
    words = ["data=image_folder", f"data.root={root}", "readers=1"]
    code = "import normbench.data.ffcv_writer as s, normbench.prepare as p, sys; s.BLOCK = 8; "
    code += "sys.exit(p.main(sys.argv[1:]))"
    path = dataset("image_folder", root=str(root)).stored("train")
    journal = path.with_name(path.name + ".journal")
    sizes = []
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", code, *words], cwd=tmp_path)
        known = journal.stat().st_size if journal.exists() else 0
        deadline = time.monotonic() + 60
        while not (journal.exists() and journal.stat().st_size > known + 200):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()  # it alone: what reads for it ends by itself, and holds nothing
        process.wait()
        assert not path.exists()
        sizes.append(journal.stat().st_size)
    assert sizes == sorted(set(sizes))  # each went on where the last stopped
    assert main([*words[:2], "readers=0"]) == 0
    killed = path.read_bytes()
    path.unlink()
    assert main([*words[:2], "readers=0"]) == 0
    assert path.read_bytes() == killed
    wait_for(lambda: not processes(str(tmp_path)))


def test_two_do_not_write_one_file(
    folder: dataset_files.Options, capsys: pytest.CaptureFixture[str]
) -> None:
    data = dataset("image_folder", **folder)
    path = data.stored("train")
    program = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'wb') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, f"{path}.part"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert prepared("image_folder", folder) == 2
        other.communicate("")
    assert "is being written by another process" in capsys.readouterr().err
    assert prepared("image_folder", folder) == 0


def test_an_image_larger_than_a_page_says_what_would_work(
    folder: dataset_files.Options,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from normbench.data import ffcv_writer

    monkeypatch.setattr(ffcv_writer, "LARGE_PAGE", 2**13)
    assert prepared("image_folder", folder) == 2
    assert "data.resolution=1000 reduces such images" in capsys.readouterr().err


def test_images_lie_within_pages(
    folder: dataset_files.Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normbench.data import ffcv_writer
    from normbench.data.ffcv_patches import reader

    monkeypatch.setattr(ffcv_writer, "LARGE_PAGE", 2**15)
    assert prepared("image_folder", folder) == 0
    found = reader.Reader(str(dataset("image_folder", **folder).stored("train")))
    first = found.alloc_table["ptr"] // 2**15
    last = (found.alloc_table["ptr"] + found.alloc_table["size"] - 1) // 2**15
    assert np.array_equal(first, last)
    assert found.page_size == 2**15


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["data=digits"], "always in memory and has no files to prepare"),
        (["data=cifar10", "readers=many"], "readers=many: it is a whole number of processes"),
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
    splits, _ = opened(data, "ffcv")
    before = torch.get_num_threads()
    reading = Reader(data, splits.train, 0, processes=2)
    count = len(splits.train.labels)
    assert sum(map(len, reading.stream(torch.arange(count), 0, [count]))) == count
    assert torch.get_num_threads() == before


def test_reading_that_is_given_up_leaves_no_thread(folder: dataset_files.Options) -> None:
    assert prepared("image_folder", folder) == 0
    data = dataset("image_folder", **folder)
    splits, _ = opened(data, "ffcv")
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
