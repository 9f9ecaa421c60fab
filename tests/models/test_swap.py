"""Any normalizer in networks of timm and torchvision: the same numbers, every rule of placement."""

import re
import socket
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from build import COVERED
from safetensors.torch import save_file
from timm.layers.activations import QuickGELU
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import main as catalog
from normbench.catalog import model, normalizer, normalizers
from normbench.catalog import swap as swap_by_name
from normbench.config.build import build, options
from normbench.data.counter_rng import Draws
from normbench.errors import BadInput, Impossible
from normbench.models.coverage import coverage
from normbench.models.dropout import Dropout, StochasticDepth
from normbench.models.layer_types import drop_rate
from normbench.models.random_layers import random_layers, set_draws
from normbench.models.swap import swap
from normbench.norms.base.layer import Activation, Affine, NormAct, Scale
from normbench.norms.base.standardized_conv import StandardizedConv2d
from normbench.norms.batch import is_batch_norm
from normbench.norms.frn import ThresholdedLinear
from normbench.norms.proxy import ProxyAct
from normbench.results import Row
from normbench.training.parameter_groups import build_groups
from support.cells import SHORT, cell, train_cell
from support.commands import Command
from support.slow import slow_after, slow_except

PAPERS = COVERED[: COVERED.index("resnet18") + 1]  # and others of other kinds
# One of every way in which a normalizer touches a network; docs/coverage.md has them all.
KINDS = ["bn", "gn_ws", "gn_pn", "frn", "evonorm_s0", "nf"]


def swap_timm(name: str, norm: str = "bn", **arguments: Any) -> Any:
    network: Any = timm.create_model(name, num_classes=10, **arguments)
    return swap(network, normalizer(norm), image=network.default_cfg["input_size"])


def sequence(*layers: nn.Module) -> nn.Sequential:
    """A small network around `layers`, which take and give 8 channels."""
    conv, head = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 1)
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(conv, *layers, head, pool, nn.Flatten(), nn.Linear(8, 4))


# The same numbers


def randomized(network: nn.Module) -> nn.Module:
    """Gains that start at 0 would hide whole branches."""
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    return network


def run_once(network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Logits, gradients and buffers of one pass."""
    network.zero_grad()
    logits = network(x)
    logits.square().sum().backward()
    gradients = {f"grad {name}": p.grad for name, p in network.named_parameters()}
    return {"logits": logits, **gradients, **dict(network.named_buffers())}


@pytest.mark.parametrize("name", slow_except(PAPERS, PAPERS[::5]))
def test_swapped_bn_is_timms_network_bit_for_bit(name: str) -> None:
    torch.manual_seed(0)
    theirs = randomized(timm.create_model(name, num_classes=10))
    ours = swap_timm(name)
    ours.load_state_dict(theirs.state_dict(), strict=False)
    size = 96 if name == "inception_v3" else 64
    for training in (True, False):
        x = torch.randn(2, 3, size, size)
        left, right = (run_once(network.train(training), x) for network in (theirs, ours))
        counters = {key for key in left if key.endswith("num_batches_tracked")}
        assert left.keys() - counters == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in right)


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "googlenet"])
def test_swapped_bn_computes_torchvisions_network(name: str) -> None:
    torch.manual_seed(0)
    more = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    theirs = randomized(torchvision.models.get_model(name, num_classes=10, **more)).eval()
    ours = swap(theirs, normalizer("bn"))
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(x), theirs(x))
    assert coverage(ours, normalizer("bn")).left == {}


@pytest.mark.parametrize(
    ("name", "norm", "says"),
    [
        ("vit_tiny_patch16_224", "gn_pn", "no normalization of the network has an activation"),
        ("mixer_s32_224", "in", "it is the same for every image"),
        ("swin_tiny_patch4_window7_224", "in", "it is the same for every image"),
    ],
)
def test_a_normalizer_that_would_be_none_in_a_transformer_is_refused(
    name: str, norm: str, says: str
) -> None:
    with torch.device("meta"), pytest.raises(Impossible, match=says):
        swap_timm(name, norm)


def test_groups_of_several_channels_may_stand_before_the_mean_of_tokens() -> None:
    with torch.device("meta"):
        network = swap_timm("mixer_s32_224", "gn")
    assert coverage(network, normalizer("gn")).left == {}


def test_an_inherited_eps_is_counted() -> None:
    with torch.device("meta"):
        network = swap_timm("swin_tiny_patch4_window7_224", "ln2d")
    assert coverage(network, normalizer("ln2d")).kept == {"eps=1e-05": 29}


def test_embeddings_of_a_transformer_are_not_decayed() -> None:
    with torch.device("meta"):
        network = swap_timm("vit_tiny_patch16_224", "ln2d")
    decayed = {id(p) for p in build_groups(network, 0.1, 1e-4, ["weight"])[0]["params"]}
    for name, parameter in network.named_parameters():
        weighs = parameter.dim() > 1 and name not in ("pos_embed", "cls_token")
        assert (id(parameter) in decayed) == weighs, name


#: Networks with tokens (N, T, C), maps with channels last, and both, with options that make them
#: small.
TOKENS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "swin_tiny_patch4_window7_224": {"img_size": 112, "drop_path_rate": 0.0},
    "convnext_atto": {"depths": (1, 1, 1, 1), "conv_mlp": False},
    "efficientformer_l1": {},
    "mixer_s32_224": {"img_size": 64},
}


@pytest.mark.parametrize("name", slow_except([*TOKENS], ["vit_tiny_patch16_224", "convnext_atto"]))
def test_swapped_ln2d_computes_timms_network(name: str) -> None:
    """What timm normalizes over channels; where it has batch normalization, theirs is swapped."""
    torch.manual_seed(0)
    theirs = randomized(timm.create_model(name, num_classes=10, **TOKENS[name]))
    size = TOKENS[name].get("img_size", 224 if name.startswith("efficientformer") else 64)
    for path, layer in list(theirs.named_modules()):
        if is_batch_norm(layer):
            theirs.set_submodule(path, timm.layers.LayerNorm2d(layer.num_features))
    ours = swap(deepcopy(theirs), normalizer("ln2d"), image=(3, size, size))
    assert coverage(ours, normalizer("ln2d")).left == {}
    x = torch.randn(2, 3, size, size)
    left, right = (run_once(network.train(), x) for network in (theirs, ours))
    right = {key.replace(".layer.", "."): value for key, value in right.items()}
    for key in left.keys() - dict(theirs.named_buffers()).keys():  # constants, perhaps
        torch.testing.assert_close(right[key], left[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", slow_except(["levit_128s", "mobilevit_xxs"], ["mobilevit_xxs"]), ids=str
)
def test_swapped_bn_of_tokens_and_in_blocks_without_trace_computes_timms_network(
    name: str,
) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"img_size": 64} if name == "levit_128s" else {}
    theirs = randomized(timm.create_model(name, num_classes=10, **options)).double()
    ours = swap(deepcopy(theirs), normalizer("bn"), image=(3, 64, 64))
    x = torch.randn(4, 3, 64, 64).double()
    for training in (True, False):
        left, right = (run_once(network.train(training), x) for network in (theirs, ours))
        right = {key.replace(".layer.", "."): value for key, value in right.items()}
        counters = {key for key in left if key.endswith("num_batches_tracked")}
        assert left.keys() - counters == right.keys()
        for key in right:
            torch.testing.assert_close(right[key], left[key], rtol=1e-10, atol=1e-10)


def test_a_block_without_trace_is_copied_and_its_parameters_are_shared() -> None:
    theirs: Any = timm.create_model("mobilevit_xxs", drop_path_rate=0.1)
    before = [type(layer) for layer in theirs.modules()]
    ours = swap(theirs, normalizer("gn"))
    assert [type(layer) for layer in theirs.modules()] == before
    assert timm.layers.DropPath in before
    assert not any(isinstance(layer, timm.layers.DropPath) for layer in ours.modules())
    assert not left_batch_norms(ours)
    found = coverage(ours, normalizer("gn"))
    assert found.left == {"LayerNorm": 21}  # of patches (N P, T, C), whose first axis is not images
    inner = "stages.2.1.conv_kxk.conv.weight"
    assert ours.get_parameter(inner) is theirs.get_parameter(inner)
    with pytest.raises(Impossible, match=r"not trace MobileVitBlock stages.2.1, so its conv"):
        swap(theirs, normalizer("gn_ws"))


def test_a_new_layer_inherits_parameters_statistics_and_options() -> None:
    torch.manual_seed(0)
    old: Any = nn.BatchNorm2d(8, eps=1e-3, momentum=0.01)
    old(torch.randn(4, 8, 5, 5) + 3)
    old.weight.data.normal_()

    def new(norm: str, **options: Any) -> Any:
        network = sequence(old, nn.ReLU())
        return swap(network, normalizer(norm, **options), image=(3, 8, 8)).get_submodule("1")

    bn = new("bn")
    assert (bn.eps, bn.momentum) == (1e-3, 0.01)
    assert torch.equal(bn.running_mean, old.running_mean)
    assert torch.equal(bn.running_var, old.running_var)
    assert torch.equal(bn.weight, old.weight)
    assert bn.weight is not old.weight
    overridden = new("bn", eps=1e-4)
    assert (overridden.eps, overridden.momentum) == (1e-4, 0.01)
    renorm = new("batch_renorm")  # its momentum is its paper's
    assert renorm.momentum == normalizer("batch_renorm").momentum  # type: ignore[attr-defined]
    gn = new("gn")
    assert gn.eps == 1e-5
    assert torch.equal(gn.weight, old.weight)


# Coverage


def left_batch_norms(network: nn.Module) -> list[nn.Module]:
    return [layer for layer in network.modules() if is_batch_norm(layer)]


@pytest.mark.parametrize(
    ("name", "norm"),
    slow_except(
        # Each network with three kinds, each pair of neighbours with all.
        [
            (name, norm)
            for place, name in enumerate((*COVERED[:15], "repvgg_a0"))
            for norm in KINDS[place % 2 :: 2]
        ],
        [(name, KINDS[place % 2 :: 2][place % 3]) for place, name in enumerate(COVERED[:7])],
    ),
)
def test_no_batch_normalization_is_left(name: str, norm: str) -> None:
    with torch.device("meta"):
        try:
            network = swap_timm(name, norm)
        except Impossible as reason:
            if "normalizes nothing" in str(reason):
                assert name in ("convnext_atto", "repvgg_a0")  # no activation behind a norm
                assert norm in ("evonorm_s0", "gn_pn")
                return
            assert norm == "nf"
            assert f"residual branches of kind {norm}" in str(reason)
            assert "resnet50" in str(reason)  # a model that has them
            return
        assert not left_batch_norms(network)
        theirs: Any = timm.create_model(name)
        channels, height, width = theirs.default_cfg["input_size"]
        try:
            logits = network.train()(torch.empty(4, channels, height, width))
        except Impossible as reason:
            assert "1x1 map" in str(reason)  # of an attention, whose groups have a value each
            return
        assert logits.shape == (4, 10)
    found = coverage(network, normalizer(norm))
    assert found.pairs + found.alone > 0
    assert found.left == {}
    decayed = build_groups(network, 0.1, 1e-4, ["weight"])  # every parameter has a role
    assert len(decayed[0]["params"]) >= found.convs
    assert (found.standardized > 0) == (norm == "gn_ws")


@pytest.mark.parametrize(
    ("name", "pairs", "alone", "activations", "convs"),
    [
        ("resnet50", 33, 20, 16, 53),  # 16 after additions; the last of 16 blocks, 4 shortcuts
        ("resnetv2_50", 49, 0, 0, 53),  # the classifier is a convolution, and not one of them
        ("mobilenetv2_100", 35, 17, 0, 52),
        ("efficientnet_b0", 33, 16, 0, 49),  # 32 more are squeeze-excite's
    ],
)
def test_counts_of_coverage(
    name: str, pairs: int, alone: int, activations: int, convs: int
) -> None:
    with torch.device("meta"):
        found = coverage(swap_timm(name, "gn_ws"), normalizer("gn_ws"))
    assert (found.pairs, found.alone, found.activations) == (pairs, alone, activations)
    assert found.standardized == convs
    assert f"{pairs} of {pairs + activations} activations with a norm" in str(found)


def test_adjusted_groups_are_counted() -> None:
    with torch.device("meta"):
        found = coverage(swap_timm("mobilenetv2_100", "evonorm_s0"), normalizer("evonorm_s0"))
    assert found.adjusted == {"24 of 32": 4}  # of 144 channels
    assert "4 layers with 24 of 32 groups" in str(found)


# Placement


def layers(network: nn.Module, kind: type[nn.Module]) -> Iterator[Any]:
    return (layer for layer in network.modules() if isinstance(layer, kind))


def test_evonorm_keeps_the_relu_after_a_v1_addition() -> None:
    network = swap_timm("resnet18", "evonorm_s0")
    block = network.get_submodule("layer2.0")
    assert [type(block.get_submodule(name)) for name in ("bn2", "downsample.1")] == [Affine] * 2
    assert block.get_submodule("bn1").act == "relu"
    after = block.get_submodule("act2")
    assert isinstance(after, Activation)
    assert torch.equal(after(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))


def test_frn_has_a_threshold_after_a_v1_addition_and_none_in_squeeze_excite() -> None:
    assert len(list(layers(swap_timm("resnet18", "frn"), ThresholdedLinear))) == 8
    network = swap_timm("seresnet18", "frn")
    assert len(list(layers(network, ThresholdedLinear))) == 8
    assert len(list(layers(network, nn.ReLU))) == 8


@pytest.mark.parametrize(
    ("name", "unscaled"),
    [("resnetv2_50", 1), ("mobilenetv2_100", 1), ("densenet121", 1), ("resnet18", 0)],
)
def test_proxy_normalization_is_unscaled_before_the_final_mean(name: str, unscaled: int) -> None:
    proxied = list(layers(swap_timm(name, "gn_pn"), ProxyAct))
    assert [layer.scale for layer in proxied].count(False) == unscaled
    assert proxied[-1].scale == (not unscaled)


def test_proxy_normalization_is_unscaled_where_branches_go_into_the_final_mean_together() -> None:
    with torch.device("meta"):
        proxied = list(layers(swap_timm("inception_v3", "gn_pn"), ProxyAct))
    assert [layer.scale for layer in proxied].count(False) == 6  # 320 + 2 * 384 + 2 * 384 + 192


def test_no_proxy_in_squeeze_excite_and_a_gain_alone_at_the_end_of_mbconv() -> None:
    network = swap_timm("efficientnet_b0", "gn_pn")
    assert len(list(layers(network, ProxyAct))) == 33
    excite = network.get_submodule("blocks.1.0.se")
    assert not any(isinstance(layer, NormAct | Activation) for layer in excite.modules())
    last = network.get_submodule("blocks.1.0.bn3")
    assert last.weight is not None
    assert last.bias is None


def test_weight_standardization_leaves_squeeze_excite_and_classifier_alone() -> None:
    network = swap_timm("efficientnet_b0", "gn_ws")
    for name, conv in network.named_modules():
        if isinstance(conv, nn.Conv2d):
            assert isinstance(conv, StandardizedConv2d) == (".se." not in name), name
    bottleneck = swap_timm("resnetv2_50", "gn_ws")
    assert not isinstance(bottleneck.get_submodule("head.fc"), StandardizedConv2d)


@pytest.mark.parametrize(("name", "scales"), [("resnetv2_50", 16), ("resnet50", 0)])
def test_a_learned_scale_follows_a_branch_that_no_normalization_ends(
    name: str, scales: int
) -> None:
    network = swap_timm(name, "gn_ws")
    assert len(list(layers(network, Scale))) == scales
    assert coverage(network, normalizer("gn_ws")).scales == scales
    if scales:
        scale = network.get_submodule("stages.0.blocks.0.conv3_scale")
        assert (scale.channels, scale.act) == (256, None)
        assert not any("downsample" in key and "scale" in key for key, _ in network.named_modules())


def test_a_head_after_the_mean_is_standardized_and_a_downsampled_stream_has_no_scale() -> None:
    with torch.device("meta"):
        head = swap_timm("mobilenetv3_small_100", "gn_ws").get_submodule("conv_head")
        stream = swap_timm("poolformer_s12", "gn_ws")
    assert isinstance(head, StandardizedConv2d)
    assert not list(layers(stream, Scale))


def test_same_padding_survives_standardization() -> None:
    """tf_ networks pad as they go."""
    torch.manual_seed(0)
    network = swap_timm("tf_mobilenetv3_small_minimal_100", "ln_ws")
    conv = network.get_submodule("conv_stem")
    assert isinstance(conv, StandardizedConv2d)
    same = timm.layers.Conv2dSame(3, 16, 3, 2, bias=False)
    same.weight = nn.Parameter(conv.standardized())
    for size in (64, 65):
        seen: list[Tensor] = []
        hook = conv.register_forward_hook(lambda _, x, y, seen=seen: seen.append(y))
        x = torch.randn(2, 3, size, size)
        network(x)
        hook.remove()
        torch.testing.assert_close(seen[0], same(x))


def test_convolutions_that_stay_pad_once() -> None:
    """Plain depthwise convolutions of a normalizer-free network pad by themselves."""
    nf = normalizer("nf", weights="gaussian_depthwise")
    network = model("efficientnet_b0", norm=nf, padding="same", num_classes=3)
    shapes: dict[int, int] = {}
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and layer.groups > 1 and layer.stride[0] > 1:
            layer.register_forward_hook(
                lambda _, given, y: shapes.update({given[0].shape[2]: y.shape[2]})
            )
    network(torch.randn(2, 3, 64, 64))
    assert shapes == {32: 16, 16: 8, 8: 4, 4: 2}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("norm", ["bn", "gn_ws", "gn_pn", "frn", "ln2d"])
def test_new_layers_have_the_precision_of_the_network(norm: str, dtype: torch.dtype) -> None:
    network = timm.create_model("resnet10t").to(dtype)
    swapped = swap_by_name(network, norm, image=(3, 64, 64))
    assert swapped(torch.randn(2, 3, 64, 64, dtype=dtype)).dtype == dtype
    assert {each.dtype for each in swapped.parameters()} == {dtype}


def test_new_layers_of_a_network_without_memory_have_none() -> None:
    with torch.device("meta"):
        network = timm.create_model("resnet10t")
    swapped = swap_by_name(network, "gn", image=(3, 64, 64))
    assert {each.device.type for each in swapped.parameters()} == {"meta"}


def test_gates_are_no_activations() -> None:
    gated = sequence(nn.BatchNorm2d(8), nn.Sigmoid(), nn.BatchNorm2d(8), nn.ReLU())
    network = swap(gated, normalizer("evonorm_s0"), image=(3, 8, 8))
    assert isinstance(network.get_submodule("2"), nn.Sigmoid)
    assert [network.get_submodule(place).act for place in ("1", "3")] == [None, "relu"]


def test_an_activation_is_recognized_by_its_values() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = F.leaky_relu(self.norms[0](self.conv(x)), 0.01, inplace=True)
            x = self.norms[1](x).relu_()
            x = torch.tanh(self.norms[2](x))
            return x.mean((2, 3))

    network = swap(Functional(), normalizer("gn"), image=(3, 8, 8))
    acts = [layer.act for layer in layers(network, NormAct)]
    assert acts == ["leaky_relu", "relu", "tanh"]
    assert coverage(network, normalizer("gn")).activations == 0


# What is refused


class Calls(nn.Module):
    """A function in a sequence."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("layers", "norm", "error", "says"),
    [
        ([nn.BatchNorm2d(8), nn.PReLU(8)], "gn", Impossible, "activation PReLU after 1 is none"),
        ([nn.BatchNorm2d(8), nn.LeakyReLU(0.2)], "gn", Impossible, "activation LeakyReLU after 1"),
        ([nn.ReLU()], "gn", Impossible, "no normalization of maps"),
        ([nn.BatchNorm2d(8)], "skipinit", Impossible, "branches of kind skipinit"),
        ([nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1, groups=8)], "ln_ws", Impossible, "single weight"),
        ([nn.BatchNorm2d(8), QuickGELU()], "gn", Impossible, "activation QuickGELU after 1"),
        (
            [nn.BatchNorm2d(8), Calls(lambda x: F.leaky_relu(x, 0.2))],
            "gn",
            Impossible,
            "leaky_relu",
        ),
        ([nn.BatchNorm2d(8), Calls(lambda x: x.clamp(0, 4))], "gn", Impossible, "activation clamp"),
        ([nn.BatchNorm2d(8), Calls(lambda x: x * x.sigmoid())], "gn", Impossible, r"x \* sigmoid"),
        (
            [nn.BatchNorm2d(8), Calls(lambda x: x + F.relu_(x))],
            "bn",
            Impossible,
            "relu_ overwrites what others read",
        ),
        (
            [nn.BatchNorm2d(8), Calls(lambda x: F.group_norm(x, 2))],
            "gn",
            Impossible,
            "group_norm normalizes by a function",
        ),
        (
            [nn.BatchNorm2d(8), nn.Dropout2d(0.1)],
            "gn",
            Impossible,
            "Dropout2d at 2 drops what is not",
        ),
        ([nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)], "evonorm_s0", Impossible, "normalizes nothing"),
        ([timm.layers.EvoNorm2dS0(8, group_size=4)], "bn", Impossible, "EvoNorm2dS0 at 1 is norm"),
    ],
)
def test_an_impossible_swap_is_one_sentence(
    layers: list[nn.Module], norm: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        swap(sequence(*layers), normalizer(norm), image=(3, 8, 8))


class Headed(nn.Module):
    """A batch normalization of sequences (N, C, L)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.neck = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.neck(self.body(x).flatten(2)).mean(2)  # type: ignore[no-any-return]


def test_a_batch_normalization_is_left_on_request_alone() -> None:
    with pytest.raises(Impossible, match="1 batch normalization would be left, BatchNorm1d neck: "):
        swap(Headed(), normalizer("gn"), image=(3, 8, 8))
    network = swap(Headed(), normalizer("gn"), image=(3, 8, 8), allow_left=True)
    assert coverage(network, normalizer("gn")).left == {"BatchNorm1d": 1}
    assert len(build_groups(network, 0.1, 1e-4, ["weight"])[1]["params"]) == 2 + 2 + 1
    assert "left: 1 BatchNorm1d" in str(coverage(network, normalizer("gn")))


def test_a_network_that_differs_in_evaluation_is_refused() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) if self.training else x

    with pytest.raises(Impossible, match="computes in training what it does not in evaluation"):
        swap(Moody(), normalizer("gn"), image=(3, 8, 8))


def test_a_traced_training_flag_is_refused() -> None:
    """torch.fx would keep the word for ever."""

    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return F.feature_alpha_dropout(self.norm(x), 0.5, training=self.training)

    with pytest.raises(Impossible, match="computes in training what it does not in evaluation"):
        swap(Told(), normalizer("gn"), image=(3, 8, 8))


@pytest.mark.parametrize("alike", [True, False])
def test_constants_of_a_trace_are_compared_by_their_values(alike: bool) -> None:
    """Swin looks biases up by indices that it computes, which each trace numbers anew."""

    class Indexed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            return y + torch.arange(8) * (1 if self.training or alike else 2)

    if alike:
        x = torch.randn(2, 3, 8, 8)
        network = swap(Indexed(), normalizer("gn"), image=(3, 8, 8))
        expected = normalizer("gn").layer(3, None)(x) + torch.arange(8)
        torch.testing.assert_close(network(x), expected)
    else:
        with pytest.raises(Impossible, match="computes in training what it does not"):
            swap(Indexed(), normalizer("gn"), image=(3, 8, 8))


def test_a_batch_normalization_in_an_untraced_module_is_found() -> None:
    class Own(nn.Linear):  # a layer of torch's to the tracer, which it does not look into
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.hidden = nn.BatchNorm2d(8)

    Own.__module__ = "torch.nn.modules.linear"
    network = nn.Sequential(sequence(nn.BatchNorm2d(8)), nn.Linear(4, 8), Own())
    with pytest.raises(Impossible, match=r"BatchNorm2d 2\.hidden: torch\.fx does not trace Own 2"):
        swap(network, normalizer("gn"), image=(3, 8, 8))


@pytest.mark.parametrize("alike", [True, False])
def test_a_normalization_in_two_places_stays_one(alike: bool) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            once = self.relu(self.norm(self.conv(x)))
            twice: Tensor = self.norm(self.conv(once))
            return (self.relu(twice) if alike else twice).mean((2, 3))

    if not alike:
        with pytest.raises(Impossible, match="norm is called with an activation behind it and"):
            swap(Twice(), normalizer("bn"), image=(3, 8, 8))
        return
    network = swap(Twice(), normalizer("bn"), image=(3, 8, 8))
    assert sum(p.numel() for p in network.parameters()) == 12 + 6
    assert len({id(layer) for layer in layers(network, NormAct)}) == 1


def test_convolutions_of_another_kind_are_not_standardized() -> None:
    class Odd(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    Odd.__module__ = "torch.nn.modules.conv"
    network = sequence(Odd(8, 8, 3), nn.BatchNorm2d(8))
    with pytest.raises(Impossible, match="Odd at 1 is no convolution whose weights can be stand"):
        swap(network, normalizer("gn_ws"), image=(3, 8, 8))
    assert swap(network, normalizer("gn"), image=(3, 8, 8))


def test_a_batch_normalization_of_another_author_is_refused() -> None:
    class Their(nn.modules.batchnorm._BatchNorm):
        def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (torch's name)
            pass

    with pytest.raises(Impossible, match="batch_norm normalizes by a function"):
        swap(sequence(Their(8)), normalizer("gn"), image=(3, 8, 8))


class Untraced(nn.Linear):
    """A block around a layer, of torch's to the tracer, which does not look into it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(8, 8)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y


Untraced.__module__ = "torch.nn.modules.linear"


def test_a_layer_that_two_untraced_blocks_share_stays_one() -> None:
    torch.manual_seed(0)
    shared = timm.layers.BatchNormAct2d(8)
    theirs = sequence(Untraced(shared), nn.Conv2d(8, 8, 3), Untraced(shared))
    ours = swap(deepcopy(theirs), normalizer("bn"), image=(3, 8, 8))
    assert ours.get_submodule("1.inner") is ours.get_submodule("3.inner")
    x = torch.randn(4, 3, 8, 8)
    for training in (True, False):
        outputs = [network.train(training)(x) for network in (theirs, ours)]
        assert torch.equal(*outputs)


def test_what_follows_a_normalization_in_an_untraced_block_is_unknown() -> None:
    block = Untraced(timm.layers.BatchNormAct2d(8, apply_act=False))
    with pytest.raises(Impossible, match="so the activation behind it is unknown"):
        swap(sequence(nn.BatchNorm2d(8), block), normalizer("gn"), image=(3, 8, 8))


@pytest.mark.parametrize(
    ("network", "norm"),
    [
        (sequence(nn.BatchNorm2d(8), Untraced(nn.Dropout(0.1))), "gn"),
        (timm.create_model("nf_resnet26", drop_path_rate=0.1), "nf"),
    ],
    ids=["torch", "timm"],
)
def test_drops_in_untraced_blocks_of_the_original_stay(network: nn.Module, norm: str) -> None:
    before = [type(layer) for layer in network.modules()]
    swapped = swap(network, normalizer(norm), image=(3, 64, 64))
    assert [type(layer) for layer in network.modules()] == before
    theirs = (nn.Dropout, timm.layers.DropPath)
    assert any(issubclass(kind, theirs) for kind in before)
    assert not any(isinstance(layer, theirs) and drop_rate(layer) for layer in swapped.modules())


def test_a_normalization_without_a_reader_is_swapped() -> None:
    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.other = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            self.other(x)
            y: Tensor = self.norm(x)
            return y

    network = swap(Unread(), normalizer("gn"), image=(3, 8, 8))
    assert network(torch.randn(2, 3, 8, 8)).shape == (2, 3, 8, 8)


class Flattened(nn.Module):
    """Batch normalization of tokens or windows (N P, T, C), as LeViT writes it."""

    def __init__(self, windows: int, *, twice: bool = False) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
        self.norm = nn.BatchNorm1d(8)
        self.windows, self.twice = windows, twice

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.conv(x).flatten(2).transpose(1, 2)
        tokens = tokens.reshape(-1, tokens.shape[1] // self.windows, 8)
        tokens = self.norm(tokens.flatten(0, 1)).reshape_as(tokens)
        if self.twice:
            tokens = self.norm(tokens.transpose(1, 2)).transpose(1, 2)
        return tokens


def test_flattened_tokens_are_normalized_as_tokens() -> None:
    torch.manual_seed(0)
    theirs = Flattened(1)
    x = torch.randn(4, 3, 8, 8)
    ours = swap(deepcopy(theirs), normalizer("bn"), image=(3, 8, 8))
    torch.testing.assert_close(ours(x), theirs(x))
    reasons = {
        1: "inputs of two kinds",
        4: r"1 batch normalization would be left, BatchNorm1d norm",
    }
    for windows, reason in reasons.items():
        with pytest.raises(Impossible, match=reason):
            swap(Flattened(windows, twice=windows == 1), normalizer("gn"), image=(3, 8, 8))


def test_channels_last_normalizations_are_replaced() -> None:
    with torch.device("meta"):
        network = swap_timm("convnext_tiny", "frn")
    found = coverage(network, normalizer("frn"))
    assert found.left == {}
    assert found.alone == 23
    assert found.activations == 0  # those on channels-last maps are no place for a threshold


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm((8, 8)), nn.LayerNorm((8, 8, 8)), nn.RMSNorm((8, 8))], ids=str
)
def test_normalizations_of_several_axes_are_left_and_counted(norm: nn.Module) -> None:
    network = swap(sequence(nn.BatchNorm2d(8), norm), normalizer("gn"), image=(3, 8, 8))
    assert coverage(network, normalizer("gn")).left == {type(norm).__name__: 1}


def test_normalizations_whose_first_axis_is_not_the_images_are_left() -> None:
    """Its positions would count as images, which workers share."""
    merged = nn.Sequential(Calls(lambda x: x.reshape(-1, 8)), nn.LayerNorm(8))
    back = Calls(lambda x: x.view(-1, 8, 8, 8))
    network = swap(sequence(nn.BatchNorm2d(8), merged, back), normalizer("gn"), image=(3, 8, 8))
    assert coverage(network, normalizer("gn")).left == {"LayerNorm": 1}


def test_normalizer_free_networks_of_timm_are_used_as_they_are() -> None:
    with torch.device("meta"):
        theirs = timm.create_model("nf_resnet26", num_classes=10)
        ours = model("timm/nf_resnet26", norm=normalizer("nf"), num_classes=10)
        assert {k: v.shape for k, v in ours.state_dict().items()} == {
            k: v.shape for k, v in theirs.state_dict().items()
        }
        with pytest.raises(Impossible, match="no normalization of maps"):
            model("timm/nf_resnet26", norm=normalizer("gn"), num_classes=10)
        with pytest.raises(Impossible, match="options of the normalizer do not reach it"):
            model("timm/nf_resnet26", norm=normalizer("nf", alpha=0.5), num_classes=10)
    assert coverage(ours, normalizer("nf")).left == {"ScaledStdConv2d": 29}
    gains = build_groups(ours, 0.1, 1e-4, ["weight"])[1]["params"]
    assert len(gains) == 29 * 2 + 1


@pytest.mark.parametrize(
    ("name", "norm", "drops"),
    [
        ("nf_resnet26", "nf", {"stochastic_depth": 0.5}),
        pytest.param("vgg11_bn", "gn", {"dropout": 0.5}, marks=pytest.mark.slow),
    ],
)
def test_drops_in_untraced_modules_are_drawn_by_image(
    name: str, norm: str, drops: dict[str, float]
) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = drops
    network = model(f"timm/{name}", norm=normalizer(norm), num_classes=4, **options).train()
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.ones_(parameter)  # gains that hide branches
    x = torch.randn(3, 3, 64, 64)
    set_draws(random_layers(network), Draws(0, 0, torch.arange(3)))
    first = network(x)
    assert torch.equal(network(x), first)
    set_draws(random_layers(network), Draws(0, 1, torch.arange(3)))
    assert not torch.equal(network(x), first)
    assert not [layer for layer in network.modules() if type(layer).__name__ == "DropPath"]


# By name


def test_a_normalizer_may_be_named() -> None:
    by_name = swap_by_name(sequence(nn.BatchNorm2d(8), nn.ReLU()), "gn", image=(3, 8, 8))
    assert "GroupNormAct" in str(by_name)
    with torch.device("meta"):
        named, built = (
            model("resnet8", norm=norm, num_classes=4) for norm in ("gn", normalizer("gn"))
        )
    assert str(named) == str(built)
    with pytest.raises(BadInput, match="norm=gnn is unknown; did you mean gn"):
        swap_by_name(sequence(nn.BatchNorm2d(8)), "gnn")
    with pytest.raises(TypeError, match=r"normbench\.catalog\.swap takes names"):
        swap(sequence(nn.BatchNorm2d(8)), "gn")  # type: ignore[arg-type]


def test_any_model_of_timm_by_its_name() -> None:
    network = model("timm/resnet18", norm=normalizer("gn"), num_classes=7, in_chans=1)
    assert network(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    capped = model("timm/resnet18", norm=normalizer("gn"), num_classes=7, max_groups=4)
    assert {layer.groups for layer in layers(capped, NormAct)} == {4}
    started: dict[str, Any] = {"arguments": {"zero_init_last": False}}
    plain = model("timm/resnet18", norm=normalizer("gn"), num_classes=7, **started)
    assert plain.get_submodule("layer1.0.bn2").get_parameter("weight").all()
    assert not network.get_submodule("layer1.0.bn2").get_parameter("weight").any()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("timm/resnet51", {}, r"model.name=resnet51: .* did you mean resnet51q\?$"),
        ("timm/", {}, r"model.name is missing: .* as resnet50"),
        ("timm/resnet18", {"arguments": {"zero_init": 1}}, "model.arguments=.*does not take"),
        (
            "timm/resnet18",
            {"arguments": {"drop_rate": 0.1}},
            "arguments.drop_rate=0.1: classes",
        ),
        ("timm/resnet18.nowhere", {}, "model.name=resnet18.nowhere: "),
        ("timm/resnet18", {"dropout": 2.0}, r"model.dropout=2.0: it must be less than 1"),
        ("timm/resnet18", {"max_groups": 0}, "model.max_groups=0: it must be greater than 0"),
        ("tim/resnet18", {}, "model=tim is unknown; did you mean timm"),
        (
            "timm/resnet18",
            {"arguments": {"pretrained_cfg_overlay": {"file": "weights.pt"}}},
            "file=weights.pt: only .model.arguments.pretrained=true reads it",
        ),
        (
            "timm/resnet18",
            {"arguments": {"pretrained": True, "pretrained_cfg_overlay": {"file": "nowhere.pt"}}},
            "arguments.pretrained_cfg_overlay.file=nowhere.pt: there is no such file",
        ),
    ],
)
def test_a_bad_name_or_argument_is_one_sentence(
    name: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        model(name, norm=normalizer("gn"), num_classes=7, **options)


def test_no_weights_are_downloaded_where_only_shapes_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("the check before a training uses the network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    with torch.device("meta"):
        network = model("timm/resnet18", norm="bn", num_classes=7, arguments={"pretrained": True})
    assert next(network.parameters()).is_meta


@pytest.mark.slow
def test_a_run_of_a_timm_model_prints_and_records_its_coverage(
    command: Command, rows: Callable[[], list[Row]]
) -> None:
    words = ("model=timm", "model.name=resnet18,inception_v3", "norm=evonorm_s0", "batch=4", *SHORT)
    end = command("-m", *words, "recipe.images=256")
    assert end.code == 0
    line = "evonorm_s0 in timm/resnet18: 9 norm + activation; 11 norm alone; 9 of 17 activations"
    assert line in end.out
    assert "model.name=inception_v3: images of 8x8 are too small" in end.out
    found = {row.model: row for row in rows()}
    assert found["timm/resnet18"].coverage.endswith("left: nothing")
    assert found["timm/inception_v3"].status == "impossible"
    assert "model=timm/resnet18" in end.out  # the title of its table
    again = command("-m", *words, "recipe.images=256")
    assert "2 cells, 2 finished before, 0 to do" in again.out


def test_a_run_with_a_batch_normalization_left_is_not_batch_independent() -> None:
    words = ("model=timm", "model.name=efficientvit_b0", "model.allow_left=true", "norm=ln2d")
    fields, _ = train_cell(cell(*words, *SHORT, "recipe.images=64", "global_batch=32"))
    assert "left: 4 BatchNorm2d" in fields["coverage"]
    assert not fields["batch_independent"]


@pytest.mark.parametrize(
    ("words", "says"),
    slow_after(
        2,
        [
            (["model=timm"], "model.name is missing: any of timm.list_models(), as resnet50"),
            (["model=timm", "model.name=resnet5"], "timm has no model of that name; did you mean"),
            (["model=timm", "model.name=resnet18", "norm=nf"], "residual branches of kind nf"),
            (["model=timm", "model.name=tiny_vit_5m_224"], "10 batch normalizations would be left"),
        ],
    ),
)
def test_a_command_line_without_a_possible_network_is_refused(
    command: Command, words: list[str], says: str
) -> None:
    end = command(*words)
    assert end.code == 2
    assert says in end.err


def test_the_catalog_measures_an_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert catalog(["models", "resnet50_v2", "norm=gn_ws"]) == 0
    counts = re.findall(r"^(\S.+?) {2,}(.+)$", capsys.readouterr().out, re.M)
    assert dict(counts) == {
        "parameters": "25,564,456", "multiply-adds": "4,089,184,256", "norm + activation": "49",
        "norm alone": "0", "activations with a norm before them": "49 of 49",
        "convolutions standardized": "53 of 53", "scales at ends of branches": "16",
        "left": "nothing",
    }  # fmt: skip
    assert catalog(["models", "timm/mobilenetv2_100,resnet20", "norm=gn,nf", "image=64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["timm/mobilenetv2_100", "gn", "ok"],
        ["timm/mobilenetv2_100", "nf", "n/a"],
        ["resnet20", "gn", "ok"],
        ["resnet20", "nf", "n/a"],
    ]
    assert catalog(["models", "resnet8", "norm=all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(normalizers())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["resnet5x"], "model=resnet5x is unknown; did you mean"),
        (["resnet50", "norm=bnn"], "norm=bnn is unknown; did you mean bn"),
        (["resnet50", "size=3"], "size=3 is unknown to models; known: classes, image, norm"),
        (["resnet50", "resnet20"], "one name of the models, or several as NAME,NAME"),
        (["resnet50", "image=0"], "image=0: it is a whole number above 0"),
        (["inception_v3", "image=32"], "cannot work: images of 32x32 are too small for it"),
        (["resnet50", "norm=nf"], "resnet50 norm=nf cannot work: the normalizer asks for"),
    ],
)
def test_an_error_of_the_catalog_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalog(["models", *words]) == 2
    assert says in capsys.readouterr().err


# What drops at random


def test_dropout_and_drop_path_become_ours_and_rescale_as_timms() -> None:
    network = swap_timm("efficientnet_b0", drop_rate=0.2, drop_path_rate=0.1)
    assert [layer.rate for layer in layers(network, Dropout)] == [0.2]
    paths = list(layers(network, StochasticDepth))
    assert len(paths) == 9  # blocks with a shortcut; the rate of the very first is 0
    assert all(path.rescale for path in paths)
    assert not list(layers(network, timm.layers.DropPath))
    assert not list(layers(network, nn.Dropout))


def test_stochastic_depth_of_torchvision_and_functional_dropout_become_ours() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = sequence(nn.BatchNorm2d(8), torchvision.ops.StochasticDepth(0.3, "row"))

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.body(x), 0.2, training=self.training)

    network = swap(Dropping(), normalizer("gn"), image=(3, 8, 8))
    (path,) = layers(network, StochasticDepth)
    assert (path.rate, path.rescale) == (0.3, True)
    assert [layer.rate for layer in layers(network, Dropout)] == [0.2]
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(network.eval()(x), network(x))
    assert not torch.equal(network.train()(x), network(x))


def test_drops_of_an_image_do_not_depend_on_its_place_in_the_batch() -> None:
    network = swap_timm("resnet18", "gn", drop_rate=0.5, drop_path_rate=0.5).double().train()
    images = torch.randn(6, 3, 32, 32, dtype=torch.float64)
    indices = torch.tensor([4, 8, 15, 16, 23, 42])
    found = []
    for order in (torch.arange(6), torch.tensor([5, 3, 1, 0, 2, 4])):
        set_draws(random_layers(network), Draws(0, 1, indices[order]))
        found.append(network(images[order])[order.argsort()])
    torch.testing.assert_close(*found)
    set_draws(random_layers(network), Draws(0, 2, indices))
    assert not torch.allclose(network(images), found[0])


PLAIN = [name for name in normalizers() if normalizer(name).residual.kind == "plain"]


@pytest.mark.parametrize(
    ("name", "norm"),
    slow_except(
        [
            *(("mobilenetv3_small_050", norm) for norm in PLAIN),
            *(("resnet10t", norm) for norm in PLAIN if norm in KINDS),
        ],
        [("mobilenetv3_small_050", "gn_pn"), ("mobilenetv3_small_050", "sn"), ("resnet10t", "frn")],
    ),
)
def test_a_network_of_timm_takes_a_step_with_any_plain_normalizer(name: str, norm: str) -> None:
    torch.manual_seed(0)
    network = model(f"timm/{name}", norm=normalizer(norm), num_classes=4, max_groups=4)
    recipe: Any = build("recipe", options("recipe", "demo", {}))
    optimizer = recipe.build_optimizer(network, 8)
    logits = network.train()(torch.randn(8, 3, 64, 64))
    F.cross_entropy(logits, torch.arange(8) % 4).backward()
    optimizer.step()
    for key, parameter in network.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
        assert parameter.isfinite().all(), key


@pytest.mark.parametrize("norm", ["bn", "frozen_bn", "gn"])
def test_weights_of_a_file_are_loaded(norm: str, tmp_path: Path) -> None:
    """As timm's own, by its overlay: from another number of classes, whose classifier stays new."""
    trained = timm.create_model("resnet18", num_classes=1000)
    for tensor in trained.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1)
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    overlay = {"file": str(tmp_path / "weights.safetensors")}
    arguments = {"pretrained": True, "pretrained_cfg_overlay": overlay}
    network = model("timm/resnet18", norm=norm, num_classes=10, arguments=arguments)
    loaded, expected = network.state_dict(), trained.state_dict()
    assert loaded["fc.weight"].shape == (10, 512)
    shared = {name for name in loaded if name in expected and not name.startswith("fc.")}
    assert len(shared) >= 20 + 2 * 20
    assert all(torch.equal(loaded[name], expected[name]) for name in shared)
    if norm != "gn":
        assert "bn1.running_mean" in shared
    with pytest.raises(
        BadInput, match=r"overlay.file=.*weights.safetensors: size mismatch for layer1"
    ):
        model("timm/resnet50", norm=norm, num_classes=10, arguments=arguments)


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("convnext_atto", r"it is of another network, without 20 of the parameters, such as conv1"),
        ("resnet10t", r"size mismatch for layer2.0"),
        ("text", r"weights.safetensors cannot be read \("),
    ],
)
def test_weights_of_another_network_are_refused(
    content: str, says: str, meta: bool, tmp_path: Path
) -> None:
    """timm takes what fits, if the number of classes is another one."""
    path = tmp_path / "weights.safetensors"
    if content == "text":
        path.write_text("no weights")
    else:
        save_file(timm.create_model(content, num_classes=7).state_dict(), path)
    arguments = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path)}}
    with (
        torch.device("meta" if meta else "cpu"),
        pytest.raises(BadInput, match=says),
    ):
        model("timm/resnet18", norm="gn", num_classes=10, arguments=arguments)


def test_global_response_normalization_stays() -> None:
    """An option of ConvNeXt's blocks, no normalizer (Woo et al. 2023)."""
    network = swap_timm("convnext_atto", "gn", use_grn=True)
    assert sum(".grn." in name for name, _ in network.named_parameters()) == 2 * 12  # blocks
    network(torch.randn(2, 3, 64, 64)).sum().backward()
