"""Networks that cells of one command share, in the preflight and in estimates of costs."""

from typing import Any

import pytest
from torch import nn

from normbench.errors import Impossible
from normbench.execution.networks import Networks
from normbench.execution.requirements import require_blocks, require_ratios, require_trainable
from normbench.models import network_info, profile
from normbench.training.experiment import Experiment
from support.cells import cell


def experiment(*words: str) -> Experiment:
    return Experiment(cell("norm=gn", *words))


@pytest.mark.parametrize(
    "words",
    [
        ("norm.eps=1e-3",),
        ("model.stem_stride=2",),
        ("data=fashion_mnist",),
        ("recipe.crop=6",),
        ("reg.dropout=0.5",),
        ("reg.norm_dropout=0.5",),
        ("reg.stochastic_depth=0.5",),
        ("reg.stochastic_depth=0.5", "reg.rescale=true"),
    ],
)
def test_cells_with_other_networks_or_images_share_nothing(words: tuple[str, ...]) -> None:
    plain, changed = experiment(), experiment(*words)
    apart = [Networks().inspect(each).row_fields() for each in (plain, changed)]
    drops = [Networks().inspect(each).changes_every_step for each in (plain, changed)]
    for order in ((0, 1), (1, 0)):
        networks = Networks()
        infos = {place: networks.inspect((plain, changed)[place]) for place in order}
        assert infos[0] is not infos[1]
        assert [infos[0].row_fields(), infos[1].row_fields()] == apart
        assert [infos[0].changes_every_step, infos[1].changes_every_step] == drops


@pytest.mark.parametrize(
    "words", [("reg=mixup",), ("reg.label_smoothing=0.2",), ("recipe.lr=0.3",), ("batch=4",)]
)
def test_cells_with_the_same_network_share_it(words: tuple[str, ...]) -> None:
    networks = Networks()
    assert networks.inspect(experiment()) is networks.inspect(experiment(*words))


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_networks_run_once_for_all_batches(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(network: nn.Module, images: int, shape: tuple[int, int, int]) -> Any:
        counted.append(images)
        return profile.dry_run(network, images, shape)

    monkeypatch.setattr(network_info, "dry_run", count)
    networks = Networks()
    for batch in (4, 8, 128):
        info = networks.inspect(experiment(f"norm={norm}", f"batch={batch}"))
    assert counted == [128]
    monkeypatch.setattr(network_info, "count_macs", None)  # counted in the run on shapes
    assert info.macs == info.trained_macs > 0


def test_a_refusal_holds_for_its_images_alone() -> None:
    networks = Networks()
    works = experiment("norm=bn", "batch=4", "model=resnet8")
    alone = experiment("norm=bn", "batch=1", "model=resnet8")  # the last maps are 1x1
    for _ in range(2):
        with pytest.raises(Impossible, match="value"):
            networks.inspect(alone)
        networks.inspect(works)


def test_gradients_of_ratios_are_clipped_where_there_are_ratios() -> None:
    clipped = experiment("recipe.ratio_clip=1")
    info = Networks().inspect(clipped)
    with pytest.raises(Impossible, match=r"recipe.ratio_clip=1: .* norm=sn or ssn works"):
        require_ratios(clipped.cell, clipped.recipe, info)
    require_ratios(clipped.cell, experiment().recipe, info)
    switchable = experiment("norm=ssn", "recipe.ratio_clip=1")
    require_ratios(switchable.cell, switchable.recipe, Networks().inspect(switchable))


def test_rates_by_block_need_blocks() -> None:
    decayed = experiment("recipe.layer_decay=0.7")
    require_blocks(decayed.recipe, Networks().inspect(decayed))
    nameless = experiment("model=random_net", "recipe.layer_decay=0.7")
    with pytest.raises(Impossible, match=r"recipe.layer_decay=0.7: this network does not tell"):
        require_blocks(nameless.recipe, Networks().inspect(nameless))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("norm=frozen_bn",), "norm=frozen_bn: .* norm=bn works from scratch"),
        (("norm=sn", "norm.hard=true"), "norm.hard=true: which member counts"),
        (
            ("norm=sn", "norm.hard=true", "init_from=norm.hard:false@2", "init_only=[gain]"),
            "norm.hard=true: which member counts",
        ),
    ],
)
def test_layers_that_continue_a_training_are_impossible_from_scratch(
    words: tuple[str, ...], says: str
) -> None:
    started = experiment(*words)
    with pytest.raises(Impossible, match=says):
        require_trainable(started.cell, Networks().inspect(started))
    continued = experiment(*words[:2], "init_from=norm:bn@last")
    require_trainable(continued.cell, Networks().inspect(continued))


def test_frozen_statistics_may_be_those_of_a_file() -> None:
    network = ("norm=frozen_bn", "model=timm", "model.name=resnet10t")
    loaded = experiment(*network, "+model.arguments.pretrained=true")
    require_trainable(loaded.cell, Networks().inspect(loaded))
    other = experiment(*network[:2], "model.name=resnet50_gn", "+model.arguments.pretrained=true")
    with pytest.raises(Impossible, match="norm=frozen_bn: it keeps statistics"):
        require_trainable(other.cell, Networks().inspect(other))  # it has no batch normalization
    hard = experiment("norm=sn", "norm.hard=true", *network[1:], "+model.arguments.pretrained=true")
    with pytest.raises(Impossible, match="hard"):
        require_trainable(hard.cell, Networks().inspect(hard))
