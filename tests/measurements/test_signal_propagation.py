"""Signal propagation: blocks, stages and their moments in any residual network."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from normbench.catalog import model, normalizer
from normbench.errors import Impossible
from normbench.measurements.signal_propagation import propagation
from normbench.models.swap import swap
from support.networks import network_of, noise


def test_blocks_agree_with_modules_called_one_by_one() -> None:
    """Against the network's own modules, called one by one."""
    network = network_of("bn", name="resnet14_v2").train()
    x = noise(32, 1, 8, 8)
    signals = propagation(network, x)
    with torch.no_grad():
        h: Tensor = network.stem(x)  # type: ignore[operator]
        for block, seen in zip(network.blocks, signals, strict=True):  # type: ignore[arg-type]
            branches: list[Tensor] = []
            hook = block.join.register_forward_pre_hook(
                lambda _, given, b=branches: b.append(given[1])
            )
            h = block(h)
            hook.remove()
            mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), correction=0)
            assert seen.squared_mean == pytest.approx(float((mean**2).mean()), rel=1e-4)
            assert seen.variance == pytest.approx(float(var.mean()), rel=1e-4)
            branch = branches[0].var((0, 2, 3), correction=0).mean()
            assert seen.branch_variance == pytest.approx(float(branch), rel=1e-4)
    assert [block.stage for block in signals] == [1, 1, 2, 2, 3, 3]
    assert [block.ends_stage for block in signals] == [False, True] * 3
    assert [block.name for block in signals] == [f"blocks.{number}" for number in range(6)]


@pytest.mark.parametrize(
    ("name", "blocks", "stages"),
    [
        ("resnet50", 16, 4),
        ("resnet50_v2", 16, 4),
        ("mobilenetv2", 10, 7),
        ("efficientnet_b0", 9, 7),
        ("nf_regnet_b0", 16, 4),
        ("timm/resnet18", 8, 4),
        ("timm/resnetv2_50", 16, 4),
        ("timm/regnety_004", 16, 4),
    ],
)
def test_blocks_are_found_in_any_residual_network(name: str, blocks: int, stages: int) -> None:
    network = model(name, norm=normalizer("gn"), num_classes=10)
    signals = propagation(network, noise(2, 3, 96, 96))
    assert len(signals) == blocks
    assert len({block.stage for block in signals}) <= stages
    assert all(block.variance > 0 for block in signals)


def test_the_output_of_a_post_activation_block_is_rectified() -> None:
    network: Any = timm.create_model("resnet18", zero_init_last=False)
    x = noise(4, 3, 64, 64)
    signals = propagation(swap(network, normalizer("bn")), x)
    outputs: list[Tensor] = []
    network.layer1[0].register_forward_hook(lambda _, __, out: outputs.append(out.detach().clone()))
    network.train()(x)
    assert outputs[0].min() == 0
    variance = float(outputs[0].var((0, 2, 3), correction=0).mean())
    assert signals[0].variance == pytest.approx(variance, rel=1e-4)


def test_a_preactivation_block_ends_with_its_addition() -> None:
    """The activation that begins the next block is none of it."""
    for order in ("norm_act_conv", "act_norm_conv"):
        torch.manual_seed(0)
        network = model("resnet50_v2", norm=normalizer("bn"), num_classes=10, order=order, width=8)
        signals = propagation(network, noise(4, 3, 64, 64))
        ends = [block for block in signals if block.ends_stage]
        before = [signals[signals.index(end) - 1] for end in ends]
        for last, block in zip(before, ends, strict=True):  # a rectified one would have less
            assert block.variance > last.variance


def test_a_network_without_branches_is_refused() -> None:
    with pytest.raises(Impossible, match="no residual branch"):
        propagation(
            model("inception_v3", norm=normalizer("bn"), num_classes=10), noise(2, 3, 96, 96)
        )


def test_control_flow_on_values_is_refused() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(Impossible, match="cannot be traced"):
        propagation(nn.Sequential(Odd()), noise(2, 3, 8, 8))
