"""Fingerprints of formulas: algebraically equal layers have the same one.

A layer is evaluated in double precision on random maps and vectors, and its values are rounded.
Layers whose values are constant or not finite have no fingerprint.
"""

import hashlib

import torch
from torch import Tensor

from normbench.norms.graph import GraphNorm
from normbench.search.candidates import Rejected

_SHAPE = (6, 8, 3, 2)  # N C H W
_GROUPS = 4
_DIGITS = 6  # significant ones that must agree
_SMALL = 1e-9  # rounding errors of sums that would be 0


def fingerprint(formula: str) -> str:
    """Return the fingerprint of a formula.

    Raises:
        Rejected: its output is not finite, or does not depend on the input.
    """
    layer = GraphNorm(formula=formula, groups=_GROUPS).layer(_SHAPE[1]).double()
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        if not layer(draw(*_SHAPE)).isfinite().all():
            raise Rejected("nonfinite", "its output is not finite before training")
        vectors = draw(2, _SHAPE[1])
        for name, vector in zip(("v0", "v1"), vectors, strict=True):
            if (parameter := getattr(layer, name)) is not None:
                parameter.copy_(vector)
        # Of two scales and means, as a layer may be another one far from 0.
        outputs = [layer(scale * draw(*_SHAPE) + mean) for scale, mean in ((1, 0.3), (4, -1))]
    if not all(output.isfinite().all() for output in outputs):
        raise Rejected("nonfinite", "its output is not finite on random maps")
    if torch.allclose(outputs[0], outputs[1], rtol=1e-9, atol=1e-9):
        raise Rejected("constant", "it has the same output for all inputs")
    values = torch.cat([output.flatten() for output in outputs]).tolist()
    rounded = (0.0 if abs(value) < _SMALL else value for value in values)
    text = " ".join(f"{value:.{_DIGITS - 1}e}" for value in rounded)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
