"""The words of a command line that make the run of a row again."""

from dataclasses import replace
from pathlib import Path

import pytest

from normbench import results
from normbench.config.files import ROOT
from normbench.config.row_words import compose_again
from normbench.errors import BadInput
from normbench.results import Row
from support.cells import cell


def test_a_run_is_composed_again_after_options_of_its_yamls_have_changed() -> None:
    """A row has the words that were typed; other options are those of its yamls at that time."""
    trained = cell("recipe.lr=0.3", "recipe.decayed=[weight]", "norm.eps=0.01", "batch=8")
    row = Row(**trained.description("default"), status="ok")
    assert compose_again(row)[0].id == trained.id
    untyped = replace(row, options="recipe.lr=0.3")
    assert compose_again(untyped)[0].id == trained.id
    assert compose_again(untyped, ["trainer.threads=2"])[0].id == trained.id
    with pytest.raises(BadInput, match="cannot be composed again"):
        compose_again(untyped, ["recipe.lr=0.2"])


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("model=timm model.name=resnet18 recipe.lr=0.3", ""),
        ("data=image_folder data.name=birds data.size=32 recipe.lr=0.3", "data.name=birds"),
        ("recipe=evonorm_efficientnet recipe.ema=null", ""),
        ("recipe=nf_resnet +recipe.rates.128=0.1", ""),
        ("recipe=nf_resnet_15 ~recipe.rates +recipe.rates={128:0.1}", "+recipe.rates.128=0.1"),
    ],
)
def test_changed_options_of_any_kind_are_typed(words: str, options: str) -> None:
    trained = cell(*words.split())
    row = Row(**trained.description("default"), status="ok")
    assert compose_again(replace(row, options=options))[0].id == trained.id


@pytest.mark.slow
@pytest.mark.parametrize(
    "study",
    sorted((ROOT / "reports/studies").glob("*/rows.jsonl.gz")),
    ids=lambda path: path.parent.name,
)
def test_the_runs_of_kept_studies_are_composed_again(study: Path) -> None:
    """One of each sweep."""
    rows = {row.sweep: row for row in results.read(study) if row.kind == "run"}
    assert rows
    for row in rows.values():
        assert compose_again(row)[0].id == row.id, row.sweep
