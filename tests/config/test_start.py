"""The run that another one begins with, by its id or by what differs in it."""

from collections.abc import Sequence
from typing import Any

import pytest

from normbench.config import compose as compose_module
from normbench.config.compose import Composition, compose
from normbench.config.start import described_run, split_start
from normbench.errors import BadInput
from support.cells import PLUGIN, cell, composed
from support.slow import slow_after, slow_except

SN = ("norm=sn", "model=resnet20", "batch=4", "seed=3")


@pytest.mark.parametrize(
    ("changed", "description", "start"),
    slow_after(
        2,
        [
            (("norm.hard=true",), "norm.hard:false", ()),
            (("norm.hard=true", "norm.eps=1e-4"), "norm.hard:false", ("norm.eps=1e-4",)),
            (("norm.hard=true",), "norm:bn", ("norm=bn",)),  # without the options of sn
            ((), "batch:32 seed:0", ("batch=32", "seed=0")),
            ((), "model:resnet14 recipe.lr:0.3", ("model=resnet14", "recipe.lr=0.3")),
            (("init_only=[ratio]",), "norm.mix:std", ("norm.mix=std",)),
        ],
    ),
)
def test_a_description_is_the_id_of_the_run_that_differs_so(
    changed: tuple[str, ...], description: str, start: tuple[str, ...]
) -> None:
    ours = cell(*SN, *changed, f"init_from={description}@30")
    expected = [word for word in SN if word.split("=")[0] not in {w.split("=")[0] for w in start}]
    theirs = cell(*expected, *start)
    assert ours.init_from == f"{theirs.id}@30"
    assert ours.start is not None
    assert ours.start.title == theirs.title
    assert [*ours.start.differs] == [word.partition(":")[0] for word in description.split()]
    by_id = cell(*SN, *changed, f"init_from={theirs.id}@30")
    assert (ours.id, ours.identity) == (by_id.id, by_id.identity)
    assert ours.id != cell(*SN, *changed, f"init_from={description}@31").id


def test_every_cell_of_a_grid_has_a_start_of_its_own() -> None:
    words = ("-m", "norm=sn", "seed=range(0,2)", "batch=4,8")
    cells, _ = compose([*words, "norm.hard=true", "init_from=norm.hard:false@1,norm.hard:false@2"])
    soft, _ = compose(list(words))
    starts = {(each.seed, each.batch): each.id for each in soft}
    assert [each.init_from for each in cells] == [
        f"{starts[each.seed, each.batch]}@{epoch}"
        for each, epoch in zip(cells, [1, 2] * 4, strict=True)
    ]


@pytest.mark.slow
def test_a_start_whose_option_follows_a_number_is_that_of_its_own_cell() -> None:
    words = ("norm=sn", "norm.hard=true", "recipe.lr=${batch}", "init_from=norm.hard:false@1")
    # The last two grids leave out a number that an earlier one has.
    cells, _ = compose(["-m", *words, "batch=4", "+grids=[{batch: 8}, {seed: 1}]"])
    some, _ = compose(["-m", *words, "+grids=[{batch: 8, seed: 2}, {seed: 1}, {batch: 4}]"])
    for each in (*cells, *some):
        alone = cell(*words, f"batch={each.batch}", f"seed={each.seed}")
        assert each.init_from == alone.init_from


@pytest.mark.parametrize(
    ("values", "number"),
    [
        ("norm.hard:false@1,norm.hard:false@2", 1),
        ("norm.hard:false@1,norm:bn@1", 2),
        ("norm.hard:false batch:32@1", 1),
    ],
)
def test_a_start_is_composed_once_for_all_cells(
    values: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[dict[tuple[str, ...], Composition]] = []

    class Recorded(Composition):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            starts.append(self.starts)

    monkeypatch.setattr(compose_module, "Composition", Recorded)
    words = ["-m", "norm=sn", "norm.hard=true", "batch=4,8", "seed=0,1"]
    cells, _ = compose([*words, f"init_from={values}"])
    alternatives = values.count(",") + 1
    assert len(cells) == 4 * alternatives
    assert len(starts) == alternatives + number
    assert len(starts[0]) == number


@pytest.mark.slow
def test_an_option_of_the_whole_command_line_is_part_of_both_runs() -> None:
    """As precision=bf16-mixed with a sweep, which changes the id of every run."""
    words = ("-m", "sweeps=sn_2_hard_small")
    for more in ((), ("precision=bf16-mixed", "recipe.epochs=60")):
        cells, _ = compose([*words, *more])
        soft = {each.id for each in cells if each.init_from is None}
        hard = [each for each in cells if each.init_from is not None]
        assert (len(soft), len(hard)) == (5, 30)
        assert {str(each.init_from).partition("@")[0] for each in hard} == soft


def test_a_description_composes_the_yamls_of_config_dir() -> None:
    words = ("--config-dir", str(PLUGIN / "conf"))
    start = composed(*words, "norm=bn", "init_from=norm:broken@1").start
    assert start is not None
    assert start.title.startswith("broken")


def test_which_parameters_are_taken_is_part_of_the_id() -> None:
    start = ("norm=sn", "init_from=0123456789ab@3")
    ids = {cell(*start, *more).id for more in ((), ("init_only=[ratio]",), ("init_only=[gain]",))}
    assert len(ids) == 3
    assert "init_only=[ratio]" in cell(*start, "init_only=[ratio]").title


@pytest.mark.parametrize(
    "value",
    ["abc@3", "0123456789ab", "0123456789ab@0", "norm.hard:false", "norm.hard=false@3", "@3", 7],
)
def test_another_form_of_a_start_is_refused(value: object) -> None:
    with pytest.raises(BadInput, match=r"init_from=.* is not RUN@EPOCH: .* init_from=norm.hard:f"):
        split_start(value)


def test_the_words_of_a_start_are_those_typed_with_the_changes() -> None:
    typed = ["norm=sn", "norm.hard=true", "+model.x=1", "init_from=y:z@1", "seed=0"]
    start = ("init_from=null", "init_only=null")
    words, numbers = described_run(typed, {"seed": 4}, "norm.hard:false")
    assert words == ("norm=sn", "+model.x=1", "norm.hard=false", *start)
    assert numbers == {"seed": 4}
    words, numbers = described_run(typed, {"seed": 4}, "norm:bn seed:5")
    assert words == ("+model.x=1", "norm=bn", "seed=5", *start)
    assert not numbers


#: Sweeps that begin with the runs of other commands, and the words of these.
NF = (
    "data=imagenet", "recipe=nf_resnet", "reg=nf", "batch=128", "global_batch=1024", "norm=nf,bn",
    "model.padding=same", "model=resnet50_v2,resnet101_v2,resnet152_v2,resnet200_v2",
)  # fmt: skip
SWITCHABLE = [("sweeps=sn_1", "norm=bn,gn", "batch=32"), ("sweeps=sn_1", "norm=sn", "batch=32,4,2")]
DIGITS = ("sweeps=scene_classifiers",)
BEGUN: dict[str, Sequence[tuple[str, ...]]] = {
    "nf_6": [NF], "nf_7": [NF], "sn_3": SWITCHABLE, "sn_3_coco": SWITCHABLE, "nf_6_small": [DIGITS],
    "nf_7_small": [DIGITS], "sn_3_small": [DIGITS], "sn_3_coco_small": [DIGITS],
}  # fmt: skip


@pytest.mark.parametrize("sweep", slow_except([*BEGUN], ["sn_3_coco_small"]))
def test_a_sweep_begins_with_the_runs_that_its_head_names(sweep: str) -> None:
    trained = {each.id for words in BEGUN[sweep] for each in compose(["-m", *words])[0]}
    cells, _ = compose([f"sweeps={sweep}"])
    starts = {str(each.init_from).partition("@")[0] for each in cells}
    assert starts
    assert starts <= trained
