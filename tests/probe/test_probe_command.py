"""`python -m normbench.probe`: the papers' figures and statements, and every word of its own."""

import csv
import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
import torch

from normbench.config.files import FIGURES, ROOT, load, names
from normbench.measurements.power import CURVE
from normbench.measurements.ratios import divergence
from normbench.probe.request import OPTIONS, WORDS
from normbench.probe.trained_network import find_run
from normbench.report.probe_figures import draw
from normbench.results import read as read_rows
from normbench.results import read_history, read_row
from normbench.run_files import (
    Record,
    append_epoch,
    group_by,
    read_records,
)
from support.cells import SHORT
from support.commands import Command, Probe


def lines(name: str) -> list[Record]:
    return read_records(Path("reports/probes") / f"{name}.csv")


# The figures of the NF paper, in a network of an eighth of the depth and a quarter of the width.

SMALLER = ("model.depths=[6,6,6,6]", "model.width=24", "image=128", "images=2", "trainer=cpu")


@pytest.fixture
def figure(probe_command: Probe) -> Callable[[str], dict[str, list[Record]]]:
    """The blocks of each network of a figure."""

    def drawn(name: str) -> dict[str, list[Record]]:
        found = probe_command(name, *SMALLER)
        assert found.code == 0, found.err
        return group_by(lines(f"{name}-changed"), "network")

    return drawn


def values(blocks: list[Record], measure: str, stage: int | None = None) -> list[float]:
    return [b[measure] for b in blocks if stage is None or b["stage"] == stage]


def is_a_line(heights: list[float], within: float) -> bool:
    """Whether they grow in equal steps."""
    steps = [b - a for a, b in pairwise(heights)]
    return all(abs(step - fmean(steps)) < within * fmean(steps) for step in steps)


Figure = Callable[[str], dict[str, list[Record]]]


def test_figure_1_batch_normalization_in_both_orders(figure: Figure) -> None:
    found = figure("nf_1")
    usual, other = found["BN-ReLU-Conv"], found["ReLU-BN-Conv"]
    assert fmean(values(usual, "branch_variance")) == pytest.approx(0.68, abs=0.03)
    assert fmean(values(other, "branch_variance")) == pytest.approx(1, abs=0.03)
    for blocks, step in ((usual, 0.68), (other, 1.0)):
        for stage in (1, 2, 3, 4):
            heights = values(blocks, "variance", stage)
            assert is_a_line(heights, within=0.15)
            # Shortcut and branch have one such variance each where a stage begins.
            assert heights[0] == pytest.approx(2 * step, rel=0.15)
            means = values(blocks, "squared_mean", stage)
            if blocks is usual:
                assert all(b > 0.8 * a for a, b in pairwise(means))
                assert means[-1] > 2 * means[0]
            else:
                assert max(means) < 0.05


def test_figure_2_scaled_weight_standardization_overlays_batch_normalization(
    figure: Figure,
) -> None:
    found = figure("nf_2")
    bn, he, nf = found["BN, ReLU-BN-Conv"], found["NF, He init"], found["NF, scaled WS"]
    for stage in (1, 2, 3):
        means = values(he, "squared_mean", stage)
        assert all(b > 0.8 * a for a, b in pairwise(means))
        assert means[-1] > 1.5 * means[0]
        assert means[-1] > values(he, "variance", stage)[-1]  # the mean shift
    assert fmean(values(he, "branch_variance")) < 0.8
    for stage in (1, 2):  # later maps of a small image are mostly borders
        ours, theirs = (values(blocks, "variance", stage) for blocks in (nf, bn))
        assert ours == pytest.approx(theirs, rel=0.15)
    assert max(values(nf, "squared_mean")) < 0.3
    decay = [fmean(values(nf, "branch_variance", stage)) for stage in (1, 2, 3, 4)]
    assert all(b < a for a, b in pairwise(decay))  # of zero padding, says the paper


def test_figure_6_nothing_normalized_explodes(figure: Figure) -> None:
    (blocks,) = figure("nf_6").values()
    variances = [values(blocks, "variance", stage)[-1] for stage in (1, 2, 3, 4)]
    assert all(b > 5 * a for a, b in pairwise(variances))


def test_figure_7_without_relu_there_is_no_mean_shift(figure: Figure) -> None:
    for blocks in figure("nf_7").values():
        assert max(values(blocks, "squared_mean")) < 0.05
        assert fmean(values(blocks, "branch_variance", 1)) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [("nf_8", "gain 1.414", "gain 1.713"), ("nf_9", "gate", "2 x gate")],
)
def test_figures_8_and_9_what_attenuates_and_what_repairs(
    figure: Figure, name: str, wrong: str, right: str
) -> None:
    found = figure(name)
    branch = [fmean(values(found[wrong], "branch_variance", stage)) for stage in (1, 2, 3, 4)]
    assert all(b < 0.5 * a for a, b in pairwise(branch))
    assert branch[-1] < 0.01
    assert fmean(values(found[right], "branch_variance", 1)) == pytest.approx(1, abs=0.1)
    assert min(values(found[right], "branch_variance", 2)) > 0.8


def test_figure_10_fixup_is_constant_within_a_stage(figure: Figure) -> None:
    (blocks,) = figure("nf_10").values()
    assert set(values(blocks, "branch_variance")) == {0}
    stages = [set(values(blocks, "variance", stage)) for stage in (1, 2, 3, 4)]
    assert [len(stage) for stage in stages] == [1, 1, 1, 1]
    assert len(set.union(*stages)) == 4


def test_figure_11_post_activation_branches_have_a_variance_of_one(figure: Figure) -> None:
    (blocks,) = figure("nf_11").values()
    assert values(blocks, "branch_variance") == pytest.approx([1.0] * 24, abs=1e-3)
    starts = [values(blocks, "variance", stage)[0] for stage in (1, 2, 3, 4)]
    assert starts == pytest.approx([0.68] * 4, abs=0.05)  # of a rectified sum of two
    for stage in (1, 2, 3, 4):
        heights = values(blocks, "variance", stage)
        assert all(a < b for a, b in pairwise(heights))


# Every file of reports/figures


@pytest.mark.parametrize("name", names(FIGURES))
def test_a_figure_is_written_with_its_numbers(name: str, probe_command: Probe) -> None:
    content = load(FIGURES / f"{name}.yaml")
    small = {
        "spp": ("model.depths=[2,2,2,2]", "model.width=8", "image=32", "images=2"),
        "power": ("model.depth=3", "model.width=16", "data=digits", "images=8"),
    }[content["kind"]]
    found = probe_command(name, *small, "out=here", f"name={name}", "trainer=cpu")
    assert found.code == 0, found.err
    assert f"here/{name}.png" in found.out
    networks = group_by(read_records(Path(f"here/{name}.csv")), "network")
    assert [*networks] == [*content["networks"]]
    for form, begin in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert Path(f"here/{name}.{form}").read_bytes().startswith(begin)
    words = sorted([*small, "trainer=cpu"], key=lambda word: word.partition("=")[0] in WORDS)
    title = f"{content['title']} ({content['source']}), but {' '.join(words)}"
    again = draw(content["kind"], read_records(Path(f"here/{name}.csv")), title)
    assert again["png"] == Path(f"here/{name}.png").read_bytes()


# Networks before training


def test_a_grid_is_several_networks(probe_command: Probe) -> None:
    found = probe_command("spp", "norm=bn,gn", "model=resnet14_v2", "images=16")
    assert found.code == 0, found.err
    assert [*group_by(lines("spp"), "network")] == ["bn", "gn"]
    assert "squared mean" in found.out


def test_vs_begins_another_network(probe_command: Probe) -> None:
    words = ("norm=nf", "norm.alpha=1", "model=resnet14_v2", "images=16")
    found = probe_command(
        "spp", *words, "vs", "norm=bn", "vs", "model.width=8", "norm.skip_gain=false"
    )
    assert found.code == 0, found.err
    networks = [*group_by(lines("spp"), "network")]
    assert [network.split()[0] for network in networks] == ["nf", "bn", "nf"]
    assert "alpha=1" in networks[0]  # bn has none, and the words of nf are not its
    assert "width=8" in networks[2]


def test_input_of_the_data_set(probe_command: Probe) -> None:
    """Real images, augmented as in training; their seed is the cell's."""
    words = ("spp", "norm=bn", "model=resnet14_v2", "images=64", "input=data")
    assert probe_command(*words).code == 0
    first = lines("spp")
    assert probe_command(*words, "seed=1").code == 0
    assert lines("spp") != first
    assert probe_command(*words).code == 0
    assert lines("spp") == first
    assert probe_command("spp", "norm=bn", "model=resnet14_v2", "images=64").code == 0
    assert lines("spp") != first


def test_double_precision(probe_command: Probe) -> None:
    words = ("power", "norm=bn", "model=resnet14_v2", "images=64", "eps=0")
    assert probe_command(*words, "precision=64-true").code == 0
    assert values(lines("power"), "total") == pytest.approx([1.0] * 13, abs=1e-9)


def test_power_of_a_random_net_has_its_bound(probe_command: Probe) -> None:
    words = ("model=random_net", "model.depth=4", "model.width=32", "images=16")
    assert probe_command("power", "norm=ln,in", *words).code == 0
    for layers in group_by(lines("power"), "network").values():
        rho = 1.04 / 1.08
        assert values(layers, "bound") == pytest.approx([1, rho, rho**2, rho**3], rel=1e-6)


def test_a_changed_figure_is_not_the_papers(probe_command: Probe) -> None:
    small = ("model.depths=[1,1,1,1]", "model.width=8", "image=32")
    assert probe_command("nf_1", *small, "model.act=silu").code == 0
    assert not Path("reports/probes/nf_1.csv").exists()
    found = group_by(lines("nf_1-changed"), "network")
    one, other = (values(blocks, "variance") for blocks in found.values())
    assert one != other  # each network keeps what makes it that
    found_2 = probe_command("nf_2", "norm=gn", *small)
    assert found_2.code == 2
    assert "norm=gn: the networks of nf_2 differ in this word" in found_2.err


def test_what_has_nothing_to_see_is_named_and_the_others_are_seen(probe_command: Probe) -> None:
    found = probe_command("power", "norm=evonorm_s0,bn", "images=64")
    assert found.code == 0
    assert "evonorm_s0 is n/a: the power decomposition needs" in found.out
    assert [*group_by(lines("power"), "network")] == ["bn"]


def test_the_speed_table(probe_command: Probe) -> None:
    words = ("norm=gn,in", "model=resnet8", "batch=4,8", "repeats=1")
    found = probe_command("speed", *words)
    assert found.code == 0, found.err
    table = group_by(lines("speed"), "batch", "mode", "network")
    assert "1e" not in found.out.split("in: ")[0]  # numbers are easy to read
    assert [*table] == [
        (batch, mode, norm)
        for batch in (4, 8)
        for mode in ("training", "inference")
        for norm in ("bn", "gn", "in")
    ]
    for (batch, mode, norm), (line,) in table.items():
        assert line["status"] == ("n/a" if norm == "in" else "ok")
        if norm == "bn":
            assert line["ratio"] == 1
        if norm != "in":
            (base,) = table[batch, mode, "bn"]
            ratio = line["steps_per_second"] / base["steps_per_second"]
            assert line["ratio"] == pytest.approx(ratio, rel=1e-6)
            rate = batch * line["steps_per_second"]
            assert line["images_per_second"] == pytest.approx(rate, rel=1e-6)
    assert "in: a group of 1 channel on a 1x1 map" in found.out


def test_each_architecture_has_a_bn_of_its_own(probe_command: Probe) -> None:
    words = ("norm=gn", "model=resnet8,resnet14", "batch=4", "repeats=1", "mode=inference")
    assert probe_command("speed", *words).code == 0
    table = {line["network"]: line for line in lines("speed")}
    assert [*table] == ["bn model=resnet8", "bn model=resnet14", "gn model=resnet8",
                        "gn model=resnet14"]  # fmt: skip
    for model in ("resnet8", "resnet14"):
        bn, gn = (table[f"{norm} model={model}"] for norm in ("bn", "gn"))
        assert bn["ratio"] == bn["memory_ratio"] == 1
        ratio = gn["steps_per_second"] / bn["steps_per_second"]
        assert gn["ratio"] == pytest.approx(ratio, rel=1e-6)


def test_gains_of_ones_own_choice(probe_command: Probe) -> None:
    assert (
        probe_command("gains", "act=relu,glu,torch.nn.functional.hardsigmoid", "name=mine").code
        == 0
    )
    relu, glu, own = lines("mine")
    assert relu["exact"] == pytest.approx(relu["normbench"], rel=1e-8)
    assert glu["exact"] is None
    assert glu["sampled"] == pytest.approx(1.848, rel=0.01)
    assert own["normbench"] is None


# Networks of runs


KEPT = (*SHORT, "checkpoint=keep", "model.stem_stride=1", "recipe.images=5120")


def test_the_alpha_curve_of_runs(probe_command: Probe, command: Command) -> None:
    grid = ("norm=bn,gn", "batch=4", "seed=0,1", *KEPT)
    assert command("-m", *grid, "recipe.images=1280").code == 0
    found = probe_command("example_weight", "ckpt=all", "alphas=0,0.25,0.5,1", "out=reports/alpha")
    assert found.code == 0, found.err
    table = read_records(Path("reports/alpha/example_weight.csv"))
    assert [*group_by(table, "network")] == ["bn", "gn"]
    rows = {row.id: row for row in read_rows("runs")}
    assert len(rows) == 4  # those of probes are none of them
    for id_, own in group_by(table, "run").items():
        row = rows[id_]
        usual = 0.0 if row.norm == "bn" else 1.0
        # As the run itself was validated and tested.
        (val,) = [x for x in own if x["split"] == "val" and x["alpha"] == usual]
        (test,) = [x for x in own if x["split"] == "test" and x["alpha"] == usual]
        assert val["top1"] == pytest.approx(row.val_top1, abs=1e-4)
        assert test["top1"] == pytest.approx(row.test_top1, abs=1e-4)
        assert test["loss"] == pytest.approx(row.test_loss, rel=1e-4)
        folder = Path("runs/default") / id_ / "probes"
        seen = read_row(folder / "example_weight.json")
        assert (seen.kind, seen.probe, seen.probed_run) == ("probe", "example_weight", id_)
        best = {measure: x["alpha"] for x in own for measure in str(x["best"] or "").split()}
        assert seen.options.endswith(f"example_weight.loss={best['loss']:g}")
        (chosen,) = [x for x in own if x["split"] == "test" and x["alpha"] == best["loss"]]
        assert seen.test_loss == pytest.approx(chosen["loss"])
        assert read_records(folder / "example_weight.csv") == own
    report = command_of_the_report()
    assert "Images that count in their own statistics" in report


def command_of_the_report() -> str:
    from normbench.report.__main__ import main

    assert main(["out=whole"]) == 0
    return Path("whole/index.html").read_text()


def test_a_run_that_cannot_be_weighed_is_named_and_the_others_are(
    probe_command: Probe, command: Command
) -> None:
    short = (*KEPT, "recipe.images=256")
    assert command("-m", "norm=bn,sn,evonorm_s0", "batch=4", *short).code == 0
    found = probe_command("example_weight", "ckpt=all", "alphas=0,1")
    assert found.code == 0, found.err
    assert [*group_by(lines("example_weight"), "network")] == ["bn", "sn"]
    assert "is n/a: the network has no layer that supports" in found.out
    found = probe_command("ratios", "ckpt=all")
    assert found.code == 0, found.err
    assert [*group_by(lines("ratios"), "network")] == ["sn"]
    assert "is n/a: the network has no switchable normalization" in found.out


def test_other_experiments_are_no_seeds(probe_command: Probe, command: Command) -> None:
    """Runs that differ in their workers alone are told apart."""
    grid = ("norm=sn", "batch=8", "protocol=fixed_workers", "workers=1,4", "recipe.images=256")
    assert command("-m", *grid, *SHORT[1:], "checkpoint=keep").code == 0
    assert probe_command("ratios", "ckpt=all").code == 0
    assert {*group_by(lines("ratios"), "network")} == {"sn workers=1", "sn workers=4"}
    assert Path("reports/probes/ratios_apart.csv").exists()


def test_two_runs_of_one_cell_are_held_against_each_other(
    probe_command: Probe, command: Command
) -> None:
    grid = ("norm=sn", "seed=0,1", "recipe.images=256", *SHORT[1:], "checkpoint=keep")
    assert command("-m", *grid).code == 0
    assert probe_command("ratios", "ckpt=all").code == 0
    apart = read_records(Path("reports/probes/ratios_apart.csv"))
    assert {line["network"] for line in apart} == {"seed 0 || seed 1"}
    for of in ("mean", "var"):
        one, other = (
            [line for line in lines("ratios") if line["seed"] == seed and line["of"] == of]
            for seed in (0, 1)
        )
        expected = fmean(
            divergence([x[m] for m in ("in", "ln", "bn")], [y[m] for m in ("in", "ln", "bn")])
            for x, y in zip(one, other, strict=True)
        )
        (found,) = [x["divergence"] for x in apart if x["of"] == of and x["group"] == "all"]
        assert found == pytest.approx(expected, rel=1e-4)


def test_what_a_training_has_seen_of_itself_stays(probe_command: Probe, command: Command) -> None:
    words = (*KEPT, "probe=spp", "probe.images=64", "recipe.images=1280")
    assert command("norm=bn", *words).code == 0
    (row,) = read_rows("runs")
    own = Path("runs/default") / row.id / "probes"
    before = (own / "spp.csv").read_bytes()
    assert probe_command("spp", f"ckpt={row.id}", "images=16").code == 0
    assert (own / "spp.csv").read_bytes() == before
    assert {line["epoch"] for line in read_records(own / "spp.command.csv")} == {1}


def test_ratios_over_the_epochs_that_a_run_kept(probe_command: Probe, command: Command) -> None:
    assert command("norm=sn", *KEPT, "checkpoint.epochs=[1,3]").code == 0
    (row,) = read_rows("runs")
    found = probe_command("ratios", f"ckpt={row.id}")
    assert found.code == 0, found.err
    epochs = group_by(lines("ratios"), "epoch")
    assert [*epochs] == [1, 3, 4]
    for member in ("in", "ln", "bn"):
        for of in ("mean", "var"):
            shares = [line[member] for line in epochs[4] if line["of"] == of]
            assert fmean(shares) == pytest.approx(row.sn_ratios[f"{of}.{member}"], abs=1e-6)
    assert probe_command("ratios", f"ckpt={row.id}@3").code == 0
    assert [*group_by(lines("ratios"), "epoch")] == [3]


def test_a_run_is_looked_at_with_what_it_has_learned(
    probe_command: Probe, command: Command
) -> None:
    assert command("norm=bn", *KEPT, "checkpoint.epochs=[1]").code == 0
    (row,) = read_rows("runs")
    for kind in ("spp", "power"):
        assert probe_command(kind, f"ckpt={row.id}", "images=64").code == 0
        assert [*group_by(lines(kind), "epoch")] == [1, 4]
        seen = read_records(Path("runs/default") / row.id / "probes" / f"{kind}.command.csv")
        assert seen == lines(kind)
    path = Path("runs/default") / row.id / "checkpoint.pt"
    words = ("norm=bn", *KEPT, "images=64", "input=data")
    assert probe_command("spp", f"ckpt={path}", *words, "protocol=fixed_global_batch").code == 0
    of_file = lines("spp")
    assert probe_command("spp", f"ckpt={row.id}@last", "images=64", "input=data").code == 0
    for ours, theirs in zip(of_file, lines("spp"), strict=True):
        assert ours["variance"] == pytest.approx(theirs["variance"], rel=1e-6)
    state = torch.load(path, weights_only=True)["model"]
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, "plain.pt")
    assert probe_command("spp", "ckpt=plain.pt", *words, "protocol=fixed_global_batch").code == 0
    assert values(lines("spp"), "variance") == values(of_file, "variance")


def test_an_averaged_network_is_looked_at_as_it_is_evaluated(command: Command) -> None:
    assert command("norm=bn", *KEPT, "recipe.ema=0.9", "recipe.images=1280").code == 0
    (row,) = read_rows("runs")
    found = find_run(row.id, Path("runs"))
    state = torch.load(found.checkpoints[found.last_epoch], weights_only=True)
    network = found.network(found.last_epoch)
    name, parameter = next(iter(network.named_parameters()))
    assert torch.equal(parameter, state["average"][f"network.{name}"])
    assert not torch.equal(parameter, state["model"][name])


# While a network is trained


def test_watching_changes_no_result(command: Command, tmp_path: Path) -> None:
    """Nor what is in the curve otherwise; bit for bit, with layers of all kinds of statistics."""
    base = ("norm=bn,sn,batch_renorm,evonorm_b0", "batch=8", *SHORT, "model.stem_stride=1",
            "recipe.ema=0.9", "model.dropout=0.1", "model.stochastic_depth=0.1",
            "trainer.per_forward=4")  # fmt: skip
    assert command("-m", *base, "runs=plain").code == 0
    every = "probe.kinds=[spp,power,ratios]"
    assert command("-m", *base, every, "probe.images=64", "runs=watched").code == 0
    plain, watched = ({row.id: row for row in read_rows(each)} for each in ("plain", "watched"))
    assert plain.keys() == watched.keys()
    for id_, row in plain.items():
        for name in ("train_loss", "val_top1", "test_top1", "test_loss"):
            assert getattr(row, name) == getattr(watched[id_], name), (row.norm, name)
        before, after = (
            [*read_history(tmp_path / root / "default" / id_)] for root in ("plain", "watched")
        )
        start, *after = after  # of the look before the training
        assert start["step"] == 0
        for one, two in zip(before, after, strict=True):
            assert one.items() <= two.items()


def test_what_is_seen_on_the_way(command: Command) -> None:
    words = ("norm=sn", *SHORT, "model.stem_stride=1", "probe.images=64", "recipe.images=3840")
    assert command(*words, "probe.kinds=[ratios,power]", "probe.every=2").code == 0
    (row,) = read_rows("runs")
    folder = Path("runs/default") / row.id
    ratios = group_by(read_records(folder / "probes/ratios.csv"), "epoch")
    assert [*ratios] == [0, 2, 3]  # before the training, every second epoch, and the end
    assert [line["bn"] for line in ratios[0]] == pytest.approx([1 / 3] * 30)
    *_, last = read_history(folder)
    for of in ("mean", "var"):
        own = fmean(line["bn"] for line in ratios[3] if line["of"] == of)
        assert own == pytest.approx(row.sn_ratios[f"{of}.bn"], abs=1e-6)
        assert last[f"ratio_{of}_bn"] == pytest.approx(own, abs=1e-6)
    power = group_by(read_records(folder / "probes/power.csv"), "epoch")
    for name in CURVE:
        own = fmean(line[name.removeprefix("power_")] for line in power[3])
        assert last[name] == pytest.approx(own, rel=1e-6)
    report = command_of_the_report()
    assert "Ratios that switchable normalization learned" in report
    assert "Power of the normalized maps" in report
    assert list(Path("reports/batch_size").glob("*-ratios.png"))


def test_what_is_seen_after_an_interruption_takes_the_place_of_what_was(tmp_path: Path) -> None:
    for epoch in (0, 1, 2):
        append_epoch(tmp_path, "power", [{"epoch": epoch, "p1": epoch / 10}], epoch)
    append_epoch(tmp_path, "power", [{"epoch": 1, "p1": 0.5}], 1)  # resumed after epoch 0
    found = read_records(tmp_path / "probes/power.csv")
    assert [(line["epoch"], line["p1"]) for line in found] == [(0, 0), (1, 0.5)]


@pytest.mark.parametrize("words", [("trainer.devices=2",), ("trainer.per_forward=1",)])
def test_every_plan_sees_the_same(words: tuple[str, ...], command: Command) -> None:
    base = ("norm=bn", "batch=64", *SHORT, "probe=power", "recipe.images=256", "probe.images=48")
    for root, more in (("one", ()), ("other", words)):
        assert command(*base, "precision=64-true", *more, f"runs={root}").code == 0
    (row,) = read_rows("one")
    one, other = (
        group_by(read_records(Path(f"{root}/default/{row.id}/probes/power.csv")), "epoch")
        for root in ("one", "other")
    )
    assert [*one] == [*other]
    for ours, theirs in zip(one[0], other[0], strict=True):
        for term in ("p1", "p2", "p3", "p4", "total"):
            assert ours[term] == pytest.approx(theirs[term], rel=1e-6, abs=1e-12)


def test_a_finished_run_that_was_not_watched_is_named(command: Command) -> None:
    words = ("norm=sn", *SHORT, "recipe.images=256")
    assert command(*words).code == 0
    line = "1 finished runs lack probes that this command asks for"
    assert line in command(*words, "probe=power").out
    assert command(*words, "probe=power", "force=true").code == 0
    assert line not in command(*words, "probe=power").out


def test_a_kind_that_has_nothing_to_see_is_left_out(command: Command) -> None:
    found = command("norm=evonorm_s0", *SHORT, "probe.kinds=[power,spp]", "recipe.images=1280")
    assert found.code == 0
    (row,) = read_rows("runs")
    folder = Path("runs/default") / row.id
    assert [path.name for path in (folder / "probes").glob("*.csv")] == ["spp.csv"]
    assert (
        "probe.kinds=power is skipped: the power decomposition needs"
        in (folder / "log.txt").read_text()
    )


# The README


def test_the_commands_of_the_readme(probe_command: Probe, command: Command) -> None:
    """In their order, made smaller; the last ones look into the runs of the one before."""
    block = (ROOT / "README.md").read_text().partition("<!-- probes -->")[2].split("```")[1]
    typed = [shlex.split(line.partition("  #")[0]) for line in block.splitlines()[1:]]
    small = {
        "nf_1": SMALLER,
        "spp": ("model.width=8", "image=32", "images=2"),
        "power": ("data=digits", "images=16"),
        "speed": ("batch=4", "repeats=1", "norm=bn,gn,in"),
    }
    for _, _, module, kind, *words in typed:
        if module == "normbench":
            shorter = ("recipe.images=256", "logger=none")
            assert command(kind, *words, *shorter).code == 0
            continue
        assert module == "normbench.probe"
        more = small.get(kind, ())
        keys = [word.partition("=")[0] for word in more]
        kept_words = [word for word in words if word.partition("=")[0] not in keys]
        # What vs begins takes the words before it.
        place = kept_words.index("vs") if "vs" in kept_words else len(kept_words)
        found = probe_command(kind, *kept_words[:place], *more, *kept_words[place:])
        assert found.code == 0, found.err
    assert len(typed) >= 9
    assert Path("reports/probes/ratios_apart.csv").exists()


# Bad words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sp"], "sp is neither a kind nor a figure; did you mean spp?"),
        (["nf_1", "vs", "norm=gn"], "vs: the networks of nf_1 are in its file"),
        (["spp", "norm=batchnorm"], "norm=batchnorm is unknown"),
        (["spp", "images=0"], "images=0: it is a whole number above 0"),
        (["spp", "image=big"], "image=big: it is a whole number above 0"),
        (["spp", "input=real"], "input=real"),
        (["spp", "input=data", "image=64"], "image=64 needs input=normal"),
        (["spp", "statistics=moving"], "statistics=moving"),
        (["spp", "norm=bn", "model=inception_v3", "data=imagenet"], "no residual branch"),
        (["power", "norm=nf", "model=resnet14_v2"], "normalized maps before an affine"),
        (["power", "eps=-1"], "eps=-1: a number from 0 to below 1"),
        (["ratios"], "ckpt=nothing: ratios needs a trained network"),
        (["ratios", "ckpt=0123456789ab"], "no finished run of that id below runs=runs"),
        (["ratios", "ckpt=mine"], "ckpt=mine: ratios needs a trained network"),
        (["example_weight", "ckpt=all"], "no run below runs=runs has kept its network"),
        (["example_weight", "ckpt=all", "alphas=0,2"], "alphas=0,2: weights from 0 to 1"),
        (["speed", "mode=both"], "mode=both"),
        (["speed", "image=64"], "image=64: speed has no such option; its options are repeats,"),
        (["speed", "trainer.impl=compile"], "speeds are of eager, lean or triton networks"),
        (["power", "norm=bn", "images=1", "input=normal", "image=8"], "bn is n/a: "),
        (["gains", "act=torch.zeros_like"], "it maps all numbers to one"),
        (["gains", "act=torch.sum"], "act=torch.sum is no activation"),
        (["spp", "ckpt=gone.pt", "norm=bn"], "ckpt=gone.pt: there is no such file"),
        (["spp", "ckpt=list.pt", "norm=bn"], "it holds a list and no state_dict"),
        (["speed", "repeats=some"], "repeats=some: it is a whole number above 0"),
        (["speed", "data=digits,cifar10"], "data: speeds are compared on images of one size"),
        (["gains", "act=nothing"], "act=nothing cannot be found"),
        (["gains", "norm=bn"], "gains measures activations, not networks"),
        (["spp", "ckpt=broken.pt", "norm=bn"], "ckpt=broken.pt cannot be read"),
        (["spp", "ckpt=other.pt", "norm=gn"], "it is of another network than gn"),
        (["spp", "ckpt=other.pt", "norm=gn,bn"], "a file holds one network; 2 are described"),
        (["spp", "out=broken.pt/x"], "out=broken.pt/x cannot be written"),
        (["spp", "imges=3"], "imges is unknown"),
    ],
)  # fmt: skip
def test_bad_words_are_one_sentence(words: list[str], says: str, probe_command: Probe) -> None:
    Path("broken.pt").write_text("this is no checkpoint")
    torch.save({"stem.weight": torch.zeros(1)}, "other.pt")
    torch.save([1, 2], "list.pt")
    found = probe_command(*words)
    assert found.code == 2
    assert says in found.err
    assert found.err.splitlines()[-1].startswith("normbench.probe: ")
    assert not list(Path().glob("reports/probes/*.*"))


def test_a_run_that_kept_nothing_says_so(probe_command: Probe, command: Command) -> None:
    assert command("norm=bn", *SHORT, "recipe.images=1280").code == 0
    (row,) = read_rows("runs")
    found = probe_command("spp", f"ckpt={row.id}")
    assert found.code == 2
    assert "has no such checkpoint; checkpoint=keep keeps the last one" in found.err


def test_a_run_says_by_itself_what_it_is(probe_command: Probe, command: Command) -> None:
    assert command("norm=bn", *SHORT, "recipe.images=1280", "checkpoint=keep").code == 0
    (row,) = read_rows("runs")
    found = probe_command("spp", f"ckpt={row.id}", "recipe.images=2560")
    assert found.code == 2
    assert "its row now makes another run" in found.err


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("probe.kinds=power", "probe.kinds=power: a list, as [power,ratios,spp]"),
        ("probe.kinds=[speed]", "probe.kinds=speed is unknown"),
        ("probe.every=0", "probe.every=0"),
        ("probe.images=1", "probe.images=1"),
        ("probe=everything", "probe=everything is unknown"),
    ],
)
def test_bad_options_of_watching(word: str, says: str, command: Command) -> None:
    found = command("norm=sn", word)
    assert found.code == 2
    assert says in found.err


def test_help_names_every_kind_word_and_figure(probe_command: Probe) -> None:
    found = probe_command("--help")
    assert found.code == 0
    for word in (*OPTIONS, *WORDS, *names(FIGURES)):
        assert word in found.out
    assert probe_command().out == found.out


def test_numbers_as_csv_are_plain(probe_command: Probe) -> None:
    assert probe_command("gains", "act=relu,glu").code == 0
    with Path("reports/probes/gains.csv").open() as file:
        header, relu, glu = csv.reader(file)
    assert header == ["act", "exact", "sampled", "normbench"]
    assert relu[0] == "relu"
    assert glu[1] == ""


def test_the_row_of_a_probe_is_json_of_a_row(probe_command: Probe, command: Command) -> None:
    assert command("norm=bn", *KEPT, "recipe.images=1280").code == 0
    (row,) = read_rows("runs")
    assert probe_command("spp", f"ckpt={row.id}", "images=32").code == 0
    path = Path("runs/default") / row.id / "probes/spp.command.json"
    content = json.loads(path.read_text())
    assert content["kind"] == "probe"
    assert content["probed_run"] == row.id != content["id"]
    assert content["versions"]["torch"]
    assert "ckpt" not in content["options"]
