"""Moments and maps in closed form: derivatives of first and second order, and under vmap."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from normbench.catalog import normalizer, normalizers
from normbench.norms.base import closed_form
from normbench.norms.base.closed_form import apply_map
from normbench.norms.base.moments import group_mean_squares, group_moments
from normbench.norms.rms import channel_rms_norm
from support.layers import images, perturbed_layer, values_and_gradients
from support.slow import slow_except

FUNCTIONS = ("relu", "silu", "gated", "bounded", "gelu", None)
SHAPE = (3, 4, 2, 3)
Case = tuple[Callable[..., Tensor | Sequence[Tensor]], list[Tensor]]


def as_list(outputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else [*outputs]


def coefficients(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(number, *SHAPE[:2], generator=generator, dtype=torch.float64) + 0.3
    return [each.clone().requires_grad_() for each in drawn]


def map_of(function: str | None, given: tuple[int, ...]) -> Case:
    """A map with those of factor, offset, gain and shift that are given, and its arguments."""

    def compute(x: Tensor, *values: Tensor) -> Tensor:
        remaining = iter(values)
        return apply_map(function, x, *(next(remaining) if each else None for each in given))

    return compute, [images(SHAPE), *coefficients(sum(given))]


CASES: dict[str, Case] = {
    **{
        f"{function}-{''.join(map(str, given))}": map_of(function, given)
        for function in FUNCTIONS
        for given in product((0, 1), repeat=4)
    },
    **{f"moments-{g}": (partial(group_moments, groups=g), [images(SHAPE)]) for g in (1, 2, 4)},
    "mean squares": (partial(group_mean_squares, groups=2), [images(SHAPE)]),
    "rms": (lambda x: channel_rms_norm(x, None, 1e-3), [images(SHAPE)]),
    "rms with gain": (
        lambda x, weight: channel_rms_norm(x, weight, 1e-3),
        [images(SHAPE), torch.tensor([0.5, -1, 2, 1], dtype=torch.float64, requires_grad=True)],
    ),
}
#: Maps with all or none of the coefficients, and statistics, are tested every day.
EVERYDAY = [
    name
    for name in CASES
    if name.endswith(("-0000", "-1111")) or name.partition("-")[0] not in map(str, FUNCTIONS)
]
SLOW_BUT_SOME = slow_except([*CASES], EVERYDAY)


@pytest.mark.parametrize("case", SLOW_BUT_SOME)
def test_derivatives_are_those_of_finite_differences(case: str) -> None:
    function, inputs = CASES[case]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("case", SLOW_BUT_SOME)
@pytest.mark.parametrize(
    ("maps", "others"), [(0, 1), (0, None), (None, 0)], ids=["all", "maps", "coefficients"]
)
def test_vmap_computes_what_a_loop_does(case: str, maps: int | None, others: int | None) -> None:
    function, inputs = CASES[case]
    dims = (maps, *(others for _ in inputs[1:]))
    if dims == (None,):
        pytest.skip("a function of maps alone")

    def loss(*tensors: Tensor) -> Tensor:
        outputs = function(*tensors)
        return torch.stack([each.square().sum() for each in as_list(outputs)]).sum()

    gradients = torch.func.grad(loss, argnums=tuple(range(len(inputs))))
    stacked = [
        each.detach() if dim is None else torch.stack([each + k for k in range(3)], dim).detach()
        for each, dim in zip(inputs, dims, strict=True)
    ]
    stacked_gradients = torch.vmap(gradients, in_dims=dims)(*stacked)
    for seed in range(3):
        expected = gradients(
            *(
                each if dim is None else each.select(dim, seed)
                for each, dim in zip(stacked, dims, strict=True)
            )
        )
        for ours, theirs in zip(stacked_gradients, expected, strict=True):
            torch.testing.assert_close(ours[seed], theirs)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_in_half_precision_are_rounded_ones_of_double(
    function: str | None, dtype: torch.dtype
) -> None:
    for given in ((1, 1, 1, 1), (0, 0, 1, 1), (1, 1, 0, 0), (0, 0, 0, 0)):
        compute, (x, *values) = map_of(function, given)
        wide = [x.detach().to(dtype).double().requires_grad_(), *values]
        half = [x.detach().to(dtype).requires_grad_(), *(each.float() for each in values)]
        outputs = [as_list(compute(*each))[0] for each in (wide, half)]
        weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view_as(x).to(dtype)
        expected, actual = (
            torch.autograd.grad(output, inputs, weights.to(output.dtype))
            for output, inputs in zip(outputs, (wide, half), strict=True)
        )
        assert actual[0].dtype == dtype
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("case", EVERYDAY)
def test_a_backward_pass_changes_neither_inputs_nor_incoming_gradients(case: str) -> None:
    function, inputs = CASES[case]
    outputs = as_list(function(*inputs))
    # Expanded, as a mean over positions gives them: writing to one value would change all.
    gradients = [torch.full((), 0.5, dtype=torch.float64).expand_as(each) for each in outputs]
    before = [each.detach().clone() for each in inputs]
    torch.autograd.grad(outputs, inputs, gradients)
    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))
    assert all(each.unique().tolist() == [0.5] for each in gradients)


@pytest.mark.parametrize("case", ["silu-1111", "gated-1111", "moments-2", "rms with gain"])
def test_a_third_derivative_is_that_of_finite_differences(case: str) -> None:
    function, inputs = CASES[case]

    def first(*tensors: Tensor) -> Sequence[Tensor]:
        outputs = function(*tensors)
        loss = torch.stack([each.square().sum() for each in as_list(outputs)]).sum()
        return torch.autograd.grad(loss, tensors, create_graph=True)

    assert torch.autograd.gradgradcheck(first, inputs)


def test_a_value_at_its_bound_gives_the_gradient_to_the_bound() -> None:
    x = torch.zeros(1, 2, 1, 1, dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    tau = torch.full((1, 2), 0.25, dtype=torch.float64, requires_grad=True)
    output = apply_map("relu", x + 0.25, offset=-tau, shift=tau)  # max(x + 0.25, tau)
    to_x, to_tau = torch.autograd.grad(output.sum(), [x, tau])
    assert (to_x.abs().sum().item(), to_tau.flatten().tolist()) == (0, [1, 1])
    output = apply_map("bounded", x + 2, zeros, zeros + 1)  # (x + 2) / max(1, 1)
    to_x, to_factor = torch.autograd.grad(output.sum(), [x, zeros])
    assert (to_x.flatten().tolist(), to_factor.abs().sum().item()) == ([1, 1], 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("function", ["relu", "silu", "gated", "bounded"])
def test_what_is_not_finite_stays_visible(function: str, value: float) -> None:
    x = torch.full((1, 1, 1, 1), value)
    one = torch.ones(1, 1)
    assert not apply_map(function, x, one, one, one, one).isfinite().any()


@pytest.mark.parametrize("name", normalizers())
@pytest.mark.parametrize("act", ["relu", "silu"])
def test_small_maps_have_the_same_values_and_gradients(
    name: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed by the formulas, whose calls take less time."""
    layer, x = perturbed_layer(normalizer(name), 8, act, torch.float64), images((8, 8, 3, 3))
    state = copy.deepcopy(layer.state_dict())
    expected = values_and_gradients(layer, x, layer(x))
    monkeypatch.setattr(closed_form, "SMALLEST", 2**40)
    layer.load_state_dict(state)
    output = layer(x)
    for ours, theirs in zip(values_and_gradients(layer, x, output), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert not any("Evaluate" in node for node in backward_nodes(output))


def backward_nodes(output: Tensor) -> set[str]:
    """The names of the nodes of a backward pass."""
    names: set[str] = set()
    nodes = [output.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.add(node.name())
            nodes += [following for following, _ in node.next_functions]
    return names


def test_large_maps_are_computed_by_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images((2, 8, 4, 4))
    monkeypatch.setattr(closed_form, "SMALLEST", x.numel())
    nodes = backward_nodes(normalizer("evonorm_s0").layer(8).double()(x))
    assert any("Evaluate" in node for node in nodes)
