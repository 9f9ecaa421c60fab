"""What a search rejects before it trains a layer to the end, and the scores of those it trains."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from normbench.config.compose import compose
from normbench.search.candidates import Candidate, Rejected, Verdict
from normbench.search.fingerprint import fingerprint
from normbench.search.options import SearchOptions
from normbench.search.request import SearchRequest
from normbench.search.scoring import Scorer, with_formula
from normbench.search.space import BASELINES
from normbench.search.stability import worst_gradient
from normbench.search.worker import Worker
from normbench.training.experiment import Experiment
from normbench.training.stop_signals import StopSignals
from support.cells import BROKEN, train_cell

#: Trainings of 40 steps, without W&B.
SHORT = ("sweeps=search", "recipe.images=5120", "logger=none")
OFF = SearchOptions(min_accuracy=0.0, max_gradient=0.0)


def score(formula: str, options: SearchOptions, *words: str) -> list[tuple[float, float]]:
    cells, _ = compose(["-m", *SHORT, *words])
    return Scorer(1, StopSignals()).score(with_formula(cells, formula), options)


@pytest.mark.parametrize(
    ("formula", "verdict", "reason"),
    [
        ("mean_wh(x)", "low_accuracy", "% after 21 steps with 4 images"),  # to the end of a chunk
        ("exp(square(x))", "diverged", "the loss of step"),
    ],
)
def test_a_layer_that_learns_nothing_is_rejected(formula: str, verdict: str, reason: str) -> None:
    with pytest.raises(Rejected, match=reason) as rejection:
        score(formula, replace(OFF, min_accuracy=20.0, min_accuracy_steps=20))
    assert rejection.value.verdict == verdict


def gradient(formula: str, steps: int) -> float:
    """Return the worst gradient of the search's network with a formula."""
    (cell, _), _ = compose(["-m", *SHORT])
    norm = cell.norm.with_options(formula=formula)
    torch.manual_seed(0)
    network = Experiment(replace(cell, norm=norm)).build_network().train()
    x = torch.randn(32, *Experiment(cell).data.image_shape)
    labels = torch.arange(32) % 10
    return worst_gradient(network, x, labels, steps, bound=1e8)


@pytest.mark.parametrize("formula", BASELINES.values(), ids=BASELINES)
def test_gradients_of_layers_that_normalize_stay_small(formula: str) -> None:
    assert gradient(formula, 0) < gradient(formula, 20) < 1e5


@pytest.mark.parametrize("formula", ["max(x,0)", "x*sigmoid(x)"])
def test_gradients_of_layers_that_do_not_normalize_explode(formula: str) -> None:
    assert gradient(formula, 20) > 1e8


def test_an_unstable_layer_is_rejected_unless_the_criterion_is_off() -> None:
    options = replace(OFF, max_gradient=1e8, ascent_steps=20)
    with pytest.raises(Rejected, match=r"gradient norm .* with 4 images") as rejection:
        score("max(x,0)", options)
    assert rejection.value.verdict == "unstable"
    assert len(score("max(x,0)", OFF, "recipe.images=512")) == 2


@pytest.mark.parametrize(
    ("scores", "verdict", "expected"),
    [([90.0, 91.0], "trained", "duplicate"), ([], "unstable", "unstable")],
)
def test_an_equal_layer_has_scores_or_verdict_of_the_first(
    tmp_path: Path, scores: list[float], verdict: Verdict, expected: Verdict
) -> None:
    first = Candidate(
        number=5, formula="x+v0", verdict=verdict, scores=scores, fingerprint=fingerprint("x+v0")
    )
    cells, _ = compose(["-m", *SHORT])
    worker = Worker(SearchRequest(tmp_path, tuple(cells), SearchOptions()))
    result = worker.evaluate("v0+x", SearchOptions(), [first])
    assert (result["verdict"], result["scores"], result["reason"]) == (expected, scores, "equals 5")


def test_what_does_not_fit_into_memory_is_unsupported() -> None:
    cells, _ = compose([*BROKEN, "-m", *SHORT, "norm=greedy"])
    with pytest.raises(Rejected, match="allocate") as rejection:
        Scorer(1, StopSignals()).score(cells, OFF)
    assert rejection.value.verdict == "unsupported"


def test_scores_are_those_of_the_same_runs_by_the_main_command() -> None:
    accuracies, seconds = zip(*score(BASELINES["evonorm_s0"], OFF), strict=True)
    cells, _ = compose(["-m", *SHORT])
    expected = [train_cell(cell)[0]["val_top1"] for cell in cells]
    assert accuracies == pytest.approx(expected)
    assert min(seconds) > 0
