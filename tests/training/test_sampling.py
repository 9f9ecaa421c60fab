"""Which image which worker sees, and the random numbers that it meets, whatever the plan."""

import pytest
import torch
from torch import Tensor

from normbench.config.plan import Plan, plans
from normbench.data.counter_rng import Draws, permutation
from normbench.data.digits import Digits
from normbench.training.batches import Chunk, augment_chunk
from normbench.training.datamodule import PROBE_EPOCH, open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.sampler import Chunking, WorkerSampler
from support.cells import cell

PLANS = [Plan(1, 8, 1), Plan(8, 1, 1), Plan(1, 1, 8), Plan(2, 2, 2), Plan(4, 2, 1), Plan(2, 1, 4)]


def seen(plan: Plan, images: int = 100, batch: int = 3) -> dict[tuple[int, int], list[int]]:
    """The images that each worker sees in each step, in the order in which it sees them."""
    sampler = WorkerSampler(images, batch * plan.workers, plan, seed=5)
    found = {}
    for device in range(plan.devices):
        for step, turns in enumerate(sampler.select_device(sampler.global_batches(2), device)):
            for turn, images_of_pass in enumerate(turns):
                for slot in range(plan.per_forward):
                    worker = device + plan.devices * (turn + plan.accumulation * slot)
                    found[step, worker] = images_of_pass[slot :: plan.per_forward].tolist()
    return found


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_worker_sees_the_same_images_in_every_plan(plan: Plan) -> None:
    assert seen(plan) == seen(PLANS[0])


def test_image_k_of_the_global_batch_belongs_to_worker_k_mod_w() -> None:
    order = permutation(5, 2, 100)
    for (step, worker), images in seen(PLANS[0]).items():
        assert images == order[24 * step : 24 * (step + 1)][worker::8].tolist()


def test_what_does_not_fill_a_global_batch_is_left_out() -> None:
    sampler = WorkerSampler(100, 24, plans(8)[0], seed=0)
    indices = sampler.global_batches(0)
    assert indices.shape == (4, 24)
    assert len(indices.unique()) == 96
    assert not torch.equal(indices, sampler.global_batches(1))


@pytest.mark.parametrize("plan", [(0, 1, 1), (1, -1, 1)])
def test_a_plan_has_no_empty_factor(plan: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Plan(*plan)


def test_workers_fall_evenly_on_devices() -> None:
    assert plans(8, 2)[0] == Plan(2, 4, 1)
    assert plans(8, 3)[0] == Plan(2, 4, 1)  # the third has nothing to do


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_a_permutation_holds_every_image_once(seed: int) -> None:
    assert torch.equal(permutation(seed, 3, 1000).sort().values, torch.arange(1000))


def test_draws_follow_the_image_and_not_its_company() -> None:
    everything = Draws(7, 1, torch.arange(50)).normal("noise", 2, 3)
    some = torch.tensor([41, 3, 17])
    assert torch.equal(Draws(7, 1, some).normal("noise", 2, 3), everything[some])


@pytest.mark.parametrize(
    "other",
    [Draws(8, 1, torch.arange(9)), Draws(7, 2, torch.arange(9)), Draws(7, 1, torch.arange(9) + 1)],
    ids=["seed", "epoch", "image"],
)
def test_another_seed_epoch_or_image_draws_other_numbers(other: Draws) -> None:
    own = Draws(7, 1, torch.arange(9))
    assert (own.uniform("a", 4) != other.uniform("a", 4)).all()
    assert (own.uniform("a", 4) != own.uniform("b", 4)).all()


def test_seeds_and_epochs_do_not_stand_in_for_each_other() -> None:
    """Seed 1 must not see the epochs of seed 0, one earlier."""
    orders = [permutation(seed, epoch, 50) for seed in range(4) for epoch in range(4)]
    assert len({tuple(order.tolist()) for order in orders}) == 16
    first, second = Draws(0, 1, torch.arange(9)), Draws(1, 0, torch.arange(9))
    assert (first.uniform("a", 4) != second.uniform("a", 4)).all()


def test_draws_have_the_moments_of_their_distributions() -> None:
    draws = Draws(0, 0, torch.arange(20_000))
    uniform, normal = draws.uniform("u", 16), draws.normal("n", 16)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    # Five standard errors of 320,000 numbers.
    assert abs(uniform.mean() - 0.5) < 5 * 0.289 / 566
    assert abs(normal.mean()) < 5 / 566
    assert abs(normal.var() - 1) < 5 * 2**0.5 / 566
    pairs = torch.stack([normal[:, 0], normal[:, 1], normal[:, 2].roll(1)])
    assert (torch.corrcoef(pairs) - torch.eye(3)).abs().max() < 0.04
    counts = draws.integers("i", 5).bincount()
    assert (counts / 20_000 - 0.2).abs().max() < 5 * 0.4 / 141


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("log_every", [4, 10, 1000])
def test_chunks_cover_every_step_once_and_end_where_a_record_is_due(
    chunk: int, log_every: int
) -> None:
    chunking = Chunking(steps=25, chunk=chunk, log_every=log_every)
    covered = []
    for epoch in range(3):
        for cut in chunking.split_epoch(epoch, steps_per_epoch=10):
            steps = list(range(10 * epoch + cut.start + 1, 10 * epoch + cut.stop + 1))
            assert len(steps) <= chunk
            assert not any(step % log_every == 0 for step in steps[:-1])
            covered += steps
    assert covered == list(range(1, 26))


def test_augmentation_is_the_same_in_chunks_of_any_size() -> None:
    data = Digits()
    images, labels = data.load()[0]
    indices = torch.arange(24).view(6, 1, 4)

    def chunk(steps: Tensor) -> Chunk:
        seen = steps.flatten()
        return Chunk(images[seen], labels[steps], steps, 1, 3, ends_epoch=False, read_indices=seen)

    whole = chunk(indices)
    together = augment_chunk(data, whole, erasing=0.5).images
    for step in range(6):
        one = slice(step, step + 1)
        part = chunk(indices[one])
        assert torch.equal(augment_chunk(data, part, erasing=0.5).images[0], together[step])


def test_held_out_batches_are_shuffled_validation_images_with_their_labels() -> None:
    words = (
        "norm=bn",
        "model=resnet8",
        "data=digits",
        "data.val=0.2",
        "batch=4",
        "global_batch=16",
    )
    data = open_datamodule(Experiment(cell(*words)))
    (whole,) = (data.on_after_batch_transfer(batch, 0) for batch in data.val_dataloader())
    batches = [*data.sample_held_out_batches(3, 16)]
    order = permutation(data.sampler.seed, PROBE_EPOCH, len(whole.labels))[:48]
    assert order.tolist() != sorted(order.tolist())
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert torch.equal(images, whole.images[order])
    assert torch.equal(labels, whole.labels[order])
    assert [len(labels) for _, labels in batches] == [16, 16, 16]
    other = open_datamodule(Experiment(cell(*words, "trainer.per_forward=1")))
    for (x, y), (same_x, same_y) in zip(batches, other.sample_held_out_batches(3, 16), strict=True):
        assert torch.equal(x, same_x)
        assert torch.equal(y, same_y)
