"""Residual schemes in mobile blocks: NF and SkipInit in EfficientNet."""

from typing import Any

import pytest
import timm
import torch
from torch import nn

from normbench.catalog import model, normalizer
from normbench.errors import Impossible
from normbench.measurements.signal_propagation import propagation
from normbench.models.blocks import V2
from normbench.models.mobile_blocks import join_blocks
from normbench.norms.base.residual import NormalizerFree
from normbench.norms.base.standardized_conv import ScaledStandardizedConv2d
from normbench.norms.normalizer_free import NF, NoNorm
from support.slow import slow_except

#: The blocks of EfficientNet-B0 that have a shortcut, stage by stage.
SHORTCUTS = [
    [False], [False, True], [False, True], [False, True, True], [False, True, True],
    [False, True, True, True], [False],
]  # fmt: skip


def joined(norm: Any) -> Any:
    """Return timm's EfficientNet-B0 with the residual scheme of `norm`, before the swap."""
    torch.manual_seed(0)
    network = timm.create_model("efficientnet_b0", num_classes=10)
    join_blocks(network, norm)  # type: ignore[arg-type]
    return network.eval()


def test_beta_starts_again_behind_a_block_without_shortcut() -> None:
    """1 + 0.04 k behind k blocks with a shortcut."""
    stages = joined(NF()).blocks
    assert [[block.join is not None for block in stage] for stage in stages] == SHORTCUTS
    var = [[block.beta**2 for block in stage] for stage in stages]
    expected = [
        [1],
        [1, 1],
        [1.04, 1],
        [1.04, 1, 1.04],
        [1.08, 1, 1.04],
        [1.08, 1, 1.04, 1.08],
        [1.12],
    ]
    assert [pytest.approx(stage) for stage in expected] == var


def test_a_block_divides_its_input_and_weighs_its_branch() -> None:
    block = joined(NF(alpha=0.5)).blocks[3][2]  # the third of its stage: 1 + 0.25 before it
    nn.init.constant_(block.join.gain, 3.0)
    x = torch.randn(2, 80, 6, 6)
    torch.testing.assert_close(block(x), x + 0.5 * 3 * block.branch(x / 1.25**0.5))
    entry = joined(NF(alpha=0.5)).blocks[4][0]  # without shortcut, behind two blocks that have one
    torch.testing.assert_close(entry(x), entry.branch(x / 1.5**0.5))


@pytest.mark.parametrize("gate", [None, 3.0])
def test_gates_of_squeeze_excite_are_doubled(gate: float | None) -> None:
    plain, scaled = joined(NF(gate=1.0)), joined(NF(gate=gate))
    x = torch.randn(2, 96, 5, 5)
    excite, other = plain.blocks[1][0].branch.se, scaled.blocks[1][0].branch.se
    torch.testing.assert_close(other(x), (gate or 2.0) * excite(x))


def test_plain_blocks_joined_by_the_plain_scheme_are_those_of_timm() -> None:
    torch.manual_seed(0)
    expected = timm.create_model("efficientnet_b0", num_classes=10).eval()
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(joined(NoNorm())(x), expected(x))


@pytest.mark.parametrize(
    ("act", "seed"),
    slow_except([(act, seed) for act in ("silu", "relu") for seed in (0, 1)], [("silu", 0)]),
)
def test_variances_of_an_nf_efficientnet_are_as_predicted(act: str, seed: int) -> None:
    """With the gain of the branches set to 1, within 45 %; channels have nearly no mean."""
    torch.manual_seed(seed)
    norm = normalizer("nf", skip_gain=False)
    network = model("efficientnet_b0", norm=norm, num_classes=10, act=act)
    blocks = propagation(network, torch.randn(4, 3, 160, 160))
    flat = [shortcut for stage in SHORTCUTS for shortcut in stage]
    entering = norm.residual.deviations_of_blocks([*flat, False])
    predicted = [after**2 for shortcut, after in zip(flat, entering[1:], strict=True) if shortcut]
    assert [block.variance for block in blocks] == pytest.approx(predicted, rel=0.45)
    assert max(block.squared_mean for block in blocks) < 0.1


def test_plain_depthwise_convolutions_let_variances_and_means_grow() -> None:
    torch.manual_seed(0)
    norm = normalizer("nf", skip_gain=False, weights="gaussian_depthwise")
    network = model("efficientnet_b0", norm=norm, num_classes=10)
    *_, last = propagation(network, torch.randn(4, 3, 160, 160))
    assert last.variance > 5
    assert last.squared_mean > 2


def test_depthwise_convolutions_alone_are_left_plain() -> None:
    torch.manual_seed(0)
    network = model(
        "efficientnet_b0", norm=normalizer("nf", weights="gaussian_depthwise"), num_classes=10
    )
    convs = {
        name: conv for name, conv in network.named_modules()
        if isinstance(conv, nn.Conv2d) and ".se." not in name
    }  # fmt: skip
    assert {name.endswith("conv_dw") for name in convs} == {True, False}
    for name, conv in convs.items():
        assert isinstance(conv, ScaledStandardizedConv2d) != name.endswith("conv_dw")
        assert conv.bias is not None
        assert not conv.bias.any()
        fan_in = conv.weight[0].numel()
        assert conv.weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.2), name


def test_an_efficientnet_with_skipinit_starts_as_its_shortcuts() -> None:
    network = joined(normalizer("skipinit"))
    x = torch.randn(2, 80, 6, 6)
    assert torch.equal(network.blocks[3][1](x), x)
    convs = [conv for conv in network.modules() if isinstance(conv, nn.Conv2d)]
    assert [conv.bias is None for conv in convs] == [conv is network.conv_stem for conv in convs]
    assert not network(torch.randn(2, 3, 64, 64)).any()  # the classifier starts at 0


def test_stochastic_depth_drops_branches_before_they_are_joined() -> None:
    network = model("efficientnet_b0", norm=normalizer("nf"), num_classes=10, stochastic_depth=0.16)
    calls = {str(call.target): call for call in network.graph.nodes}  # type: ignore[union-attr]
    drop = calls["blocks.1.1.join"].args[1]
    assert network.get_submodule(drop.target).rate == pytest.approx(0.02)  # block 2 of 16


def test_fixup_is_refused() -> None:
    assert NormalizerFree in V2
    with pytest.raises(Impossible, match=r"mobile models .* plain, skipinit, nf"):
        model("efficientnet_b0", norm=normalizer("fixup"), num_classes=10)
