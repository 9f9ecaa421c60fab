"""Recipes, decay, networks, and the training step as a whole."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from normbench.catalog import model, normalizer, normalizers
from normbench.config.build import build, options
from normbench.config.plan import Plan, plans
from normbench.data.digits import Digits
from normbench.errors import BadInput
from normbench.execution import requirements
from normbench.results import CHECKPOINT
from normbench.training import checkpoint, cuda_graph
from normbench.training.batches import Chunk, augment_chunk
from normbench.training.checkpoint import Checkpoints
from normbench.training.datamodule import DataModule
from normbench.training.experiment import Experiment
from normbench.training.metrics import PassOutput, StepMetrics
from normbench.training.parameter_groups import build_groups, list_parameters
from normbench.training.recipe import Recipe
from normbench.training.sampler import Chunking, WorkerSampler
from normbench.training.schedule_preview import simulate_lr
from normbench.training.trainer import prepare, train
from normbench.training.training import Training
from support.cells import SHORT, Curve, Interrupted, arguments_for, cell, network_for, train_cell
from support.layers import norm_layers
from support.slow import slow_after, slow_except


def recipe(**changes: Any) -> Recipe:
    return build("recipe", options("recipe", "demo", changes))  # type: ignore[no-any-return]


#: A training of five steps, for comparisons that need no more.
FIVE_STEPS = (*SHORT, "model.depth=8", "recipe.images=640")


# Recipes


@pytest.mark.parametrize(
    ("changes", "batch", "steps"),
    [
        ({"images": 25600}, 128, 200),
        ({"images": 25600}, 32, 800),
        ({"images": None, "epochs": 3}, 128, 30),
        ({"images": None, "epochs": 0.5}, 128, 5),
        ({"images": 1}, 128, 1),
        ({"images": None, "epochs": 0.01}, 128, 1),
    ],
)
def test_the_length_of_a_training(changes: dict[str, Any], batch: int, steps: int) -> None:
    assert recipe(**changes).count_steps(1293, batch) == steps


@pytest.mark.parametrize("schedule", ["cosine", "multistep", "onecycle"])
@pytest.mark.parametrize("steps", [1, 2, 3, 200])
@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_a_schedule_peaks_at_the_linear_rule_and_never_above(
    schedule: str, steps: int, warmup: float
) -> None:
    drops = {"milestones": [0.9]} if schedule == "multistep" else {}
    scheduled = recipe(schedule=schedule, warmup=warmup, lr=0.1, lr_batch=128, **drops)
    rates = simulate_lr(scheduled, scheduled.build_optimizer(nn.Linear(2, 2), 256), steps)
    assert max(rates.values()) <= scheduled.peak_lr(256) * (1 + 1e-9)
    assert scheduled.peak_lr(256) == pytest.approx(0.2)
    if steps == 200:
        assert max(rates.values()) == pytest.approx(0.2, rel=0.02)
        assert (rates[0] < 0.1 * 0.2) == (warmup > 0 or schedule == "onecycle")
        assert (rates[steps - 1] < 0.001) == (schedule != "multistep")


def test_multistep_drops_at_fractions_of_the_training() -> None:
    multistep = recipe(schedule="multistep", milestones=[0.5, 0.75], drop=0.1, warmup=0.0)
    factors = [multistep.lr_factor(step, 100) for step in range(100)]
    assert factors == pytest.approx([1.0] * 50 + [0.1] * 25 + [0.01] * 25)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epochs": 3}, r"as in recipe\.epochs=10 recipe\.images=null"),
        ({"images": None}, "set one of them"),
        ({"lr": float("nan")}, "recipe.lr=nan: it must be a finite number"),
        ({"lr": 0}, "recipe.lr=0: it must be greater than 0"),
        ({"lr": "fast"}, "recipe.lr=fast: it must be a number"),
        ({"warmup": 1.5}, "recipe.warmup=1.5: it must be less than 1"),
        ({"schedule": "cosin"}, "recipe.schedule=cosin: it must be 'cosine'"),
        ({"decayed": ["wieght"]}, "did you mean weight"),
        ({"momentum": 0.0}, "nesterov=false"),
        ({"wd": 1}, "recipe.wd is no option of demo"),
        ({"recalibration": 0}, "recipe.recalibration=0: it must be greater than 0"),
        (
            {"gain_target": 1.0, "decayed": ["weight"]},
            "gain_target=1.0: recipe.decayed has no gain",
        ),
    ],
)
def test_a_bad_recipe_is_one_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        recipe(**changes)


# Weight decay


LAYERS = ["gain", "shift", "scalar", "proxy", "ratio", "residual"]


@pytest.mark.parametrize("norm", normalizers())
@pytest.mark.parametrize("decayed", [["weight"], ["weight", "bias", *LAYERS]], ids=str)
def test_every_parameter_is_in_one_group(norm: str, decayed: list[str]) -> None:
    with torch.device("meta"):
        network = model(norm=normalizer(norm), num_classes=10, **network_for(norm))
    groups = build_groups(network, 0.5, 1e-4, decayed)
    everything = [id(p) for group in groups for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in network.parameters())
    of_norms = [parameter for layer in norm_layers(network) for parameter in layer.parameters()]
    pulled = {id(p) for group in groups if group["weight_decay"] == 1e-4 for p in group["params"]}
    free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert {id(p) for p in of_norms} <= (pulled if "gain" in decayed else free)


def test_fixups_scalars_and_the_classifiers_bias_learn_at_a_tenth_of_the_rate() -> None:
    """As the authors' code chooses them: parameters with "bias" or "scale" in their name."""
    network = model("resnet20", norm=normalizer("fixup"), num_classes=10)
    found = {
        id(parameter): group["lr"]
        for group in build_groups(network, 0.5, 1e-4, ["weight"])
        for parameter in group["params"]
    }
    for name, parameter in network.named_parameters():
        slow = name.rpartition(".")[2] in ("bias", "scale")
        assert found[id(parameter)] == pytest.approx(0.05 if slow else 0.5), name
        assert slow == (parameter.dim() == 0 or name == "head.bias")
    others = model("resnet20", norm=normalizer("fixup", rate=1), num_classes=10)
    assert {group["lr"] for group in build_groups(others, 0.5, 1e-4, ["weight"])} == {0.5}


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto", "resnet18"])
def test_rates_by_block_are_those_of_timm(name: str) -> None:
    network = timm.create_model(name, num_classes=10)
    names = {id(p): each for each, p in network.named_parameters()}
    expected = {
        names[id(p)]: 0.5 * group["lr_scale"]
        for group in param_groups_layer_decay(network, layer_decay=0.7)
        for p in group["params"]
    }
    ours = model(f"timm/{name}", norm="gn", num_classes=10)
    found = {each.replace(".layer.", "."): rate for each, rate in rates_by_name(ours, 0.7).items()}
    assert found == pytest.approx(expected)


BLOCKS = {
    "resnet20": 9,
    "resnet20_v2": 9,
    "resnet50": 16,
    "nf_regnet_b0": 16,
    "mobilenetv2_cifar": 17,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_rates_grow_from_the_stem_to_the_classifier(name: str) -> None:
    with torch.device("meta"):
        network = model(name, norm="gn", num_classes=10)
    found = rates_by_name(network, 0.5)
    stem, *_, head = found
    assert found[head] == 0.5
    assert found[stem] == min(found.values())
    last = [rate for each, rate in found.items() if each.startswith(("last", "conv_head", "conv."))]
    assert last == [0.25] * len(last)
    assert bool(last) == (name not in ("resnet20", "resnet50"))  # post-activation
    assert len({*found.values()}) == 2 + BLOCKS[name]
    in_order = [rate for each, rate in found.items() if each.startswith("blocks")]
    assert in_order == sorted(in_order)


def rates_by_name(network: nn.Module, layer_decay: float) -> dict[str, float]:
    """The learning rate of each parameter, the largest being 0.5."""
    names = {id(p): each for each, p in network.named_parameters()}
    rates = {
        names[id(p)]: group["lr"]
        for group in build_groups(network, 0.5, 1e-4, ["weight"], layer_decay)
        for p in group["params"]
    }
    return {each: rates[each] for each in names.values()}


@pytest.mark.parametrize("schedule", ["cosine", "onecycle"])
def test_every_group_follows_the_schedule_at_its_own_rate(schedule: str) -> None:
    scheduled = recipe(schedule=schedule)
    optimizer = scheduled.build_optimizer(
        model("resnet20", norm=normalizer("fixup"), num_classes=10), 128
    )
    scheduler = scheduled.build_scheduler(optimizer, 20)
    for _ in range(20):
        rates = {round(group["lr"], 12) for group in optimizer.param_groups}
        high = optimizer.param_groups[0]["lr"]
        assert rates == {round(high, 12), round(high / 10, 12)}
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("target", "ends"), [(None, 0.0), (0.0, 0.0), (1.0, 1.0), (0.5, 0.5)])
@pytest.mark.parametrize("norm", slow_except(["bn", "sn", "gn_pn", "evonorm_b0", "dyt"], ["sn"]))
def test_decay_pulls_gains_to_their_target_and_all_else_to_zero(
    norm: str, target: float | None, ends: float
) -> None:
    decayed = ["weight", "bias", *LAYERS]
    decaying = recipe(
        weight_decay=1.0, gain_target=target, decayed=decayed, momentum=0, nesterov=False
    )
    network = model(norm=normalizer(norm), num_classes=10, **network_for(norm))
    optimizer = decaying.build_optimizer(network, 128)
    for _ in range(100):  # decay alone: every gradient is 0
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    for each in list_parameters(network):
        wanted = torch.full_like(each.parameter, ends if each.role == "gain" else 0.0)
        torch.testing.assert_close(each.parameter.detach(), wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("gradient", "norm"), [(1.0, 0.5), (1e-6, None)])
def test_gradients_of_ratios_are_clipped_together(gradient: float, norm: float | None) -> None:
    clipping = recipe(
        ratio_clip=0.5, weight_decay=0.1, decayed=["ratio"], momentum=0, nesterov=False
    )
    network = model(norm=normalizer("sn"), num_classes=10, **network_for("sn")).double()
    optimizer = clipping.build_optimizer(network, 128)
    listed = list(list_parameters(network))
    before = [each.parameter.detach().clone() for each in listed]
    for each in listed:
        each.parameter.grad = torch.full_like(each.parameter, gradient)
    optimizer.step()
    steps = [b - e.parameter.detach() for e, b in zip(listed, before, strict=True)]
    lr = clipping.peak_lr(128)
    ratios = [
        (step - lr * 0.1 * start).flatten()  # the decay is not clipped
        for each, step, start in zip(listed, steps, before, strict=True)
        if each.role == "ratio"
    ]
    whole = gradient * len(torch.cat(ratios)) ** 0.5
    assert float(torch.cat(ratios).norm()) == pytest.approx(lr * (norm or whole), rel=1e-4)
    others = [s.flatten() for e, s in zip(listed, steps, strict=True) if e.role != "ratio"]
    torch.testing.assert_close(torch.cat(others), torch.full_like(torch.cat(others), lr * gradient))


@pytest.mark.parametrize(("norm", "role"), [("sn", "ratio"), ("gn_pn", "proxy"), ("bn", "gain")])
def test_the_demo_recipe_decays_ratios_proxies_and_gains(norm: str, role: str) -> None:
    network = model(norm=normalizer(norm), num_classes=10, **network_for(norm))
    groups = recipe().build_optimizer(network, 128).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    members = [each for each in list_parameters(network) if each.role == role]
    assert members
    assert {decay[id(each.parameter)] for each in members} == {5e-4}


def test_a_parameter_without_a_role_is_an_error() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(TypeError, match=r"Odd\.scale has no role"):
        list(list_parameters(Odd()))


# The whole


@pytest.mark.parametrize("norm", slow_except(normalizers(), ["batch_renorm"]))
def test_the_size_of_chunks_changes_no_number(norm: str) -> None:
    # 12 steps, of which 10 are an epoch.
    base = cell(*arguments_for(norm), "batch=8", *FIVE_STEPS, "recipe.images=1536")
    whole = train_cell(base)
    for chunk in (1, 3):
        cut = replace(base, trainer=replace(base.trainer, chunk=chunk))
        assert cut.id == base.id
        assert train_cell(cut) == whole


@pytest.mark.parametrize(
    "norm",
    slow_except(
        [n for n in normalizers() if normalizer(n).batch_independent], ["gn_pn", "evonorm_s0"]
    ),
)
def test_under_a_fixed_global_batch_they_are_one_computation(norm: str) -> None:
    arguments = arguments_for(norm)
    results = [train_cell(cell(*arguments, f"batch={batch}", *FIVE_STEPS))[0] for batch in (4, 128)]
    for fields in results:
        assert fields.pop("plan")
    assert results[0] == results[1]


def test_bn_is_another_computation_at_every_batch() -> None:
    cells = [cell("norm=bn", f"batch={batch}", *FIVE_STEPS) for batch in (4, 128)]
    losses = [train_cell(each)[0]["train_loss"] for each in cells]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_fixes_every_number_and_another_changes_them(seed: int) -> None:
    first, again = (train_cell(cell("norm=bn", f"seed={seed}", *FIVE_STEPS)) for _ in range(2))
    assert first == again
    assert first != train_cell(cell("norm=bn", "seed=2", *FIVE_STEPS))


def test_the_curve_has_a_record_an_epoch_and_every_n_steps() -> None:
    base = cell("norm=gn", *SHORT)  # 20 steps, 10 an epoch
    _, curve = train_cell(replace(base, trainer=replace(base.trainer, log_every=4)))
    assert [int(record["step"]) for record in curve] == [4, 8, 10, 12, 16, 20]
    assert [record["epoch"] for record in curve] == [0.4, 0.8, 1.0, 1.2, 1.6, 2.0]
    assert ["val_top1" in record for record in curve] == [False, False, True, False, False, True]


def test_without_a_hold_out_there_is_no_validation() -> None:
    fields, curve = train_cell(cell("norm=gn", "data.val=0", *SHORT))
    assert "val_top1" not in fields
    assert not any("val_top1" in record for record in curve)
    assert fields["test_top1"] > 0


@pytest.mark.parametrize(
    ("per_epoch", "steps", "last"), [(10, 200, 10), (421, 200, 20), (11, 200, 11), (1, 1, 1)]
)
def test_the_final_loss_is_that_of_the_end(per_epoch: int, steps: int, last: int) -> None:
    """Of the last epoch, or of a tenth of all steps where an epoch is longer."""
    metrics = StepMetrics(steps, per_epoch, global_batch=4, score="top1")
    metrics.add([(9.0, 0.0)] * (steps - last) + [(1.0, 2.0)] * last)
    assert metrics.final_means() == (1.0, 50.0)


def test_the_curve_has_the_rate_of_its_own_step() -> None:
    base = cell("norm=gn", *SHORT, "recipe.schedule=multistep", "recipe.milestones=[0.5]")
    _, curve = train_cell(replace(base, trainer=replace(base.trainer, log_every=1)))
    rates = [record["lr"] for record in curve]
    assert rates[2:10] == pytest.approx([0.1] * 8)
    assert rates[10:] == pytest.approx([0.01] * 10)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_reaches_the_loss(smoothing: float) -> None:
    smoothed, _ = train_cell(cell("norm=gn", f"reg.label_smoothing={smoothing}", *FIVE_STEPS))
    plain, _ = train_cell(cell("norm=gn", *FIVE_STEPS))
    assert (smoothed["train_loss"] == plain["train_loss"]) == (smoothing == 0.0)


@pytest.mark.parametrize("norm", slow_except(["bn", "sn", "evonorm_b0", "gn"], ["bn", "gn"]))
def test_recalibration_changes_what_is_tested_and_nothing_that_was_trained(norm: str) -> None:
    plain, curve = train_cell(cell(f"norm={norm}", *FIVE_STEPS))
    precise, same = train_cell(cell(f"norm={norm}", "recipe.recalibration=12", *FIVE_STEPS))
    assert curve == same
    assert precise["train_loss"] == plain["train_loss"]
    changed = {key for key in plain if plain[key] != precise[key]}
    if normalizer(norm).batch_independent:
        assert not changed
    else:
        assert "test_loss" in changed
        assert changed <= {"test_loss", "test_top1", "test_top5", "val_top1"}


def test_images_to_recalibrate_on_are_those_that_would_come_next() -> None:
    data = Digits()
    splits = data.splits()
    sampler = WorkerSampler(len(splits.train.labels), 128, plans(16)[0], seed=0)
    ended = DataModule(data, splits, sampler, Chunking(20, 5, 50))
    longer = DataModule(data, splits, sampler, Chunking(40, 5, 50))
    batches = list(ended.batches_after_training(sampler.steps_per_epoch + 2))
    assert len(batches) == sampler.steps_per_epoch + 2
    chunks = (chunk for epoch in (2, 3) for chunk in longer.read_chunks(epoch))
    coming = [images for chunk in chunks for images in augment_chunk(data, chunk).images]
    assert torch.equal(torch.stack(batches), torch.cat(coming)[: len(batches)])


def test_batch_renorm_is_told_how_far_the_training_is() -> None:
    """Until its start it is bn, here over 10 of 20 steps; then it is not."""

    def losses(*arguments: str) -> list[float]:
        base = cell(*arguments, *SHORT)
        _, curve = train_cell(replace(base, trainer=replace(base.trainer, log_every=1)))
        return [record["train_loss"] for record in curve]

    bn, renorm = (
        losses("norm=bn"),
        losses("norm=batch_renorm", "norm.start=0.5", "norm.r_open=0.6", "norm.d_open=0.6"),
    )
    assert renorm[:5] == pytest.approx(bn[:5], rel=1e-4)  # rounding grows from step to step
    assert renorm[:10] == pytest.approx(bn[:10], rel=5e-2)
    assert max(abs(a - b) for a, b in zip(renorm[11:], bn[11:], strict=True)) > 0.1


def test_a_loss_that_is_not_finite_ends_the_training_at_once() -> None:
    fields, curve = train_cell(cell("norm=bn", "recipe.lr=1e30", *SHORT))
    assert fields["status"] == "diverged"
    assert "of 20 was" in fields["reason"]
    assert "test_top1" not in fields
    assert all(math.isfinite(record["train_loss"]) for record in curve)


def test_a_training_that_learned_nothing_has_diverged() -> None:
    fields, _ = train_cell(cell("norm=bn", "recipe.lr=1e-9", *SHORT))
    assert fields["status"] == "diverged"
    assert "not 1 % below ln(10)" in fields["reason"]
    assert 0 <= fields["test_top1"] <= 100


def test_an_evaluation_counts_every_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "normbench.training.datamodule.EVALUATION_BATCH", 7
    )  # 360 is no multiple of 7
    small, _ = train_cell(cell("norm=gn", *FIVE_STEPS))
    monkeypatch.setattr("normbench.training.datamodule.EVALUATION_BATCH", 500)
    whole, _ = train_cell(cell("norm=gn", *FIVE_STEPS))
    assert small["test_top1"] == pytest.approx(whole["test_top1"], abs=1e-6)
    assert (small["test_top1"] * 3.6) == pytest.approx(round(small["test_top1"] * 3.6), abs=1e-3)
    assert small["test_loss"] == pytest.approx(whole["test_loss"], rel=1e-5)


@pytest.mark.parametrize("precision", slow_after(1, ["64-true", "bf16-mixed"]))
def test_other_precisions_round_differently_and_train_alike(precision: str) -> None:
    words = ("norm=bn", "recipe.lr=0.02", *SHORT)
    plain, _ = train_cell(cell(*words))
    other, _ = train_cell(cell(*words, f"precision={precision}"))
    assert other["status"] == "ok"
    assert other["train_loss"] != plain["train_loss"]
    assert other["train_loss"] == pytest.approx(plain["train_loss"], rel=0.1)


@pytest.mark.parametrize("norm", slow_except(["bn", "gn", "evonorm_s0", "sn", "gn_pn"], ["bn"]))
def test_channels_last_changes_rounding_alone(norm: str) -> None:
    words = [
        "precision=64-true",
        "batch=32",
        "model.stem_stride=1",
        *FIVE_STEPS,
    ]
    plain, other = (
        train_cell(cell(f"norm={norm}", *words, f"trainer.channels_last={last}"))[0]
        for last in ("false", "true")
    )
    assert (plain["channels_last"], other["channels_last"]) == (False, True)
    assert other["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-9)
    assert other["test_loss"] == pytest.approx(plain["test_loss"], rel=1e-9)


@pytest.mark.slow
def test_a_compiled_network_trains_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With drops, running statistics and validation, and is compiled once for all epochs."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("torch's compiler writes vectors, which the instruction set DEFAULT lacks")
    words = ["norm=bn", "precision=64-true", "batch=32", "model=resnet8", "model.stem_stride=1"]
    words += ["reg.dropout=0.2", "reg.stochastic_depth=0.2", "recipe.images=3200", *SHORT[1:]]
    plain, _ = train_cell(cell(*words))
    monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    compiled, _ = train_cell(cell(*words, "trainer.impl=compile"))
    assert (plain["impl"], compiled["impl"]) == ("eager", "compile")
    assert compiled["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-6)
    assert compiled["test_loss"] == pytest.approx(plain["test_loss"], rel=1e-6)


@pytest.mark.parametrize("norm", slow_after(1, ["bn", "gn", "sn"]))
def test_steps_in_memory_of_their_own_train_bit_for_bit(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a graph would be replayed, which takes a GPU, the passes run again and write into the
    memory of the first time. Like a graph they give a parameter that has lost its gradient none:
    the training ends two epochs, and Lightning releases gradients before a validation."""

    def capture(
        run: partial[list[PassOutput]],
    ) -> tuple[cuda_graph.Replay, list[PassOutput]]:
        outputs = run()
        parameters = list(run.func.__self__.model.parameters())  # type: ignore[attr-defined]
        recorded = [parameter.grad for parameter in parameters]

        def replay() -> None:
            before = [parameter.grad for parameter in parameters]
            for own, new in zip(outputs, run(), strict=True):
                for kept, value in zip(own, new, strict=True):
                    kept.copy_(value)
            for parameter, gradient, own in zip(parameters, recorded, before, strict=True):
                gradient.copy_(parameter.grad)
                parameter.grad = own

        return replay, outputs

    monkeypatch.setattr(cuda_graph, "capture", capture)
    words = (f"norm={norm}", "batch=8", "trainer.per_forward=4", "reg.mixup=0.2", *SHORT)
    (plain, curve), (replayed, same) = (
        train_cell(cell(*words, f"trainer.cuda_graph={on}")) for on in ("false", "true")
    )
    assert (plain.pop("cuda_graphs"), replayed.pop("cuda_graphs")) == (False, True)
    assert plain == replayed
    assert curve == same


def test_a_step_that_cannot_be_recorded_says_what_would_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def capture(run: Callable[[], list[PassOutput]]) -> tuple[cuda_graph.Replay, list[PassOutput]]:
        run()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph, "capture", capture)
    says = "captured: operation not permitted .*; trainer.cuda_graph=false works"
    with pytest.raises(RuntimeError, match=says):
        train_cell(cell("norm=bn", "batch=8", "trainer.cuda_graph=true", *SHORT))


def test_a_lack_of_memory_is_one_however_recording_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(run: Callable[[], list[PassOutput]]) -> tuple[cuda_graph.Replay, list[PassOutput]]:
        try:
            raise torch.OutOfMemoryError("no room")
        finally:
            raise RuntimeError("capture was invalidated")

    monkeypatch.setattr(cuda_graph, "capture", capture)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        train_cell(cell("norm=bn", "batch=8", "trainer.cuda_graph=true", *SHORT))


@pytest.mark.parametrize(
    ("words", "changes", "reason"),
    [
        (["trainer.devices=2"], False, "a graph belongs to one process"),
        (["precision=16-mixed"], False, "precision=16-mixed changes the loss scale"),
        (["norm=batch_renorm"], True, "has other bounds"),
    ],
)  # fmt: skip
def test_what_changes_from_step_to_step_is_no_graph(
    words: list[str], changes: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = cell("batch=8", *words, "trainer=gpu", "trainer.cuda_graph=true")
    monkeypatch.setattr(requirements, "uses_gpu", lambda cell: cell.trainer.accelerator == "gpu")
    with pytest.raises(
        BadInput, match=f"trainer.cuda_graph=true: .*{reason}.*cuda_graph=false works"
    ):
        requirements.require_cuda_graph(on_gpu, changes_every_step=changes)
    with pytest.raises(BadInput, match="it needs a CUDA device"):
        requirements.require_cuda_graph(
            cell("trainer=cpu", "trainer.cuda_graph=true"), changes_every_step=False
        )


def test_what_is_compiled_by_itself_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(cell("trainer=cpu"))
    assert experiment.choose_impl(200) == "eager"
    assert experiment.choose_impl(8_000_000) == "compile"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert experiment.choose_impl(8_000_000) == "eager"
    with pytest.raises(BadInput, match=r"trainer.impl=compile: .* no-such-compiler .* is not inst"):
        requirements.require_compiler(cell("trainer=cpu", "trainer.impl=compile"))


def first_gradients(norm: str, plan: Plan) -> list[torch.Tensor]:
    """The gradients of the first step, from a task of its own."""
    words = ("model.depth=8", "batch=4", "workers=4", "protocol=fixed_workers", *SHORT)
    base = cell(*arguments_for(norm), *words, "precision=64-true")
    module = prepare(Training(Experiment(base, plan)))
    data = module.datamodule
    chunk: Chunk = augment_chunk(data.data, next(data.read_chunks(0)))
    for images, labels in zip(chunk.images[0], chunk.labels[0], strict=True):
        loss = nn.functional.cross_entropy(module.model(images.double()), labels)
        (loss / len(chunk.images[0])).backward()
    return [p.grad for p in module.model.parameters() if p.grad is not None]


# Left out: sync_bn shares statistics among passes, ghost_bn needs more images in a pass, and
# batch_renorm reads running statistics, which each pass moves.
PORTIONS = [n for n in normalizers() if n not in ("sync_bn", "batch_renorm", "ghost_bn")]


@pytest.mark.parametrize("norm", slow_except(PORTIONS, ["bn", "evonorm_s0", "gn_pn", "sn"]))
def test_accumulated_passes_give_the_gradient_of_one_pass(norm: str) -> None:
    once, thrice = (first_gradients(norm, plan) for plan in (Plan(1, 4, 1), Plan(1, 1, 4)))
    for a, b in zip(once, thrice, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_checkpoints_of_older_versions_are_read(tmp_path: Path) -> None:
    same = {"model": {}, "done": 7, "steps_per_epoch": 4, "last": [], "resumed": 1}
    older = {**same, "fresh": [(2.3, 4.0)], "began": 3}
    torch.save(older, tmp_path / CHECKPOINT)
    state = checkpoint.load_state(tmp_path / CHECKPOINT)
    assert state == {**same, "pending": [(2.3, 4.0)], "first_step": 3}
    begun = checkpoint.begin_run(state)
    assert (begun["pending"], begun["first_step"]) == ([], 7)
    assert (checkpoint.is_new_run(begun), checkpoint.is_new_run(state)) == (True, False)


def test_the_seconds_of_a_resumed_run_are_those_of_both_parts(tmp_path: Path) -> None:
    base = cell("norm=gn", *FIVE_STEPS, "trainer.chunk=1")
    with pytest.raises(Interrupted):
        listener = Curve(last_step=3)
        train(Training(Experiment(base), listener, Checkpoints(tmp_path, every=0)))
    state = checkpoint.load_state(tmp_path / CHECKPOINT) | {"training_seconds": 1e4}
    assert 1e4 < train(Training(Experiment(base), state=state))["seconds"] < 2e4
