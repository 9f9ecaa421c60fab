"""Networks and layers against the papers' official code, whose results are below tests/official.

Every comparison is in double precision with the same inputs and weights (`official.parameters`).
Logits differ by at most 1e-10 of the largest, gradients by 1e-10 of their norm.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normbench.catalog import model, normalizer
from normbench.norms.inference import set_example_weight
from normbench.norms.proxy import ProxyAct
from official.parameters import (
    CLASSES,
    EXAMPLE_WEIGHTS,
    FOLDER,
    images,
    layer_images,
    parameter,
    summarize,
    uniform,
)
from support.slow import slow_except

TOLERANCE = 1e-10
GRAPHCORE: dict[str, Any] = {"groups": 4, "grouping": "strided", "eps": 1e-3}
#: Networks of the papers: normalizer, its options, network and its options.
NETWORKS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    # The gains are the code's, which are sampled; ours are integrals.
    "nf_resnet50": ("nf", {"gain": 1.7139588594436646}, "resnet50_v2", {"padding": "same"}),
    "nf_regnet_b0": ("nf", {"gain": 1.7881293296813965}, "nf_regnet_b0", {"padding": "same"}),
    "resnet50_v2_evonorm_b0": ("evonorm_b0", {}, "resnet50_v2", {"padding": "same_pool"}),
    "resnet50_v2_evonorm_s0": ("evonorm_s0", {}, "resnet50_v2", {"padding": "same_pool"}),
    "resnet50_v2_bn": ("bn", {}, "resnet50_v2", {"padding": "same_pool"}),
    "resnet50_bn": ("bn", {}, "resnet50", {"padding": "same_pool"}),
    "efficientnet_b0_gn": ("gn", GRAPHCORE, "efficientnet_b0", {"padding": "same"}),
    "efficientnet_b0_gn_pn": (
        "gn_pn",
        {**GRAPHCORE, "samples": 200},
        "efficientnet_b0",
        {"padding": "same"},
    ),
}

#: Layers of the papers: normalizer and its options.
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sn": ("sn", {"unbiased": True}),
    "four_things_ghost_bn": ("ghost_bn", {"ghost": 2}),
    "four_things_bgn": ("bgn", {"groups": 3, "images": 2}),
    "four_things_gn": ("gn", {"groups": 3}),
}


def fill(module: nn.Module) -> nn.Module:
    """Give every parameter and running statistic the numbers that belong to its name."""
    state = {name: parameter(name, value.shape) for name, value in module.state_dict().items()}
    module.double().load_state_dict({name: torch.from_numpy(state[name]) for name in state})
    return module


def excite_before_division(network: nn.Module) -> None:
    """Let squeeze-excite see activations before Proxy Norm divides them, as in Graphcore's code."""

    def undo_division(norm: ProxyAct, conv: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        _, var = norm.proxy_moments()
        return inputs[0] * torch.sqrt(var + norm.proxy_eps)[:, None, None]

    layers = dict(network.named_modules())
    for name, module in layers.items():
        block, _, layer = name.rpartition(".se.")
        norm = layers.get(f"{block}.bn{1 if block.startswith('blocks.0.') else 2}")
        if layer == "conv_reduce" and isinstance(norm, ProxyAct):
            module.register_forward_pre_hook(partial(undo_division, norm))


def load(case: str) -> dict[str, Any]:
    with np.load(FOLDER / f"{case}.npz") as file:
        return dict(file)


def assert_equal(actual: Tensor, expected: np.ndarray[Any, Any]) -> None:
    assert actual.shape == expected.shape
    difference = np.abs(actual.detach().numpy() - expected).max()
    assert difference <= TOLERANCE * np.abs(expected).max()


def assert_gradients(
    module: nn.Module, x: Tensor, output: Tensor, results: Mapping[str, Any]
) -> None:
    """Compare the gradients of a weighted sum of `output`."""
    inputs = {"images": x, **dict(module.named_parameters())}
    loss = (output * torch.from_numpy(uniform("loss", output.shape))).sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    ours = summarize({name: each.numpy() for name, each in zip(inputs, gradients, strict=True)})
    assert ours["names"].tolist() == results["names"].tolist()
    assert np.all(np.abs(ours["products"] - results["products"]) <= TOLERANCE * results["norms"])


@pytest.mark.parametrize(
    "case",
    slow_except([*NETWORKS], ["nf_regnet_b0", "resnet50_v2_evonorm_s0", "efficientnet_b0_gn"]),
)
def test_networks_are_those_of_the_official_code(case: str) -> None:
    norm, norm_options, name, options = NETWORKS[case]
    ours = normalizer(norm, **norm_options)
    network = fill(model(name, norm=ours, num_classes=CLASSES, **options))
    excite_before_division(network)
    results = load(case)
    x = torch.from_numpy(images()).requires_grad_()
    assert_equal(network.eval()(x), results["evaluation"])  # before training moves statistics
    output = network.train()(x)
    assert_equal(output, results["training"])
    assert_gradients(network, x, output, results)


@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_those_of_the_official_code(case: str) -> None:
    norm, options = LAYERS[case]
    results = load(case)
    x = torch.from_numpy(layer_images()).requires_grad_()
    layer = fill(normalizer(norm, **options).layer(x.shape[1], None))
    output = layer.train()(x)
    assert_equal(output, results["training"])
    assert_gradients(layer, x, output, results)
    for name in {"running_mean", "running_var"} & results.keys():
        assert_equal(layer.get_buffer(name), results[name])


@pytest.mark.parametrize("case", LAYERS)
def test_layers_evaluate_as_those_of_the_official_code(case: str) -> None:
    norm, options = LAYERS[case]
    results = load(case)
    x = torch.from_numpy(layer_images())
    layer = fill(normalizer(norm, **options).layer(x.shape[1], None)).eval()
    if norm == "gn":  # whose statistics are recalibrated, and so have no numbers by name
        channels = layer.get_parameter("weight").shape
        layer.register_buffer("running_mean", torch.from_numpy(parameter("running_mean", channels)))
        layer.register_buffer("running_var", torch.from_numpy(parameter("running_var", channels)))
    if case == "sn":
        assert_equal(layer(x), results["evaluation"])
        return
    for alpha, evaluated in zip(EXAMPLE_WEIGHTS, results["evaluation"], strict=True):
        set_example_weight(layer, alpha)
        assert_equal(layer(x), evaluated)


@pytest.mark.parametrize(
    ("case", "name", "option"),
    [("resnet50_bn", "resnet50", "all"), ("resnet50_v2_bn", "resnet50_v2", None)],
)
def test_gains_that_start_at_zero_are_those_of_the_official_code(
    case: str, name: str, option: str | None
) -> None:
    network = model(name, norm="bn", num_classes=CLASSES, zero_init_last=option)
    gains = {name: each for name, each in network.named_parameters() if "weight" in name}
    assert {name for name in gains if not gains[name].any()} == {*load(case)["zeros"].tolist()}
