"""Comparison of layers with baselines, of rows as trainings leave them."""

from dataclasses import replace

import pytest

from normbench.config.compose import compose
from normbench.search.rerank import print_comparison
from support.rows import run

WORDS = ("-m", "data=digits", "batch=4,128", "seed=0,1")


@pytest.mark.parametrize("lost", ["diverged", "missing"])
@pytest.mark.parametrize("held_out", [True, False])
def test_a_layer_is_ranked_only_if_all_its_trainings_ended(
    lost: str, held_out: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, _ = compose([*WORDS, "norm=graph", 'norm.formula="x/std_g(x)"'])
    baselines, _ = compose([*WORDS, "norm=bn"])
    rows = []
    for cell in (*cells, *baselines):
        is_layer = cell.norm.name == "graph"
        accuracy = (90.0 if is_layer else 80.0) + cell.seed
        row = replace(run(cell.norm.name, cell.batch, cell.seed, accuracy), id=cell.id)
        row = replace(row, val_top1=accuracy if held_out else None)
        if is_layer and cell.batch == 4 and cell.seed == 0:
            if lost == "missing":
                continue
            row = replace(row, status="diverged", test_top1=10.0)
        rows.append(row)
    print_comparison([*cells, *baselines], rows)
    out = capsys.readouterr().out
    assert ("layers are ranked by it" in out) == held_out
    assert ("  1  bn " in out) == held_out
    assert "  2  " not in out
    assert "1 of 4 trainings without a result" in out
    assert "91.0 (1)" in out  # of the seed that ended
    assert "90.5 ± 0.7 (2)" in out
    assert "80.5 ± 0.7 (2)" in out
    assert "± 57" not in out  # nor does the accuracy of chance count
    assert " 10.0 " not in out
