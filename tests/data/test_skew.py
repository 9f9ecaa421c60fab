"""Unequal workers: how classes are divided, and that a run sees each worker's own images."""

import numpy as np
import pytest
import torch
from torch import Tensor

from normbench.config.plan import Plan
from normbench.data.skew import divide
from normbench.errors import BadInput
from normbench.execution import requirements
from normbench.training.datamodule import open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.sampler import WorkerSampler
from support.cells import SHORT, cell, train_cell

LABELS = torch.arange(3000) % 10


def shares(images: Tensor) -> Tensor:
    """Shares of the classes (W, C) that each worker has."""
    counts = [torch.bincount(LABELS[each], minlength=10) for each in images]
    return torch.stack(counts) / images.shape[1]


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("workers", [1, 7, 64])
def test_every_worker_has_equally_many_images_of_its_own(alpha: float, workers: int) -> None:
    images = divide(LABELS, workers, alpha, seed=3)
    assert images.shape == (workers, 3000 // workers)
    assert len(images.unique()) == images.numel()
    assert torch.equal(images, divide(LABELS, workers, alpha, seed=3))
    assert workers == 1 or not torch.equal(images, divide(LABELS, workers, alpha, seed=4))


def test_tiny_shares_can_be_drawn() -> None:
    for seed in range(150):
        assert len(divide(LABELS[:600], 16, 1e-3, seed).unique()) == 592


def test_the_smaller_alpha_is_the_more_unequal_are_workers() -> None:
    largest = [shares(divide(LABELS, 60, alpha, 0)).amax(1).mean() for alpha in (0.01, 0.1, 1, 100)]
    assert largest[0] > 0.7
    assert largest[3] < 0.25
    assert sorted(largest, reverse=True) == largest


def test_shares_are_those_of_a_dirichlet_distribution() -> None:
    labels = torch.arange(40_000) % 4
    images = divide(labels, 400, 0.5, seed=0)[:, :20]  # before classes run out
    found = np.array([np.bincount(each, minlength=4) / 20 for each in labels[images].numpy()])
    assert found.mean(0) == pytest.approx([0.25] * 4, abs=0.04)
    # Variance of Dirichlet(a, a, a, a) with a = 0.5, and that of drawing 20 images.
    variance = 0.25 * 0.75 / (4 * 0.5 + 1)
    expected = variance + (0.25 * 0.75 - variance) / 20
    assert found.var(0).mean() == pytest.approx(expected, rel=0.1)


def test_rare_classes_are_rare_in_the_mean() -> None:
    labels = torch.cat([torch.zeros(900, dtype=torch.int64), torch.ones(100, dtype=torch.int64)])
    images = divide(labels, 10, 10.0, 0)
    assert labels[images].float().mean() == pytest.approx(0.1)


def test_a_worker_sees_its_images_alone_in_every_epoch_and_plan() -> None:
    own = [set(each.tolist()) for each in divide(LABELS, 8, 0.1, seed=5)]
    steps = []
    for plan in (Plan(1, 8, 1), Plan(2, 2, 2)):
        sampler = WorkerSampler(3000, 24, plan, 5, LABELS, 0.1)
        for epoch in (0, 1):
            batches = sampler.global_batches(epoch)
            assert batches.shape == (3000 // 24, 24)
            assert len(batches.unique()) == batches.numel()
            for worker, images in enumerate(own):
                assert set(batches[:, worker::8].flatten().tolist()) <= images
            steps.append(batches)
    assert torch.equal(steps[0], steps[2])
    assert not torch.equal(steps[0], steps[1])


def test_skew_changes_the_images_of_workers_and_their_order() -> None:
    plain = WorkerSampler(3000, 24, Plan(1, 8, 1), 5, LABELS).global_batches(0)
    skewed = WorkerSampler(3000, 24, Plan(1, 8, 1), 5, LABELS, 0.1).global_batches(0)
    few = [len(LABELS[skewed[:, worker::8]].unique()) for worker in range(8)]
    many = [len(LABELS[plain[:, worker::8]].unique()) for worker in range(8)]
    assert sum(few) < 0.8 * sum(many)


def test_a_batch_independent_network_is_another_computation_at_every_batch() -> None:
    """Workers decide which images a step has."""
    for words, expected in (((), True), (("data.skew=0.1",), False)):
        experiment = Experiment(cell(*SHORT, "norm=gn", *words))
        assert experiment.is_worker_independent(experiment.info) == expected


def test_a_run_is_trained_on_skewed_workers() -> None:
    plain, _ = train_cell(cell(*SHORT, "norm=bn", "batch=16"))
    skewed, _ = train_cell(cell(*SHORT, "norm=bn", "batch=16", "data.skew=0.01"))
    assert skewed["train_loss"] != plain["train_loss"]


def test_a_run_sees_the_images_of_its_workers_whatever_the_plan() -> None:
    base = cell(*SHORT, "batch=16", "data.skew=0.01")
    module = open_datamodule(Experiment(base))
    own = divide(module.splits.train.labels, base.workers, 0.01, base.seed)
    for chunk in module.read_chunks(0):
        indices = chunk.indices.flatten(1)  # (K, global batch)
        for worker, images in enumerate(own):
            assert {*indices[:, worker :: base.workers].flatten().tolist()} <= {*images.tolist()}


def test_its_rows_are_no_single_computation() -> None:
    for words, expected in (((), True), (("data.skew=0.1",), False)):
        experiment = Experiment(cell(*SHORT, "norm=gn", *words))
        fields = experiment.network_row_fields(experiment.info)
        assert fields["batch_independent"] == expected


def test_images_of_several_workers_are_not_mixed() -> None:
    with pytest.raises(BadInput, match=r"data.skew=0.1: .* reg=mixup mixes them"):
        requirements.require_task(Experiment(cell("reg=mixup", "data.skew=0.1")))


def test_scenes_have_no_class_to_divide() -> None:
    with pytest.raises(BadInput, match=r"task=segment: data.skew=0.1 divides the classes"):
        requirements.require_task(Experiment(cell("task=segment", "data.skew=0.1")))
