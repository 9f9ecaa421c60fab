"""Data sets with a class for every pixel, read from small files in their real formats."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask

from normbench.catalog import dataset
from normbench.data.cityscapes import NUMBERS
from normbench.data.coco import Annotation
from normbench.data.counter_rng import Draws
from normbench.data.labelled_photographs import DEVIATION, MEAN, ClassMaps, LabelledSplit, Pair
from normbench.data.maps import VOID, class_map, depth_map, list_objects
from normbench.data.photographs import decode
from normbench.data.reading import open_splits, read_images
from normbench.errors import BadInput
from support.dataset_files import (
    ADDED,
    MAKERS,
    TRAINED,
    ade20k,
    cityscapes,
    coco,
    mask_folder,
    nyu_depth,
    pascal_voc,
    stripes,
    write_map,
)

SIDE = 24
#: Writer, training and test images, and the classes of the first training image.
DATA: dict[str, tuple[Callable[[Path], dict[str, Any]], int, int, list[int]]] = {
    "pascal_voc": (pascal_voc, 12, 1, [0, 20, VOID]),
    "ade20k": (ade20k, 10, 1, [VOID, 0, 149]),
    "cityscapes": (cityscapes, 12, 1, [0, 18, VOID]),
    "mask_folder": (mask_folder, 10, 1, [0, 4, VOID]),
}


@pytest.mark.parametrize("name", DATA)
def test_images_come_with_the_classes_of_their_files(name: str, tmp_path: Path) -> None:
    write, train, test, classes = DATA[name]
    data: Any = dataset(name, **write(tmp_path))
    splits, loader = open_splits(data, "auto")
    assert loader == "torch"
    assert [len(split.labels) for split in splits] == [train, 0, test]
    assert data.sizes == (train, 0, test)
    read = read_images(data, splits.train, torch.arange(train), None)
    assert read.shape == (train, 4, SIDE, SIDE)
    # The window is wider than a map is high: void above and below, and three columns cut off.
    found = class_map(read[:, 3:])[0]
    expected = np.array(classes).repeat(10)[3:27]
    assert found[12].tolist() == expected.tolist()
    assert (found[:2] == VOID).all()
    assert (found[-2:] == VOID).all()
    assert read[0, :3, 0, 0].tolist() == [round(255 * value) for value in MEAN]
    assert int(class_map(read[:, 3:]).unique()[-2]) < data.classes


def test_sbd_adds_what_is_not_tested_and_replaces_no_map(tmp_path: Path) -> None:
    data: Any = dataset("pascal_voc", **pascal_voc(tmp_path))
    train, test = data.load()
    assert [pair.image.stem for pair in train.sources] == [*TRAINED, *ADDED]
    assert [pair.classes.suffix for pair in train.sources] == [".png"] * 10 + [".mat"] * 2
    assert [pair.image.stem for pair in test.sources] == ["t"]
    read = read_images(data, train, torch.tensor([10]), None)
    assert {*class_map(read[:, 3:]).unique().tolist()} == {0, 7, VOID}
    alone: Any = dataset("pascal_voc", **pascal_voc(tmp_path), train="train")
    assert [pair.image.stem for pair in alone.load()[0].sources] == TRAINED


def test_every_class_of_cityscapes_is_read() -> None:
    assert len(NUMBERS) == 19
    assert len({*NUMBERS}) == 19


class Plain(ClassMaps):
    """Maps whose bytes are as they are."""

    classes = 250
    parts = {"train": 1, "test": 1}  # noqa: RUF012
    key = title = "plain"

    def read_classes(self, path: Path) -> NDArray[np.uint8]:
        return np.array(Image.open(path))

    def load(self) -> Any:
        raise NotImplementedError


def positions(tmp_path: Path, **options: Any) -> Any:
    """A split of one smooth image, whose map says where each pixel comes from."""
    rows, columns = np.mgrid[0:100, 0:120].astype(np.uint8)
    image = np.stack([rows, columns, rows], axis=2)
    Image.fromarray(image).save(tmp_path / "image.png")
    Image.fromarray(rows + 1).save(tmp_path / "map.png")
    data = Plain(**{"size": 40, "flip": False, **options})
    return LabelledSplit([Pair(tmp_path / "image.png", tmp_path / "map.png")], data)


def test_training_windows_are_scaled_with_their_maps(tmp_path: Path) -> None:
    split = positions(tmp_path)
    steps = set()
    for image in range(40):
        draws = Draws(0, 0, torch.tensor([image]))
        (window,) = split.read(torch.tensor([0]), draws)
        row, classes = window[0, :, 20].int(), window[3, :, 20].int()
        # Image and map come from the same places, as far as a pixel of the source allows.
        assert (row - (classes - 1)).abs().max() <= 1
        steps.add(round(40 / max(1, int(row[-1] - row[0])), 1))
    assert min(steps) < 0.7
    assert max(steps) > 1.6  # factors from 0.5 to 2


def test_images_are_mirrored_with_their_maps(tmp_path: Path) -> None:
    columns = np.mgrid[0:40, 0:40][1].astype(np.uint8)
    Image.fromarray(np.stack([columns] * 3, axis=2)).save(tmp_path / "image.png")
    Image.fromarray(columns + 1).save(tmp_path / "map.png")
    data = Plain(size=40, flip=True, scales=(1.0, 1.0))
    split = LabelledSplit([Pair(tmp_path / "image.png", tmp_path / "map.png")] * 20, data)
    draws = Draws(0, 0, torch.arange(20))
    windows = data.augment(split.read(torch.arange(20), draws), draws)
    assert torch.equal(windows[:, 0], windows[:, 3] - 1)
    assert {*windows[:, 0, 0, 0].tolist()} == {0, 39}


def test_a_window_depends_on_seed_epoch_and_image_alone(tmp_path: Path) -> None:
    split = positions(tmp_path)
    index = torch.tensor([0])
    first = split.read(index, Draws(0, 0, torch.tensor([5])))
    both = split.read(torch.tensor([0, 0]), Draws(0, 0, torch.tensor([9, 5])))
    assert torch.equal(first[0], both[1])
    assert not torch.equal(first, split.read(index, Draws(0, 1, torch.tensor([5]))))


def test_small_images_are_padded_by_void(tmp_path: Path) -> None:
    split = positions(tmp_path, size=150, scales=(0.5, 0.5))
    places = set()
    for image in range(20):
        (window,) = split.read(torch.tensor([0]), Draws(0, 0, torch.tensor([image])))
        known = window[3] > 0
        assert int(known.sum()) == 50 * 60
        assert (window[0][~known] == round(255 * MEAN[0])).all()
        places.add(int(known.any(1).nonzero()[0, 0]))
    assert len(places) > 5


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("pascal_voc", "VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt", "cannot be read"),
        ("pascal_voc", "benchmark_RELEASE/dataset/train.txt", "get VOCtrainval_11-May-2012.tar"),
        ("pascal_voc", "benchmark_RELEASE/dataset/cls/c0.mat", "is no map of SBD"),
        ("pascal_voc", "VOCdevkit/VOC2012/JPEGImages/a0.jpg", r"a0\.jpg is missing"),
        ("ade20k", "ADEChallengeData2016/annotations/training/ADE_a0.png", "is no map of classes"),
        ("ade20k", "ADEChallengeData2016/images/validation/ADE_t.jpg", r"has no \*\.jpg"),
        ("cityscapes", "leftImg8bit/val/lindau/lindau_12_leftImg8bit.png", r"has no \*/\*_left"),
        ("cityscapes", "gtFine/train/ulm/ulm_6_gtFine_labelIds.png", "is no map of classes"),
        ("mask_folder", "train/masks/a0.png", r"a0\.png is missing; data.root=FOLDER"),
        ("mask_folder", "val/images/t.jpg", "images is missing or has no images"),
        ("mask_folder", "val", "has neither test/ nor val/"),
        ("coco", "annotations/instances_val2017.json", "get train2017.zip"),
        ("coco", "train2017/a3.jpg", r"a3\.jpg is missing"),
        ("nyu_depth", "splits.mat", "splits.mat cannot be read"),
        ("nyu_depth", "nyu_depth_v2_labeled.mat", "and put them in data.root"),
    ],
)
def test_a_missing_file_is_named(name: str, damage: str, says: str, tmp_path: Path) -> None:
    data: Any = dataset(name, **MAKERS[name](tmp_path))
    path = tmp_path / damage
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(BadInput, match=says):
        split = open_splits(data, "torch")[0].train
        read_images(data, split, torch.arange(len(split.labels)), None)


def test_objects_of_coco_are_drawn_from_far_to_near(tmp_path: Path) -> None:
    data: Any = dataset("coco", **coco(tmp_path), flip=False)
    train, test = data.load()
    assert [each.path.stem for each in train.sources] == TRAINED  # without the empty image
    assert [each.path.stem for each in test.sources] == ["t", "u"]
    read = read_images(data, train, torch.tensor([3]), None)
    assert read.shape == (1, 5, SIDE, SIDE)
    (objects,) = list_objects(read[:, 3:])
    # Categories 1, 3 and 90 are the classes 1, 2 and 3; 30x20 pixels became 24x16 in the middle.
    assert objects.labels.tolist() == [2, 3]
    large, small = objects.boxes
    expected = torch.tensor([[5, 2, 20, 16], [8, 4, 14, 9]]) * 24 / 30 + torch.tensor([0, 4, 0, 4])
    assert (large - expected[0]).abs().max() <= 1
    assert (small - expected[1]).abs().max() <= 1
    assert not (objects.masks[0] & objects.masks[1]).any()
    classes = class_map(read[:, 3:])[0]
    assert (classes[4:20, 23] == VOID).all()  # the crowd
    assert (classes[:4] == VOID).all()  # the padding
    assert int(classes[5, 0]) == 0


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_outlines_of_coco_are_drawn_as_by_cocos_code(tmp_path: Path) -> None:
    """As by pycocotools, for a triangle."""
    data: Any = dataset("coco", **{**coco(tmp_path), "size": 30})
    source = data.load()[0].sources[0]
    corners = [2.0, 2.0, 27.5, 9.0, 4.0, 17.2]
    triangle = Annotation(1, [np.array(corners)], 100.0, crowd=False)
    _, (_, instances) = data.read(source._replace(objects=pickle.dumps([triangle])), 1.0)
    expected = mask.decode(mask.frPyObjects([corners], 20, 30))[:, :, 0]
    assert 100 < expected.sum() < 300
    assert np.array_equal(instances, expected)


def change_list(root: Path, part: str, **changes: Any) -> None:
    """Change the first image or annotation of a list of COCO."""
    path = root / "annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del content[part][0][key]
        else:
            content[part][0][key] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"segmentation": []}, r"has annotation None of image 11 without an outline of three"),
        ({"segmentation": None}, r"without an outline of three points"),
        ({"segmentation": [[1, 2, 3, 4]]}, r"without an outline of three points"),
        ({"category_id": 7}, r"of image 11 with category 7, which it does not list"),
    ],
)
def test_objects_that_have_no_mask_or_class_are_named(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    options = coco(tmp_path)
    change_list(tmp_path, "annotations", **changes)
    data: Any = dataset("coco", **options)
    with pytest.raises(BadInput, match=says):
        data.load()


def test_area_and_crowd_may_be_missing(tmp_path: Path) -> None:
    options = coco(tmp_path)
    before = dataset("coco", **options).load()[0]
    change_list(tmp_path, "annotations", iscrowd=None, bbox=None)
    dataset("coco", **options).load()
    change_list(tmp_path, "annotations", area=None, bbox=[8, 4, 6, 5])
    after = dataset("coco", **options).load()[0]
    places = torch.arange(len(TRAINED))
    data: Any = dataset("coco", **options)
    assert torch.equal(*(read_images(data, split, places, None) for split in (before, after)))


def test_an_image_of_another_size_than_its_list_says_is_refused(tmp_path: Path) -> None:
    options = coco(tmp_path)
    change_list(tmp_path, "images", width=640, height=480)
    data: Any = dataset("coco", **options)
    train = data.load()[0]
    with pytest.raises(BadInput, match=r"has 30x20 pixels, and its list says 640x480"):
        read_images(data, train, torch.arange(len(TRAINED)), None)


def test_lists_without_objects_are_refused(tmp_path: Path) -> None:
    options = coco(tmp_path)
    path = tmp_path / "annotations/instances_val2017.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "annotations": []}))
    data: Any = dataset("coco", **options)
    with pytest.raises(BadInput, match="has no single object, only crowds"):
        data.load()


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_photographs_of_more_than_8_bits_are_refused(kind: Any, tmp_path: Path) -> None:
    """Pillow cuts their values off at 255."""
    path = tmp_path / "deep.tiff"
    Image.fromarray(np.linspace(0, 60000, 48).reshape(6, 8).astype(kind)).save(path)
    with pytest.raises(BadInput, match=r"more than 8 bits for a color .*; convert it to 8"):
        decode(str(path))


def test_depth_beyond_what_maps_hold_is_unknown(tmp_path: Path) -> None:
    options = {**nyu_depth(tmp_path), "scales": [0.5, 0.5]}
    data: Any = dataset("nyu_depth", **options, flip=False)
    draws = Draws(0, 0, torch.tensor([0]))
    (depth,) = depth_map(read_images(data, data.load()[0], torch.tensor([0]), draws)[:, 3:])
    assert float(depth.max()) < 15.9  # 9.5 m become 19
    assert (depth == 0).any()


def test_depth_is_that_of_the_file_and_divided_by_the_scale(tmp_path: Path) -> None:
    options = nyu_depth(tmp_path)
    data: Any = dataset("nyu_depth", **options, flip=False)
    train, test = data.load()
    assert [each.place for each in train.sources] == [*range(12)]
    assert [each.place for each in test.sources] == [12, 13]
    (window,) = depth_map(read_images(data, test, torch.tensor([0]), None)[:, 3:])
    columns = torch.linspace(0.5, 9.5, 30)
    # Halved to 15x10, of which 12x8 stay; a pixel of two columns has one of their depths.
    assert window.shape == (8, 12)
    assert ((window[0] - columns[2:26].view(12, 2).mean(1)).abs() < 0.3).all()
    closer: Any = dataset("nyu_depth", **{**options, "scales": [1.5, 1.5]}, flip=False)
    draws = Draws(0, 0, torch.tensor([0]))
    (near,) = depth_map(read_images(closer, closer.load()[0], torch.tensor([0]), draws)[:, 3:])
    assert float(near.mean()) == pytest.approx(5 / 1.5, abs=0.2)
    assert float(near.max() - near.min()) < float(window.max() - window.min()) / 1.5


def test_colors_of_rooms_change_by_image_in_training_alone(tmp_path: Path) -> None:
    options = nyu_depth(tmp_path)
    data: Any = dataset("nyu_depth", **options)
    images = read_images(data, data.load()[0], torch.arange(12), None)[:, :3]
    draws = Draws(0, 0, torch.arange(12))
    changed = data.train_input(images, draws)
    assert torch.equal(data.train_input(images[4:], draws.of(torch.arange(4, 12))), changed[4:])
    plain: Any = dataset("nyu_depth", **options, colors=False)
    untouched = data.eval_input(images, torch.arange(12))
    assert torch.equal(plain.train_input(images, draws), untouched)
    assert all(not torch.equal(one, other) for one, other in zip(changed, untouched, strict=True))
    many = data.train_input(images[:1].expand(400, -1, -1, -1), Draws(0, 0, torch.arange(400)))
    channels = many * torch.tensor(DEVIATION)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    grey = ((channels[:, 0] - channels[:, 1]).abs() < 1e-3).flatten(1).all(1)
    assert float(grey.float().mean()) == pytest.approx(0.3, abs=0.08)


@pytest.mark.parametrize("name", sorted(DATA.keys() - {"mask_folder"}))
def test_official_numbers_of_images_are_required(name: str, tmp_path: Path) -> None:
    data: Any = dataset(name, **{**DATA[name][0](tmp_path), "verify": True})
    with pytest.raises(BadInput, match=r"images, .* \(data.verify=false takes it as it is\)"):
        data.load()
    assert data.sizes[2] == {"pascal_voc": 1449, "ade20k": 2000, "cityscapes": 500}[name]


def test_a_class_that_the_data_set_lacks_is_refused(tmp_path: Path) -> None:
    data: Any = dataset("ade20k", **ade20k(tmp_path))
    path = tmp_path / "ADEChallengeData2016/annotations/training/ADE_a0.png"
    write_map(path, stripes([0, 151]))
    with pytest.raises(BadInput, match=r"ADE_a0\.png has a class 150, and the data set has 150"):
        data.read_classes(path)


def test_a_mask_has_classes_and_void_pixels_alone(tmp_path: Path) -> None:
    data: Any = dataset("mask_folder", **mask_folder(tmp_path), void=4)
    path = tmp_path / "train/masks/a0.png"
    with pytest.raises(BadInput, match=r"data\.classes=5 is 4; data\.void=255 if such"):
        data.read_classes(path)
    write_map(path, stripes([0, 7]))
    with pytest.raises(BadInput, match=r"a0\.png has a pixel of value 7, .*data.classes=8 works"):
        data.read_classes(path)
    Image.new("RGB", (30, 20)).save(path)
    with pytest.raises(BadInput, match=r"its pixels are RGB, .*a mask is a grey or palette PNG"):
        data.read_classes(path)
    write_map(path, stripes([0, 3, 4]))
    assert class_map(torch.tensor(data.read_classes(path))[None, None]).unique().tolist() == [
        0, 3, VOID,
    ]  # fmt: skip


def test_images_of_one_name_cannot_share_a_mask(tmp_path: Path) -> None:
    data: Any = dataset("mask_folder", **mask_folder(tmp_path))
    image = (tmp_path / "val/images/t.jpg").read_bytes()
    (tmp_path / "val/images/t.png").write_bytes(image)
    (tmp_path / "val/images/t.n.jpg").write_bytes(image)  # between the two
    with pytest.raises(BadInput, match=r"has t\.jpg and t\.png, which would share t\.png"):
        data.load()


def test_image_and_map_of_different_sizes_are_refused(tmp_path: Path) -> None:
    data: Any = dataset("ade20k", **ade20k(tmp_path))
    path = tmp_path / "ADEChallengeData2016/annotations/training/ADE_a0.png"
    write_map(path, stripes([0, 1])[:-1])
    with pytest.raises(BadInput, match=r"ADE_a0\.png has 30x19 pixels and .*ADE_a0\.jpg 30x20"):
        read_images(data, data.load()[0], torch.tensor([0]), None)


def test_files_are_read_in_memory_by_no_loader(tmp_path: Path) -> None:
    data: Any = dataset("ade20k", **ade20k(tmp_path))
    with pytest.raises(BadInput, match="loader=memory: images of Ade20k are read from their files"):
        open_splits(data, "memory")
    with pytest.raises(BadInput, match="loader=ffcv: Ade20k is read from its own files"):
        open_splits(data, "ffcv")
