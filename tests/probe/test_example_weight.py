"""Example weighing: its formula, the curve over alpha, and what is chosen by it."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.catalog import normalizer
from normbench.norms.batch import BatchNormAct
from normbench.norms.inference import set_example_weight
from normbench.probe import example_weight
from normbench.records.probes import PROBES, Record, group_by, write_records
from normbench.report import probe_drawings, probe_figures
from normbench.report.pivot import tables
from normbench.report.table_spec import spec
from normbench.results import Row
from normbench.training.example_weight import METRICS
from support.networks import network_of, noise, unchanged
from support.rows import runs


def trained(norm: str) -> nn.Module:
    """A network whose running statistics are those of some batches."""
    network = network_of(norm, stem_stride=1).train()
    for seed in range(20):
        network(noise(32, 1, 8, 8, seed=seed) * 2 + 1)
    return network.eval()


@pytest.mark.parametrize("alpha", [1e-9, 1 - 1e-7])
def test_the_limits_of_a_layer_are_batch_and_instance_normalization(alpha: float) -> None:
    """In single precision."""
    layer: Any = normalizer("bn").layer(8, None)
    for seed in range(5):
        layer.train()(noise(32, 8, 6, 6, seed=seed) * 2 + 1)
    x, means = noise(16, 8, 6, 6), (layer.running_mean, layer.running_var)
    expected = F.batch_norm(x, *means) if alpha < 0.5 else F.instance_norm(x)
    set_example_weight(layer.eval(), alpha)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)


def instance_normalized(layer: BatchNormAct, x: Tensor) -> Tensor:
    return layer.activation(F.instance_norm(x, weight=layer.weight, bias=layer.bias, eps=layer.eps))


def test_alpha_0_is_batch_normalization_and_1_instance_normalization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the one formula: what alpha = 0 and 1 are is its limit, and no case of its own."""
    network, x = trained("bn").double(), noise(16, 1, 8, 8, seed=99).double() + 1
    plain = network(x)
    set_example_weight(network, 1e-12)
    torch.testing.assert_close(network(x), plain, rtol=0, atol=1e-6)
    set_example_weight(network, 0)
    torch.testing.assert_close(network(x), plain, rtol=0, atol=1e-6)

    instance = copy.deepcopy(network)
    for layer in [m for m in instance.modules() if isinstance(m, BatchNormAct)]:
        monkeypatch.setattr(layer, "norm_act", partial(instance_normalized, layer))
    expected = instance(x)
    for alpha in (1, 1 - 1e-12):
        set_example_weight(network, alpha)
        torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-6)
    assert (expected - plain).abs().max() > 1e-2


def pairs(seed: int, number: int = 64) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    x = noise(number, 1, 8, 8, seed=seed) + 1
    y = torch.arange(number) % 10

    def images() -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(x.split(20), y.split(20), strict=True)

    return images


@pytest.mark.parametrize("norm", ["bn", "ghost_bn", "sn", "bn_pn"])
def test_the_best_alpha_is_chosen_on_the_validation_images(norm: str) -> None:
    network = trained(norm)
    with unchanged(network):
        found = example_weight.alpha_curve(network, 10, pairs(1), pairs(2), [0.0, 0.3, 1.0])
        assert [point.alpha for point in found.points] == [0.0, 0.3, 1.0]
        assert found.usual == 0
    for measure in METRICS:
        sign = 1 if measure == "loss" else -1
        values = {point.alpha: sign * getattr(point, measure) for point in found.points}
        assert values[found.best[measure]] == min(values.values())
    assert found.tested.keys() == {0.0, *found.best.values()}
    # The test images decide nothing: others change no choice.
    others = example_weight.alpha_curve(network, 10, pairs(1), pairs(3), [0.0, 0.3, 1.0])
    assert others.best == found.best
    assert others.points == found.points
    assert others.tested[0.0] != found.tested[0.0]


def test_a_point_of_the_curve_is_an_evaluation_with_its_alpha() -> None:
    network = trained("bn")
    found = example_weight.alpha_curve(network, 10, pairs(1), pairs(2), [0.4])
    set_example_weight(network, 0.4)
    x, y = (torch.cat(each) for each in zip(*pairs(1)(), strict=True))
    loss = F.cross_entropy(network(x), y).detach()
    assert next(p.loss for p in found.points if p.alpha == 0.4) == pytest.approx(
        float(loss), rel=1e-4
    )


def test_group_normalization_without_running_statistics_is_refused() -> None:
    network = trained("gn")
    with pytest.raises(ValueError, match="recalibrate"):
        example_weight.alpha_curve(network, 10, pairs(1), pairs(2))
    assert all(getattr(m, "example_weight", 1.0) == 1.0 for m in network.modules())


WEIGHED = spec(
    "weighed",
    {
        "title": "A table",
        "metric": "val_top1",
        "rows": [{"A": {"data": "digits"}, "B": {"data": "svhn"}}, {"BN": {"norm": "bn"}}],
        "columns": {"accuracy": {"metric": "val_top1"}, "gain": {"metric": "weighing_top1"}},
    },
)


def rows_with_curves(root: Path) -> list[Row]:
    """Two seeds on each of two data sets, whose curves lie below `root`."""
    rows = [
        *runs("bn", 4, [70.0, 71.0], data="digits", example_weighing={"val_top1": 0.5}),
        *runs("bn", 4, [60.0, 61.0], data="svhn", example_weighing={"val_top1": 1.5}),
    ]
    for row in rows:
        points: list[Record] = [
            {"network": "its words", "epoch": 3, "split": split, "alpha": alpha,
             "top1": row.seed + alpha, "top5": 90.0, "loss": 1.0, "best": ""}
            for split, alpha in (("val", 0.0), ("val", 0.5), ("test", 0.5))
        ]  # fmt: skip
        write_records(root / row.sweep / row.id / PROBES / "example_weight.csv", points)
    return rows


def test_a_table_of_metrics_has_each_run_once_and_a_row_of_panels_for_each_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = tables([WEIGHED], rows_with_curves(tmp_path), None)
    gains = [[entry.values for entry in entries] for entries in table.lines.values()]
    assert [[*values.values()] for _, values in gains] == [[0.5, 0.5], [1.5, 1.5]]
    seen: list[Record] = []

    def keep(_kind: str, records: Sequence[Record], forms: Sequence[str]) -> dict[str, bytes]:
        assert forms == ["png"]
        seen.extend(records)
        return {}

    monkeypatch.setattr(probe_figures, "draw", keep)
    probe_figures.draw_table_probes(table, "example_weight", ["png"], tmp_path)
    assert len(seen) == 4 * 3
    assert [*group_by(seen, "network", "panel")] == [("A BN", "A"), ("B BN", "B")]
    axes = probe_drawings.DRAW["example_weight"](seen).axes
    assert len(axes) == 2 * 3
    # Means over the seeds 0 and 1, on the validation images alone.
    (line,) = (line for line in axes[0].lines if line.get_label() == "A BN")
    drawn: Any = line.get_xydata()
    assert drawn.tolist() == [[0.0, 0.5], [0.5, 1.0]]
