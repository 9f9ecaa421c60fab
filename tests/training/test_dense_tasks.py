"""Losses by worker and metrics of segmentation and depth, against their definitions."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.data.maps import VOID, class_map, depth_map, encode_depth
from normbench.models.dense_network import upsample
from normbench.training.metrics import Evaluation
from normbench.training.tasks.depth import DepthMetrics, reverse_huber
from normbench.training.tasks.segment import SegmentationMetrics, segmentation_loss

CLASSES = 5


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    ).requires_grad_()


@pytest.fixture
def classes() -> Tensor:
    """Eight images of which one in four pixels is void, the first image more."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(CLASSES, (8, 6, 7), generator=generator)
    drawn[torch.rand(drawn.shape, generator=generator) < 0.25] = VOID
    drawn[0, :5] = VOID
    return drawn


def maps_of(classes: Tensor) -> Tensor:
    """The bytes of a data set with these classes."""
    return (classes + 1).to(torch.uint8)[:, None]  # VOID wraps to 0


def depths(count: int) -> Tensor:
    depth = 1 + 4 * torch.rand(
        count, 6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    depth[:, 0] = 0  # unknown
    return depth


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_loss_of_segmentation_is_the_mean_of_those_of_the_workers(
    classes: Tensor, workers: int
) -> None:
    logits = noise(8, CLASSES, 6, 7)
    separate = [
        F.cross_entropy(logits[w::workers], classes[w::workers], ignore_index=VOID)
        for w in range(workers)
    ]
    found = segmentation_loss(logits, classes, workers)
    torch.testing.assert_close(found, torch.stack(separate).mean())
    if workers > 1:
        whole = F.cross_entropy(logits, classes, ignore_index=VOID)
        assert abs(found - whole) > 1e-4


def test_labels_of_segmentation_are_smoothed(classes: Tensor) -> None:
    logits = noise(8, CLASSES, 6, 7)
    expected = F.cross_entropy(logits, classes, ignore_index=VOID, label_smoothing=0.1)
    torch.testing.assert_close(segmentation_loss(logits, classes, 1, 0.1), expected)


def test_a_worker_without_pixels_has_no_loss(classes: Tensor) -> None:
    classes[1::2] = VOID
    logits = noise(8, CLASSES, 6, 7)
    found = segmentation_loss(logits, classes, 2)
    other = F.cross_entropy(logits[::2], classes[::2], ignore_index=VOID)
    torch.testing.assert_close(found, other / 2)
    (gradient,) = torch.autograd.grad(found, logits)
    assert gradient.isfinite().all()
    assert not gradient[1::2].any()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_reverse_huber_is_that_of_each_worker(workers: int) -> None:
    predicted, depth = noise(8, 1, 6, 7).detach(), depths(8)
    losses = []
    for w in range(workers):
        known = depth[w::workers] > 0
        errors = (predicted[w::workers, 0] - depth[w::workers]).abs()[known]
        c = float(errors.max()) / 5
        values = [x if x <= c else (x * x + c * c) / (2 * c) for x in errors.tolist()]
        losses.append(sum(values) / len(values))
    assert float(reverse_huber(predicted, depth, workers)) == pytest.approx(
        sum(losses) / workers, rel=1e-12
    )


def test_the_threshold_of_reverse_huber_has_no_gradient() -> None:
    depth = torch.ones(1, 2, 3, dtype=torch.float64)
    errors = torch.tensor([[-1.0, 0.1, 0.15], [0.2, 0.5, -0.3]], dtype=torch.float64)
    predicted = (depth + errors)[:, None].requires_grad_()
    (gradient,) = torch.autograd.grad(reverse_huber(predicted, depth), predicted)
    c = 0.2
    expected = torch.where(errors.abs() <= c, errors.sign(), errors / c) / 6
    torch.testing.assert_close(gradient[0, 0], expected)


def test_reverse_huber_without_depth_or_error_is_zero() -> None:
    predicted, depth = noise(4, 1, 6, 7), depths(4)
    depth[1::2] = 0
    found = reverse_huber(predicted, depth, 2)
    torch.testing.assert_close(found, reverse_huber(predicted[::2], depth[::2]) / 2)
    (gradient,) = torch.autograd.grad(found, predicted)
    assert gradient.isfinite().all()
    exact = depth[:, None].clone().requires_grad_()
    loss = reverse_huber(exact, depth)
    (gradient,) = torch.autograd.grad(loss, exact)
    assert float(loss.detach()) == 0
    assert gradient.isfinite().all()


def test_an_image_without_finite_predictions_has_no_finite_loss(classes: Tensor) -> None:
    logits = noise(8, CLASSES, 6, 7).detach()
    logits[3] = torch.nan
    metrics, of_images = SegmentationMetrics(CLASSES), Evaluation(CLASSES)
    metrics.update(logits, maps_of(classes))
    of_images.update(logits[..., 0, 0], classes[:, 0, 0] % CLASSES)
    assert math.isnan(metrics.summary("test")["test_loss"])
    assert math.isnan(of_images.summary("test")["test_loss"])


def test_the_mean_intersection_over_union_is_that_of_all_images_together(classes: Tensor) -> None:
    logits = noise(8, CLASSES, 6, 7).detach()
    logits[:, 4] = -9.0  # predicted nowhere
    classes[classes == 4] = 3  # and a target nowhere
    metrics = SegmentationMetrics(CLASSES)
    for part in (slice(0, 3), slice(3, 8)):
        metrics.update(logits[part], maps_of(classes[part]))
    predicted, known = logits.argmax(1), classes != VOID
    shares = []
    for number in range(4):
        one, other = (predicted == number) & known, classes == number
        shares.append(float((one & other).sum() / (one | other).sum()))
    summary = metrics.summary("test")
    assert summary["test_miou"] == pytest.approx(100 * sum(shares) / 4, rel=1e-6)
    right = float(((predicted == classes) & known).sum() / known.sum())
    assert summary["test_pixel_accuracy"] == pytest.approx(100 * right, rel=1e-6)
    metrics.reset()
    metrics.update(F.one_hot(classes.clamp(max=4), 5).permute(0, 3, 1, 2), maps_of(classes))
    assert metrics.summary("val")["val_miou"] == 100


def test_the_numbers_of_depth_are_over_all_pixels_with_depth() -> None:
    maps = torch.cat([torch.zeros(5, 2, 6, 7, dtype=torch.uint8), encode_depth(depths(5))], dim=1)
    depth = depth_map(maps)
    factors = torch.rand(depth.shape, generator=torch.Generator().manual_seed(3)) * 1.5 + 0.4
    predicted = (depth * factors)[:, None]
    predicted[0, 0, 3, 3] = -depth[0, 3, 3]  # beyond every factor
    metrics = DepthMetrics()
    for part in (slice(0, 2), slice(2, 5)):
        metrics.update(predicted[part], maps[part])
    pairs = [
        (p, d)
        for p, d in zip(predicted.flatten().tolist(), depth.flatten().tolist(), strict=True)
        if d > 0
    ]
    ratios = [max(p / d, d / p) if p > 0 else float("inf") for p, d in pairs]
    expected = {
        f"test_delta{power}": 100 * sum(ratio < 1.25**power for ratio in ratios) / len(pairs)
        for power in (1, 2, 3)
    }
    expected["test_rms"] = (sum((p - d) ** 2 for p, d in pairs) / len(pairs)) ** 0.5
    expected["test_rel"] = sum(abs(p - d) / d for p, d in pairs) / len(pairs)
    per_image = [reverse_huber(predicted[i : i + 1], depth[i : i + 1]) for i in range(5)]
    expected["test_loss"] = float(torch.stack(per_image).mean())
    assert metrics.summary("test") == pytest.approx(expected, rel=1e-5)


def test_unknown_pixels_are_those_that_padding_adds() -> None:
    padding = torch.zeros(1, 4, 2, 2, dtype=torch.uint8)
    assert (class_map(padding) == VOID).all()
    assert (depth_map(padding) == 0).all()


def test_depth_survives_its_two_bytes() -> None:
    depth = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0)) * 15.9
    found = depth_map(
        torch.cat([torch.zeros(2, 2, 3, 4, dtype=torch.uint8), encode_depth(depth)], 1)
    )
    torch.testing.assert_close(found, depth, rtol=0, atol=1 / 8192)


def test_logits_are_scaled_up_bilinearly() -> None:
    logits = noise(2, 3, 4, 4).detach()
    assert torch.equal(upsample(logits, (4, 4)), logits)
    found = upsample(logits, (8, 8))
    # The second pixel of a side is a quarter of the way to the next one of the small map.
    expected = 0.75 * logits[..., 0, 0] + 0.25 * logits[..., 0, 1]
    torch.testing.assert_close(found[..., 0, 1], expected)
