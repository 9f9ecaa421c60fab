"""Images come alike by every loader: from memory, by processes of torch, by threads of FFCV."""

import os
import random
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

from normbench import results
from normbench.catalog import dataset
from normbench.config.cells import Loader
from normbench.config.plan import Plan
from normbench.data.augment import COLOR_COMPONENTS, COLOR_DEVIATIONS, lighting
from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset
from normbench.data.random_crop import (
    center_boxes,
    crop_and_resize,
    jittered_boxes,
    random_boxes,
)
from normbench.data.reader_processes import map_in_processes
from normbench.data.reading import NO_FFCV, LoaderName, Reader, open_splits, regroup
from normbench.errors import BadInput
from normbench.prepare import main as prepare
from normbench.results import CHECKPOINT
from normbench.training import checkpoint
from normbench.training.batches import Chunk, EvaluationBatch
from normbench.training.checkpoint import Checkpoints
from normbench.training.datamodule import DataModule, open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.regularization import Regularization
from normbench.training.sampler import Chunking, WorkerSampler
from normbench.training.trainer import train
from normbench.training.training import Training
from support import dataset_files
from support.cells import Curve, Interrupted, cell, train_cell
from support.commands import Command
from support.processes import is_training, pid_of, processes, run_when, wait_for
from support.slow import slow_except

FFCV = pytest.param("ffcv", marks=pytest.mark.ffcv)
OTHERS = ["torch", FFCV]
KINDS = ["cifar10", "image_folder"]  # of one size, and of any
REGS = {
    "none": Regularization(),
    "mixup": Regularization(mixup=0.4, cutmix=1.0),
    "randaug": Regularization(policy="rand-m9-n2-p1.0", color_jitter=0.4),
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dataset_files.Options]:
    """Options of data sets with files, which are prepared for FFCV where it is."""
    found = {}
    for name in KINDS:
        found[name] = dataset_files.MAKERS[name](tmp_path_factory.mktemp(name))
        if find_spec("ffcv"):
            assert prepare([*dataset_files.words(name, found[name]), "readers=1"]) == 0
    return found


def loaders(
    data: Dataset, loader: LoaderName, plan: Plan, reg: Regularization, device: int = 0
) -> DataModule:
    splits, by = open_splits(data, loader, policies=bool(reg.policies))
    sampler = WorkerSampler(len(splits.train.labels), 8, plan, seed=5)
    chunking = Chunking(3 * sampler.steps_per_epoch, 3, 50)
    return DataModule(data, splits, sampler, chunking, reg, device, 0 if by == "memory" else 2)


def on_device(data: DataModule, chunk: Chunk | EvaluationBatch) -> Chunk | EvaluationBatch:
    found: Chunk | EvaluationBatch = data.on_after_batch_transfer(chunk, 0)
    return found


def seen(data: DataModule, epoch: int, start: int = 0) -> Iterator[Chunk]:
    """What the network sees of an epoch from a step on."""
    for chunk in data.read_chunks(epoch, start):
        ready = on_device(data, chunk)
        assert isinstance(ready, Chunk)
        yield ready


@pytest.mark.parametrize("loader", OTHERS)
@pytest.mark.parametrize(
    ("name", "reg"),
    slow_except([*product(KINDS, REGS)], [("cifar10", "mixup"), ("image_folder", "randaug")]),
)
def test_the_same_images_come_at_the_same_step_to_the_same_worker(
    name: str, reg: str, loader: LoaderName, roots: dict[str, dataset_files.Options]
) -> None:
    """Bit for bit, over two epochs, on each of two devices, and from the middle of an epoch on."""
    data = dataset(name, **roots[name])
    plan = Plan(2, 1, 2)
    for device in range(2):
        ours, theirs = (loaders(data, each, plan, REGS[reg], device) for each in ("memory", loader))
        for epoch, start in ((0, 0), (1, 0), (1, 3)):
            pairs = [*zip(seen(ours, epoch, start), seen(theirs, epoch, start), strict=True)]
            assert sum(len(one.images) for one, _ in pairs) == ours.sampler.steps_per_epoch - start
            for one, other in pairs:
                assert torch.equal(one.indices, other.indices)
                assert torch.equal(one.labels, other.labels)
                assert torch.equal(one.images, other.images)
                assert one.ends_epoch == other.ends_epoch


@pytest.mark.parametrize("loader", ["memory", *OTHERS])
@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_an_evaluation_counts_every_image_once(
    name: str, devices: int, loader: LoaderName, roots: dict[str, dataset_files.Options],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "normbench.training.datamodule.EVALUATION_BATCH", 7
    )  # which divides neither 20 nor 15
    data = dataset(name, **roots[name])
    splits, _ = open_splits(data, "memory")
    found: dict[int, torch.Tensor] = {}
    labels = 0
    for device in range(devices):
        own = loaders(data, loader, Plan(devices, 1, 1), REGS["none"], device)
        for batch in own.test_dataloader():
            ready = on_device(own, batch)
            assert len(batch.indices) == len(batch.labels) == len(batch.images) <= 7
            labels += int((ready.labels == splits.test.labels[ready.indices]).sum())
            found |= dict(zip(ready.indices.tolist(), ready.images, strict=True))
    count = len(splits.test.labels)
    assert sorted(found) == [*range(count)]
    assert labels == count
    memory = loaders(data, "memory", Plan(1, 1, 1), REGS["none"])
    (expected,) = (
        torch.cat([on_device(memory, batch).images for batch in memory.test_dataloader()]),
    )
    assert torch.equal(torch.stack([found[index] for index in range(count)]), expected)


def generators() -> tuple[object, object]:
    """Their states."""
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return random.getstate(), state["state"]["key"].tolist()


def test_policies_leave_the_global_generators_unchanged() -> None:
    policies = Regularization(policy="rand-m9-n2-p1.0", color_jitter=0.4).policies
    images = torch.from_numpy(dataset_files.noise(4, 3, 16, 16))
    random.seed(1)
    np.random.seed(1)
    before = generators()
    first = policies(images, Draws(0, 0, torch.arange(4)))
    assert generators() == before
    random.seed(2)
    again = policies(images.flip(0), Draws(0, 0, torch.arange(4).flip(0))).flip(0)
    assert torch.equal(first, again)
    assert not torch.equal(first, policies(images, Draws(0, 1, torch.arange(4))))
    assert not torch.equal(first, images)


@pytest.mark.parametrize("policy", ["rand-m9-n2-p1.0", "rand-m0-mstd1", "original", "v0"])
def test_a_policy_augments_grey_images_too(policy: str) -> None:
    images = torch.from_numpy(dataset_files.noise(6, 1, 28, 28))
    augmented = Regularization(policy=policy).policies(images, Draws(0, 0, torch.arange(6)))
    assert augmented.shape == images.shape
    assert augmented.dtype == torch.uint8


def test_a_policy_changes_digits_as_other_images() -> None:
    """Their white is 16, and that of the operations 255."""
    words = ("data=digits", "data.noise=0", "trainer.readers=0")
    plain, changed = (
        open_datamodule(Experiment(cell(*words, f"reg={reg}"))).sample_training_images(256)
        for reg in ("none", "randaug")
    )
    assert plain.max() == changed.max() == 1
    assert 0.5 < changed.mean() / plain.mean() < 2
    assert not torch.equal(plain, changed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "rand-mx"}, "policy=rand-mx: timm has no such policy"),
        ({"policy": "rand-q9"}, "policy=rand-q9: timm has no such policy"),
        ({"policy": "rand-m9-mstd1..2"}, "timm has no such policy"),
        ({"policy": "rand-m99"}, "timm has no such policy"),
        ({"policy": "rand-p5"}, "timm has no such policy"),
        ({"policy": "nothing"}, "policy=nothing: timm has no such policy"),
        ({"color_jitter": 2.0}, "color_jitter=2.0: it is above 0 and at most 1"),
    ],
)
def test_an_unknown_policy_is_refused(options: dataset_files.Options, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Regularization(**options)


@pytest.mark.parametrize(("height", "width"), [(400, 500), (500, 400), (30, 900), (1, 1), (7, 3)])
def test_random_boxes_have_areas_and_aspects_as_asked(height: int, width: int) -> None:
    count = 3000
    sizes = torch.tensor([[height, width]]).repeat(count, 1)
    top, left, tall, wide = random_boxes(sizes, Draws(0, 0, torch.arange(count)), 0.08).T
    assert ((top >= 0) & (left >= 0) & (tall > 0) & (wide > 0)).all()
    assert ((top + tall <= height) & (left + wide <= width)).all()
    if min(height, width) < 100:
        return
    share, aspect = tall * wide / (height * width), wide / tall
    assert share.min() > 0.075
    assert share.max() <= 1
    assert aspect.min() > 0.73
    assert aspect.max() < 1.37
    # Uniform from 0.08 to 1, less the largest ones of an extreme aspect, which do not fit.
    assert share.mean() == pytest.approx(0.5, abs=0.05)
    assert aspect.log().mean() == pytest.approx(0, abs=0.05)
    assert (top + tall / 2).float().mean() == pytest.approx(height / 2, rel=0.03)


@pytest.mark.parametrize(("height", "width"), [(400, 500), (500, 300), (30, 900), (1, 1), (7, 3)])
def test_jittered_boxes_are_windows_of_an_image_of_a_random_shorter_side(
    height: int, width: int
) -> None:
    count, short = 3000, min(height, width)
    sizes = torch.tensor([[height, width]]).repeat(count, 1)
    draws = Draws(0, 0, torch.arange(count))
    top, left, tall, wide = jittered_boxes(sizes, draws, 224, (256, 480)).T
    assert torch.equal(tall, wide)
    assert ((top >= 0) & (left >= 0) & (tall > 0)).all()
    assert ((top + tall <= height) & (left + wide <= width)).all()
    if short < 100:
        return
    resized = 224 * short / tall  # the shorter side, up to the rounding of a box
    assert resized.min() == pytest.approx(256, abs=1.5)
    assert resized.max() == pytest.approx(480, abs=3)
    assert resized.mean() == pytest.approx(368, rel=0.02)
    for start, room in ((top, height - tall), (left, width - wide)):  # anywhere in the image
        place = start / room
        assert place.min() < 0.01
        assert place.max() > 0.97
        assert place.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("loader", OTHERS)
def test_scale_jitter_is_alike_by_every_loader(
    loader: LoaderName, roots: dict[str, dataset_files.Options]
) -> None:
    options = {**roots["image_folder"], "short_side": (28, 52), "lighting": 0.1}
    data, plan = dataset("image_folder", **options), Plan(1, 1, 1)
    ours, theirs = (loaders(data, each, plan, REGS["none"]) for each in ("memory", loader))
    images = [chunk.images for chunk in seen(ours, 0)]
    for one, other in zip(images, seen(theirs, 0), strict=True):
        assert torch.equal(one, other.images)
    plain = loaders(dataset("image_folder", **roots["image_folder"]), loader, plan, REGS["none"])
    assert not torch.equal(next(seen(plain, 0)).images, images[0])


def test_a_window_larger_than_the_image_is_refused() -> None:
    with pytest.raises(BadInput, match=r"data.short_side=\[200,480\]: windows of data.size=224"):
        dataset("imagenet", short_side=(200, 480))
    with pytest.raises(BadInput, match=r"data.area=0.05: with short_side windows have a fixed"):
        dataset("imagenet", short_side=(256, 480), area=0.05)
    with pytest.raises(BadInput, match=r"data.short_side=\[480,256\]: .* as \[256,480\]"):
        dataset("imagenet", short_side=(480, 256))
    with pytest.raises(BadInput, match=r"windows of recipe.crop=300 pixels .* as \[343,643\]"):
        dataset("imagenet", short_side=(256, 480)).with_side(300)


def test_lighting_shifts_the_colors_of_an_image_by_principal_components() -> None:
    draws = Draws(0, 0, torch.arange(4000))
    shift = lighting(torch.zeros(4000, 3, 2, 2), draws, 0.1)
    assert torch.equal(shift, shift[:, :, :1, :1].expand_as(shift))  # the same for all pixels
    covariance = torch.cov(shift[:, :, 0, 0].T)
    components = torch.tensor(COLOR_COMPONENTS)
    expected = components.T @ torch.diag(torch.tensor(COLOR_DEVIATIONS).mul(0.1) ** 2) @ components
    torch.testing.assert_close(covariance, expected, rtol=0.06, atol=2e-6)


def test_center_boxes_are_squares_in_the_middle() -> None:
    sizes = torch.tensor([[256, 256], [400, 500], [500, 400], [3, 2]])
    expected = [[16, 16, 224, 224], [25, 75, 350, 350], [75, 25, 350, 350], [0, 0, 2, 2]]
    assert center_boxes(sizes, 0.875).tolist() == expected


@pytest.mark.ffcv
def test_the_kernel_crops_and_resizes_as_pillow() -> None:
    from normbench.data import crop_numba

    generator = np.random.default_rng(0)
    image = np.asarray(Image.fromarray(dataset_files.noise(12, 15, 3)).resize((150, 120)))
    for _ in range(200):
        height, width = generator.integers(1, 121), generator.integers(1, 151)
        top, left = generator.integers(0, 121 - height), generator.integers(0, 151 - width)
        side = int(generator.choice([1, 8, 31, 64, 200]))
        box = (int(top), int(left), int(height), int(width))
        expected = crop_and_resize(Image.fromarray(image), box, side)
        out = np.empty((3, side, side), np.uint8)
        crop_numba.crop_and_resize_into(image, *box, out)
        assert np.array_equal(out, expected)


def test_regrouped_pieces_keep_their_order() -> None:
    pieces = [torch.arange(5), torch.arange(5, 6), torch.arange(6, 12)]
    for sizes in ([12], [1] * 12, [5, 1, 6], [3, 8, 1]):
        found = [*regroup(pieces, sizes)]
        assert [len(each) for each in found] == sizes
        assert torch.equal(torch.cat(found), torch.arange(12))


def test_an_error_of_a_process_keeps_its_message() -> None:
    def refuse(_: object) -> torch.Tensor:
        raise BadInput("one sentence")

    for count in (0, 2):
        with pytest.raises(BadInput, match=r"^one sentence$"):
            list(map_in_processes(refuse, [None] * 3, count))  # type: ignore[list-item]


@pytest.fixture
def folder(tmp_path: Path) -> dataset_files.Options:
    """An image folder of the test's own, to be damaged."""
    root = tmp_path / "images"
    root.mkdir()
    return {**dataset_files.image_folder(root), "val": 0.0}


@pytest.mark.parametrize("count", [0, 2])
def test_an_image_damaged_in_the_middle_of_an_epoch_is_named(
    folder: dataset_files.Options, count: int
) -> None:
    data = dataset("image_folder", **folder)
    splits, _ = open_splits(data, "torch")
    victim = Path(folder["root"]) / "train/dog/dog_0007.jpg"
    victim.write_bytes(victim.read_bytes()[:500])
    reader = Reader(data, splits.train, 0, processes=count)
    with pytest.raises(BadInput, match=rf"^{victim} is no image that can be read \(OSError"):
        list(reader.stream(torch.randperm(len(splits.train.labels)), 0, [10] * 6 + [2]))


@pytest.mark.ffcv
def test_a_damaged_image_of_a_prepared_file_is_named(folder: dataset_files.Options) -> None:
    options = {**folder, "jpeg": 1.0}
    assert prepare([*dataset_files.words("image_folder", options), "readers=1"]) == 0
    data = dataset("image_folder", **options)
    path = data.prepared_file("train")
    from normbench.data.ffcv_patches import reader as ffcvs

    place = int(ffcvs.Reader(str(path)).metadata["f0"]["data_ptr"][7])
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes(200))
    splits, _ = open_splits(data, "ffcv")
    reader = Reader(data, splits.train, 0, processes=1)
    with pytest.raises(BadInput, match=rf"^image 7 of {path} is damaged; remove the file"):
        list(reader.stream(torch.arange(len(splits.train.labels)), 0, [10] * 6 + [2]))


def test_unreadable_files_are_reported_before_training(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "images"
    root.mkdir()
    words = [
        *dataset_files.words("image_folder", dataset_files.image_folder(root)),
        "model.stem_stride=1",
    ]
    usual = [*words, "logger=none", "trainer=cpu", "batch=8", "global_batch=8", "norm=gn"]
    ended = command(*usual, "loader=ffcv")
    assert ended.code == 2
    missing = "train.beton is missing; python -m normbench.prepare with the same"
    assert (missing if find_spec("ffcv") else NO_FFCV) in ended.err
    ended = command(*usual, "loader=torch", "data.jpeg=0.5")
    assert "data.jpeg=0.5: it describes files of normbench.prepare" in ended.err
    ended = command("loader=disk")
    assert "loader=disk is unknown; known: auto, ffcv, memory, torch" in ended.err
    ended = command("loader=ffcv", "logger=none")
    assert "loader=ffcv: Digits is always in memory" in ended.err
    (data := dataset("image_folder", root=str(root))).prepared_file("train").write_bytes(b"hello")
    data.prepared_file("test").write_bytes(b"hello")
    if find_spec("ffcv"):
        ended = command(*usual, "loader=ffcv")
        assert "train.beton is not whole, or of unknown images" in ended.err
    assert not [*(tmp_path / "runs").glob("*/*/")]


def test_without_ffcv_its_loader_is_refused_and_auto_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("normbench.data.reading.find_spec", lambda _: None)
    monkeypatch.setattr("normbench.prepare.find_spec", lambda _: None)
    for name, loader in (("cifar10", "memory"), ("image_folder", "torch")):
        root = tmp_path / name
        root.mkdir()
        options = dataset_files.MAKERS[name](root)
        data = dataset(name, **options)
        with pytest.raises(BadInput, match=r"^loader=ffcv: FFCV is not installed; pip install"):
            open_splits(data, "ffcv")
        assert open_splits(data, "auto")[1] == loader
        assert prepare(dataset_files.words(name, options)) == 2
        assert NO_FFCV in capsys.readouterr().err


def test_a_run_with_a_damaged_image_fails_and_names_it(command: Command, tmp_path: Path) -> None:
    root = tmp_path / "images"
    root.mkdir()
    words = dataset_files.words("image_folder", dataset_files.image_folder(root))
    victim = root / "train/owl/owl_0003.jpg"
    victim.write_bytes(victim.read_bytes()[:500])
    ended = command(
        *words, "model.stem_stride=1", "data.val=0", "logger=none", "trainer=cpu", "batch=8",
        "global_batch=16", "norm=gn", "recipe.images=320", "loader=torch",
    )  # fmt: skip
    assert ended.code == 1
    assert f"{victim} is no image that can be read" in ended.out + ended.err
    wait_for(lambda: not processes(str(tmp_path)))


class Stopped(Exception):  # noqa: N818
    """The training ends here."""


@pytest.mark.parametrize("loader", OTHERS)
@pytest.mark.parametrize("reg", slow_except(["none", "randaug"], ["randaug"]))
def test_a_resumed_training_is_bit_identical(
    reg: str, loader: str, tmp_path: Path, roots: dict[str, dataset_files.Options]
) -> None:
    """Stopped within its second epoch, by an exception in the midst of a chunk's images."""
    words = [*dataset_files.words("image_folder", roots["image_folder"]), "model.stem_stride=1"]
    base = cell(
        *words, f"loader={loader}", f"reg={reg}", "norm=bn", "batch=4", "global_batch=8",
        "recipe.images=160", "trainer=cpu", "trainer.chunk=2", "trainer.readers=2", "logger=none",
    )  # fmt: skip

    expected, _ = train_cell(base)
    checkpoints = Checkpoints(tmp_path, every=0)
    with pytest.raises(Interrupted):
        train(Training(Experiment(base), Curve(last_step=10), checkpoints))
    state = checkpoint.load_state(tmp_path / CHECKPOINT)
    assert 6 < state["done"] < 10
    resumed, _ = train_cell(base, state=state)
    assert resumed == expected | {"resumed": 1}


@pytest.mark.slow
@pytest.mark.parametrize("loader", OTHERS)
def test_a_killed_run_resumes_and_leaves_no_reader(
    loader: str, command: Command, tmp_path: Path, roots: dict[str, dataset_files.Options]
) -> None:
    words = [*dataset_files.words("image_folder", roots["image_folder"]), "model.stem_stride=1"]
    usual = [
        *words, f"loader={loader}", "norm=bn", "batch=4", "global_batch=8", "trainer.chunk=2",
        "recipe.images=480", "logger=none", "trainer=cpu", "checkpoint.every=0",
    ]  # fmt: skip
    # By the fastest loader, as rows are alike by every loader.
    assert command(*usual, "loader=memory", "runs=undisturbed").code == 0
    (expected,) = results.read(tmp_path / "undisturbed")
    own = tmp_path / "runs/default" / expected.id

    def far() -> bool:
        return is_training(own) and (own / CHECKPOINT).exists()

    killer = run_when(far, lambda: os.kill(pid_of(own), signal.SIGKILL))
    assert command(*usual).code == 1
    killer.join()
    assert command(*usual).code == 0
    (row,) = results.read(tmp_path / "runs")
    assert (row.test_loss, row.train_loss) == (expected.test_loss, expected.train_loss)
    assert row.resumed == 1
    assert row.loader == loader
    wait_for(lambda: not processes(str(tmp_path)))


@pytest.mark.parametrize("loader", [pytest.param("memory", marks=pytest.mark.slow), *OTHERS])
def test_every_loader_gives_the_same_row(
    loader: str, command: Command, tmp_path: Path, roots: dict[str, dataset_files.Options]
) -> None:
    """And the run is one and the same, so that nothing is trained again."""
    words = [*dataset_files.words("image_folder", roots["image_folder"]), "model.stem_stride=1"]
    usual = [*words, "logger=none", "trainer=cpu", "batch=4", "global_batch=16", "norm=bn"]
    outcomes = []
    for each in ("memory", loader):
        ended = command(*usual, f"loader={each}", "recipe.images=320", "force=true")
        assert ended.code == 0, ended.err
        (row,) = (tmp_path / "runs").glob("*/*/row.json")
        content = row.read_text()
        outcomes.append([line for line in content.split("\n") if "loss" in line or "top1" in line])
    assert outcomes[0] == outcomes[1]


def test_every_loader_is_an_option() -> None:
    assert get_args(LoaderName) == get_args(Loader) == ("auto", "memory", "ffcv", "torch")
