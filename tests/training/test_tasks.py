"""Tasks of dense prediction, trained by the same steps as classification."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from normbench.data.maps import VOID
from normbench.errors import BadInput
from normbench.execution.requirements import require_task
from normbench.models.backbone import OF_CLASSIFIER
from normbench.results import CHECKPOINT
from normbench.training import checkpoint
from normbench.training.checkpoint import Checkpoints
from normbench.training.datamodule import DataModule
from normbench.training.experiment import Experiment
from normbench.training.seed_stacking import explain_unstackable_cell
from normbench.training.tasks.pictures import color_classes, shade_depth, side_by_side
from normbench.training.trainer import train
from normbench.training.training import Training
from support.cells import Curve, Interrupted, cell, train_cell

#: A training of 12 steps of 8 scenes.
TINY = (
    "model.width=4", "data.size=40", "data.scenes=60", "data.test_scenes=10", "global_batch=8",
    "batch=4", "recipe.images=96", "trainer=cpu", "trainer.chunk=3", "logger=none",
)  # fmt: skip
METRICS = {
    "segment": {"train_pixel_accuracy", "val_miou", "test_miou", "test_pixel_accuracy"},
    "depth": {
        "train_delta1", "val_rms", "test_rms", "test_rel",
        "test_delta1", "test_delta2", "test_delta3",
    },
    "detect": {
        "train_region_accuracy", "val_box_map",
        "test_box_map", "test_box_map50", "test_box_map75",
        "test_mask_map", "test_mask_map50", "test_mask_map75",
    },
}  # fmt: skip
MAIN = {"segment": "test_miou", "depth": "test_rms", "detect": "test_box_map"}


class Pictures(Curve):
    """A listener that also keeps pictures."""

    picture: Tensor | None = None

    def on_picture(self, picture: Tensor) -> None:
        self.picture = picture


@pytest.mark.parametrize("task", METRICS)
def test_a_task_has_metrics_of_its_own_in_row_and_curve(task: str) -> None:
    listener = Pictures()
    fields = train(Training(Experiment(cell(f"task={task}", "norm=bn", *TINY)), listener))
    assert fields["status"] == "ok"
    assert fields["metrics"].keys() == METRICS[task]
    assert fields["metric"] == MAIN[task]
    assert not {"test_top1", "train_top1", "test_images"} & fields.keys()
    trained, validated = sorted(name for name in METRICS[task] if not name.startswith("test"))
    ends = [record for record in listener.records if validated in record]
    assert ends
    assert all(record.keys() >= {"train_loss", trained, validated} for record in ends)
    assert fields["metrics"][validated] == ends[-1][validated]
    assert listener.picture is not None
    assert listener.picture.shape == (3, 4 * 40 + 3 * 2, 3 * 40 + 2 * 2)


def test_the_picture_shows_images_of_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Photographs of scenes are evaluated one by one."""
    for task in ("segment", "detect"):
        shown = list[Tensor]()
        for size in (64, 3):
            monkeypatch.setattr(DataModule, "evaluation_batch", size)
            listener = Pictures()
            train(Training(Experiment(cell(f"task={task}", "norm=gn", *TINY)), listener))
            assert listener.picture is not None
            shown.append(listener.picture)
        assert torch.equal(*shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "metric", "images", "bound"),
    [
        ("segment", "test_miou", 3200, 12.0),
        ("depth", "test_rms", 3200, -1.6),
        ("detect", "test_box_map", 1600, 2.0),
    ],
)
def test_a_network_learns_its_task(task: str, metric: str, images: int, bound: float) -> None:
    """Background alone has 6.7 %, the mean depth an error of 2.2, and chance no precision."""
    size = ("data.size=64", "model.width=8", "data.scenes=1000", "data.test_scenes=40")
    words = (*TINY, *size, f"recipe.images={images}")
    fields, _ = train_cell(cell(f"task={task}", "norm=bn", *words))
    sign = -1 if bound < 0 else 1
    assert sign * fields["metrics"][metric] > bound


@pytest.mark.parametrize("task", METRICS)
def test_a_training_of_a_task_resumes_bit_for_bit(task: str, tmp_path: Path) -> None:
    base = cell(f"task={task}", "norm=bn", *TINY)
    expected, curve = train_cell(base)
    first = Curve(last_step=9)
    with pytest.raises(Interrupted):
        train(Training(Experiment(base), first, Checkpoints(tmp_path, every=0)))
    state = checkpoint.load_state(tmp_path / CHECKPOINT)
    assert 0 < state["done"] < 12
    resumed, rest = train_cell(base, state=state)
    assert (expected.pop("resumed"), resumed.pop("resumed")) == (0, 1)
    assert resumed == expected
    assert first.records + rest == curve


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["task=segment", "data=digits"], "task=segment: data=digits has not the targets"),
        (["task=depth", "data=digits"], "data=scattered_digits has them"),
        (["data=scattered_digits"], "task=classify: data=scattered_digits has targets for pixels"),
        (["task=segment", "reg=mixup"], "task=segment: reg=mixup mixes images .* reg=none works"),
        (["task=depth", "reg=randaug"], "task=depth: reg=randaug distorts images"),
        (["task=segment", "reg.erasing=0.1"], "task=segment: reg.erasing=0.1 erases parts"),
        (["task=depth", "recipe.example_weight=top1"], "recipe.example_weight=null works"),
        (
            ["task=depth", "reg=label_smoothing"],
            "reg=label_smoothing smooths labels, and the loss of this",
        ),
        (["task=depth", "data=pascal_voc"], "and with this data set task=segment works"),
        (["task=segment", "data=nyu_depth"], "and with this data set task=depth works"),
        (["task=detect", "data=pascal_voc"], "and with this data set task=segment works"),
        (["task=depth", "data=coco"], "and with this data set task=detect works"),
        (["task=detect", "recipe.recalibration=10"], "recipe.recalibration=null works"),
        (["task=detect", "reg.norm_dropout=0.1"], "reg.norm_dropout=null works"),
        (["task=detect", "trainer.impl=compile"], "trainer.impl=eager works"),
        (["task=detect", "trainer.cuda_graph=true"], "trainer.cuda_graph=false works"),
        (["task=detect", "reg=label_smoothing"], "the loss of this task has no label smoothing"),
    ],
    ids=str,
)
def test_what_a_task_cannot_use_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        require_task(Experiment(cell(*words)))


def test_seeds_of_a_dense_task_are_not_stacked() -> None:
    assert explain_unstackable_cell(cell("task=segment")) == "task=segment"
    assert not explain_unstackable_cell(cell("task=classify"))


def test_the_ids_of_classification_have_no_task() -> None:
    base = cell("norm=gn", "batch=8")
    assert "task" not in base.identity
    assert base.title == "gn batch=8 seed=0"
    assert base.global_batch == 128


def test_a_task_chooses_what_fits_it_unless_something_else_is_typed() -> None:
    base = cell("task=segment", "norm=gn", "batch=2")
    assert base.title == "gn batch=2 seed=0 task=segment"
    assert (base.global_batch, base.data.name) == (16, "scattered_digits")
    typed = cell(
        "task=segment", "norm=gn", "batch=2", "model=resnet20", "global_batch=8", "task.width=16"
    )
    assert (
        typed.title == "gn batch=2 seed=0 task=segment model=resnet20 global_batch=8 task.width=16"
    )
    assert "global_batch" not in typed.identity["task"]
    same = cell("task=segment", "norm=gn", "batch=2", "task.global_batch=8", "task.width=16")
    assert (
        same.id == cell("task=segment", "norm=gn", "batch=2", "global_batch=8", "task.width=16").id
    )
    workers = cell("task=segment", "protocol=fixed_workers", "workers=2", "batch=3")
    assert workers.global_batch == 6


def test_a_loss_of_workers_is_no_computation_that_batches_share() -> None:
    for task, shared in (("classify", True), ("segment", False), ("depth", False)):
        experiment = Experiment(cell(f"task={task}", "norm=gn"))
        fields = experiment.network_row_fields(experiment.info)
        assert fields["batch_independent"] == shared
        assert experiment.is_worker_independent(experiment.info) == shared


def begun(base: Any, state: Any, roles: list[str] | None = None) -> Any:
    """The network of a cell that begins with a state."""
    network = Experiment(base).build_network()
    start = checkpoint.begin_run(state, roles, dense=True)
    checkpoint.require_start(start, network, 10, 5)
    return network


@pytest.mark.parametrize("norm", ["bn", "sn", "batch_renorm"])
def test_a_dense_network_begins_with_a_classifier(norm: str) -> None:
    classifying = cell(f"norm={norm}", "model=resnet14", "data=digits")
    torch.manual_seed(0)
    classifier = Experiment(classifying).build_network()
    for buffer in classifier.buffers():
        buffer.data += 1
    state: Any = {"model": classifier.state_dict(), "done": 7, "steps_per_epoch": 3}
    base = cell("task=segment", f"norm={norm}")
    network = begun(base, state)
    prefix = OF_CLASSIFIER
    taken = {
        name.removeprefix(prefix): value
        for name, value in network.state_dict().items()
        if name.startswith(prefix)
    }
    assert {*state["model"]} - {*taken} == {"head.weight", "head.bias"}
    assert {*taken} <= {*state["model"]}
    for name, value in taken.items():
        assert torch.equal(value, state["model"][name]), name
    other = replace(base, model=replace(base.model, options={**base.model.options, "width": 8}))
    with pytest.raises(BadInput, match="the checkpoint is of another network, without"):
        begun(other, state)


def test_a_dense_network_takes_the_ratios_of_a_classifier_alone() -> None:
    classifier = Experiment(cell("norm=sn", "model=resnet14", "data=digits")).build_network()
    for name, parameter in classifier.named_parameters():
        if name.endswith("logits"):
            parameter.data.fill_(3.0)
    state: Any = {"model": classifier.state_dict(), "done": 7, "steps_per_epoch": 3}
    network = begun(cell("task=segment", "norm=sn"), state, ["ratio"])
    for name, parameter in network.named_parameters():
        in_backbone = name.startswith(OF_CLASSIFIER)
        if name.endswith("logits"):
            assert bool((parameter == 3).all()) == in_backbone
        elif in_backbone and parameter.ndim > 1:
            same = state["model"][name.removeprefix(OF_CLASSIFIER)]
            assert not torch.equal(parameter, same)


def test_a_second_head_counts_in_training_alone() -> None:
    base = cell("task=segment", "norm=bn", "task.auxiliary=0.4", *TINY)
    experiment = Experiment(base)
    network, task = experiment.build_network(), experiment.task
    x, maps = torch.randn(4, 1, 40, 40), torch.ones(4, 4, 40, 40, dtype=torch.uint8)
    output = network(x)
    assert output.shape == (4, 22, 40, 40)
    assert network.eval()(x).shape == (4, 11, 40, 40)
    plain = Experiment(cell("task=segment", "norm=bn", *TINY)).task
    first, second = (plain.loss(part, [maps], experiment.reg, 2) for part in output.chunk(2, 1))
    torch.testing.assert_close(task.loss(output, [maps], experiment.reg, 2), first + 0.4 * second)
    assert train_cell(base)[0]["status"] == "ok"


def test_pictures_show_classes_in_colors_and_depth_in_grey() -> None:
    colors = color_classes(torch.tensor([[[0, 1, 2, 3, 8, VOID]]]))
    assert colors[0, :, 0].T.tolist() == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [64, 0, 0], [255, 255, 255],
    ]  # fmt: skip
    shades = shade_depth(torch.tensor([[[0.0, 0.01, 2.0, 4.0, 9.0]]]), 4.0)
    assert shades[0, :, 0].T.tolist() == [[0, 0, 255], *([each] * 3 for each in (254, 128, 0, 0))]
    picture = side_by_side(torch.rand(2, 1, 5, 5), torch.zeros(2, 3, 5, 5, dtype=torch.uint8),
                           torch.full((2, 3, 5, 5), 9, dtype=torch.uint8))  # fmt: skip
    assert picture.shape == (3, 12, 19)
    assert (picture[:, :5, 7:12] == 0).all()
    assert (picture[:, 7:, 14:] == 9).all()
    assert {int(picture[0, :5, :5].min()), int(picture[0, :5, :5].max())} == {0, 255}
