"""Probes of a network while it trains."""

from pathlib import Path
from statistics import fmean

import pytest

from normbench.measurements.power import CURVE
from normbench.records.history import read_history
from normbench.records.probes import append_epoch, group_by, read_records
from normbench.results import read as read_rows
from support.cells import SHORT
from support.commands import Command
from support.probes import report_page


@pytest.mark.slow
@pytest.mark.parametrize("norms", ["norm=sn,batch_renorm", "norm=bn,evonorm_b0"])
def test_probes_change_no_result(norms: str, command: Command, tmp_path: Path) -> None:
    """Nor what is in the curve otherwise; bit for bit, with layers of all kinds of statistics."""
    base = (norms, "batch=8", *SHORT, "recipe.images=1408", "model.stem_stride=1",
            "model.depth=8", "recipe.ema=0.9", "model.dropout=0.1", "model.stochastic_depth=0.1",
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


@pytest.mark.slow
@pytest.mark.figures
def test_records_means_and_figures_of_a_training(command: Command) -> None:
    words = (
        "norm=sn", *SHORT, "model=resnet14", "model.stem_stride=1", "probe.images=64",
        "data.fraction=0.32", "recipe.images=1152",
    )  # fmt: skip
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
    report = report_page()
    assert "Ratios learned by switchable normalization" in report
    assert "Power of the normalized activations over depth" in report
    assert list(Path("runs/reports/batch_size").glob("*-ratios.png"))


def test_a_resumed_training_replaces_later_records(tmp_path: Path) -> None:
    for epoch in (0, 1, 2):
        append_epoch(tmp_path, "power", [{"epoch": epoch, "p1": epoch / 10}], epoch)
    append_epoch(tmp_path, "power", [{"epoch": 1, "p1": 0.5}], 1)  # resumed after epoch 0
    found = read_records(tmp_path / "probes/power.csv")
    assert [(line["epoch"], line["p1"]) for line in found] == [(0, 0), (1, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["trainer.devices=2", "trainer.per_forward=1"])
def test_every_plan_measures_the_same(plan: str, command: Command) -> None:
    base = ("norm=bn", "batch=64", *SHORT, "probe=power", "recipe.images=256", "probe.images=48")
    for root, more in (("one", ()), ("other", (plan,))):
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


@pytest.mark.slow
def test_a_finished_run_without_probes_is_named(command: Command) -> None:
    words = ("norm=sn", *SHORT, "recipe.images=256")
    assert command(*words).code == 0
    line = "1 finished runs lack probes that this command asks for"
    assert line in command(*words, "probe=power").out
    assert command(*words, "probe=power", "force=true").code == 0
    assert line not in command(*words, "probe=power").out


def test_a_kind_that_fails_is_skipped(command: Command) -> None:
    found = command("norm=evonorm_s0", *SHORT, "probe.kinds=[power,spp]", "recipe.images=1280")
    assert found.code == 0
    (row,) = read_rows("runs")
    folder = Path("runs/default") / row.id
    assert [path.name for path in (folder / "probes").glob("*.csv")] == ["spp.csv"]
    assert (
        "probe.kinds=power is skipped: the power decomposition needs"
        in (folder / "log.txt").read_text()
    )
