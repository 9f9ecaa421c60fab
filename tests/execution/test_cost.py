"""The cost of a command line, estimated before it is started."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from normbench.catalog import dataset
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.files import SWEEPS
from normbench.cost import main
from normbench.errors import BadInput
from normbench.execution.cost_model import (
    RESNET50,
    V100,
    WIDTH,
    Estimate,
    dense_macs,
    estimate,
    round_number,
)
from normbench.execution.cost_table import print_estimate
from normbench.results import Row, write
from support import dataset_files
from support.cells import PLUGIN, cell
from support.processes import wait_for
from support.slow import slow_after, slow_except

PAPER = (
    "recipe=evonorm_resnet_90", "protocol=fixed_workers", "workers=8", "data=imagenet",
    "model=resnet50", "norm=bn",
)  # fmt: skip
ON_V100 = "GPU hours of one V100"


@cache
def cells(*words: str) -> list[Cell]:
    """Return the cells of a grid, composed once for all tests."""
    return compose(["-m", *words])[0]


def cost(*words: str, rows: tuple[Row, ...] = (), rate: float | None = None) -> Estimate:
    return estimate(cells(*words), rows, rate)


@cache
def paper_cost() -> Estimate:
    return cost(*PAPER, "batch=128")


def timed(speed: float | None, *words: str, seed: int = 0, **more: Any) -> Row:
    """A finished run of a cell."""
    measured = {"devices": "1 x cpu", "images_per_second": speed, "test_top1": 90.0}
    fields: dict[str, Any] = {"status": "ok", **measured}
    description = replace(cell(*words), seed=seed).description("default")
    return Row(**description, **fields | more)


# How many images there are


@pytest.mark.parametrize("name", sorted(dataset_files.MAKERS.keys() - {"fashion_mnist"}))
def test_images_are_as_many_as_the_splits_have(name: str, tmp_path: Path) -> None:
    data = dataset(name, **dataset_files.MAKERS[name](tmp_path))
    assert data.sizes == tuple(len(part.labels) for part in data.splits())


@pytest.mark.parametrize("options", [{"val": 0.13}, {"fraction": 0.3}, {"val": 0.2, "fraction": 1}])
def test_images_that_are_held_out_or_left_out_are_counted_as_they_are(
    options: dataset_files.Options,
) -> None:
    data = dataset("digits", **options)
    assert data.sizes == tuple(len(part.labels) for part in data.splits())


@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [
        ("imagenet", {}, (1_281_167, 0, 50_000)),
        ("imagenet", {"fraction": 0.1}, (128_117, 0, 50_000)),
        ("cifar10", {}, (50_000, 0, 10_000)),
        ("cifar100", {"val": 0.1}, (45_000, 5_000, 10_000)),
        ("svhn", {}, (73_257, 0, 26_032)),
        ("svhn", {"extra": True}, (604_388, 0, 26_032)),
        ("caltech256", {}, (256 * 40, 256 * 10, 256 * 30)),
        ("fashion_mnist", {}, (54_000, 6_000, 10_000)),
        ("pascal_voc", {}, (10_582, 0, 1_449)),
        ("pascal_voc", {"train": "train"}, (1_464, 0, 1_449)),
        ("ade20k", {}, (20_210, 0, 2_000)),
        ("cityscapes", {}, (2_975, 0, 500)),
    ],
)
def test_official_sizes_are_known_without_the_files(
    name: str, options: dataset_files.Options, sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    assert dataset(name, root=str(tmp_path), **options).sizes == sizes


# What is trained


def test_a_run_of_evonorms_table_9() -> None:
    estimated = paper_cost()
    (run,) = estimated.trained
    # 143 images of each epoch are left out.
    assert estimated.images == run.images == 90 * 1251 * 1024
    assert run.evaluated == 50_000
    assert run.macs == run.macs_evaluated == pytest.approx(RESNET50, rel=1e-3)
    assert estimated.work == run.macs * (3 * run.images + run.evaluated)
    assert estimated.hours == {ON_V100: pytest.approx(run.images / V100 / 3600, rel=1e-3)}
    assert estimated.spent == "about 95 GPU hours of one V100"


@pytest.mark.parametrize(
    ("more", "times"),
    [(["recipe.epochs=45"], 0.5), (["seed=0,1,2"], 3), (["norm=bn,gn"], 2), (["seed=5"], 1)],
)
def test_hours_are_proportional_to_what_is_trained(more: list[str], times: float) -> None:
    once, changed = paper_cost(), cost(*PAPER, "batch=128", *more)
    assert changed.images == times * once.images
    assert changed.hours[ON_V100] == pytest.approx(times * once.hours[ON_V100], rel=1e-3)


def test_hours_follow_the_multiply_adds_of_network_and_image() -> None:
    small, large = paper_cost(), cost(*PAPER, "batch=128", "data.size=448")
    assert large.images == small.images
    assert large.hours[ON_V100] == pytest.approx(4 * small.hours[ON_V100], rel=0.01)
    cropped = cost(*PAPER, "batch=128", "recipe.crop=112")
    (run,) = cropped.trained
    assert run.macs < run.macs_evaluated / 3.7
    assert cropped.hours[ON_V100] == pytest.approx(run.macs / RESNET50 * small.hours[ON_V100], 0.01)


def test_validation_images_are_looked_at_after_every_epoch() -> None:
    (run,) = cost("data.val=0.1", "recipe.images=null", "recipe.epochs=2.5").trained
    per_epoch = 1_293 // 128
    assert run.images == 25 * 128 == 2.5 * per_epoch * 128
    assert run.evaluated == 3 * 144 + 360


@pytest.mark.parametrize(
    ("words", "statistics", "evaluated"),
    [
        (["norm=bn"], 0, 144 + 360),
        (["norm=bn", "recipe.example_weight=top1"], 0, 21 * 144 + 2 * 360),
        (["norm=gn", "recipe.example_weight=top1"], 50 * 128, 21 * 144 + 2 * 360),
        (["norm=bn", "recipe.recalibration=7"], 7 * 128, 2 * 144 + 360),
        (["norm=gn", "recipe.recalibration=7"], 0, 2 * 144 + 360),
    ],
)
def test_images_after_the_training_are_counted(
    words: list[str], statistics: int, evaluated: int
) -> None:
    (run,) = cost("data.val=0.1", "recipe.images=null", "recipe.epochs=1", *words).trained
    assert (run.statistics, run.evaluated) == (statistics, evaluated)
    assert run.work == run.macs * (3 * run.images + statistics + evaluated)


def test_what_another_run_has_trained_is_not_trained_again() -> None:
    words = ("recipe.images=null", "recipe.epochs=5")
    (full,), (rest,) = cost(*words).trained, cost(*words, "init_from=0123456789ab@3").trained
    assert rest.images / full.images == 2 / 5
    (scratch,) = cost(*words, "init_from=0123456789ab@3", "init_only=[gain]").trained
    assert scratch.images == full.images


@pytest.mark.parametrize(
    ("words", "computations"),
    [
        (["norm=gn", "batch=4,8,128"], 1),
        (["norm=gn", "batch=4,8,128", "seed=0,1"], 2),
        (["norm=bn", "batch=4,8,128"], 3),
        (["norm=sync_bn,bn", "batch=4,8"], 3),
        (["norm=gn", "batch=4,8", "protocol=fixed_workers"], 2),
    ],
)
def test_cells_that_compute_the_same_are_trained_once(words: list[str], computations: int) -> None:
    estimated = cost(*words)
    assert estimated.computations == computations
    assert estimated.cells >= computations
    assert estimated.impossible == 0


def test_cells_that_cannot_work_cost_nothing() -> None:
    estimated = cost(
        "norm=in,bn", "batch=4,8", "model=resnet8"
    )  # the last maps of this network are 1x1
    assert (estimated.cells, estimated.impossible, estimated.computations) == (4, 2, 2)


# How fast images pass


SMALL = ("model=resnet8", "data=cifar10")


def rate_of(*rows: Row, words: tuple[str, ...] = SMALL) -> tuple[float, str]:
    (run,) = cost(*words, "norm=gn", "batch=4", rows=rows).trained
    return round(run.rate.images), run.rate.source


def test_a_rate_is_the_median_of_the_nearest_rows() -> None:
    others = [timed(speed, *SMALL, "norm=bn", "batch=4") for speed in (1000, 7000, 2000)]
    assert rate_of(*others) == (2000, "measured, other normalizers")
    same_norm = [timed(speed, *SMALL, "norm=gn", "batch=64") for speed in (4000, 3000)]
    assert rate_of(*others, *same_norm) == (3500, "measured")
    nearest = timed(1500, *SMALL, "norm=gn", "batch=4", "recipe.lr=0.3", seed=3)
    assert rate_of(*others, *same_norm, nearest) == (1500, "measured")


@pytest.mark.parametrize(
    "make_row",
    [
        partial(timed, 9, "model=resnet14", "data=cifar10"),
        partial(timed, 9, *SMALL, "model.width=8"),
        partial(timed, 9, "model=resnet8", "data=svhn"),
        partial(timed, 9, *SMALL, "precision=bf16-mixed"),
        partial(timed, 9, *SMALL, "recipe.crop=24"),
        partial(timed, 9, *SMALL, shared_with="0123456789ab"),
        partial(timed, None, *SMALL, status="diverged"),
    ],
    ids=["network", "width", "data", "precision", "crop", "shared", "diverged"],
)
def test_rows_of_another_speed_say_nothing(make_row: Callable[[], Row]) -> None:
    assert rate_of(make_row())[1] == "scaled"


# Rows of NF-ResNets' table 5 with the largest batch that it has of them: steps a second.
EFFICIENTNET, NF_REGNET = ("norm=bn", "model=efficientnet_b"), ("norm=nf", "model=nf_regnet_b")


@pytest.mark.parametrize(
    ("network", "index", "side", "batch", "steps", "within"),
    [
        (EFFICIENTNET, 0, 224, 64, 2.61, 1.01),
        pytest.param(EFFICIENTNET, 2, 260, 64, 1.16, 1.1, marks=pytest.mark.slow),
        (NF_REGNET, 0, 224, 64, 6.51, 1.4),
        pytest.param(NF_REGNET, 3, 300, 64, 2.13, 1.1, marks=pytest.mark.slow),
        pytest.param(NF_REGNET, 5, 456, 16, 1.66, 1.1, marks=pytest.mark.slow),
    ],
)
def test_networks_of_grouped_convolutions_are_as_fast_as_published(
    network: tuple[str, str], index: int, side: int, batch: int, steps: float, within: float
) -> None:
    norm, name = network
    words = (norm, f"{name}{index}", f"data.size={side}", f"batch={batch}", "workers=1")
    (run,) = cost("data=imagenet", "recipe.crop=null", *words, "protocol=fixed_workers").trained
    assert 1 / within < run.rate.images / (steps * batch) < within


def test_grouped_convolutions_keep_their_ratio_at_a_rate_of_the_users_own() -> None:
    words = ("data=imagenet", "model=efficientnet_b0")
    (default,), (doubled,) = cost(*words).trained, cost(*words, rate=2 * V100).trained
    assert doubled.rate.images == pytest.approx(2 * default.rate.images)


@pytest.mark.parametrize(
    ("parts", "dense"),
    [({}, 1000), ({1: 10}, 990 + 10 * WIDTH), ({WIDTH: 10}, 1000), ({2 * WIDTH: 10}, 1000)],
    ids=["none", "depthwise", "as wide as no groups", "wider"],
)
def test_narrow_groups_take_longer_than_their_multiply_adds(
    parts: dict[int, int], dense: float
) -> None:
    assert dense_macs(1000, parts) == pytest.approx(dense)


def test_hours_name_the_device_that_most_rows_have() -> None:
    rows = [timed(100, *SMALL, "norm=gn", seed=seed) for seed in (1, 2)]
    rows.append(timed(9000, *SMALL, "norm=gn", seed=3, devices="1 x NVIDIA H200"))
    estimated = cost(
        *SMALL, "norm=gn", "batch=8", "recipe.images=null", "recipe.epochs=9", rows=(*rows,)
    )
    seconds = (9 * 390 * 128 + 10_000 / 3) / 100
    assert estimated.hours == {"hours of 1 x cpu, as measured": pytest.approx(seconds / 3600)}
    assert estimated.spent == "about 1.3 hours of 1 x cpu, as measured"


def test_devices_are_not_added_up() -> None:
    row = timed(100, *SMALL, "norm=gn")
    estimated = cost("model=resnet8,resnet50", "data=cifar10", "norm=gn", rows=(row,))
    assert list(estimated.hours) == ["hours of 1 x cpu, as measured", ON_V100]
    assert estimated.spent.startswith("about 0.08 hours of 1 x cpu, as measured and less than 0.01")


def test_a_rate_of_the_users_own_takes_the_place_of_the_papers() -> None:
    default, faster = paper_cost(), cost(*PAPER, "batch=128", rate=10 * V100)
    (device,) = faster.hours
    assert device == "hours of one device of rate=3353.6"
    assert faster.hours[device] == pytest.approx(default.hours[ON_V100] / 10)


@pytest.mark.parametrize(
    ("norm", "make_row", "finished"),
    [
        ("bn", partial(timed, 1000, "norm=bn", "batch=4"), 1),
        ("bn", partial(timed, 1000, "norm=bn", "batch=64"), 0),
        ("bn", partial(timed, 1000, "norm=bn", "batch=4", status="oom"), 0),
        ("gn", partial(timed, 1000, "norm=gn", "batch=4"), 1),
        ("gn", lambda: timed(1, "norm=gn", "batch=64", computation=cell("norm=gn").computation), 1),
    ],
)
def test_what_is_finished_is_counted_apart(
    norm: str, make_row: Callable[[], Row], finished: int
) -> None:
    estimated = cost(f"norm={norm}", "batch=4,8", rows=(make_row(),))
    assert sum(each.finished for each in estimated.trained) == finished
    assert estimated.left.computations == estimated.computations - finished
    assert estimated.left.images == 25_600 * estimated.left.computations


@pytest.mark.parametrize(
    ("number", "text"), [(4612, "4,600"), (1_234_567, "1,200,000"), (96.1, "96"), (0.0412, "0.041")]
)
def test_numbers_are_printed_with_two_digits(number: float, text: str) -> None:
    assert round_number(number) == text


# The command


def test_the_command_says_what_a_sweep_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = timed(2000, "sweeps=proxy_norm_2_small", "norm=bn", "reg=none", "seed=0")
    write(tmp_path / "default" / row.id, row)
    assert main(["sweeps=proxy_norm_2_small", "seed=0", f"runs={tmp_path}"]) == 0
    basis, head, rest = capsys.readouterr().out.partition("20 cells, 1 seed; 20 computations\n")
    assert basis.split() == f"Hours as measured in finished runs below runs={tmp_path}.".split()
    lines = [head, *rest.splitlines()]
    (bn,) = (line for line in lines if line.startswith("bn in resnet14_v2 "))
    assert bn.endswith("2,000 measured")
    assert lines[3].endswith(" 2,000 measured")
    assert "all " in lines[13]
    assert lines[15].endswith(" hours of 1 x cpu, as measured")
    assert lines[16].startswith(f"1 finished below runs={tmp_path}, 19 left: about 0.36 hours")


def test_a_grid_needs_no_flag_and_an_estimate_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=resnet50", "data=cifar10", "norm=bn,gn", "batch=4,8", "rate=900"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert first.startswith(
        "Hours on a device that trains ResNet-50 at rate=900 images per second."
    )
    assert "\n\n4 cells, 1 seed; 3 computations\n" in first
    assert "hours of one device of rate=900" in first
    assert "Scaled by multiply-adds from ResNet-50" in first
    assert "do not reach such rates" in first  # an image of 32x32 is little work
    assert "in groups" not in first
    assert "Claims" not in first
    assert "Smallest difference" not in first
    assert main(["-m", *words]) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("model", "reckoned"), [("efficientnet_b0", True), ("resnext50", True), ("resnet50", False)]
)
def test_grouped_convolutions_are_told_of(
    model: str, reckoned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data=imagenet", f"model={model}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert ("Convolutions in groups of w channels count 228/w times" in out) is reckoned
    assert "do not reach such rates" not in out


def test_hours_of_several_devices_have_no_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = timed(100, "norm=gn", "model=resnet14")
    write(tmp_path / "default" / row.id, row)
    assert main(["norm=gn", "model=resnet14,resnet50", f"runs={tmp_path}"]) == 0
    out = capsys.readouterr().out
    basis = " ".join(out.partition("\n\n")[0].split())
    assert basis.startswith(
        f"Hours of 1 computation as measured in finished runs below runs={tmp_path}."
    )
    assert "Hours of 1 computation on one V100, which need not be your device" in basis
    assert "rate=N, the images per second at which your device trains ResNet-50" in basis
    (all_,) = (line for line in out.splitlines() if line.startswith("all "))
    assert all_.split()[1:3] == ["2", "51,200"]
    assert len(all_.split()) == 4


@pytest.mark.parametrize(
    ("words", "says"),
    slow_after(
        3,
        [
            (["rate=fast"], "rate=fast: it is a whole number above 0, as rate=8"),
            (["norm=bm"], "norm=bm is unknown; known: batch_renorm, "),
            (["speed=3"], "speed is unknown; "),
            (["norm=in", "model=resnet8"], "in batch=8 seed=0 model=resnet8 cannot work: "),
            (["global_batch=2048"], "data=digits_contrast has 1293 training images"),
            (["recipe=nf_resnet_15", "data=cifar10"], "has learning rates for global batches of "),
            (
                ["recipe=nf_resnet_15", "data=cifar10", "recipe.lr=0.3"],
                "recipe.lr=0.3: recipe=nf_resnet_15 has recipe.rates in its place; '~recipe.rates'",
            ),
            (["recipe.crop=99"], "recipe.crop=99: Digits has images of 8 pixels"),
            (
                ["data=image_folder", "data.root=/nowhere"],
                "data=image_folder: data.root=/nowhere is no folder",
            ),
            (
                ["--config-dir", str(PLUGIN / "conf"), "norm=unbuildable"],
                "cannot be built and run (",
            ),
        ],
    ),
)
def test_words_that_cannot_be_used(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("normbench.cost: ")
    assert says in err
    assert err.count("\n") == 1


#: Composes in another process, as a process without torch does; KILLED is what that one is sent.
PROGRAM = """
import os, signal, sys
import normbench.cost as command
from normbench.config import cli

assert "torch" not in sys.modules
first, compose = os.getpid(), command.compose

def compose_elsewhere(words):
    if os.getpid() == first:
        print("composed here", file=sys.stderr)
    elif KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    return compose(words)

command.compose = compose_elsewhere
cli.run(command.main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_another_process_composes_while_this_one_imports_torch(
    killed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["norm=bn,gn", "batch=4"]
    program = PROGRAM.replace("KILLED", str(killed))
    end = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert main(words) == end.returncode == 0
    assert end.stdout == capsys.readouterr().out
    assert end.stderr == ("composed here\n" if killed else "")


@pytest.mark.slow
def test_an_error_of_the_other_process_is_one_sentence() -> None:
    end = subprocess.run(
        [sys.executable, "-m", "normbench.cost", "norm=bm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (end.returncode, end.stdout, end.stderr.count("\n")) == (2, "", 1)
    assert end.stderr.startswith("normbench.cost: norm=bm is unknown; ")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 1, 2, 4])
def test_ctrl_c_is_silent(seconds: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "normbench.cost", "sweeps=proxy_norm_4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: children.read_text() != "")  # the process that composes
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output = process.communicate()
    assert output == (b"", b"")
    assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT)


@pytest.mark.slow
def test_no_process_survives_a_killed_command() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "normbench.cost", "sweeps=proxy_norm_4"]
    ) as command:
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        wait_for(lambda: children.read_text() != "")
        (child,) = children.read_text().split()
        wait_for(lambda: _ignores(int(child), signal.SIGINT))  # and then ends with its parent
        command.kill()
    wait_for(lambda: not Path("/proc", child).exists())


def _ignores(process: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> (number - 1) & 1)


def test_a_papers_sweep_says_which_claims_its_seeds_decide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sweeps=nf_2"]) == 0
    costs, claims, rest = capsys.readouterr().out.partition("\nClaims of table nf_2 ")
    assert "30 cells, 5 seeds; 30 computations" in costs
    assert claims
    assert re.search(r"\nnf_unaffected_from_8_to_4 +5 +\d+ % +0\.\d+  6\n", rest)
    assert "the paper's error bars (table 2)" in rest


@pytest.mark.parametrize(("spread", "shown"), [(1.0, True), (0.0, False)])
def test_another_grid_says_which_difference_its_seeds_show(
    spread: float, shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        row = timed(900, "norm=gn", seed=seed, test_top1=90 + spread * seed)
        write(tmp_path / "default" / row.id, row)
    assert main(["norm=bn,gn", "seed=0,1,2,3", f"runs={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert ("Smallest difference" in out) == shown
    assert ("with 4," in " ".join(out.split())) == shown


def test_seeds_are_counted_for_each_cell(capsys: pytest.CaptureFixture[str]) -> None:
    two, one = cells(*PAPER, "batch=128", "seed=0,1"), cells(*PAPER, "batch=64")
    assert estimate(two).seeds == (2, 2)
    assert estimate([*two, *one]).seeds == (1, 2)
    print_estimate(estimate([*two, *one]), None, "runs", force=False)
    assert "\n3 cells, 1 to 2 seeds; 3 computations\n" in capsys.readouterr().out


def test_help_says_where_rates_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "Standard deviations over seeds" in out
    assert "rate=N" in out
    assert "Grouped convolutions" in out


def test_none_of_the_cells_can_work() -> None:
    with pytest.raises(BadInput, match="cannot work"):
        cost("norm=in", "batch=4,8", "model=resnet8")


# What the sweeps of the papers' tables say about themselves


@pytest.mark.parametrize(
    "sweep", slow_except(["evonorm_9", "sn_1", "nf_2", "evonorm_13", "proxy_norm_3"], ["nf_2"])
)
def test_the_head_of_a_sweep_says_what_it_costs(sweep: str) -> None:
    cells, _ = compose([f"sweeps={sweep}"])
    assert (
        f"# Cost: {estimate(cells).spent} (normbench.cost).\n"
        in (SWEEPS / f"{sweep}.yaml").read_text()
    )
