"""Average precision of detections against COCO's own code, and on several devices."""

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor

from normbench.data.digits import Digits
from normbench.data.maps import Objects, list_objects
from normbench.data.scattered_digits import SceneSplit
from normbench.models.mask_rcnn import Detections
from normbench.results import read
from normbench.training.tasks.detect import DetectionMetrics
from support.commands import Command

SIDE, COUNT = 64, 30


@pytest.fixture(scope="module")
def targets() -> Tensor:
    """Maps of scenes; the first has no object."""
    scenes = SceneSplit(Digits().load()[1], torch.arange(COUNT), SIDE)
    maps = scenes.read(torch.arange(COUNT), None)[:, 1:]
    maps[0, 0], maps[0, 1] = 1, 0
    return maps


def blurred(objects: Objects, seed: int) -> Detections:
    """Some of the objects, moved, with some of the wrong class, and some that are not there."""
    generator = torch.Generator().manual_seed(seed)
    boxes, labels, scores, masks = [], [], [], []
    for box, label, area in zip(*objects, strict=True):
        if torch.rand((), generator=generator) < 0.2:
            continue
        for shift in torch.randint(-4, 5, (2, 2), generator=generator).tolist():
            masks.append(area.bool().roll(shift, (0, 1)))
            boxes.append((box + torch.tensor([*shift[::-1], *shift[::-1]])).clamp(0, SIDE))
            wrong = torch.rand((), generator=generator) < 0.2
            labels.append(int(label) % 10 + 1 if wrong else int(label))
            scores.append(float(torch.rand((), generator=generator)))
    if not boxes:
        return Detections(
            torch.tensor([[5.0, 5, 20, 30]]), torch.tensor([3]), torch.tensor([0.9]),
            torch.ones(1, SIDE, SIDE, dtype=torch.bool),
        )  # fmt: skip
    return Detections(
        torch.stack(boxes), torch.tensor(labels), torch.tensor(scores), torch.stack(masks)
    )


def by_pycocotools(found: list[Detections], objects: list[list[Any]], kind: str) -> list[float]:
    """The mean and those at 0.5 and 0.75, in percent."""
    truth: dict[str, Any] = {
        "images": [{"id": k, "height": SIDE, "width": SIDE} for k in range(len(found))],
        "categories": [{"id": label} for label in range(1, 11)],
        "annotations": [],
    }
    results = []
    for image, (here, expected) in enumerate(zip(found, objects, strict=True)):
        for box, label, area in zip(*expected, strict=True):
            entry = entry_of(image, box, label, area)
            more = {"id": len(truth["annotations"]) + 1, "iscrowd": 0}
            truth["annotations"].append({**entry, **more, "area": float(area.sum())})
        for box, label, score, area in zip(*here, strict=True):
            results.append({**entry_of(image, box, label, area), "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = COCO()
        dataset.dataset = truth
        dataset.createIndex()
        evaluation = COCOeval(dataset, dataset.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * float(value) for value in evaluation.stats[:3]]


def entry_of(image: int, box: Tensor, label: Tensor, area: Tensor) -> dict[str, Any]:
    left, top, right, bottom = box.tolist()
    outline = mask.encode(np.asfortranarray(area.to(torch.uint8).numpy()))
    return {
        "image_id": image, "category_id": int(label), "segmentation": outline,
        "bbox": [left, top, right - left, bottom - top],
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_precision_is_that_of_pycocotools(targets: Tensor) -> None:
    objects = list_objects(targets)
    found = [blurred(each, seed) for seed, each in enumerate(objects)]
    metrics = DetectionMetrics()
    for start in range(0, COUNT, 7):
        part = slice(start, start + 7)
        metrics.update(found[part], targets[part])
    summary = metrics.summary("test")
    for name, kind in (("box", "bbox"), ("mask", "segm")):
        expected = by_pycocotools(found, [list(each) for each in objects], kind)
        ours = [summary[f"test_{name}_map{end}"] for end in ("", "50", "75")]
        assert ours == pytest.approx(expected, abs=1e-4)
        assert 1 < ours[0] < ours[1] < 90
    metrics.reset()
    perfect = [
        Detections(each.boxes, each.labels, torch.ones(len(each.labels)), each.masks.bool())
        for each in objects
    ]
    metrics.update(perfect, targets)
    assert metrics.summary("val")["val_box_map"] == pytest.approx(100)


@pytest.mark.slow
def test_devices_with_unequal_numbers_of_images_find_the_same(command: Command) -> None:
    """In double precision, in which rounding sorts no score differently."""
    words = (
        "task=detect", "norm=bn", "batch=4", "global_batch=8", "model.width=8", "data.scenes=50",
        "data.test_scenes=9", "recipe.images=320", "recipe.lr=0.1", "precision=64-true",
        "trainer=cpu", "logger=none",
    )  # fmt: skip
    for root, devices in (("one", 1), ("two", 2)):
        assert command(*words, f"trainer.devices={devices}", f"runs={root}").code == 0
    (one,), (two,) = read("one"), read("two")
    assert one.metrics == pytest.approx(two.metrics, rel=1e-6)
    assert one.metrics["test_box_map50"] > 0
