"""One experiment, one result: every plan of workers computes the same update.

Trainings of 4 workers with 4 images each in double precision, with momentum, weight decay, label
smoothing, stochastic depth, dropout, mixup, cutmix and noise on the images, under every plan, by
real processes of gloo. Run as a program this prints the table for all of them.

Dense tasks, whose losses are those of the workers, train on scenes with void borders.

Each step is compared when it begins where the reference's did. After free steps rounding has grown:
there the yardstick is what one unit in the last place of the first weights does to the reference.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from normbench.catalog import normalizer
from normbench.config.cells import Cell
from normbench.config.plan import Plan
from normbench.execution import process_group, worker_process
from normbench.execution.sweep import PRELOAD
from support.cells import cell
from support.plan_training import RESTARTS, Errand, Mode
from support.slow import slow_except

Distances = dict[str, list[dict[str, float]]]

REFERENCE = Plan(1, 4, 1)
PLANS = [
    REFERENCE, Plan(1, 1, 4), Plan(1, 2, 2), Plan(2, 2, 1), Plan(2, 1, 2), Plan(4, 1, 1),
]  # fmt: skip
NORMS = (
    "bn", "sync_bn", "ghost_bn", "batch_renorm", "gn", "frn", "evonorm_b0", "evonorm_s0", "sn",
    "bgn", "gn_pn", "nf",
)  # fmt: skip
#: Normalizers and tasks: their losses are means over workers.
DENSE = ("bn task=segment", "sync_bn task=segment", "bn task=depth", "bn task=detect")
#: Plans whose free steps are compared; `make plans` has all.
FREE_PLANS = (Plan(1, 1, 4), Plan(2, 2, 1))
#: Normalizers that are compared every day, under one plan of two devices; the others are slow.
EVERYDAY = ("bn", "batch_renorm")
EVERYDAY_PLAN = Plan(2, 1, 2)
STEPS, BATCH, LR = 20, 4, 0.05
#: Largest distance of a step, relative; and how much more than a unit in the last place may do.
STEP, FREE = 1e-12, 100.0
CONTROL = 1e-4


def cell_of(norm: str, stem_stride: int) -> Cell:
    """The cell of one training; maps end at 1x1 with a stem of stride 2, at 2x2 without.

    The name of a normalizer may be followed by a task.
    """
    if " " in norm:
        return cell(
            *f"norm={norm}".split(), f"model.stem_stride={stem_stride}", "model.width=4",
            "protocol=fixed_workers", "workers=4", f"batch={BATCH}", "precision=64-true",
            f"recipe.images={RESTARTS * 4 * BATCH}", f"recipe.lr={LR}",
            f"recipe.lr_batch={4 * BATCH}", "data.size=40", "data.padding=12", "data.val=0",
            "trainer=cpu", "trainer.chunk=1", "logger=none",
        )  # fmt: skip
    model = "resnet18_cifar_v2" if norm == "nf" else "resnet18_cifar"
    own = {"ghost_bn": ["norm.ghost=2"], "batch_renorm": ["norm.start=0", "norm.r_open=0.5"]}
    return cell(
        f"norm={norm}", f"model={model}", "model.depths=[1,1,1]", "model.strides=[1,2,2]",
        "model.width=16", "model.max_groups=4", f"model.stem_stride={stem_stride}",
        "model.dropout=0.2", "model.stochastic_depth=0.3",
        "reg.label_smoothing=0.1", "reg.mixup=0.2", "reg.cutmix=1.0",
        "protocol=fixed_workers", "workers=4", f"batch={BATCH}", "precision=64-true",
        f"recipe.images={STEPS * 4 * BATCH}", f"recipe.lr={LR}", f"recipe.lr_batch={4 * BATCH}",
        "data.val=0", "trainer=cpu", "trainer.chunk=1", "logger=none", *own.get(norm, []),
    )  # fmt: skip


def distances(mode: Mode, plan: Plan, cells: Mapping[str, Cell], folder: Path) -> Distances:
    """What the ranks of a plan have found: by normalizer and step."""
    worker_process.start_server(PRELOAD)
    log = folder / f"{mode}-{plan.devices}-{plan.per_forward}-{plan.accumulation}.txt"
    errand = Errand(mode, plan, dict(cells), folder)
    running = process_group.start("support.plan_training:run", errand, plan.devices, log=log)
    end = process_group.wait_for_exit(running)
    assert end.succeeded, (end, process_group.log_of_rank(log, end.rank or 0).read_text())
    found: Distances = end.result
    return found


class Trainings:
    """Trainings under every plan, all normalizers of a group in the same processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.distances: dict[tuple[Mode, Plan, int, bool], Distances] = {}

    def __call__(
        self, norm: str, mode: Mode, plan: Plan, stem_stride: int
    ) -> list[dict[str, float]]:
        """Return the distances of `norm` from the reference, step by step."""
        everyday = norm in EVERYDAY
        key = (mode, plan, stem_stride, everyday)
        if key not in self.distances:
            if mode != "reference":
                self(norm, "reference", REFERENCE, stem_stride)
            group = [
                each
                for each in (*NORMS, *(DENSE if stem_stride == 2 else ()))
                if (each in EVERYDAY) == everyday
            ]
            cells = {each: cell_of(each, stem_stride) for each in group}
            folder = self.folder / str(stem_stride)
            folder.mkdir(exist_ok=True)
            self.distances[key] = distances(mode, plan, cells, folder)
        return self.distances[key][norm]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("plans"))


def worst(steps: list[dict[str, float]]) -> float:
    return max(value for step in steps for value in step.values())


PAIRS = slow_except(
    [(norm, plan) for plan in PLANS[1:] for norm in (*NORMS, *DENSE)],
    [(norm, EVERYDAY_PLAN) for norm in EVERYDAY],
)
DEPENDENT = slow_except(
    [
        norm
        for norm in (*NORMS, *DENSE)
        if not normalizer(norm.partition(" ")[0]).worker_independent
    ],
    EVERYDAY,
)


@pytest.mark.parametrize(("norm", "plan"), PAIRS, ids=str)
def test_a_step_is_the_same_under_every_plan(norm: str, plan: Plan, trainings: Trainings) -> None:
    assert worst(trainings(norm, "restarted", plan, 2)) <= STEP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "plan"), [(norm, plan) for plan in FREE_PLANS for norm in NORMS], ids=str
)
def test_free_steps_part_no_further_than_rounding_does(
    norm: str, plan: Plan, trainings: Trainings
) -> None:
    moved = trainings(norm, "perturbed", REFERENCE, 1)[-1]["parameters"]
    assert 0 < moved < 1e-6
    assert trainings(norm, "free", plan, 1)[-1]["parameters"] <= FREE * moved


@pytest.mark.parametrize("norm", DEPENDENT)
def test_without_statistics_of_its_own_for_each_worker_a_step_differs(
    norm: str, trainings: Trainings
) -> None:
    """Or the comparison would not notice."""
    assert worst(trainings(norm, "control", REFERENCE, 2)[:1]) > CONTROL


def table(trainings: Trainings) -> Iterator[str]:
    """A line for each normalizer: its distances from the reference, which is the first plan."""
    yield f"{4} workers x {BATCH} images, peak learning rate {LR}, {STEPS} steps, fp64; by plan"
    yield "the worst of any step, that of the parameters after free steps, and that over the one of"
    yield "ulp: what one unit in the last place of the first weights does; control: no workers"
    yield f"{'norm':<16}" + "".join(
        f"{p.devices}x{p.per_forward}x{p.accumulation:<19}" for p in PLANS
    )
    for norm in (*NORMS, *DENSE):
        moved = 0.0
        if norm not in DENSE:
            moved = trainings(norm, "perturbed", REFERENCE, 1)[-1]["parameters"]
        control = worst(trainings(norm, "control", REFERENCE, 2)[:1])
        words = []
        for plan in PLANS:
            if norm in DENSE:
                words.append(f"{worst(trainings(norm, 'restarted', plan, 2)):<23.1e}")
                continue
            step = worst(trainings(norm, "restarted", plan, 2))
            free = trainings(norm, "free", plan, 1)[-1]["parameters"]
            words.append(f"{step:<8.1e}{free:.1e} {free / moved:<6.2g}")
        yield f"{norm:<16}{''.join(words)}ulp {moved:.1e}  control {control:.1e}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        for line in table(Trainings(Path(found))):
            print(line, flush=True)
