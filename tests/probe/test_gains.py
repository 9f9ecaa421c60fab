"""Gains of activations by quadrature and by sampling."""

import pytest

from normbench.errors import BadInput
from normbench.norms.base.activations import GAINS, activation
from normbench.probe import gains


@pytest.mark.parametrize("act", GAINS)
def test_a_gain_by_quadrature_is_the_constant_in_use(act: str) -> None:
    assert gains.gain_by_quadrature(activation(act)) == pytest.approx(GAINS[act], rel=1e-9)
    assert gains.gain_by_sampling(activation(act)) == pytest.approx(GAINS[act], rel=0.01)


def test_functions_of_vectors_are_sampled() -> None:
    """The constants of the paper's code, for vectors of 256."""
    for name, constant in (("glu", 1.8484), ("log_softmax", 1.0002)):
        function = gains.find_activation(name)
        assert gains.gain_by_sampling(function) == pytest.approx(constant, rel=0.01)
        with pytest.raises((ValueError, RuntimeError)):
            gains.gain_by_quadrature(function)


def test_any_function_can_be_the_activation() -> None:
    found = gains.find_activation("torch.nn.functional.hardsigmoid")
    assert gains.gain_by_quadrature(found) > 1
    with pytest.raises(BadInput, match="act=nonsense cannot be found"):
        gains.find_activation("nonsense")
    with pytest.raises(BadInput, match=r"act=torch\.zeros is no activation"):
        gains.find_activation("torch.zeros")
