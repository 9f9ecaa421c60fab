"""Every data set of conf/data on what it promises: splits, augmentation, what the network sees."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from timm.data.random_erasing import RandomErasing

from normbench.catalog import dataset, datasets
from normbench.data.augment import crop, erase, flip, noise
from normbench.data.counter_rng import Draws
from normbench.data.dataset import Dataset, SmallImages, Split, TensorSplit, hold_out
from normbench.data.digits import Digits
from normbench.data.fashion_mnist import FashionMNIST
from normbench.data.labelled_photographs import LabelledSplit
from normbench.data.official_files import OfficialFiles
from normbench.data.photographs import FileSplit, list_images
from normbench.data.reading import read_images
from normbench.data.scattered_digits import SceneSplit
from normbench.errors import BadInput
from support import dataset_files
from support.dataset_files import FASHION_MNIST


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dataset_files.Options]:
    """Options of every data set with files of its own."""
    found = {}
    for name, make in dataset_files.MAKERS.items():
        found[name] = make(tmp_path_factory.mktemp(name))
    return found


@pytest.fixture
def data(request: pytest.FixtureRequest, roots: dict[str, dataset_files.Options]) -> Dataset:
    """A data set, those that read files with small ones."""
    return dataset(request.param, **roots[request.param])


def keys(part: Split) -> list[object]:
    """What tells the images of a part apart."""
    if isinstance(part, TensorSplit):
        return [image.numpy().tobytes() for image in part.images]
    if isinstance(part, SceneSplit):
        return part.numbers.tolist()
    if isinstance(part, LabelledSplit):
        return [str(source) for source in part.sources]
    assert isinstance(part, FileSplit)
    return list(part.paths)


def read(
    data: Dataset, part: Split, indices: torch.Tensor, draws: Draws | None = None
) -> torch.Tensor:
    """The images of a part, without maps of targets."""
    pixels = read_images(data, part, indices, draws)
    return pixels[:, : data.image_shape[0]]


@pytest.mark.parametrize("data", datasets(), indirect=True)
def test_splits_share_no_image(data: Dataset) -> None:
    train, val, test = data.splits()
    official, tested = data.load()
    assert sorted(map(str, keys(train) + keys(val))) == sorted(map(str, keys(official)))
    assert keys(test) == keys(tested)
    assert not set(keys(train)) & set(keys(val))
    if not isinstance(data, Digits):  # of which some are alike, pixel for pixel
        assert not set(keys(official)) & set(keys(test))
    assert len(val.labels) == pytest.approx(data.val * len(official.labels), abs=1)
    for part in (train, val, test):
        assert part.labels.dtype == torch.int64
        assert set(part.labels.tolist()) <= set(range(data.classes))
    assert keys(data.splits().train) == keys(train)


@pytest.mark.parametrize("data", datasets(), indirect=True)
def test_network_input_is_fp32_of_the_stated_shape(data: Dataset) -> None:
    train = data.splits().train
    indices = torch.arange(8)
    shown = data.eval_input(read(data, train, indices), indices)
    assert (shown.dtype, shown.shape) == (torch.float32, (8, *data.image_shape))
    assert torch.equal(shown, data.eval_input(read(data, train, indices), indices))
    seen = []
    for epoch in (0, 1):
        draws = Draws(0, epoch, indices)
        pixels = read(data, train, indices, draws)
        assert pixels.dtype == torch.uint8
        augmented = data.augment(pixels, draws)
        assert augmented.dtype == torch.uint8
        seen.append(data.train_input(augmented, draws))
    assert (seen[0].dtype, seen[0].shape) == (torch.float32, (8, *data.train_shape))
    assert not torch.equal(*seen)


@pytest.mark.parametrize("data", datasets(), indirect=True)
def test_a_recipe_may_ask_for_training_images_of_another_side(data: Dataset) -> None:
    other = data.with_side(6)
    draws = Draws(0, 0, torch.arange(8))
    pixels = read(other, other.splits().train, draws.images, draws)
    seen = other.train_input(other.augment(pixels, draws), draws)
    assert seen.shape == (8, data.image_shape[0], 6, 6)
    assert other.image_shape == data.image_shape
    assert other.train_shape == (data.image_shape[0], 6, 6)
    assert data.with_side(None) == data
    if data.resizes:
        assert data.with_side(1000).train_shape[1] == 1000
    else:
        with pytest.raises(BadInput, match=r"recipe\.crop=1000: .* has images of \d+ pixels"):
            data.with_side(1000)


@pytest.mark.parametrize("data", datasets(), indirect=True)
def test_a_fraction_is_of_every_class_and_of_the_training_alone(
    data: Dataset, roots: dict[str, dataset_files.Options], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["data"]
    whole = dataset(name, **{**roots[name], "val": 0.0})
    half = dataset(name, **{**roots[name], "val": 0.0, "fraction": 0.5})
    counts, kept = (d.splits().train.labels.bincount() for d in (whole, half))
    assert (kept - counts / 2).abs().max() <= 1
    assert set(keys(half.splits().train)) <= set(keys(whole.splits().train))
    assert keys(half.splits().test) == keys(whole.splits().test)
    assert keys(half.splits().train) == keys(half.splits().train)
    if not data.maps:  # whose images have no classes of their own
        with pytest.raises(
            BadInput, match=r"data\.fraction=1e-05 of .* does not take some of every class"
        ):
            dataset(name, **{**roots[name], "fraction": 1e-5}).splits()
    with pytest.raises(BadInput, match=r"data\.fraction=1\.5: it must be less than or equal to 1"):
        dataset(name, fraction=1.5)


@pytest.mark.parametrize("name", datasets())
@pytest.mark.parametrize("val", [-0.1, 1.0, 3])
def test_an_impossible_hold_out_is_refused(name: str, val: float) -> None:
    with pytest.raises(BadInput, match=rf"data\.val={val}: it must be"):
        dataset(name, val=val)


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


@pytest.mark.parametrize("option", ["val", "fraction"])
def test_a_class_of_one_image_cannot_be_split(tmp_path: Path, option: str) -> None:
    options = dataset_files.image_folder(tmp_path)
    dataset_files.folders(tmp_path / "train", ["emu"], 1)
    dataset_files.folders(tmp_path / "test", ["emu"], 1)
    usual = {**options, "val": 0.0}
    assert dataset("image_folder", **usual).classes == 4
    with pytest.raises(BadInput, match=rf"^data\.{option}=0\.5 .*of 63 images in 4 classes"):
        dataset("image_folder", **{**usual, option: 0.5}).splits()


def test_digits_have_the_published_sizes_and_noise() -> None:
    data = Digits(val=0.0)
    train, val, test = data.splits()
    assert isinstance(train, TensorSplit)
    assert isinstance(test, TensorSplit)
    assert (len(train.labels), len(val.labels), len(test.labels)) == (1437, 0, 360)
    assert train.images.max() == 16
    clean = test.images / 16
    difference = data.eval_input(test.images, torch.arange(360)) - clean
    assert difference.std() == pytest.approx(0.3, rel=0.02)
    assert torch.equal(Digits(noise=0.0).eval_input(test.images, torch.arange(360)), clean)


@pytest.mark.parametrize("data", ["digits", "fashion_mnist", "cifar10", "svhn"], indirect=True)
def test_a_contrast_multiplies_each_image_by_a_factor_of_its_own(data: Dataset) -> None:
    assert isinstance(data, Digits | SmallImages)
    varied = replace(data, contrast=0.5)
    indices = torch.arange(8)
    train = data.splits().train
    assert isinstance(train, TensorSplit)
    images = train.images[:8]
    draws = [Draws(seed, epoch, indices) for seed in (0, 1) for epoch in (0, 1)]
    trained = [varied.train_input(images, each) / data.train_input(images, each) for each in draws]
    tested = varied.eval_input(images, indices) / data.eval_input(images, indices)
    for factors, each in zip([*trained, tested], [*draws, Draws(0, -1, indices)], strict=True):
        expected = torch.exp(0.5 * each.normal("contrast"))[:, None, None, None]
        assert torch.allclose(factors, expected.expand_as(factors))
    assert len({factors[0, 0, 0, 0].item() for factors in [*trained, tested]}) == 5


@pytest.mark.parametrize(("size", "side"), [(None, 28), (28, 28), (14, 14)])
def test_the_limits_of_fashion_mnist_say_the_size_of_its_images(
    size: int | None, side: int
) -> None:
    assert FashionMNIST(size=size).limits.startswith(f"Grey images of {side}x{side} pixels in a ")


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_the_official_fashion_mnist() -> None:
    train, test = FashionMNIST().load()
    assert train.images.shape == (60_000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [6000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    shown = FashionMNIST().eval_input(train.images, torch.arange(60_000))
    assert float(shown.mean()) == pytest.approx(0, abs=1e-3)
    assert float(shown.std()) == pytest.approx(1, abs=1e-3)


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


def test_erasing_replaces_a_box_of_a_quarter_of_the_images_by_noise() -> None:
    images = torch.full((4000, 3, 24, 20), 7.0)
    draws = Draws(seed=1, epoch=0, images=torch.arange(4000))
    erased = erase(images, draws, 0.25)
    changed = erased != images
    inside = changed.any(1)  # (N, H, W)
    assert torch.equal(changed.all(1), inside)
    chosen = inside.any((1, 2))
    assert abs(chosen.float().mean() - 0.25) < 0.02
    rows, columns = inside.any(2).sum(1), inside.any(1).sum(1)
    assert torch.equal(inside.sum((1, 2)), rows * columns)  # one box each
    values = erased[changed]
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    # Every image has numbers of its own, and its place among others does not matter.
    assert erased[chosen].unique(dim=0).shape[0] == chosen.sum()
    part = torch.tensor([17, 3999, 5])
    assert torch.equal(erase(images[part], draws.of(part), 0.25), erased[part])
    assert torch.equal(erase(images, draws, 0.0), images)


def test_erased_boxes_have_the_distribution_of_timm() -> None:
    images = torch.full((6000, 1, 24, 20), 7.0)
    ours = erase(images, Draws(seed=2, epoch=0, images=torch.arange(6000)), 1.0) != 7
    timm = RandomErasing(probability=1.0, mode="pixel", device="cpu")
    random.seed(3)  # timm draws from Python's generator
    theirs = torch.stack([timm(image.clone()) for image in images]) != 7
    for axis in (2, 3):  # the mask's mean over all images along one axis of the image
        frequency, reference = (mask.float().mean((0, 1, axis)) for mask in (ours, theirs))
        assert (frequency - reference).abs().max() < 0.015
    sides = [mask.any(axis).sum(-1).float() for mask in (ours, theirs) for axis in (2, 3)]
    for side, reference in zip(sides[:2], sides[2:], strict=True):
        assert abs(side.mean() - reference.mean()) < 0.15
        assert abs(side.std() - reference.std()) < 0.15


def make_folder(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name)


def test_images_in_hidden_folders_are_left_out(tmp_path: Path) -> None:
    """Notebooks keep copies in .ipynb_checkpoints."""
    make_folder(
        tmp_path, "train/a/x.png", "train/a/.ipynb_checkpoints/x-checkpoint.png",
        "train/a/more/.cache/y.png", "train/a/more/y.png", "train/b/x.png",
    )  # fmt: skip
    split = list_images(OfficialFiles("image_folder", tmp_path, {}, ""), "train", ["a", "b"])
    names = [Path(path).relative_to(tmp_path / "train").as_posix() for path in split.paths]
    assert names == ["a/more/y.png", "a/x.png", "b/x.png"]


def test_one_class_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, "train/cat/x.png", "test/cat/y.png")
    with pytest.raises(BadInput, match=r"t has one class, cat, and there is nothing to learn"):
        dataset("image_folder", root=str(tmp_path)).splits()


def test_files_of_each_size_have_names_of_their_own(tmp_path: Path) -> None:
    paths = [
        dataset("fashion_mnist", beton=str(tmp_path), size=size).prepared_file("train")
        for size in (None, 14, 8)
    ]
    assert len(set(paths)) == 3
