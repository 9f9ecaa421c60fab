"""Our own architectures: sizes, order of blocks, starts, and one step of training in each."""

import re
from typing import Any

import pytest
import timm
import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import model, models, normalizer, normalizers
from normbench.config.files import CONF, comment
from normbench.errors import BadInput, Impossible
from normbench.models.blocks import SqueezeExcite
from normbench.models.dropout import StochasticDepth
from normbench.models.profile import count_macs
from normbench.norms.base.layer import Scale
from normbench.norms.base.same_padding import SameConv2d, SameMaxPool2d
from normbench.norms.base.standardized_conv import ScaledStandardizedConv2d, StandardizedConv2d
from normbench.training.parameter_groups import list_parameters
from support.layers import norm_layers
from support.slow import EVERYDAY_NORMS, slow_except

ARCHITECTURES = [name for name in models() if name != "timm"]
NORMS = ["bn", "gn", "evonorm_s0", "gn_pn", "nf", "sn"]


# Sizes


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_size_that_a_yaml_states(name: str) -> None:
    text = comment(CONF / "model" / f"{name}.yaml")
    found = re.search(
        r"Parameters with (\w+) and (\d+) classes: ([\d,]+)(?:; paper ([\d.]+)M)?", text
    )
    assert found is not None
    norm, classes, here, paper = found.groups()
    with torch.device("meta"):
        network = model(name, norm=normalizer(norm), num_classes=int(classes))
    params = sum(p.numel() for p in network.parameters())
    assert params == int(here.replace(",", ""))
    if paper is not None:
        off = {
            "resnet50_v2": 0.018,
            "resnet152_v2": 0.004,
            "mobilenetv2": 0.031,
            "resnext101": 0.004,
            "efficientnet_b5": 0.014,
        }
        assert params / 1e6 == pytest.approx(float(paper), rel=off.get(name, 0.0), abs=0.06)


@pytest.mark.parametrize(("name", "params"), [("resnet20", 269_722), ("resnet56", 853_018)])
def test_the_published_sizes_of_the_cifar_resnets(name: str, params: int) -> None:
    """He et al. 2016, table 6: 0.27 and 0.85 million; to the digit as in their usual ports."""
    with torch.device("meta"):
        network = model(name, norm=normalizer("bn"), num_classes=10)
    assert sum(p.numel() for p in network.parameters()) == params
    macs, _ = count_macs(network, (3, 32, 32))
    assert macs == pytest.approx({"resnet20": 40.6e6, "resnet56": 125.5e6}[name], rel=0.01)


def test_multiply_adds_of_grouped_convolutions_are_known_by_their_width() -> None:
    with torch.device("meta"):
        network = nn.Sequential(
            nn.Conv2d(8, 16, 3, groups=4),  # 7x7
            nn.ConvTranspose2d(16, 16, 3, groups=4),  # 9x9 from 7x7
            nn.Conv2d(16, 16, 3, groups=16),  # 7x7
            nn.Conv2d(16, 8, 1),
        )
    parts = {2: 49 * 16 * 2 * 9, 4: 49 * 16 * 4 * 9, 1: 49 * 16 * 9}
    macs, grouped = count_macs(network, (8, 9, 9))
    assert grouped == parts
    assert macs == sum(parts.values()) + 49 * 16 * 8


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("resnet50", set()),
        ("inception_v3", set()),
        ("resnext50", {4, 8, 16, 32}),
        ("nf_regnet_b0", {8}),
        ("efficientnet_b0", {1}),
        ("efficientnet_b0_group", {16}),
        ("mobilenetv2", {1}),
    ],
)
def test_the_groups_of_networks_are_as_wide_as_their_papers_say(
    name: str, widths: set[int]
) -> None:
    with torch.device("meta"):
        norm = "nf" if name.startswith("nf") else "bn"
        network = model(name, norm=normalizer(norm), num_classes=10)
    assert count_macs(network, (3, 224, 224))[1].keys() == widths


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
def test_convolutions_are_standardized_as_the_normalizer_needs(
    name: str, norm: str, kind: str | None
) -> None:
    if (name, norm) == ("resnet14", "nf"):
        pytest.skip("nf wants pre-activation blocks")
    network = model(name, norm=normalizer(norm), num_classes=10)
    convs = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    if name == "resnet14_v2":  # one learned scale after a branch's last convolution, for ws alone
        scales = {type(network.get_submodule(f"blocks.{k}.scale")) for k in range(6)}
        assert scales == {Scale if kind == "ws" else nn.Identity}
    standardized = {
        "ws": StandardizedConv2d,
        "scaled_ws": ScaledStandardizedConv2d,
        None: nn.Conv2d,
    }
    assert {type(conv) for conv in convs} == {standardized[kind]}


def test_proxy_normalization_leaves_the_scale_out_before_the_final_mean_alone() -> None:
    network = model("resnet14_v2", norm=normalizer("gn_pn"), num_classes=10)
    scaled = [layer.scale for layer in norm_layers(network)]
    assert scaled == [True] * 12 + [False]


def test_skipinit_has_biases_except_in_the_stem_and_starts_as_its_shortcuts() -> None:
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
    conv = network.get_submodule("blocks.1.convs.0").get_parameter("weight")
    assert conv.std().item() == pytest.approx((64 * 9) ** -0.5, rel=0.02)
    head = network.get_submodule("head").get_parameter("weight")
    assert head.std().item() == pytest.approx(0.01, rel=0.02)


def test_a_padding_shortcut_follows_the_first_shift_of_a_fixup_branch() -> None:
    network = model("resnet20", norm=normalizer("fixup"), num_classes=10)
    block = network.get_submodule("blocks.3")  # 16 channels to 32
    block.get_submodule("before.0").get_parameter("bias").data.fill_(0.5)
    out = block(torch.zeros(1, 16, 4, 4))
    assert torch.equal(out[:, :16], torch.full((1, 16, 2, 2), 0.5))
    assert not out[:, 16:].any()


@pytest.mark.parametrize("shortcut", ["identity", "projection"])
def test_a_fixup_network_starts_as_its_shortcuts(shortcut: str) -> None:
    network = model("resnet20", norm=normalizer("fixup"), num_classes=10, shortcut=shortcut)
    assert not network(torch.randn(4, 3, 32, 32)).any()  # the classifier starts at 0
    block = network.get_submodule("blocks.0")
    x = torch.rand(4, 16, 8, 8)
    assert torch.equal(block(x), x)
    scalars = [each.parameter for each in list_parameters(network) if each.role == "residual"]
    # A block has 3 shifts and a scale with its shift, the stem's and the classifier's one each.
    assert len(scalars) == 9 * 5 + 2
    assert all(p.numel() == 1 for p in scalars)


def test_the_cap_on_groups_holds_in_every_layer() -> None:
    network = model("resnet14", norm=normalizer("gn"), num_classes=10, max_groups=4)
    assert {layer.groups for layer in norm_layers(network)} == {4}
    free = model("resnet14", norm=normalizer("gn"), num_classes=10, max_groups=None)
    assert {layer.groups for layer in norm_layers(free)} == {16, 32}


# Networks as timm has them


def same_weights(ours: nn.Module, theirs: nn.Module, pairs: dict[str, str]) -> None:
    for mine, other in pairs.items():
        target = ours.get_submodule(mine)
        target.load_state_dict(theirs.get_submodule(other).state_dict(), strict=False)


@pytest.mark.parametrize("name", slow_except(["resnet50", "resnet101"], ["resnet50"]))
def test_post_activation_networks_are_timms(name: str) -> None:
    torch.manual_seed(0)
    ours = model(name, norm=normalizer("bn"), num_classes=10).eval()
    other = timm.create_model(name, num_classes=10, zero_init_last=False).eval()
    pairs = {"stem": "conv1", "norm": "bn1", "head": "fc"}
    block = 0
    for stage in range(4):
        for inside in range(len(other.get_submodule(f"layer{stage + 1}"))):  # type: ignore[arg-type]
            path = f"layer{stage + 1}.{inside}"
            for k in range(3):
                pairs[f"blocks.{block}.convs.{k}"] = f"{path}.conv{k + 1}"
                pairs[f"blocks.{block}.norms.{k}"] = f"{path}.bn{k + 1}"
            if inside == 0:
                pairs[f"blocks.{block}.shortcut"] = f"{path}.downsample"
            block += 1
    same_weights(ours, other, pairs)
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), other(x))


def test_a_pre_activation_network_is_timms() -> None:
    torch.manual_seed(0)
    ours = model("resnet50_v2", norm=normalizer("bn"), num_classes=10).eval()
    other = timm.create_model("resnetv2_50", num_classes=10, zero_init_last=False).eval()
    pairs = {"stem": "stem.conv", "last": "norm"}
    depths = (3, 4, 6, 3)
    for block in range(sum(depths)):
        stage = next(s for s in range(4) if block < sum(depths[: s + 1]))
        path = f"stages.{stage}.blocks.{block - sum(depths[:stage])}"
        for k in range(3):
            pairs[f"blocks.{block}.convs.{k}"] = f"{path}.conv{k + 1}"
            pairs[f"blocks.{block}.norms.{k}"] = f"{path}.norm{k + 1}"
        if path.endswith(".0"):
            pairs[f"blocks.{block}.project"] = f"{path}.downsample.conv"
    same_weights(ours, other, pairs)
    head = other.get_submodule("head.fc").state_dict()
    ours.get_submodule("head").load_state_dict(
        {k: v.flatten(1) if v.dim() == 4 else v for k, v in head.items()}
    )
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), other(x))


@pytest.mark.parametrize("name", ["resnet50_v2", "resnet20_v2", "resnet20"])
def test_weights_start_as_in_the_tpu_repository(name: str) -> None:
    torch.manual_seed(0)
    start: dict[str, Any] = {"init": "truncated_fan_in", "head_std": 0.01}
    network = model(name, norm=normalizer("evonorm_s0"), num_classes=1000, **start)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            scaled = module.weight * module.weight[0].numel() ** 0.5
            assert scaled.abs().max() <= 2 / 0.8796  # a normal cut off at two standard deviations
            assert abs(scaled.var().item() - 1) < 6 / scaled.numel() ** 0.5
    weight, bias = network.get_submodule("head").parameters()
    assert weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not bias.any()

    plain = model(name, norm=normalizer("evonorm_s0"), num_classes=1000, init="truncated_fan_in")
    weight, bias = plain.get_submodule("head").parameters()
    assert weight.std().item() == pytest.approx(weight.shape[1] ** -0.5, rel=0.02)
    assert not bias.any()


@pytest.mark.parametrize(
    ("option", "zeros"),
    [(None, []), ("all", range(16)), ("identity", {*range(16)} - {0, 3, 7, 13})],
)
def test_the_last_gains_start_at_zero_in_the_blocks_of_the_option(
    option: str | None, zeros: Any
) -> None:
    network = model("resnet50", norm=normalizer("bn"), num_classes=10, zero_init_last=option)
    for block in range(16):
        first, second, last = (
            network.get_parameter(f"blocks.{block}.norms.{number}.weight") for number in range(3)
        )
        assert first.all() and second.all()
        assert last.any() == (block not in zeros)
    for block in [0, 3, 7, 13]:  # the projections' gains stay
        assert network.get_parameter(f"blocks.{block}.shortcut.1.weight").all()


@pytest.mark.parametrize(
    ("name", "norm", "error"),
    [("resnet50_v2", "bn", BadInput), ("resnet20", "fixup", Impossible)],
)
def test_no_last_gain_can_start_at_zero_where_there_is_none(
    name: str, norm: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"zero_init_last=all: .*; zero_init_last=null works"):
        model(name, norm=normalizer(norm), num_classes=10, zero_init_last="all")


def test_without_a_pooling_no_pooling_can_be_padded() -> None:
    with pytest.raises(BadInput, match="padding=same_pool: this network has no max pooling"):
        model("resnet18_cifar", norm=normalizer("bn"), num_classes=10, padding="same_pool")


@pytest.mark.parametrize(
    ("name", "option", "convs", "pools"),
    [
        ("resnet50_v2", "same", 4, 1),  # the stem and a 3x3 in three stages
        ("resnet50_v2", "same_pool", 0, 1),
        ("resnet50", "same", 4, 1),
        ("resnet20", "same", 2, 0),
        ("resnet20_v2", "same", 2, 0),
        ("nf_regnet_b0", "same", 5, 0),
        ("efficientnet_b0", "same", 5, 0),
    ],
)
def test_where_even_maps_are_padded_at_one_side(
    name: str, option: str, convs: int, pools: int
) -> None:
    padded, plain = (
        model(name, norm=normalizer("bn"), num_classes=10, padding=padding)
        for padding in (option, None)
    )
    kinds = [type(module) for module in padded.modules()]
    assert kinds.count(SameConv2d) + kinds.count(Conv2dSame) == convs
    assert kinds.count(SameMaxPool2d) == pools
    padded.load_state_dict(plain.state_dict())
    odd, even = torch.randn(2, 3, 33, 33), torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(padded.eval()(odd), plain.eval()(odd))
    assert count_macs(padded, (3, 64, 64)) == count_macs(plain, (3, 64, 64))
    if name != "nf_regnet_b0":  # whose classifier starts at 0
        assert (padded(even) - plain(even)).abs().max() > 0.01 * plain(even).abs().max()


@pytest.mark.parametrize(("option", "act"), [(None, F.relu), ("relu", F.relu), ("silu", F.silu)])
def test_the_activation_in_squeeze_excite(option: str | None, act: Any) -> None:
    network = model("nf_regnet_b0", norm=normalizer("nf"), num_classes=10, excite_act=option)
    layers = [module for module in network.modules() if isinstance(module, SqueezeExcite)]
    assert len(layers) == 16
    for layer in layers:
        x = torch.randn(2, layer.reduce.in_features, 2, 2)
        gate = torch.sigmoid(layer.expand(act(layer.reduce(x.mean(dim=(2, 3))))))
        torch.testing.assert_close(layer(x), 2 * gate[:, :, None, None] * x)


@pytest.mark.parametrize(
    "name", slow_except([f"efficientnet_b{k}" for k in (0, 2, 5)], ["efficientnet_b0"])
)
def test_efficientnets_are_timms(name: str) -> None:
    with torch.device("meta"):
        ours = model(name, norm=normalizer("bn"), num_classes=10)
        other = model(f"timm/{name}", norm=normalizer("bn"), num_classes=10)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in other.state_dict().items()
    }


@pytest.mark.parametrize("dropping", [{}, {"dropout": 0.2, "stochastic_depth": 0.1}])
def test_mobile_networks_on_shapes_share_a_trace_and_no_change_of_it(
    dropping: dict[str, float],
) -> None:
    for norm in ("gn_ws", "nf", "bn", "gn_ws"):
        options: Any = {"norm": normalizer(norm), "num_classes": 10, **dropping}
        with torch.device("meta"):
            shapes = model("efficientnet_b0", **options)
        network = model("efficientnet_b0", **options)
        assert shapes.code == network.code
        assert str(shapes) == str(network)
        assert [(name, v.shape) for name, v in shapes.state_dict().items()] == [
            (name, v.shape) for name, v in network.state_dict().items()
        ]
        assert shapes.training


def test_group_convolutions_have_16_channels_a_group_and_expansion_4() -> None:
    with torch.device("meta"):
        network = model("efficientnet_b0_group", norm=normalizer("gn"), num_classes=10)
    grouped = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert len(grouped) == 16
    assert {m.in_channels // m.groups for m in grouped} == {16}
    assert network.get_submodule("blocks.1.0.conv_pw").out_channels == 4 * 16
    assert {layer.groups for layer in norm_layers(network)} == {4}


# Starts


@pytest.mark.parametrize("act", slow_except(["relu", "silu"], ["silu"]))
def test_the_variance_of_an_nf_resnet_is_known_at_its_beginning(act: str) -> None:
    """Brock et al. 2021, section 3: the gain of the branches set to 1, no max pool in the stem."""
    torch.manual_seed(0)
    norm = normalizer("nf", skip_gain=False)
    network = model("resnet50_v2", norm=norm, num_classes=10, act=act, stem_pool=False)
    expected = [beta**2 for stage in norm.residual.deviations([3, 4, 6, 3]) for beta in stage]
    assert variances(network, 192) == pytest.approx([*expected, expected[-1] + 0.04], rel=0.1)


@pytest.mark.parametrize(
    ("act", "later"),
    slow_except([("relu", (0.93, 1.07)), ("silu", (1.05, 1.3))], [("relu", (0.93, 1.07))]),
)
def test_max_pooling_changes_the_variance_of_an_nf_resnet(
    act: str, later: tuple[float, float]
) -> None:
    """Maxima of 9 vary less than what they are taken of, and have a mean above 0.

    relu takes what is left of it to the right variance in the first transition; silu, which is
    steeper above 0 than on average, keeps the mean's share in every stage.
    """
    torch.manual_seed(0)
    norm = normalizer("nf", skip_gain=False)
    network = model("resnet50_v2", norm=norm, num_classes=10, act=act)
    expected = [beta**2 for stage in norm.residual.deviations([3, 4, 6, 3]) for beta in stage]
    ratios = [var / known for var, known in zip(variances(network, 128), expected, strict=False)]
    assert ratios[0] == pytest.approx(0.36, abs=0.05)
    assert later[0] < min(ratios[1:])
    assert max(ratios[1:]) < later[1]


def variances(network: nn.Module, size: int) -> list[float]:
    """Of what enters every block, and of what leaves the last."""
    seen: list[float] = []
    for layer in (*network.get_submodule("blocks").children(), network.get_submodule("last")):
        layer.register_forward_pre_hook(lambda _, x: seen.append(x[0].var().item()))
    with torch.no_grad():
        network(torch.randn(2, 3, size, size))
    return seen


def test_the_table_of_beta() -> None:
    """Brock et al. 2021, section 3, for stages of 3, 4, 6 and 3 blocks."""
    network = model("resnet50_v2", norm=normalizer("nf"), num_classes=10, width=16)
    betas = [block.beta for block in network.get_submodule("blocks").children()]
    assert betas == pytest.approx(
        [1, 1.0198, 1.0392, 1.0583, 1.0198, 1.0392, 1.0583, 1.0770, 1.0198, 1.0392, 1.0583, 1.0770,
         1.0954, 1.1136, 1.0198, 1.0392], abs=5e-5,
    )  # fmt: skip


@pytest.mark.parametrize("name", slow_except(["resnet50", "resnet110"], ["resnet110"]))
def test_the_variance_of_a_fixup_network_is_constant_within_a_stage(name: str) -> None:
    """Brock et al. 2021, figure 10."""
    torch.manual_seed(0)
    network = model(name, norm=normalizer("fixup"), num_classes=10)
    seen: list[tuple[tuple[int, ...], float]] = []
    for block in network.get_submodule("blocks").children():
        block.register_forward_hook(lambda _, x, y: seen.append((tuple(y.shape), y.var().item())))
    network(torch.randn(4, 3, 64, 64))
    stages = {shape: [var for other, var in seen if other == shape] for shape, _ in seen}
    assert len(stages) == {"resnet50": 4, "resnet110": 3}[name]
    for found in stages.values():
        assert found == pytest.approx([found[0]] * len(found))


@pytest.mark.parametrize("norm", ["bn", "nf"])
def test_six_hundred_layers_run(norm: str) -> None:
    """At an eighth of the width, which a default run of the tests can wait for."""
    network = model("resnet600_v2", norm=normalizer(norm), num_classes=10, width=8)
    assert len(list(network.get_submodule("blocks").children())) == 200
    with torch.no_grad():
        assert network(torch.randn(2, 3, 64, 64)).isfinite().all()


# Order


@pytest.mark.parametrize("norm", ["bn", "gn", "sn", "frn"])
def test_activation_before_normalization_before_convolution(norm: str) -> None:
    torch.manual_seed(0)
    network = model(
        "resnet50_v2", norm=normalizer(norm), num_classes=10, width=8, order="act_norm_conv"
    )
    entered: list[Tensor] = []
    conv = network.get_submodule("blocks.1.convs.1")
    conv.register_forward_pre_hook(lambda _, x: entered.append(x[0]))
    network(torch.randn(4, 3, 64, 64))
    if norm in ("bn", "gn"):  # frn takes no mean away, sn the mixture of three
        assert entered[0].mean().item() == pytest.approx(0, abs=1e-5)
    assert (entered[0] < 0).any() == (norm != "frn")


@pytest.mark.parametrize("norm", ["evonorm_s0", "evonorm_b0", "nf", "skipinit", "none"])
def test_act_norm_conv_refuses_layers_that_need_their_activation(norm: str) -> None:
    with pytest.raises(Impossible, match="order=act_norm_conv needs a normalization without act"):
        model("resnet50_v2", norm=normalizer(norm), num_classes=10, order="act_norm_conv")


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("resnet50", {"strides": [1, 2]}, r"model.strides=\[1, 2\]: 4 stages need as many"),
        (
            "resnet50",
            {"depths": [3, 0, 6, 3]},
            r"model.depths=\[3, 0, 6, 3\]: it must be greater than 0",
        ),
        ("resnext50", {"width": 8}, "model.base_width=4: at width=8 a group has no channel"),
        ("resnet18_cifar", {"cardinality": 2}, "model.cardinality: basic blocks have no groups"),
        ("resnet50_v2", {"shortcut": "identity"}, "model.shortcut=identity: pre-activation blocks"),
        ("resnet50_v2", {"order": "act_conv_norm"}, "model.order=act_conv_norm"),
        ("resnet50_v2", {"act": "reul"}, "model.act=reul is no activation; did you mean relu"),
        ("resnet50_v2", {"dropout": 1.0}, "model.dropout=1.0: it must be less than 1"),
        ("nf_regnet_b0", {"depths": [1]}, r"model.depths=\[1\]: 4 stages need as many"),
        ("efficientnet_b0", {"blocks": ["xx"]}, r"model.blocks=\['xx'\]: stages are written as"),
        ("mobilenetv2", {"max_groups": 0}, "model.max_groups=0"),
    ],
)
def test_a_bad_option_of_a_network_is_one_sentence(
    name: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        model(name, norm=normalizer("bn"), num_classes=10, **changes)


@pytest.mark.parametrize("shortcut", ["projection", "identity"])
def test_a_stride_alone_changes_a_shortcut_too(shortcut: str) -> None:
    options = {"strides": [2, 2, 2, 2], "width": 8, "shortcut": shortcut}
    network = model("resnet18_cifar", norm=normalizer("bn"), num_classes=3, **options)  # type: ignore[arg-type]
    assert network(torch.randn(2, 3, 64, 64)).shape == (2, 3)


@pytest.mark.parametrize(("name", "convs", "blocks"), [("resnet110", 2, 54), ("resnet50", 3, 16)])
def test_fixup_scales_the_first_convolutions_of_a_branch_by_the_depth(
    name: str, convs: int, blocks: int
) -> None:
    """Zhang et al. 2019, rule 2: L^(-1 / (2m - 2))."""
    torch.manual_seed(0)
    network = model(name, norm=normalizer("fixup"), num_classes=10)
    for index, block in enumerate(network.get_submodule("blocks").children()):
        *first, last = block.get_submodule("convs").children()
        assert len(first) == convs - 1
        assert not last.get_parameter("weight").any()
        weight = first[-1].get_parameter("weight")
        he = (2 / (weight.shape[0] * 9)) ** 0.5
        wanted = he * blocks ** (-1 / (2 * convs - 2))
        assert weight.std().item() == pytest.approx(wanted, rel=0.1), index


# What drops at random


@pytest.mark.parametrize("name", ["resnet50", "resnet50_v2", "nf_regnet_b0"])
def test_stochastic_depth_grows_with_depth_and_rescales_nothing(name: str) -> None:
    with torch.device("meta"):
        network = model(name, norm=normalizer("bn"), num_classes=10, stochastic_depth=0.1)
    paths = [m for m in network.modules() if isinstance(m, StochasticDepth)]
    assert [path.rate for path in paths] == [0.1 * k / 16 for k in range(16)]
    assert not any(path.rescale for path in paths)


# The whole


@pytest.mark.parametrize("name", ["resnet14", "resnet14_v2"])
@pytest.mark.parametrize("norm", slow_except(normalizers(), EVERYDAY_NORMS))
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
    assert all((p.grad is not None) == p.requires_grad for p in network.parameters())


DEEP = [name for name in ARCHITECTURES if re.match(r"resnet(101|152|200|288|600)", name)]


def stepped(name: str, norm: str, size: int, **options: Any) -> None:
    """Build, and take a step."""
    torch.manual_seed(0)
    try:
        network = model(name, norm=normalizer(norm), num_classes=10, **options)
    except Impossible as reason:
        assert norm == "nf"
        assert "kind nf, which this model does not have" in str(reason)
        assert not name.endswith("_v2")
        return
    step(network, size)


@pytest.mark.parametrize(
    ("name", "norm"),
    slow_except(
        # Each architecture with two normalizers, each three neighbours with all.
        [
            (name, norm)
            for place, name in enumerate(ARCHITECTURES)
            for norm in NORMS[place % 3 :: 3]
        ],
        [(name, NORMS[place % 3]) for place, name in enumerate(ARCHITECTURES)][::6],
    ),
)
def test_a_step_of_training_reaches_every_parameter(name: str, norm: str) -> None:
    # An eighth of the width, and with it fewer groups, is quick enough for the deepest.
    options = {"width": 8, "max_groups": 4} if name in DEEP else {}
    stepped(name, norm, 75 if name == "inception_v3" else 32, **options)


@pytest.mark.large
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", DEEP)
def test_a_step_of_training_at_full_width(name: str, norm: str) -> None:
    stepped(name, norm, 32)


@pytest.mark.large
@pytest.mark.parametrize("norm", ["bn", "nf"])
def test_six_hundred_layers_of_full_width_run(norm: str) -> None:
    network = model("resnet600_v2", norm=normalizer(norm), num_classes=1000)
    with torch.no_grad():
        assert network(torch.randn(1, 3, 224, 224)).isfinite().all()


def step(network: nn.Module, size: int) -> None:
    """One step of training, once what starts at 0 and hides branches does so no longer."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    logits = network.train()(torch.randn(4, 3, size, size))
    loss = nn.functional.cross_entropy(logits, torch.arange(4))
    loss.backward()
    assert loss.isfinite()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def main() -> None:
    """Print what is known of NF-ResNet-50 at its beginning beside what is measured."""
    torch.set_num_threads(2)
    norm = normalizer("nf", skip_gain=False)
    betas = [beta for stage in norm.residual.deviations([3, 4, 6, 3]) for beta in stage]
    print("beta                   ", *(f"{beta:.4f}" for beta in betas))
    for pool in (False, True):
        for act in ("relu", "silu"):
            torch.manual_seed(0)
            network = model("resnet50_v2", norm=norm, num_classes=10, act=act, stem_pool=pool)
            found = variances(network, 224)
            ratios = [var / beta**2 for var, beta in zip(found, betas, strict=False)]
            title = f"{act}, {'with' if pool else 'without'} max pool"
            print(f"{title:<23}", *(f"{ratio:.3f} " for ratio in ratios))


if __name__ == "__main__":
    main()
