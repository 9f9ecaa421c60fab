"""Scenes of scattered digits: what is near hides what is far, and all maps agree."""

from typing import Any

import pytest
import torch

from normbench.data.counter_rng import Draws
from normbench.data.dataset import TensorSplit
from normbench.data.digits import Digits
from normbench.data.maps import INSTANCE, class_map, depth_map, list_objects
from normbench.data.reading import read_images
from normbench.data.scattered_digits import ScatteredDigits, SceneSplit
from normbench.data.scenes import (
    FARTHEST,
    FEWEST,
    MOST,
    SIDES,
    Scenes,
    compose_scenes,
)

SIDE = 64
COUNT = 60


@pytest.fixture(scope="module")
def digits() -> TensorSplit:
    return Digits().load()[0]


@pytest.fixture(scope="module")
def scenes(digits: TensorSplit) -> Scenes:
    return compose_scenes(digits, Draws(0, 1, torch.arange(COUNT)), SIDE)


def test_a_scene_depends_on_its_own_numbers_alone(digits: TensorSplit, scenes: Scenes) -> None:
    chosen = torch.tensor([7, 3, 50])
    again = compose_scenes(digits, Draws(0, 1, chosen), SIDE)
    for own, all_of in zip(again, scenes, strict=True):
        assert torch.equal(own, all_of[chosen])
    for other in (Draws(0, 2, chosen), Draws(1, 1, chosen)):
        assert not torch.equal(compose_scenes(digits, other, SIDE).images, again.images)


def test_maps_agree_on_what_is_background(scenes: Scenes) -> None:
    images, classes, instances, depth = scenes
    assert images.shape == (COUNT, 1, SIDE, SIDE)
    empty = instances == 0
    assert torch.equal(classes == 0, empty)
    assert torch.equal(depth == FARTHEST, empty)
    assert torch.equal(images[:, 0] == 0, empty)
    assert 0.5 < empty.float().mean() < 0.9


def test_an_instance_has_one_class_and_one_depth(scenes: Scenes) -> None:
    depths = {SIDES[-1] / side for side in SIDES}
    for _, classes, instances, depth in zip(*scenes, strict=True):
        for number in instances.unique().tolist():
            here = instances == number
            assert len(classes[here].unique()) == 1
            (found,) = depth[here].unique().tolist()
            assert number == 0 or min(abs(found - each) for each in depths) < 1e-6


def test_near_digits_hide_far_ones(scenes: Scenes) -> None:
    """Numbers rise from far to near, so in every scene depth falls with them."""
    hidden = 0
    for _, _, instances, depth in zip(*scenes, strict=True):
        numbers = [number for number in instances.unique().tolist() if number]
        of_numbers = [float(depth[instances == number][0]) for number in numbers]
        assert of_numbers == sorted(of_numbers, reverse=True)
        hidden += max(numbers) - len(numbers)
    assert hidden  # some are hidden wholly


def test_scenes_have_three_to_eight_digits(scenes: Scenes) -> None:
    counts = {int(instances.max()) for instances in scenes.instances}
    assert counts == {*range(FEWEST, MOST + 1)}
    assert set(scenes.classes.unique().tolist()) == {*range(11)}


def test_objects_are_the_visible_digits(scenes: Scenes) -> None:
    maps = torch.stack([scenes.classes + 1, scenes.instances], dim=1)
    for objects, classes, instances in zip(
        list_objects(maps), scenes.classes, scenes.instances, strict=True
    ):
        boxes, labels, masks = objects
        assert torch.equal(masks.sum(0), (instances > 0).to(masks.dtype))
        for box, label, mask in zip(boxes.int().tolist(), labels, masks.bool(), strict=True):
            left, top, right, bottom = box
            assert mask[top:bottom, left:right].sum() == mask.sum()
            for edge in (mask[top], mask[bottom - 1], mask[:, left], mask[:, right - 1]):
                assert edge.any()
            assert set(classes[mask].tolist()) == {int(label)}


def test_a_scene_without_room_is_refused(digits: TensorSplit) -> None:
    with pytest.raises(ValueError, match="side=32: the largest digit has 40 pixels; 64 works"):
        compose_scenes(digits, Draws(0, 0, torch.arange(1)), 32)


def test_no_digit_is_in_scenes_of_two_splits() -> None:
    splits: Any = ScatteredDigits(scenes=50, test_scenes=5).splits()
    found = [{image.tobytes() for image in split.digits.images.numpy()} for split in splits]
    assert [len(split.labels) for split in splits] == [45, 5, 5]
    assert [len(split.digits.labels) for split in splits] == [1293, 144, 360]
    whole = {image.tobytes() for split in Digits().load() for image in split.images.numpy()}
    assert sum(map(len, found)) == len(whole)


def test_scenes_of_an_evaluation_are_always_the_same_and_those_of_training_never() -> None:
    data = ScatteredDigits(scenes=20, test_scenes=6)
    indices = torch.arange(2)
    train, val, test = (
        [read_images(data, split, indices, draws) for draws in (None, Draws(0, 0, indices))]
        for split in data.splits()
    )
    assert torch.equal(
        train[1], read_images(data, data.splits().train, indices, Draws(0, 0, indices))
    )
    assert not torch.equal(
        train[1], read_images(data, data.splits().train, indices, Draws(0, 1, indices))
    )
    assert torch.equal(test[0], read_images(data, data.splits().test, indices, None))
    instances = [each[0][:, 1 + INSTANCE] for each in (train, val, test)]
    assert not torch.equal(instances[1], instances[2])  # also the places of digits are others


def test_maps_behind_an_image_are_those_of_its_scene(digits: TensorSplit) -> None:
    draws = Draws(0, 3, torch.arange(4))
    read = SceneSplit(digits, torch.arange(4), SIDE).read(draws.images, draws)
    scenes = compose_scenes(digits, draws, SIDE)
    assert read.shape == (4, 1 + ScatteredDigits.maps, SIDE, SIDE)
    assert torch.equal(read[:, :1], scenes.images)
    assert torch.equal(class_map(read[:, 1:]), scenes.classes.long())
    assert torch.equal(read[:, 1 + INSTANCE], scenes.instances)
    torch.testing.assert_close(depth_map(read[:, 1:]), scenes.depth, rtol=0, atol=1e-3)


def test_a_scene_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="size=32: the largest digit has 40 pixels; size=64"):
        ScatteredDigits(size=32)
