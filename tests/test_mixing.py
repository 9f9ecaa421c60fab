"""Mixup and cutmix: drawn by step, alike under every plan, whoever has the partner's image."""

import pytest
import torch
from conftest import SHORT, cell
from torch import Tensor

from normbench.data.digits import Digits
from normbench.loaders import Chunk, Loaders, Order, Schedule, augmented
from normbench.plan import Plan
from normbench.reg import Regularization, mixed
from normbench.training import train

SIZE = (8, 8)
BOTH = Regularization(mixup=0.5, cutmix=1.0)


@pytest.mark.parametrize("reg", [Regularization(mixup=0.2), Regularization(cutmix=1.0), BOTH])
def test_a_mix_follows_from_seed_and_step(reg: Regularization) -> None:
    mixes = [reg.mix(3, step, 16, SIZE) for step in range(50)]
    again = [reg.mix(3, step, 16, SIZE) for step in range(50)]
    other = [reg.mix(4, step, 16, SIZE) for step in range(50)]
    shares = [mix.label_share for mix in mixes if mix is not None]
    assert shares == [mix.label_share for mix in again if mix is not None]
    assert shares != [mix.label_share for mix in other if mix is not None]
    for mix in mixes:
        assert mix is not None
        assert mix.partners.sort().values.tolist() == list(range(16))
        assert 0 <= mix.label_share <= 1


def test_without_a_strength_nothing_is_mixed() -> None:
    assert Regularization(label_smoothing=0.1).mix(0, 0, 16, SIZE) is None


@pytest.mark.parametrize("strength", [0.2, 1.0, 2.0])
def test_shares_have_the_moments_of_beta(strength: float) -> None:
    reg = Regularization(mixup=strength)
    shares = torch.tensor([reg.mix(0, step, 2, SIZE).share for step in range(4000)])  # type: ignore[union-attr]
    variance = 1 / (4 * (2 * strength + 1))
    assert abs(shares.mean() - 0.5) < 5 * (variance / 4000) ** 0.5
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_a_box_has_the_area_that_its_label_says() -> None:
    reg = Regularization(cutmix=1.0)
    for step in range(200):
        mix = reg.mix(0, step, 4, (32, 24))
        assert mix is not None
        x, other = torch.ones(1, 1, 4, 1, 32, 24), torch.zeros(1, 1, 4, 1, 32, 24)
        seen = mixed(x, other, torch.tensor([mix.share]), torch.tensor([mix.box]))
        assert seen.mean().item() == pytest.approx(mix.label_share, abs=1e-6)
        assert {*seen.unique().tolist()} <= {0.0, 1.0}


def test_both_take_turns() -> None:
    boxes = [mix.box for step in range(400) if (mix := BOTH.mix(0, step, 4, SIZE)) is not None]
    assert sum(box == (0, 0, 0, 0) for box in boxes) / 400 == pytest.approx(0.5, abs=0.15)


def seen(plan: Plan) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
    """By step and image, what its worker sees of it and the label of its partner."""
    data = Digits()
    splits = data.splits()
    order = Order(len(splits.train.labels), 24, plan, seed=5)
    found: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for device in range(plan.devices):
        loaders = Loaders(data, splits, order, Schedule(4, 2, 50), BOTH, device)
        step = 0
        for chunk in loaders.chunks(0):
            ready: Chunk = augmented(data, chunk)
            assert ready.partners is not None
            for k in range(len(ready.images)):
                flat = zip(
                    ready.indices[k].flatten(),
                    ready.images[k].flatten(0, 1),
                    ready.partners.labels[k].flatten(),
                    strict=True,
                )
                found |= {(step, int(index)): (image, label) for index, image, label in flat}
                step += 1
    return found


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
    order = Order(len(splits.train.labels), 16, Plan(1, 4, 1), seed=0)
    plain = augmented(data, next(Loaders(data, splits, order, Schedule(1, 1, 50)).chunks(0)))
    reg = Regularization(mixup=1.0)
    both = augmented(data, next(Loaders(data, splits, order, Schedule(1, 1, 50), reg).chunks(0)))
    mix = reg.mix(0, 0, 16, SIZE)
    assert mix is not None
    own = plain.images[0, 0]
    expected = mix.share * own + (1 - mix.share) * own[mix.partners]
    torch.testing.assert_close(both.images[0, 0], expected)


@pytest.mark.parametrize("words", ["reg=mixup", "reg=cutmix", "reg.mixup=0.4"])
def test_a_training_is_mixed(words: str) -> None:
    losses = []
    for more in ([], [words], [words, "trainer.chunk=3"]):
        found = train(cell("norm=gn", *more, *SHORT), lambda _: None, lambda *_: None)
        losses.append(found["train_loss"])
    assert losses[0] != losses[1] == losses[2]
    assert losses[1] > losses[0]  # labels of two classes cannot be met by any network
