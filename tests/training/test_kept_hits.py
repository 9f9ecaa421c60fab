"""A run keeps which test images it classifies correctly, the same by every loader and plan."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from normbench.data.reading import open_splits, read_images
from normbench.prepare import main as prepare_files
from normbench.records.hits import TEST_HITS
from normbench.results import find_test_hits, read
from normbench.training import datamodule
from normbench.training.experiment import Experiment
from normbench.training.trainer import fit_and_test, prepare
from normbench.training.training import Listener, Training
from support import dataset_files
from support.cells import SHORT, cell, run_folder
from support.commands import Command

FFCV = pytest.param("ffcv", marks=pytest.mark.ffcv)
KINDS = ["cifar10", "image_folder"]
WORDS = (
    "norm=bn", "batch=8", "global_batch=16", "recipe.images=256", "precision=64-true",
    "logger=none", "trainer=cpu", "data.val=0",
)  # fmt: skip


class Keeper(Listener):
    """Keeps what a training reports about the test images."""

    hits: Sequence[bool] = ()

    def on_test_hits(self, hits: Sequence[bool]) -> None:
        self.hits = hits


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dataset_files.Options]:
    """Options of data sets with files, which are prepared for FFCV where it is."""
    found = {}
    for name in KINDS:
        found[name] = dataset_files.MAKERS[name](tmp_path_factory.mktemp(name))
        if find_spec("ffcv"):
            assert prepare_files([*dataset_files.words(name, found[name]), "readers=1"]) == 0
    return found


@pytest.mark.parametrize("loader", ["memory", "torch", FFCV])
@pytest.mark.parametrize("name", KINDS)
def test_every_loader_keeps_the_hits_in_the_order_of_the_test_set(
    name: str, loader: str, roots: dict[str, dataset_files.Options],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also with a last batch that is not full."""
    monkeypatch.setattr(datamodule, "EVALUATION_BATCH", 7)  # divides neither 20 nor 15
    words = dataset_files.words(name, roots[name])
    keeper = Keeper()
    trained = cell(*WORDS, *words, "model=resnet8", f"loader={loader}")
    module = prepare(Training(Experiment(trained), keeper))
    (fields,) = fit_and_test(module, module.datamodule, [module])
    data = module.datamodule.data
    test = open_splits(data, "memory")[0].test
    indices = torch.arange(len(test.labels))
    images = data.eval_input(read_images(data, test, indices, None), indices).double()
    module.evaluated.eval()
    with torch.no_grad():
        expected = (module.evaluated(images).argmax(1) == test.labels).tolist()
    assert keeper.hits == expected
    assert 0 < sum(expected) < len(expected) == fields["test_images"]
    assert fields["test_top1"] == pytest.approx(100 * sum(expected) / len(expected))


GRID = ("norm=bn", *SHORT, "recipe.images=512", "precision=64-true", "batch=16", "seed=0,1")


def kept(root: str) -> dict[int, int | None]:
    return {row.seed: find_test_hits(Path(root), row) for row in read(root)}


PLANS = [
    "trainer.devices=2", "trainer.per_forward=1", "stack_seeds=true jobs=1",
    "trainer.devices=3 workers=3 protocol=fixed_workers",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_keeps_the_same_hits(plan: str, command: Command) -> None:
    """In double precision, in which rounding moves no prediction."""
    words = plan.split()
    same = tuple(word for word in words if not word.startswith(("trainer", "stack", "jobs")))
    for root, more in (("one", same), ("other", words)):
        assert command("-m", *GRID, *more, f"runs={root}").code == 0
    hits, rows = kept("one"), read("other")
    assert kept("other") == hits
    assert len({*hits.values()}) == 2
    assert all(row.test_images == 360 for row in rows)
    assert {row.plan for row in rows} != {row.plan for row in read("one")} or (
        {row.stacked_seeds for row in rows} == {2}
    )


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_row_keeps_the_same_hits(command: Command) -> None:
    words = (*GRID[:-1], "checkpoint=keep")
    assert command(*words).code == 0
    folder = run_folder(*words)
    expected = (folder / TEST_HITS).read_bytes()
    (folder / "row.json").unlink()
    (folder / TEST_HITS).write_bytes(b"half")
    (folder / f".{TEST_HITS}.4194305").touch()
    assert command(*words).code == 0
    assert (folder / TEST_HITS).read_bytes() == expected
    assert not list(folder.glob(".*"))
    (row,) = read()
    assert row.resumed == 1
    assert find_test_hits(Path("runs"), row) is not None


@pytest.mark.slow
def test_a_run_without_an_accuracy_keeps_no_hits(command: Command) -> None:
    words = (*GRID[:-1], "recipe.lr=1e30")
    folder = run_folder(*words)
    folder.mkdir(parents=True)
    (folder / TEST_HITS).write_bytes(b"of an earlier training")
    assert command(*words).code == 0
    (row,) = read()
    assert (row.status, row.test_images) == ("diverged", None)
    assert not (folder / TEST_HITS).exists()
