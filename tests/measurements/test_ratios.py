"""Ratios of switchable normalization, and the receptive fields that group them."""

import pytest
import torch
from torch import Tensor

from normbench.catalog import model, normalizer
from normbench.measurements.ratios import PARTS, divergence, field_groups, measure, ratios
from normbench.measurements.receptive_field import receptive_fields
from normbench.norms.ratios import set_ratios, switchable_layers
from normbench.training.experiment import Experiment
from support.cells import composed
from support.networks import network_of, noise


@pytest.mark.parametrize(
    ("network", "field"),
    [  # Araujo, Norris and Sim 2019, and figure 3 of Luo et al. 2019 for ResNet-50
        ("resnet50", 427), ("inception_v3", 1311), ("timm/resnet18", 435), ("timm/vgg16_bn", 212),
        ("timm/mobilenetv1_100", 315),
    ],
)  # fmt: skip
def test_receptive_fields_agree_with_the_literature(network: str, field: int) -> None:
    side = 299 if network == "inception_v3" else 224
    built = model(network, norm=normalizer("bn"), num_classes=10).eval()
    fields = receptive_fields(built, (3, side, side))
    assert max(fields.values()) == field


def test_gradients_reach_the_receptive_field() -> None:
    """The pixels of which the middle of a map is a function, along the network's longest way."""
    network = network_of("bn", name="resnet20_v2").eval()
    fields = receptive_fields(network, (1, 101, 101))
    for name in ("blocks.0.convs.1", "blocks.3.norms.0", "blocks.4.convs.1"):
        x = noise(1, 1, 201, 201).requires_grad_()
        seen: list[Tensor] = []
        hook = network.get_submodule(name).register_forward_hook(
            lambda _, given, __, s=seen: s.append(given[0])
        )
        network(x)
        hook.remove()
        place = seen[0].shape[-1] // 2
        (gradient,) = torch.autograd.grad(seen[0][0, :, place, place].sum(), x)
        touched = gradient[0, 0].ne(0).any(0).sum()
        # ReLU hides a pixel now and then, at the border too.
        assert fields[name] - 4 <= touched <= fields[name]


def test_squeeze_excite_gates_are_left_out() -> None:
    fields = receptive_fields(
        model("efficientnet_b0", norm=normalizer("bn"), num_classes=10), (3, 224, 224)
    )
    assert max(fields.values()) == 851


def test_ratios_that_were_set_are_read() -> None:
    network = network_of("sn")
    names = [layer.name for layer in ratios(network, (1, 8, 8))]
    chosen = {name: {"mean": [0.5, 0.3, 0.2], "var": [0.1, 0.2, 0.7]} for name in names}
    set_ratios(network, chosen)
    layers = ratios(network, (1, 8, 8))
    assert len(layers) == 15
    for layer in layers:
        assert layer.mean == pytest.approx((0.5, 0.3, 0.2), abs=1e-6)
        assert layer.var == pytest.approx((0.1, 0.2, 0.7), abs=1e-6)
    fields = [layer.field for layer in layers if layer.field is not None]
    assert len(fields) == len(layers)
    assert fields[0] == 3
    assert max(fields) == 103


def test_a_member_that_is_not_mixed_has_ratio_0() -> None:
    sn = normalizer("sn", over=["in", "ln"])
    network = model("resnet14", norm=sn, num_classes=10, in_chans=1)
    assert {layer.mean for layer in ratios(network, (1, 8, 8))} == {(0.5, 0.5, 0.0)}


def test_divergence() -> None:
    p, q = (0.5, 0.25, 0.25), (0.25, 0.5, 0.25)
    by_hand = sum(
        a * torch.tensor(a / b).log() + b * torch.tensor(b / a).log()
        for a, b in zip(p, q, strict=True)
    )
    assert divergence(p, q) == pytest.approx(float(by_hand))
    assert divergence(p, p) == 0
    assert divergence((1, 0, 0), (1, 0, 0)) == 0
    assert divergence((1, 0, 0), (0, 1, 0)) == float("inf")


def test_groups_of_receptive_fields_are_the_papers() -> None:
    large = field_groups([7, 49, 59, 99, 107, 203, 299, 363, 427])
    assert list(dict.fromkeys(large.values())) == [
        "RF 7 to 49", "RF 50 to 99", "RF 100 to 199", "RF 200 to 299", "RF 300 to 427",
    ]  # fmt: skip
    small = field_groups([3, 5, 7, 9, 11, 13, 15, 17, 19])
    assert list(dict.fromkeys(small.values())) == ["RF 3 to 7", "RF 8 to 13", "RF 14 to 19"]


def test_layers_of_mask_rcnn_are_grouped_by_its_parts() -> None:
    words = ("model.width=8", "task.box_convolutions=2")
    network = Experiment(composed("task=detect", "norm=sn", *words)).build_network()
    records = measure(network, torch.empty(1, 1, 40, 40))
    layers = {record["layer"]: record for record in records}
    by_part = {
        title: [n for n in layers if layers[n]["group"] == title] for title in PARTS.values()
    }
    backbone = ratios(network.get_submodule("backbone"), (1, 40, 40))
    assert [name.removeprefix("backbone.") for name in by_part["backbone"]] == [
        layer.name for layer in backbone
    ]
    assert [layers[name]["field"] for name in by_part["backbone"]] == [
        layer.field for layer in backbone
    ]
    assert {part: len(names) for part, names in by_part.items() if part != "backbone"} == {
        "FPN": 4,  # two maps, each with a convolution of its own and one of the sum
        "box stream": 2,
        "mask stream": 4,
    }
    behind = [name for part in [*PARTS.values()][1:] for name in by_part[part]]
    assert {layers[name]["field"] for name in behind} == {None}
    assert [*dict.fromkeys(record["group"] for record in records)] == [*PARTS.values()]


def test_layers_of_training_alone_are_left_out() -> None:
    network = Experiment(composed("task=segment", "norm=sn", "task.auxiliary=0.4")).build_network()
    switchable = {name for name, _ in switchable_layers(network)}
    (auxiliary,) = [name for name in switchable if name.startswith("auxiliary.")]
    measured = {layer.name for layer in ratios(network, (1, 64, 64))}
    assert measured == switchable - {auxiliary}
