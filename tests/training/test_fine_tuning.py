"""Fine-tuning: the features of another training, with the same, a frozen or another normalizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normbench.catalog import model, normalizer
from normbench.errors import BadInput
from normbench.results import CHECKPOINT
from normbench.training import checkpoint
from normbench.training.checkpoint import begin_run, load_part
from normbench.training.parameter_groups import FEATURES
from support.cells import SHORT
from support.commands import Command, Rows
from support.slow import slow_except

NAMES = ["resnet20_v2", "resnet18_cifar", "mobilenetv2_cifar", "timm/resnet18"]


def network_of(name: str, norm: str, classes: int) -> nn.Module:
    network = model(name, norm=norm, num_classes=classes)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return network


def load_features(old: nn.Module, network: nn.Module, *roles: str) -> dict[str, Any]:
    """Load into `network` from a run of `old`; return its tensors before."""
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = {"model": old.state_dict(), "done": 7, "steps_per_epoch": 7}
    load_part(network, begin_run(state, roles))
    return before


def kind_of(network: nn.Module, name: str) -> str:
    """What a tensor belongs to: classifier, convolution or normalization."""
    layer = network.get_submodule(name.rpartition(".")[0])
    if isinstance(layer, nn.Linear):
        return "classifier"
    return "convolution" if isinstance(layer, nn.Conv2d) else "normalization"


@pytest.mark.parametrize("norm", ["bn", "frozen_bn", "sync_bn", "gn", "evonorm_s0", "gn_ws"])
@pytest.mark.parametrize("name", slow_except(NAMES, ["resnet18_cifar"]))
def test_features_are_all_common_tensors_but_the_classifiers(name: str, norm: str) -> None:
    old, network = network_of(name, "bn", 10), network_of(name, norm, 5)
    before = load_features(old, network, FEATURES)
    learned, kept = old.state_dict(), {"classifier": 0, "convolution": 0, "normalization": 0}
    for tensor_name, tensor in network.state_dict().items():
        kind = kind_of(network, tensor_name)
        common = tensor_name in learned and learned[tensor_name].shape == tensor.shape
        expected = learned[tensor_name] if common and kind != "classifier" else before[tensor_name]
        assert torch.equal(tensor, expected), tensor_name
        kept[kind] += common and kind != "classifier"
    layers = sum(isinstance(each, nn.Conv2d) for each in network.modules())
    assert kept["classifier"] == 0
    assert kept["convolution"] >= layers
    assert kept["normalization"] > layers  # gains and shifts
    if norm in ("bn", "frozen_bn", "sync_bn"):
        assert all(name in learned for name in network.state_dict())


def test_features_need_no_biases_of_convolutions() -> None:
    """SkipInit has them, and a network with normalization has not."""
    old, network = (network_of("resnet20_v2", norm, 10) for norm in ("bn", "skipinit"))
    before = load_features(old, network, FEATURES)
    weights = [name for name in old.state_dict() if kind_of(old, name) == "convolution"]
    for name in weights:
        assert torch.equal(network.state_dict()[name], old.state_dict()[name])
    assert torch.equal(
        network.state_dict()["blocks.0.convs.0.bias"], before["blocks.0.convs.0.bias"]
    )


def test_features_of_another_network_are_refused() -> None:
    old, network = (network_of(name, "bn", 10) for name in ("resnet14", "resnet20"))
    with pytest.raises(BadInput, match=r"without blocks\.2\..*; use the same model$"):
        load_features(old, network, FEATURES)


@pytest.mark.parametrize(
    ("old", "norm", "options", "says"),
    [
        ("gn", "frozen_bn", {}, r"has no .*running_mean; norm=frozen_bn: it keeps statistics"),
        ("bn", "sn", {"hard": True}, r"has no .*mean_logits; norm.hard=true: which member counts"),
    ],
)
def test_a_start_without_the_values_that_a_layer_needs_is_refused(
    old: str, norm: str, options: dict[str, Any], says: str
) -> None:
    network = model("resnet18_cifar", norm=normalizer(norm, **options), num_classes=5)
    with pytest.raises(BadInput, match=says):
        load_features(network_of("resnet18_cifar", old, 10), network, FEATURES)


def test_both_heads_of_a_distilled_network_are_its_classifier() -> None:
    old, network = (network_of("timm/deit_tiny_distilled_patch16_224", "ln2d", n) for n in (10, 5))
    before = load_features(old, network, FEATURES)
    assert all(
        torch.equal(tensor, before[name]) == name.startswith("head")
        for name, tensor in network.state_dict().items()
    )


def test_a_dense_task_needs_no_features() -> None:
    state = {"model": {}, "done": 7, "steps_per_epoch": 7}
    with pytest.raises(BadInput, match="takes the backbone of a classifier by itself"):
        begin_run(state, [FEATURES], dense=True)


def test_a_network_without_a_linear_layer_has_no_features() -> None:
    network = nn.Sequential(nn.Conv2d(3, 10, 1))
    with pytest.raises(BadInput, match=r"no linear layer, .* init_only=\[weight,gain,shift\]"):
        load_features(network, network, FEATURES)


@pytest.mark.slow
def test_a_run_is_fine_tuned_with_frozen_statistics(command: Command, rows: Rows) -> None:
    assert command("norm=bn", "checkpoint=keep", *SHORT).code == 0
    (start,) = rows()
    words = ("init_from=norm:bn@last", "init_only=[features]", "checkpoint=keep")
    assert command("-m", "norm=frozen_bn,gn", *words, *SHORT).code == 0
    tuned = {row.norm: row for row in rows() if row.id != start.id}
    assert tuned["frozen_bn"].status == tuned["gn"].status == "ok"
    old, frozen = (
        checkpoint.load_state(Path("runs/default") / row.id / CHECKPOINT)["model"]
        for row in (start, tuned["frozen_bn"])
    )
    for name, tensor in frozen.items():
        moves = name.endswith("weight") and tensor.dim() > 1  # convolutions and the classifier
        if not moves and not name.startswith("head."):
            assert torch.equal(tensor, old[name]), name


def test_features_need_a_start(command: Command) -> None:
    end = command("norm=frozen_bn", "init_only=[features]", *SHORT)
    assert end.code == 2
    assert "init_only=[features] needs init_from" in end.err
