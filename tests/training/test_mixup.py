"""Mixup and cutmix: drawn by step, alike under every plan, whoever has the partner's image."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from normbench.config.build import build, options
from normbench.config.plan import Plan
from normbench.data.digits import Digits
from normbench.errors import BadInput
from normbench.training.batches import Chunk, augment_chunk
from normbench.training.datamodule import DataModule
from normbench.training.regularization import Regularization, box_span, mix_images
from normbench.training.sampler import Chunking, WorkerSampler
from support.cells import SHORT, cell, train_cell
from support.slow import slow_except

SIZE = (8, 8)
BOTH = Regularization(mixup=0.5, cutmix=1.0)


@pytest.mark.parametrize("reg", [Regularization(mixup=0.2), Regularization(cutmix=1.0), BOTH])
def test_a_mix_follows_from_seed_and_step(reg: Regularization) -> None:
    mixes = [reg.draw_mix(3, step, 16, SIZE) for step in range(50)]
    again = [reg.draw_mix(3, step, 16, SIZE) for step in range(50)]
    other = [reg.draw_mix(4, step, 16, SIZE) for step in range(50)]
    shares = [mix.label_share.tolist() for mix in mixes]
    assert shares == [mix.label_share.tolist() for mix in again]
    assert shares != [mix.label_share.tolist() for mix in other]
    for mix in mixes:
        assert mix.partners.sort().values.tolist() == list(range(16))
        assert ((mix.label_share >= 0) & (mix.label_share <= 1)).all()


def test_without_a_strength_nothing_is_mixed() -> None:
    assert not Regularization(label_smoothing=0.1).mixes
    assert BOTH.mixes


@pytest.mark.parametrize("strength", slow_except([0.2, 1.0, 2.0], [0.2]))
def test_shares_have_the_moments_of_beta(strength: float) -> None:
    reg = Regularization(mixup=strength)
    shares = torch.tensor([reg.draw_mix(0, step, 2, SIZE).share[0] for step in range(4000)])
    variance = 1 / (4 * (2 * strength + 1))
    assert abs(shares.mean() - 0.5) < 5 * (variance / 4000) ** 0.5
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_a_box_has_the_area_that_its_label_says() -> None:
    reg = Regularization(cutmix=1.0)
    for step in range(200):
        mix = reg.draw_mix(0, step, 4, (32, 24))
        x, other = torch.ones(4, 1, 32, 24), torch.zeros(4, 1, 32, 24)
        mixture = mix_images(x, other, mix.share, mix.boxes)
        torch.testing.assert_close(mixture.mean(dim=(1, 2, 3)), mix.label_share)
        assert {*mixture.unique().tolist()} <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("center", "ends"), [(0.5, (8, 24)), (0.0, (0, 8)), (0.26, (0, 16)), (0.99, (23, 32))]
)
def test_a_box_lies_around_its_center_and_ends_with_the_image(
    center: float, ends: tuple[int, int]
) -> None:
    assert box_span(center, 0.5, 32) == ends


def test_both_take_turns() -> None:
    boxes = [BOTH.draw_mix(0, step, 4, SIZE).boxes for step in range(400)]
    assert sum(not box.any() for box in boxes) / 400 == pytest.approx(0.5, abs=0.15)


def test_both_may_have_a_half_of_every_step() -> None:
    halves = Regularization(mixup=0.5, cutmix=1.0, mixup_and_cutmix="halves")
    shares = []
    for step in range(200):
        mix = halves.draw_mix(0, step, 6, SIZE)
        assert not mix.boxes[:3].any()
        assert (mix.share[3:] == 1).all()
        assert len(mix.share[:3].unique()) == len(mix.label_share[3:].unique()) == 1
        shares.append([float(mix.share[0]), float(mix.label_share[3])])
    assert abs(torch.corrcoef(torch.tensor(shares).T)[0, 1]) < 0.25  # drawn apart


@pytest.mark.parametrize("target", [0.8, 0.9, 0.95])
def test_proxy_norms_cutmix_has_its_distribution(target: float) -> None:
    """r = 1 with probability 1.55 l - 0.96, else 1 + ln(b) / 4 with b uniform from exp(-4) to 1."""
    reg = Regularization(cutmix_target=target)
    ratios = [reg.mix_ratio("cutmix", (number + 0.5) / 10_000) for number in range(10_000)]
    nothing = 1.55 * target - 0.96
    assert sum(ratio == 1 for ratio in ratios) / 10_000 == pytest.approx(nothing, abs=1e-3)
    rest = torch.tensor([ratio for ratio in ratios if ratio < 1], dtype=torch.float64)
    uniform = ((4 * (rest - 1)).exp() - math.exp(-4)) / (1 - math.exp(-4))
    quantiles = (torch.arange(len(rest)) + 0.5) / len(rest)
    assert (uniform.sort().values - quantiles).abs().max() < 1e-3
    assert rest.min() >= 0
    mean_log = (5 * math.exp(-4) - 1) / (1 - math.exp(-4))  # of b
    expected = nothing + (1 - nothing) * (1 + mean_log / 4)
    assert sum(ratios) / 10_000 == pytest.approx(expected, abs=1e-3)


def test_mixup_of_two_images_is_their_convex_combination() -> None:
    x, other = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[5.0, 0.0]]]])
    mixture = mix_images(x, other, torch.tensor([0.25]), torch.zeros(1, 4, dtype=torch.int64))
    torch.testing.assert_close(mixture, torch.tensor([[[[4.0, 0.5]]]]))


def test_cutmix_of_two_images_shows_the_other_in_the_box_alone() -> None:
    x, other = torch.ones(1, 1, 3, 4), torch.full((1, 1, 3, 4), 7.0)
    mixture = mix_images(x, other, torch.ones(1), torch.tensor([[1, 3, 0, 2]]))
    expected = torch.tensor([[1.0, 1, 1, 1], [7, 7, 1, 1], [7, 7, 1, 1]])
    assert torch.equal(mixture[0, 0], expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_closed_form(smoothing: float) -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, others = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 1, 3, 0, 2])
    share = torch.tensor([0.0, 1.0, 0.5, 0.25, 0.9], dtype=torch.float64)
    log = logits - logits.exp().sum(1, keepdim=True).log()

    def of(which: Tensor) -> Tensor:
        return -(1 - smoothing) * log[torch.arange(5), which] - smoothing / 4 * log.sum(1)

    reg = Regularization(label_smoothing=smoothing)
    torch.testing.assert_close(reg.loss(logits, labels), of(labels).mean())
    expected = (share * of(labels) + (1 - share) * of(others)).mean()
    torch.testing.assert_close(reg.loss(logits, labels, others, share), expected)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cutmix_target": 0.5}, "cutmix_target=0.5: it must be from 0.62 to 1"),
        ({"cutmix_target": 0.9, "cutmix": 1.0}, "it replaces cutmix"),
        (
            {"mixup_and_cutmix": "halves", "mixup": 0.2},
            "mixup_and_cutmix=halves: it needs mixup and cutmix",
        ),
        ({"dropout": 1.0}, "dropout=1.0: it must be less than 1"),
        ({"stochastic_depth": -0.1}, "stochastic_depth=-0.1: .* greater than or equal to 0"),
    ],
)
def test_levels_that_make_no_sense_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=rf"reg\..*{says}"):
        build("reg", options("reg", "none", changes))


def seen(plan: Plan) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
    """By step and image, what its worker sees of it and the label of its partner."""
    data = Digits()
    splits = data.splits()
    sampler = WorkerSampler(len(splits.train.labels), 24, plan, seed=5)
    by_image: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for device in range(plan.devices):
        images = DataModule(data, splits, sampler, Chunking(4, 2, 50), BOTH, device)
        step = 0
        for chunk in images.read_chunks(0):
            ready: Chunk = augment_chunk(data, chunk)
            for k in range(len(ready.images)):
                flat = zip(
                    ready.indices[k].flatten(),
                    ready.images[k].flatten(0, 1),
                    ready.mix_targets[0][k].flatten(),
                    strict=True,
                )
                by_image |= {(step, int(index)): (image, label) for index, image, label in flat}
                step += 1
    return by_image


PLANS = [Plan(1, 1, 8), Plan(8, 1, 1), Plan(2, 2, 2), Plan(2, 4, 1)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_an_image_meets_the_same_partner_under_every_plan(plan: Plan) -> None:
    expected, found = seen(Plan(1, 8, 1)), seen(plan)
    assert found.keys() == expected.keys()
    for key, (image, label) in found.items():
        assert torch.equal(image, expected[key][0])
        assert label == expected[key][1]


def test_a_partner_is_augmented_as_at_its_own_place() -> None:
    """The other image of a mixture is the one that its own place would show, had it no partner."""
    data = Digits()
    splits = data.splits()
    sampler = WorkerSampler(len(splits.train.labels), 16, Plan(1, 4, 1), seed=0)
    plain = augment_chunk(
        data, next(DataModule(data, splits, sampler, Chunking(1, 1, 50)).read_chunks(0))
    )
    reg = Regularization(mixup=1.0)
    both = augment_chunk(
        data, next(DataModule(data, splits, sampler, Chunking(1, 1, 50), reg).read_chunks(0))
    )
    mix = reg.draw_mix(0, 0, 16, SIZE)
    own = plain.images[0, 0]
    share = mix.share[:, None, None, None]
    expected = share * own + (1 - share) * own[mix.partners]
    torch.testing.assert_close(both.images[0, 0], expected)


@pytest.mark.parametrize(
    "words",
    slow_except(["reg=mixup", "reg=cutmix", "reg.mixup=0.4", "reg.erasing=0.9"], ["reg=cutmix"]),
)
def test_a_training_sees_mixed_and_erased_images(words: str) -> None:
    losses = []
    for more in ([], [words], [words, "trainer.chunk=3"]):
        fields, _ = train_cell(cell("norm=gn", *more, *SHORT, "recipe.images=1280"))
        losses.append(fields["train_loss"])
    assert losses[0] != losses[1] == losses[2]
    # Labels of two classes cannot be met by any network, and what was erased cannot be seen.
    assert losses[1] > losses[0]
