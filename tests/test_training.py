"""Recipes, decay, networks, and the training step as a whole."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import SHORT, at_home, cell, in_its_network
from torch import nn

from normbench.catalog import build, model, models, normalizer, normalizers, options
from normbench.cells import Cell
from normbench.data.digits import Digits
from normbench.decay import groups, roles
from normbench.errors import BadInput, Impossible
from normbench.loaders import Chunk, Loaders, Order, Schedule, augmented
from normbench.models.cost import count
from normbench.norms.convolution import ScaledStandardizedConv2d, StandardizedConv2d
from normbench.norms.layer import Affine, NormAct
from normbench.plan import Plan, automatic
from normbench.recipe import Recipe
from normbench.reg import Regularization
from normbench.task import Record, Task
from normbench.training import train


def recipe(**changes: Any) -> Recipe:
    return build("recipe", options("recipe", "demo", changes))  # type: ignore[no-any-return]


def trained(cell: Cell) -> tuple[dict[str, Any], list[Record]]:
    """The findings of a training and its curve, without what a clock or a memory says."""
    curve: list[Record] = []
    found = train(cell, curve.append, lambda done, steps, loss: None)
    measured = ("seconds", "images_per_second", "peak_memory", "memory", "devices")
    return {key: value for key, value in found.items() if key not in measured}, curve


# Recipes


@pytest.mark.parametrize(
    ("changes", "batch", "steps"),
    [
        ({"images": 25600}, 128, 200),
        ({"images": 25600}, 32, 800),
        ({"images": None, "epochs": 3}, 128, 30),
        ({"images": None, "epochs": 0.5}, 128, 5),
        ({"images": 1}, 128, 1),
    ],
)
def test_the_length_of_a_training(changes: dict[str, Any], batch: int, steps: int) -> None:
    assert recipe(**changes).steps(1293, batch) == steps


@pytest.mark.parametrize("schedule", ["cosine", "multistep", "onecycle"])
@pytest.mark.parametrize("steps", [1, 2, 3, 200])
@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_a_schedule_peaks_at_the_linear_rule_and_never_above(
    schedule: str, steps: int, warmup: float
) -> None:
    made = recipe(schedule=schedule, warmup=warmup, lr=0.1, lr_batch=128)
    optimizer = made.optimizer(nn.Linear(2, 2), global_batch=256)
    scheduler = made.scheduler(optimizer, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert max(rates) <= made.peak(256) * (1 + 1e-9)
    assert made.peak(256) == pytest.approx(0.2)
    if steps == 200:
        assert max(rates) == pytest.approx(0.2, rel=0.02)
        assert rates[0] < 0.1 * 0.2 if warmup else True
        assert rates[-1] < 0.001 if schedule != "multistep" else True


def test_multistep_drops_at_fractions_of_the_training() -> None:
    made = recipe(schedule="multistep", milestones=[0.5, 0.75], drop=0.1, warmup=0.0)
    factors = [made.factor(step, 100) for step in range(100)]
    assert factors == pytest.approx([1.0] * 50 + [0.1] * 25 + [0.01] * 25)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epochs": 3}, r"as in recipe\.epochs=10 recipe\.images=null"),
        ({"images": None}, "one of them says how long"),
        ({"lr": float("nan")}, "recipe.lr=nan: it must be a finite number"),
        ({"lr": 0}, "lr=0.0: it must be above 0"),
        ({"lr": "fast"}, "recipe.lr=fast: input should be a valid number"),
        ({"warmup": 1.5}, "recipe.warmup=1.5: fractions of all steps"),
        ({"schedule": "cosin"}, "recipe.schedule=cosin: input should be 'cosine'"),
        ({"decayed": ["wieght"]}, "did you mean weight"),
        ({"momentum": 0.0}, "nesterov=false"),
        ({"wd": 1}, "recipe.wd is no option of demo"),
        ({"recalibration": 0}, "recipe.recalibration=0: it must be above 0"),
        ({"gain_target": 1.0, "decayed": ["weight"]}, "recipe.gain_target=1.0: recipe.decayed has"),
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
    network = model(norm=normalizer(norm), num_classes=10, **at_home(norm))
    pulled, free = groups(network, 1e-4, decayed)
    assert (pulled["weight_decay"], free["weight_decay"]) == (1e-4, 0.0)
    everything = [id(p) for p in pulled["params"] + free["params"]]
    assert sorted(everything) == sorted(id(p) for p in network.parameters())
    kept = [parameter for layer in norms(network) for parameter in layer.parameters()]
    inside = {id(p) for p in (pulled if "gain" in decayed else free)["params"]}
    assert {id(p) for p in kept} <= inside


@pytest.mark.parametrize(("target", "ends"), [(None, 0.0), (0.0, 0.0), (1.0, 1.0), (0.5, 0.5)])
@pytest.mark.parametrize("norm", ["bn", "sn", "gn_pn", "evonorm_b0", "dyt"])
def test_decay_pulls_gains_to_their_target_and_all_else_to_zero(
    norm: str, target: float | None, ends: float
) -> None:
    decayed = ["weight", "bias", *LAYERS]
    made = recipe(weight_decay=0.1, gain_target=target, decayed=decayed, momentum=0, nesterov=False)
    network = model(norm=normalizer(norm), num_classes=10, **at_home(norm))
    optimizer = made.optimizer(network, 128)
    for _ in range(1000):  # decay alone: every gradient is 0
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    for parameter, role in roles(network):
        wanted = torch.full_like(parameter, ends if role == "gain" else 0.0)
        torch.testing.assert_close(parameter.detach(), wanted, atol=1e-3, rtol=0)


def test_switchable_ratios_are_pulled_towards_equal_ones() -> None:
    assert {"ratio", "proxy"} <= set(recipe().decayed)


def test_a_parameter_without_a_role_is_an_error() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(TypeError, match=r"Odd\.scale has no role"):
        list(roles(Odd()))


# Networks


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("norm", normalizers())
def test_an_architecture_takes_any_normalizer(name: str, norm: str) -> None:
    kind = normalizer(norm).residual.kind
    offered = ("plain", "nf", "skipinit") if name.endswith("_v2") else ("plain", "fixup")
    if kind not in offered:
        with pytest.raises(Impossible, match=f"residual branches of kind {kind}"):
            model(name, norm=normalizer(norm), num_classes=7, in_chans=1)
        return
    network = model(name, norm=normalizer(norm), num_classes=7, in_chans=1)
    logits = network(torch.randn(8, 1, 16, 16))
    assert logits.shape == (8, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize(("name", "params"), [("resnet20", 269_722), ("resnet56", 853_018)])
def test_the_published_sizes_of_the_cifar_resnets(name: str, params: int) -> None:
    """He et al. 2016, table 6: 0.27 and 0.85 million; to the digit as in their usual ports."""
    with torch.device("meta"):
        network = model(name, norm=normalizer("bn"), num_classes=10)
    found, macs = count(network, (3, 32, 32))
    assert found == params
    assert macs == pytest.approx({"resnet20": 40.6e6, "resnet56": 125.5e6}[name], rel=0.01)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"depth": 15}, "6n \\+ 2 layers"),
        ({"width": 0}, "width=0"),
        ({"max_groups": 0}, "max_groups=0"),
        ({"shortcut": "none"}, "model.shortcut=none"),
        ({"dept": 20}, "did you mean depth"),
    ],
)
def test_a_bad_architecture_is_one_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        model("resnet14", norm=normalizer("bn"), num_classes=10, **changes)


@pytest.mark.parametrize("name", ["resnet14", "resnet14_v2"])
@pytest.mark.parametrize(("norm", "kind"), [("gn_ws", "ws"), ("nf", "scaled_ws"), ("gn", None)])
def test_every_convolution_is_standardized_that_a_normalizer_wants_so(
    name: str, norm: str, kind: str | None
) -> None:
    if (name, norm) == ("resnet14", "nf"):
        pytest.skip("nf wants pre-activation blocks")
    network = model(name, norm=normalizer(norm), num_classes=10)
    convs = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    if name == "resnet14_v2":  # one learned scale after a branch's last convolution, for ws alone
        scales = {type(network.get_submodule(f"blocks.{k}.scale")) for k in range(6)}
        assert scales == {Affine if kind == "ws" else nn.Identity}
    standardized = {
        "ws": StandardizedConv2d,
        "scaled_ws": ScaledStandardizedConv2d,
        None: nn.Conv2d,
    }
    assert {type(conv) for conv in convs} == {standardized[kind]}


def test_proxy_normalization_leaves_the_scale_out_before_the_final_mean_alone() -> None:
    network = model("resnet14_v2", norm=normalizer("gn_pn"), num_classes=10)
    scaled = [layer.scale for layer in norms(network)]
    assert scaled == [True] * 12 + [False]


def test_the_variance_of_an_nf_network_is_known_at_its_beginning() -> None:
    """Brock et al. 2021, section 3: with the gain of the branches set to 1, within 10 %."""
    torch.manual_seed(0)
    norm = normalizer("nf", skip_gain=False)
    network = model("resnet20_v2", norm=norm, num_classes=10, width=64)  # at the borders of a map
    seen: list[float] = []
    for block in network.get_submodule("blocks").children():
        block.register_forward_pre_hook(lambda _, x: seen.append(x[0].var().item()))
    network(torch.randn(4, 3, 96, 96))  # variance is lost, so small maps have less of it
    expected = [beta**2 for stage in norm.residual.deviations([3] * 3) for beta in stage]
    assert seen == pytest.approx(expected, rel=0.1)


def test_skipinit_has_biases_in_convolutions_but_the_stems_and_begins_as_its_shortcuts() -> None:
    network = model("resnet20_v2", norm=normalizer("skipinit"), num_classes=10)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            assert (module.bias is None) == (name == "stem")
            assert module.bias is None or not module.bias.any()
    assert not network(torch.randn(4, 3, 32, 32)).any()  # the classifier starts at 0
    x = torch.randn(4, 16, 8, 8)
    assert torch.equal(network.get_submodule("blocks.0")(x), x)


def test_nf_starts_as_the_authors_code() -> None:
    torch.manual_seed(0)
    network = model("resnet20_v2", norm=normalizer("nf"), num_classes=100, width=64)
    conv = network.get_submodule("blocks.1.conv1").get_parameter("weight")
    assert conv.std().item() == pytest.approx((64 * 9) ** -0.5, rel=0.02)
    head = network.get_submodule("head").get_parameter("weight")
    assert head.std().item() == pytest.approx(0.01, rel=0.02)


def test_what_stands_before_a_fixup_branch_stands_before_a_shortcut_that_pads_too() -> None:
    network = model("resnet20", norm=normalizer("fixup"), num_classes=10)
    block = network.get_submodule("blocks.3")  # 16 channels to 32
    block.get_submodule("before1").get_parameter("bias").data.fill_(0.5)
    out = block(torch.zeros(1, 16, 4, 4))
    assert torch.equal(out[:, :16], torch.full((1, 16, 2, 2), 0.5))
    assert not out[:, 16:].any()


@pytest.mark.parametrize("shortcut", ["identity", "projection"])
def test_a_fixup_network_begins_as_its_shortcuts(shortcut: str) -> None:
    network = model("resnet20", norm=normalizer("fixup"), num_classes=10, shortcut=shortcut)
    assert not network(torch.randn(4, 3, 32, 32)).any()  # the classifier starts at 0
    block = network.get_submodule("blocks.0")
    x = torch.rand(4, 16, 8, 8)
    assert torch.equal(block(x), x)
    scalars = [p for p, role in roles(network) if role == "residual"]
    # A block has 3 shifts and a scale with its shift, the stem's and the classifier's one each.
    assert len(scalars) == 9 * 5 + 2
    assert all(p.numel() == 1 for p in scalars)


def test_the_cap_on_groups_holds_in_every_layer() -> None:
    network = model("resnet14", norm=normalizer("gn"), num_classes=10, max_groups=4)
    assert {layer.groups for layer in norms(network)} == {4}
    free = model("resnet14", norm=normalizer("gn"), num_classes=10, max_groups=None)
    assert {layer.groups for layer in norms(free)} == {16, 32}


def norms(network: nn.Module) -> list[Any]:
    return [layer for layer in network.modules() if isinstance(layer, NormAct)]


# The whole


@pytest.mark.parametrize("norm", normalizers())
def test_the_size_of_chunks_changes_no_number(norm: str) -> None:
    base = cell(*in_its_network(norm), "batch=8", *SHORT)
    whole = trained(base)
    for chunk in (1, 3):
        cut = replace(base, trainer=replace(base.trainer, chunk=chunk))
        assert cut.id == base.id
        assert trained(cut) == whole


@pytest.mark.parametrize("norm", [n for n in normalizers() if normalizer(n).batch_independent])
def test_under_a_fixed_global_batch_they_are_one_computation(norm: str) -> None:
    home = in_its_network(norm)
    findings = [trained(cell(*home, f"batch={batch}", *SHORT))[0] for batch in (4, 128)]
    for found in findings:
        assert found.pop("plan")
    assert findings[0] == findings[1]


def test_bn_is_another_computation_at_every_batch() -> None:
    losses = [trained(cell("norm=bn", f"batch={b}", *SHORT))[0]["train_loss"] for b in (4, 128)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_fixes_every_number_and_another_changes_them(seed: int) -> None:
    first, again = (trained(cell("norm=bn", f"seed={seed}", *SHORT)) for _ in range(2))
    assert first == again
    assert first != trained(cell("norm=bn", "seed=2", *SHORT))


def test_the_curve_has_a_record_an_epoch_and_every_n_steps() -> None:
    base = cell("norm=gn", *SHORT)  # 20 steps, 10 an epoch
    _, curve = trained(replace(base, trainer=replace(base.trainer, log_every=4)))
    assert [int(record["step"]) for record in curve] == [4, 8, 10, 12, 16, 20]
    assert [record["epoch"] for record in curve] == [0.4, 0.8, 1.0, 1.2, 1.6, 2.0]
    assert ["val_top1" in record for record in curve] == [False, False, True, False, False, True]


def test_without_a_hold_out_there_is_no_validation() -> None:
    found, curve = trained(cell("norm=gn", "data.val=0", *SHORT))
    assert "val_top1" not in found
    assert not any("val_top1" in record for record in curve)
    assert found["test_top1"] > 0


@pytest.mark.parametrize(
    ("per_epoch", "steps", "last"), [(10, 200, 10), (421, 200, 20), (11, 200, 11), (1, 1, 1)]
)
def test_the_final_loss_is_that_of_the_end(per_epoch: int, steps: int, last: int) -> None:
    """Of the last epoch, or of a tenth of all steps where an epoch is longer."""
    task = Task(
        nn.Linear(2, 2), recipe(), Regularization(), automatic(1),
        classes=2, global_batch=4, steps=steps, steps_per_epoch=per_epoch, log_every=50,
    )  # fmt: skip
    task.losses = [9.0] * (steps - last) + [1.0] * last
    task.hits = [0.0] * (steps - last) + [2.0] * last
    assert task.final_means() == (1.0, 50.0)


def test_the_curve_has_the_rate_of_its_own_step() -> None:
    base = cell("norm=gn", *SHORT, "recipe.schedule=multistep", "recipe.milestones=[0.5]")
    _, curve = trained(replace(base, trainer=replace(base.trainer, log_every=1)))
    rates = [record["lr"] for record in curve]
    assert rates[2:10] == pytest.approx([0.1] * 8)
    assert rates[10:] == pytest.approx([0.01] * 10)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_reaches_the_loss(smoothing: float) -> None:
    found, _ = trained(cell("norm=gn", f"reg.label_smoothing={smoothing}", *SHORT))
    plain, _ = trained(cell("norm=gn", *SHORT))
    assert (found["train_loss"] == plain["train_loss"]) == (smoothing == 0.0)


@pytest.mark.parametrize("norm", ["bn", "sn", "evonorm_b0", "gn"])
def test_recalibration_changes_what_is_tested_and_nothing_that_was_trained(norm: str) -> None:
    plain, curve = trained(cell(f"norm={norm}", *SHORT))
    precise, same = trained(cell(f"norm={norm}", "recipe.recalibration=12", *SHORT))
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
    order = Order(len(splits.train.labels), 128, automatic(16), seed=0)
    ended = Loaders(data, splits, order, Schedule(20, 5, 50))
    on = Loaders(data, splits, order, Schedule(40, 5, 50))
    found = list(ended.after_training(order.steps_per_epoch + 2))
    assert len(found) == order.steps_per_epoch + 2
    chunks = (chunk for epoch in (2, 3) for chunk in on.chunks(epoch))
    coming = [images for chunk in chunks for images in augmented(data, chunk, 0).images]
    assert torch.equal(torch.stack(found), torch.cat(coming)[: len(found)])


def test_batch_renorm_is_told_how_far_the_training_is() -> None:
    """Until its start it is bn, here over 10 of 20 steps; then it is not."""

    def losses(*arguments: str) -> list[float]:
        base = cell(*arguments, *SHORT)
        _, curve = trained(replace(base, trainer=replace(base.trainer, log_every=1)))
        return [record["train_loss"] for record in curve]

    bn, renorm = (
        losses("norm=bn"),
        losses("norm=batch_renorm", "norm.start=0.5", "norm.r_open=0.6", "norm.d_open=0.6"),
    )
    assert renorm[:5] == pytest.approx(bn[:5], rel=1e-4)  # rounding grows from step to step
    assert renorm[:10] == pytest.approx(bn[:10], rel=5e-2)
    assert max(abs(a - b) for a, b in zip(renorm[11:], bn[11:], strict=True)) > 0.1


def test_a_loss_that_is_not_finite_ends_the_training_at_once() -> None:
    found, curve = trained(cell("norm=bn", "recipe.lr=1e30", *SHORT))
    assert found["status"] == "diverged"
    assert "of 20 was" in found["reason"]
    assert "test_top1" not in found
    assert all(math.isfinite(record["train_loss"]) for record in curve)


def test_a_training_that_learned_nothing_has_diverged() -> None:
    found, _ = trained(cell("norm=bn", "recipe.lr=1e-9", *SHORT))
    assert found["status"] == "diverged"
    assert "not 1 % below ln(10)" in found["reason"]
    assert 0 <= found["test_top1"] <= 100


def test_an_evaluation_counts_every_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.loaders.EVALUATION_BATCH", 7)  # 360 is no multiple of 7
    small, _ = trained(cell("norm=gn", *SHORT))
    monkeypatch.setattr("normbench.loaders.EVALUATION_BATCH", 500)
    whole, _ = trained(cell("norm=gn", *SHORT))
    assert small["test_top1"] == pytest.approx(whole["test_top1"], abs=1e-6)
    assert (small["test_top1"] * 3.6) == pytest.approx(round(small["test_top1"] * 3.6), abs=1e-3)
    assert small["test_loss"] == pytest.approx(whole["test_loss"], rel=1e-5)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_precisions_train(precision: str) -> None:
    found, _ = trained(cell("norm=bn", f"precision={precision}", *SHORT))
    assert found["status"] == "ok"


def first_gradients(norm: str, plan: Plan) -> list[torch.Tensor]:
    """The gradients of the first step, from a task of its own."""
    torch.manual_seed(0)
    data = Digits()
    splits = data.splits()
    order = Order(len(splits.train.labels), 16, plan, seed=0)
    home = at_home(norm)
    network = model(norm=normalizer(norm), num_classes=10, in_chans=1, depth=8, **home).double()
    task = Task(
        network, recipe(), Regularization(), plan,
        classes=10, global_batch=16, steps=1, steps_per_epoch=order.steps_per_epoch, log_every=50,
    )  # fmt: skip
    loaders = Loaders(data, splits, order, Schedule(1, 1, 50))
    chunk: Chunk = augmented(data, next(loaders.chunks(0)), seed=0)
    for images, labels in zip(chunk.images[0], chunk.labels[0], strict=True):
        loss = nn.functional.cross_entropy(task.model(images.double()), labels)
        (loss / len(chunk.images[0])).backward()
    return [p.grad for p in network.parameters() if p.grad is not None]


@pytest.mark.parametrize("norm", [n for n in normalizers() if normalizer(n).batch_independent])
def test_accumulated_passes_give_the_gradient_of_one_pass(norm: str) -> None:
    once, thrice = (first_gradients(norm, plan) for plan in (Plan(1, 4, 1), Plan(1, 1, 4)))
    for a, b in zip(once, thrice, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_batch_statistics_refuse_to_be_accumulated() -> None:
    with pytest.raises(Impossible, match="in one pass"):
        first_gradients("bn", Plan(1, 1, 4))
    assert first_gradients("bn", automatic(4))
