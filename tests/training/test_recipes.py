"""Every recipe against its paper: learning rates at every milestone, decay, momentum, optimizer."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normbench.catalog import main, model, normalizer
from normbench.config.build import build, options
from normbench.config.files import CONF, names, unverified
from normbench.errors import BadInput, Impossible
from normbench.models.dropout import Dropout, StochasticDepth
from normbench.training.ema import MovingAverage
from normbench.training.experiment import Experiment
from normbench.training.parameter_groups import ROLES, list_parameters
from normbench.training.recipe import Recipe
from normbench.training.regularization import Regularization
from normbench.training.schedule_preview import list_events, simulate_lr
from support import dataset_files
from support.cells import BROKEN, SHORT, cell, train_cell
from support.commands import Command
from support.slow import slow_except

IMAGENET, CIFAR = 1_281_167, 50_000
VOC, ADE20K, CITYSCAPES, NYU, COCO = 10_582, 20_210, 2_975, 795, 117_266
ALL: set[str] = set(ROLES)


def recipe(name: str, **overrides: Any) -> Recipe:
    built: Recipe = build("recipe", options("recipe", name, overrides))
    return built


Rates = dict[float | None, float]


def tenths(lr: float, *epochs: float, start: float = 0.0) -> Rates:
    """`lr` from `start` on, a tenth of it after the first of `epochs`, and so on to the end."""
    rates: Rates = {start + 0.01: lr, epochs[0] - 0.1: lr, None: lr / 10 ** len(epochs)}
    return rates | {epoch + 0.01: lr / 10**number for number, epoch in enumerate(epochs, 1)}


EVONORM = {1024: 0.4, 512: 0.2, 256: 0.1, 128: 0.05, 64: 0.025, 32: 0.0125}  # tables 9 to 12
MOBILE = {4096: 0.48, 2048: 0.24, 1024: 0.12, 512: 0.06, 256: 0.03, 128: 0.015}  # table 13
SWITCHABLE = {256: 0.1, 64: 0.025, 32: 0.0125, 16: 0.00625}  # (8, 32), (8, 8), (8, 4), (8, 2)
LR, SMALL = 768 / 2**14, 0.97  # EfficientNets: Proxy Norm's rate, and the factor of all
#: Training images, and learning rates by global batch and epoch as the papers give them; a warm-up
#: begins at about 0. The epoch None is the last step.
PAPERS: dict[str, tuple[int, dict[int, Rates]]] = {
    "evonorm_resnet_90": (
        IMAGENET, {b: tenths(lr, 30, 60, 80, start=5) for b, lr in EVONORM.items()}),
    "evonorm_resnet_180": (
        IMAGENET, {b: tenths(lr, 60, 120, 160, start=10) for b, lr in EVONORM.items()}),
    "evonorm_resnet_180_cosine": (
        IMAGENET, {b: {0: 0, 10.01: lr, 95: lr / 2, None: 0} for b, lr in EVONORM.items()}),
    "evonorm_mobilenet": (IMAGENET, {b: {5.01: lr, None: 0} for b, lr in MOBILE.items()}),
    "evonorm_efficientnet": (
        IMAGENET,
        {b: {0: 0, 5.01: lr * SMALL**2, 7.21: lr * SMALL**3, 24.01: lr * SMALL**10}
         for b, lr in {4096: 0.256, 2048: 0.128}.items()}),
    "evonorm_proxy_b": (CIFAR, {128: {0: 0.1, 2.5: 0.1, None: 0.1}}),
    "evonorm_proxy_s": (CIFAR, {128: {0: 0.1, 6.41: 0.05, None: 0}}),
    "nf_resnet": (IMAGENET, {1024: {0: 0, 5.01: 0.4, 47.5: 0.2, None: 0}}),
    "nf_resnet_15": (
        IMAGENET, {1024: {5.01: 0.4, None: 0}, 8: {5.01: 0.025}, 4: {5.01: 0.01}}),
    "nf_regnet": (IMAGENET, {1024: {0: 0, 5.01: 0.4, 182.5: 0.2, None: 0}}),
    "pn_resnet": (IMAGENET, {256: {0: 0, **tenths(0.1, 30, 60, 80, 90, start=5)}}),
    "pn_efficientnet": (
        IMAGENET,
        {768: {0: 0, 5.01: LR * SMALL**2, 7.21: LR * SMALL**3, 24.01: LR * SMALL**10}}),
    "pn_cifar": (CIFAR, {128: {0: 0, **tenths(0.1, 80, 120, start=5)}}),
    "sn_resnet": (IMAGENET, {b: tenths(lr, 30, 60, 90) for b, lr in SWITCHABLE.items()}),
    # 30,000 steps, 100,000 steps, 700 epochs of (8, 1); 7,500, 180,000 and 135,000 steps.
    "nf_voc": (VOC, {16: tenths(0.003, 31.769, 40.846)}),
    "sn_ade20k": (ADE20K, {16: {0: 0.02, 39.588: 0.02 * 0.5**0.9, None: 0}}),
    "sn_cityscapes": (CITYSCAPES, {8: {0: 0.01, 350: 0.01 * 0.5**0.9, None: 0}}),
    "nf_nyu": (NYU, {256: {0: 0.16, 1250: 0.08, None: 0}}),
    "sn_coco": (COCO, {16: tenths(0.02, 16.373, 21.831, start=0.1)}),
    "evonorm_coco": (COCO, {64: tenths(0.1, 65.502, 68.231)}),
    "nfnet_f0": (IMAGENET, {4096: {0: 0, 5.01: 1.6, 182.5: 0.8, None: 0}, 256: {5.01: 0.1}}),
    "convnext_tiny": (IMAGENET, {4096: {0: 0, 20.01: 4e-3, 160: 2e-3, None: 0}}),
    "deit_small": (
        IMAGENET, {1024: {0: 0, 5.01: 1e-3, 152.5: 5e-4, None: 0}, 512: {5.01: 5e-4}}),
}  # fmt: skip
#: Optimizer, momentum, Nesterov's form, weight decay, and the roles that it pulls on.
PULLS: dict[str, tuple[str, float, bool, float, set[str]]] = {
    "evonorm_resnet_90": ("SGD", 0.9, True, 1e-4, {"weight", "bias"}),
    "evonorm_resnet_180": ("SGD", 0.9, True, 1e-4, {"weight", "bias"}),
    "evonorm_resnet_180_cosine": ("SGD", 0.9, True, 1e-4, {"weight", "bias"}),
    "evonorm_mobilenet": ("SGD", 0.9, True, 1e-4, {"weight", "bias"}),
    "evonorm_efficientnet": ("RMSpropTF", 0.9, False, 1e-5, {"weight", "bias"}),
    "evonorm_proxy_b": ("SGD", 0.9, True, 1e-4, {"weight", "bias"}),
    "evonorm_proxy_s": ("SGD", 0.9, True, 1e-4, {"weight", "bias"}),
    "nf_resnet": ("SGD", 0.9, True, 5e-5, {"weight"}),
    "nf_resnet_15": ("SGD", 0.9, True, 5e-5, {"weight"}),
    "nf_regnet": ("SGD", 0.9, True, 5e-5, {"weight"}),
    "pn_resnet": ("SGD", 0.9, False, 1e-4, ALL),
    "pn_efficientnet": ("RMSpropTF", 0.9, False, 1e-5, {"weight", "bias", "proxy"}),
    "pn_cifar": ("SGD", 0.9, False, 1e-4, ALL),
    "sn_resnet": ("SGD", 0.9, False, 1e-4, ALL),
    "nf_voc": ("SGD", 0.9, True, 5e-5, {"weight"}),
    "sn_ade20k": ("SGD", 0.9, False, 1e-4, {"weight"}),
    "sn_cityscapes": ("SGD", 0.9, False, 1e-4, {"weight"}),
    "nf_nyu": ("SGD", 0.9, True, 5e-5, {"weight"}),
    "sn_coco": ("SGD", 0.9, False, 1e-4, {"weight", "bias"}),
    "evonorm_coco": ("SGD", 0.9, False, 4e-5, {"weight", "bias"}),
    "nfnet_f0": ("SGD", 0.9, True, 2e-5, {"weight"}),
    "convnext_tiny": ("AdamW", 0.9, False, 0.05, {"weight"}),
    "deit_small": ("AdamW", 0.9, False, 0.05, {"weight"}),
}


def test_every_recipe_of_a_paper_that_gives_one_is_here() -> None:
    ours = {
        "adamw",
        "demo",
        "dense",
        "detection",
        "onecycle",
        "sn_rmsprop",
        "four_things_caltech",
        "four_things_cifar",
        "four_things_svhn",
    }
    assert {*PAPERS} == {*PULLS} == {*names(CONF / "recipe")} - ours


@pytest.mark.parametrize("name", PAPERS)
def test_learning_rates_are_the_papers(name: str) -> None:
    images, batches = PAPERS[name]
    paper = recipe(name)
    for batch, expected in batches.items():
        steps, per_epoch = paper.count_steps(images, batch), images // batch
        for epoch, lr in expected.items():
            step = steps - 1 if epoch is None else round(epoch * per_epoch)
            rate = paper.peak_lr(batch) * paper.lr_factor(step, steps)
            assert rate == pytest.approx(lr, rel=1e-3, abs=1e-3 * paper.peak_lr(batch)), (
                batch,
                epoch,
            )


@pytest.mark.parametrize("name", names(CONF / "recipe"))
def test_the_optimizer_follows_the_schedule_step_by_step(name: str) -> None:
    """On a data set that is small enough to take every step of."""
    short = recipe(name)
    if short.images is not None:
        short = recipe(name, images=40 * 128)
    batch = max(short.rates, default=128)
    images = 2 * batch if short.epochs is None or short.epochs > 50 else 8 * batch
    steps = short.count_steps(images, batch)
    rates = simulate_lr(short, short.build_optimizer(nn.Linear(2, 2), batch), steps)
    events = list_events(short, images, batch)
    assert [each.lr for each in events] == pytest.approx([rates[each.step] for each in events])
    assert events[0].name == "first step"
    assert events[-1].step == steps - 1
    assert max(rates.values()) <= short.peak_lr(batch) * (1 + 1e-9)


@pytest.mark.parametrize("name", PULLS)
@pytest.mark.parametrize("norm", ["gn_pn", "sn", "nf", "bn"])
def test_optimizer_and_decay_are_the_papers(name: str, norm: str) -> None:
    kind, momentum, nesterov, pull, decayed = PULLS[name]
    paper = recipe(name)
    network = model("resnet20_v2", norm=normalizer(norm), num_classes=10)
    batch = max(paper.rates, default=paper.lr_batch)
    optimizer = paper.build_optimizer(network, batch)
    assert type(optimizer).__name__ == kind
    roles = {id(each.parameter): each.role for each in list_parameters(network)}
    for group in optimizer.param_groups:
        assert group.get("momentum", group.get("betas", [None])[0]) == momentum
        assert group.get("nesterov", False) == nesterov
        roles_of_group = {roles[id(parameter)] for parameter in group["params"]}
        assert roles_of_group <= decayed if group["weight_decay"] else not roles_of_group & decayed
        assert group["weight_decay"] in (0.0, pull)
    every = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(every) == sorted(map(id, network.parameters()))


def test_rmsprop_has_proxy_norms_constants_and_starts_as_tensorflows() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    made = recipe("pn_efficientnet", weight_decay=0.0)
    optimizer = made.build_optimizer(layer, 768)
    layer.weight.grad = torch.tensor([[0.5]])
    optimizer.step()
    mean_square = 0.953125 * 1 + (1 - 0.953125) * 0.5**2  # it begins at 1
    expected = 1 - 768 / 2**14 * 0.5 / (mean_square + 1e-3) ** 0.5
    assert layer.weight.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("batch", [16, 128, 1000])
def test_a_table_of_rates_refuses_other_batches(batch: int) -> None:
    with pytest.raises(
        ValueError, match=rf"for global batches of 1024, 8, 4, and none for {batch}"
    ):
        recipe("nf_resnet_15").peak_lr(batch)
    assert recipe("nf_resnet_15", rates={}).peak_lr(256) == 0.1


def test_a_command_with_another_batch_is_refused_before_any_training(command: Command) -> None:
    ended = command("recipe=nf_resnet_15", "batch=8", "logger=none")
    assert ended.code == 2
    assert "recipe=nf_resnet_15 has learning rates for global batches of 1024, 8, 4" in ended.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schedule": "exponential"}, "schedule=exponential: it needs a period"),
        ({"period": 0.1}, "period=0.1: schedule=.* has none; null works"),
        ({"rates": {128: -1}}, "recipe.rates={128: -1}: it must be greater than 0"),
        ({"ema_unit": "epoch"}, "ema_unit=epoch: it needs recipe.ema"),
        ({"crop": 0}, "crop=0: it must be greater than 0"),
    ],
)
def test_a_bad_recipe_is_one_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        recipe("demo", **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"alpha": 1.0}, "alpha=1.0: it must be less than 1"),
        ({"eps": 0.0}, "eps=0.0: it must be greater than 0"),
        ({"nesterov": True}, "nesterov=true: RMSProp has no Nesterov form"),
    ],
)
def test_a_bad_rmsprop_is_one_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        recipe("pn_efficientnet", **changes)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_evonorms_proxy_task_trains(precision: str, tmp_path: Path) -> None:
    words = dataset_files.words("cifar10", dataset_files.cifar10(tmp_path))
    _, curve = train_cell(
        cell(
            *words, "recipe=evonorm_proxy_s", "model=resnet50_cifar", "norm=evonorm_s0", "batch=4",
            "global_batch=8", "recipe.images=160", "logger=none",
            "trainer=cpu", f"precision={precision}",
        )
    )  # fmt: skip
    assert curve[-1]["step"] == 20
    assert math.isfinite(curve[-1]["train_loss"])


def test_an_average_over_epochs_begins_with_the_first_and_keeps_its_decay() -> None:
    network = nn.Linear(1, 1, bias=False)
    average = MovingAverage(network, 0.9, per_epoch=True)
    expected = None
    for number, value in enumerate((3.0, 1.0, -2.0)):
        nn.init.constant_(network.weight, value)
        average.update(network, number)
        expected = value if expected is None else 0.9 * expected + 0.1 * value
        assert float(next(average.network.parameters())) == pytest.approx(expected)


@pytest.mark.slow
def test_an_average_over_epochs_reaches_the_evaluation() -> None:
    words = ["norm=bn", "model.depth=8", "recipe.images=null", "recipe.epochs=2", *SHORT[1:]]
    results = [
        train_cell(cell(*words, *more))[0]
        for more in ([], ["recipe.ema=0.5", "recipe.ema_unit=epoch"], ["recipe.ema=0.5"])
    ]
    assert len({each["train_loss"] for each in results}) == 1
    assert len({each["test_loss"] for each in results}) == 3


# Levels of regularization


@pytest.mark.parametrize("name", names(CONF / "reg"))
@pytest.mark.parametrize(
    "network", slow_except(["resnet20_v2", "resnet50", "nf_regnet_b0", "timm"], ["resnet20_v2"])
)
def test_a_level_reaches_the_network(name: str, network: str) -> None:
    norm = "nf" if network == "nf_regnet_b0" else "bn"
    more = ["model.name=resnet18"] if network == "timm" else []
    one = cell(f"reg={name}", f"model={network}", f"norm={norm}", *more)
    with torch.device("meta"):
        built = Experiment(one).build_network()
    reg: Regularization = build("reg", options("reg", name, {}))
    dropouts = {layer.rate for layer in built.modules() if isinstance(layer, Dropout)}
    depths = [layer for layer in built.modules() if isinstance(layer, StochasticDepth)]
    assert max(dropouts, default=0.0) == (reg.dropout or 0.0)
    if reg.stochastic_depth:
        rates = [layer.rate for layer in depths]
        assert rates == sorted(rates)
        assert 0 < max(rates) <= reg.stochastic_depth
        steps = {round(b - a, 9) for a, b in pairwise(rates)}
        assert len(steps) == 1  # linear in depth
        assert {layer.rescale for layer in depths} == {reg.rescale}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), [("f0", 71_489_284), ("f1", 132_634_256)])
def test_nfnets_have_the_papers_parameters_and_drop_their_paths(name: str, parameters: int) -> None:
    words = ("model=timm", f"model.name=dm_nfnet_{name}", "norm=nf", "data=imagenet")
    network = Experiment(cell(*words, "recipe=nfnet_f0", "reg=nfnet_f0")).info.network
    assert sum(each.parameter.numel() for each in list_parameters(network)) == parameters
    rates = [each.rate for each in network.modules() if isinstance(each, StochasticDepth)]
    assert max(rates) == 0.25


def test_a_level_that_a_network_has_no_place_for_is_impossible() -> None:
    one = cell(*BROKEN, "reg=nf", "model=plain")
    with pytest.raises(Impossible, match="reg=nf sets dropout, and model=plain has no such"):
        Experiment(one).build_network()


# What no source gives


def test_values_that_no_source_gives_are_marked_in_the_cell() -> None:
    marked = cell("recipe=pn_resnet", "reg=extra", "norm=gn_pn")
    assert "recipe.drop=0.1" in marked.unverified
    assert "reg.dropout=0.25" in marked.unverified
    assert not any(word.startswith("recipe.epochs") for word in marked.unverified)
    typed = cell("recipe=pn_resnet", "recipe.drop=0.2", "norm=gn_pn")
    assert not any(word.startswith("recipe.drop") for word in typed.unverified)
    assert cell("norm=bn").unverified == []


@pytest.mark.parametrize("group", ["recipe", "reg"])
def test_a_mark_stands_at_an_option(group: str) -> None:
    for name in names(CONF / group):
        path = CONF / group / f"{name}.yaml"
        assert path.read_text().count("# unverified: ") == len(unverified(path))


def test_the_schedule_of_a_recipe_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "nf_resnet_15,demo", "images=50000", "global_batch=1024"]) == 0
    output = capsys.readouterr().out
    assert "warm-up is over" in output
    assert "unverified, no source gives them: warmup, weight_decay" in output
    assert main(["recipes", "nf_resnet_15", "global_batch=7"]) == 2
    assert "none for 7" in capsys.readouterr().err
    assert main(["recipes", "demo", "epochs=7"]) == 2
    assert "epochs=7 is unknown to recipes; known: global_batch, images" in capsys.readouterr().err
