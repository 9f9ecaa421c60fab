"""Layers from formulas: the language, and the layers of the papers as points of its space."""

from typing import Any

import pytest
import torch
from torch import Tensor

from normbench.catalog import normalizer
from normbench.errors import BadInput
from normbench.norms import formulas
from normbench.norms.evonorm_expressions import EXPRESSIONS, REPEATS
from normbench.norms.recalibration import recalibrate
from normbench.norms.workers import set_workers
from support.formulas import APPENDIX, BN, FRN, GN
from support.layers import images, perturbed_layer, values_and_gradients

#: Normalizer with its options, formula.
KNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("bn", {}, BN),
    ("gn", {}, GN),
    ("frn", {}, FRN),
    ("evonorm_b0", {}, APPENDIX["d1.6"]),
    ("evonorm_s0", {}, APPENDIX["d2.6"]),
    *(("evonorm_candidate", {"which": each}, APPENDIX[each]) for each in EXPRESSIONS),
]


def layers(name: str, options: dict[str, Any], formula: str) -> tuple[Any, Any]:
    """Return a known layer and that of the formula, with the same parameters and statistics."""
    known: Any = perturbed_layer(normalizer(name, **options), 6, "relu", torch.float64)
    eps = normalizer(name).eps  # type: ignore[attr-defined]
    ours: Any = perturbed_layer(
        normalizer("graph", formula=formula, eps=eps), 6, "relu", torch.float64
    )
    with torch.no_grad():
        if formula in (BN, GN):  # gain and shift before the activation
            gain, shift, bias = known.weight, known.bias, torch.zeros(6)
        elif formula == FRN:  # max(gain y + shift, tau) = max(gain y, tau - shift) + shift
            gain, shift, bias = known.weight, known.tau - known.bias, known.bias
        else:
            ours.weight.copy_(known.weight)
            ours.bias.copy_(known.bias)
            if hasattr(known, "v") and known.v is not None:
                ours.v1.copy_(known.v)
            return known, ours
        ours.weight.fill_(1)
        ours.bias.copy_(bias)
        ours.v1.copy_(gain)
        ours.v0.copy_(shift)
    return known, ours


def copy_statistics(source: Any, target: Any) -> None:
    """Copy running statistics: of a formula by the operation of its node."""
    for name in running_names(target):
        target.get_buffer(name).copy_(source.get_buffer(name.rpartition("_")[0]))


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "options", "formula"), KNOWN, ids=[f"{k[0]}-{k[1].get('which', '')}" for k in KNOWN]
)
def test_a_known_layer_is_the_layer_of_its_formula(
    name: str, options: dict[str, Any], formula: str, workers: int
) -> None:
    known, ours = layers(name, options, formula)
    copy_statistics(known, ours)
    for layer in (known, ours):
        set_workers(layer, workers)
    x = images((8, 6, 5, 3))
    for training in (True, False):
        outputs = []
        for layer in (known, ours):
            layer.train(training)
            outputs.append((layer(x), torch.autograd.grad(layer(x).square().sum(), x)[0]))
        for one, other in zip(*outputs, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)
        if name == "bn":  # its running variance is unbiased, as torch's
            copy_statistics(known, ours)
        for index in running_names(ours):
            assert not torch.equal(ours.get_buffer(index), torch.ones(6).double())


def running_names(layer: Any) -> list[str]:
    return [name for name, _ in layer.named_buffers() if name.startswith("running_")]


def test_running_statistics_of_nested_sets_follow_their_workers() -> None:
    formula = "(x-mean_bwh(x))/std_bwh(abs(x)-mean_wh(x))"
    norm = normalizer("graph", formula=formula, momentum=1.0, eps=1e-9)
    layer = norm.layer(3).double().train()
    set_workers(layer, 2)
    x = images((8, 3, 4, 4)).detach()
    layer(x)
    mean, var = (layer.get_buffer(name) for name in running_names(layer))
    z = x.abs() - x.mean((2, 3), keepdim=True)
    workers = [z[first::2] for first in range(2)]
    torch.testing.assert_close(mean, x.mean((0, 2, 3)))
    expected = sum(each.var((0, 2, 3), correction=0) for each in workers) / 2
    torch.testing.assert_close(var, expected)
    torch.testing.assert_close(
        layer.eval()(x), (x - mean[:, None, None]) / (var + 1e-9).sqrt()[:, None, None]
    )


def test_recalibration_averages_the_statistics_of_the_batches() -> None:
    norm = normalizer("graph", formula="x/std_bwh(abs(x)-mean_bwh(x))")
    layer = norm.layer(3).double()
    with torch.no_grad():
        for name in running_names(layer):
            layer.get_buffer(name).fill_(7)  # which nothing may remember
    batches = [images((4, 3, 2, 2)).detach() + shift for shift in (0.0, 1.0, 5.0)]
    assert recalibrate(layer, batches) == 1
    means, variances = zip(
        *(
            (
                x.mean((0, 2, 3)),
                (x.abs() - x.mean((0, 2, 3), keepdim=True)).var((0, 2, 3), correction=0),
            )
            for x in batches
        ),
        strict=True,
    )
    mean, var = (layer.get_buffer(name) for name in running_names(layer))
    torch.testing.assert_close(mean, sum(means) / 3)
    torch.testing.assert_close(var, sum(variances) / 3)
    assert layer.momentum == 0.1


@pytest.mark.parametrize(
    "formula",
    ["x+std_bwh(v1)", "x*mean_bwh(0)", "x-mean_bwh(std_whc(x))", "std_g(v0+x)", "rms_g(0)+x"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_moments_of_narrow_values_are_those_of_the_whole_map(formula: str, workers: int) -> None:
    layer = perturbed_layer(normalizer("graph", formula=formula), 6, "relu", torch.float64)
    set_workers(layer, workers)
    x = images((4, 6, 3, 3))
    for training in (True, False):
        layer.train(training)
        actual = values_and_gradients(layer, x, layer(x))
        expected = values_and_gradients(layer, x, layer.reference(x))
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("act", ["sqrt", "log"])
def test_roots_and_logarithms_are_defined_everywhere(act: str) -> None:
    layer = normalizer("graph", formula=f"{act}(x)").layer(1).double()
    x = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0]).double().view(1, 1, 1, 5).requires_grad_()
    y = layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.isfinite().all()
    expected = {"sqrt": Tensor([-2, -1, 0, 1, 2]), "log": Tensor([-1.38629, 0, 0, 0, 1.38629])}
    torch.testing.assert_close(y.flatten(), expected[act].double(), atol=2e-5, rtol=2e-5)


# The language


@pytest.mark.parametrize("formula", [*APPENDIX.values(), BN, GN, FRN, "-(x+-v0)--x", "x/(x/x)/x"])
def test_a_formula_is_read_again_as_the_same_graph(formula: str) -> None:
    graph = formulas.parse(formula)
    assert formulas.parse(str(graph)) == graph
    assert str(formulas.parse(str(graph))) == str(graph)


def test_the_formulas_of_the_appendix_are_written_as_they_are_read() -> None:
    assert {name: str(formulas.parse(text)) for name, text in APPENDIX.items()} == APPENDIX


def test_repeated_layers_of_the_appendix_have_equal_graphs() -> None:
    graphs = {name: formulas.parse(text) for name, text in APPENDIX.items()}
    first: dict[formulas.Graph, str] = {}
    repeats = {name: first[g] for name, g in graphs.items() if first.setdefault(g, name) != name}
    assert repeats == REPEATS


def test_equal_parts_are_one_node() -> None:
    graph = formulas.parse(APPENDIX["d2.10"])
    assert [node.op for node in graph.nodes] == ["x", "rms_g", "div", "max", "sigmoid", "mul"]


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (APPENDIX["d1.6"], r"\frac{x}{\max(\sqrt{s^2_{b,w,h}(x)}, v_1\,x + \sqrt{s^2_{w,h}(x)})}"),
        ("rms_g(x-v0)*(x+0)", r"\sqrt{\mu_{w,h,c/g}((x - v_0)^2)}\,\left(x + 0\right)"),
        ("x-x*-v0", r"x - x\,\left(-v_0\right)"),
        ("v1*x*v0", r"v_1\,x\,v_0"),
        ("square(x/v0)", r"\left(\frac{x}{v_0}\right)^2"),
        ("square(x+v0)-(x-v1)", r"\left(x + v_0\right)^2 - \left(x - v_1\right)"),
    ],
)
def test_formulas_are_typeset_as_in_the_paper(formula: str, text: str) -> None:
    assert formulas.latex(formulas.parse(formula)) == text


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("x * v1", r"leave out the spaces: x\*v1"),
        ("x*y", "unknown name y; "),
        ("x+1", "1: formulas have no number but 0; exp"),
        ("relu(x)", "unknown function relu; functions: sigmoid, tanh"),
        ("max(x)", "max takes two arguments, not 1"),
        ("std_g(x,x)", "std_g takes one argument, not 2"),
        ("x**2", "formulas have no powers; use square"),
        ("x#comment", "# is no part of a formula"),
        ("x+00", "00: formulas have no number but 0"),
        ("x+x" + "+x" * 300, "operations; a formula may have 300"),
        ("x+", "it cannot be read; x/max"),
        ("(" * 300 + "x" + ")" * 300, "it cannot be read"),
        ("-" * 1900 + "x", "it cannot be read"),
        ("x" + "+x" * 1000, "it has 2,001 characters"),
        ("v0+v1", "it does not depend on x"),
        ("", "it cannot be read"),
    ],
)
def test_a_formula_that_cannot_be_read_is_refused(formula: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        normalizer("graph", formula=formula)
