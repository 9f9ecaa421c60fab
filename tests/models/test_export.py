"""torch.export of every normalizer's network: the same outputs, for any number of images."""

import io

import pytest
import torch

from normbench.catalog import normalizer, normalizers
from normbench.models.fold import fold
from normbench.norms.evonorm_expressions import EXPRESSIONS
from support.networks import network_of, noise
from support.slow import EVERYDAY_NORMS, slow_except

#: Normalizers whose networks cannot be exported in evaluation, with the message of torch. None.
IMAGE = (1, 9, 9)
IMAGES = ({0: torch.export.Dim("images", min=2, max=4096)},)


def export(network: torch.nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(network, (noise(4, *IMAGE),), dynamic_shapes=IMAGES)


#: Every normalizer folded, and some as they are trained.
CASES = [(norm, True) for norm in normalizers()] + [(norm, False) for norm in EVERYDAY_NORMS]


@pytest.mark.parametrize(
    ("norm", "folded"), slow_except(CASES, [("evonorm_b0", False), ("gn_pn", True)])
)
def test_an_exported_network_computes_the_same(norm: str, folded: bool) -> None:
    network = network_of(norm).train()
    network(noise(16, *IMAGE))  # statistics of images
    network.eval()
    ready = fold(network, IMAGE) if folded else network
    program = export(ready).module()
    x = noise(7, *IMAGE, seed=2)
    with torch.no_grad():
        torch.testing.assert_close(program(x), ready(x), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(program(x), network(x), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("which", EXPRESSIONS)
def test_every_candidate_of_evonorm_can_be_exported(which: str) -> None:
    layer = normalizer("evonorm_candidate", which=which).layer(8).eval()
    x = noise(4, 8, 5, 5)
    program = torch.export.export(layer, (x,), dynamic_shapes=IMAGES).module()
    y = noise(7, 8, 5, 5, seed=2)
    torch.testing.assert_close(program(y), layer(y))


def test_an_exported_network_is_written_and_read_without_normbench() -> None:
    network = fold(network_of("evonorm_b0").eval(), IMAGE)
    file = io.BytesIO()
    torch.export.save(export(network), file)
    file.seek(0)
    program = torch.export.load(file)
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert all(name.startswith(("aten.", "<built-in", "sym_")) for name in operators), operators
    x = noise(5, *IMAGE, seed=2)
    torch.testing.assert_close(program.module()(x), network(x))
