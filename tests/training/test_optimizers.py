"""Optimizers of timm by name, and the clipping of gradients."""

import math
import re
from typing import Any

import pytest
import torch
from timm.optim import list_optimizers
from torch import Tensor, nn

from normbench.catalog import model, normalizer
from normbench.config.build import build, options
from normbench.errors import BadInput
from normbench.training.checkpoint import (
    collect_optimizer_state,
    require_same_optimizer,
    restore_optimizer_state,
)
from normbench.training.gradient_clipping import _all_but_classifier, clip_gradients
from normbench.training.recipe import Recipe
from normbench.training.schedule_preview import describe_optimizer
from support.cells import SHORT, cell, train_cell


def recipe(name: str = "adamw", **changes: Any) -> Recipe:
    return build("recipe", options("recipe", name, changes))  # type: ignore[no-any-return]


def network() -> nn.Module:
    torch.manual_seed(0)
    return model("resnet8", norm=normalizer("gn"), num_classes=10, width=4)


def set_gradients(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


# Optimizers


def test_adamw_is_that_of_torch_with_decay_by_roles() -> None:
    ours, theirs = network(), network()
    decaying = recipe(betas=[0.95], weight_decay=0.3)
    optimizer = decaying.build_optimizer(ours, 128)
    weights = [p for p in theirs.parameters() if p.dim() > 1]
    others = [p for p in theirs.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    expected = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.3)
    for _ in range(3):
        for module, each in ((ours, optimizer), (theirs, expected)):
            set_gradients(module)
            each.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("name", "lr"),
    [("adamw", 3e-3), ("lamb", 0.01), ("lion", 1e-3), ("muon", 0.01), ("nadamw", 3e-3),
     ("sgdw", 0.05), ("adopt", 3e-3)],
)  # fmt: skip
def test_an_optimizer_of_timm_trains(name: str, lr: float) -> None:
    words = (f"recipe.optimizer={name}", f"recipe.lr={lr}", "recipe.images=2560")
    result, _ = train_cell(cell(*SHORT, "recipe=adamw", *words, "norm=gn"))
    assert result["train_loss"] < math.log(10)


def test_momentum_is_the_first_beta() -> None:
    groups = recipe(momentum=0.8).build_optimizer(network(), 128).param_groups
    assert {group["betas"] for group in groups} == {(0.8, 0.999)}
    for nesterov in (True, False):
        made = recipe(optimizer="sgdw", momentum=0.8, nesterov=nesterov)
        groups = made.build_optimizer(network(), 128).param_groups
        assert {(group["momentum"], group["nesterov"]) for group in groups} == {(0.8, nesterov)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer": "adamv"}, "recipe.optimizer=adamv: .*adamw"),
        ({"optimizer": "adahessian"}, "adahessian: it needs second derivatives"),
        ({"nesterov": True}, "nesterov=true: timm's optimizers have it by their names"),
        ({"optimizer": "adafactor"}, "optimizer=adafactor: "),
        ({"optimizer": "adagrad"}, "optimizer=adagrad: it has no momentum"),
        ({"momentum": 1.5}, "momentum=1.5: it must be below 1"),
        (
            {"betas": [0.9, 0.99]},
            r"betas=\[0.9, 0.99\]: the first one of adamw is recipe.momentum",
        ),
        (
            {"optimizer": "sgdw", "betas": [0.9]},
            "sgdw has none besides recipe.momentum",
        ),
        ({"gain_target": 1.0, "decayed": ["gain"]}, "gain_target=1.0: timm's optimizers may"),
        ({"norm_clip": 0.0}, "recipe.norm_clip=0.0: it must be greater than 0"),
    ],
)
def test_a_bad_optimizer_is_one_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        recipe(**changes)


def test_the_preview_names_optimizer_and_decay() -> None:
    says = describe_optimizer(recipe(betas=[0.99]))
    assert says.startswith("adamw of timm, further betas 0.99, momentum 0.9; weight decay 0.05 on")


# Clipping


def clipped(module: nn.Module, **limits: float) -> list[Tensor]:
    """The gradients with which an optimizer steps."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    clip_gradients(module, optimizer, **limits)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    set_gradients(module)
    optimizer.step()
    return [b - p.detach() for b, p in zip(before, module.parameters(), strict=True)]


def plain() -> list[Tensor]:
    module = network()
    set_gradients(module)
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_values_are_clipped() -> None:
    close(clipped(network(), value=0.5), [each.clamp(-0.5, 0.5) for each in plain()])


def test_all_gradients_are_clipped_together() -> None:
    norm = torch.cat([each.flatten() for each in plain()]).norm()
    assert norm > 2
    close(clipped(network(), norm=2.0), [each * 2 / norm for each in plain()])
    close(clipped(network(), norm=1e6), plain())


def test_filters_and_rows_are_clipped_by_their_own_norms_except_in_the_classifier() -> None:
    module = network()
    expected = []
    for (name, parameter), gradient in zip(module.named_parameters(), plain(), strict=True):
        if name.startswith("head."):
            expected.append(gradient)
            continue
        axes = tuple(range(1, parameter.dim())) or None
        size = (parameter.detach() ** 2).sum(axes, keepdim=True).sqrt()
        norm = (gradient**2).sum(axes, keepdim=True).sqrt()
        limit = 0.01 * size.clamp_min(1e-3)
        expected.append(torch.where(norm > limit, gradient * limit / norm, gradient))
    close(clipped(module, adaptive=0.01), expected)


def test_all_heads_of_a_network_are_its_classifier() -> None:
    with torch.device("meta"):
        module = model("timm/deit_tiny_distilled_patch16_224", norm="ln2d", num_classes=10)
    left_out = {id(p) for p in module.parameters()} - {id(p) for p in _all_but_classifier(module)}
    names = {name for name, parameter in module.named_parameters() if id(parameter) in left_out}
    assert names == {"head.weight", "head.bias", "head_dist.weight", "head_dist.bias"}


def test_a_recipe_clips_before_it_decays() -> None:
    module = network()
    clipping = recipe(
        "demo", norm_clip=1.0, weight_decay=0.1, gain_target=1.0, decayed=["weight", "gain"],
        momentum=0, nesterov=False,
    )  # fmt: skip
    optimizer = clipping.build_optimizer(module, 128)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    set_gradients(module)
    norm = torch.cat([each.flatten() for each in plain()]).norm()
    optimizer.step()
    lr = clipping.peak_lr(128)
    for (name, parameter), gradient in zip(module.named_parameters(), plain(), strict=True):
        decay = 0.1 * before[name] if parameter.dim() > 1 else torch.zeros(())
        if name.endswith("weight") and parameter.dim() == 1:  # gains, towards 1
            decay = 0.1 * (before[name] - 1)
        step = (before[name] - parameter.detach()) / lr
        torch.testing.assert_close(step, gradient / norm + decay, rtol=1e-3, atol=1e-4)


# What is kept


@pytest.mark.parametrize("name", ["adamw", "lamb", "lion", "muon", "adan"])
def test_a_resumed_optimizer_goes_on_as_if_nothing_had_happened(name: str) -> None:
    ours, theirs = network(), network()
    through, before = (recipe(optimizer=name).build_optimizer(each, 128) for each in (ours, theirs))
    for step in range(5):
        if step == 3:  # as from a checkpoint
            state = collect_optimizer_state(before, theirs)
            before = recipe(optimizer=name).build_optimizer(theirs, 128)
            restore_optimizer_state(before, theirs, state)
        for module, optimizer in ((ours, through), (theirs, before)):
            set_gradients(module)
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_state_of_another_optimizer_is_refused() -> None:
    """Adam would take momentum for its own and then miss the rest."""
    ours = network()
    optimizer = recipe(optimizer="lion").build_optimizer(ours, 128)
    state = {"optimizer": {"weight": {}}, "optimizer_class": "SGD"}
    with pytest.raises(BadInput, match=r"trained by SGD, whose state Lion cannot use; take the"):
        require_same_optimizer(state, optimizer)
    require_same_optimizer({**state, "optimizer": {}}, optimizer)
    require_same_optimizer({"optimizer": {"weight": {}}}, optimizer)  # of an older version


#: What an optimizer of timm may lack here. The last one is a warning, and so an error in tests.
REASONS = (
    "it has no momentum|it needs second derivatives|AssertionError: CUDA required for |"
    "UserWarning: It is highly recommended to have 'opt_einsum'"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [str(name) for name in list_optimizers()])
def test_every_optimizer_of_timm_takes_a_step_or_is_refused_for_a_reason(name: str) -> None:
    try:
        found = recipe(optimizer=name)
    except BadInput as error:
        assert re.match(f"recipe.optimizer={name}: ({REASONS})", str(error))
        return
    module = network()
    optimizer = found.build_optimizer(module, 128)
    set_gradients(module)
    before = [parameter.clone() for parameter in module.parameters()]
    for _ in range(2):  # some begin with a step of 0
        optimizer.step()
    after = [*module.parameters()]
    assert not all(map(torch.equal, before, after))
    assert all(each.isfinite().all() for each in after)
