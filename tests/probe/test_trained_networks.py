"""Networks of finished runs and of files, by ckpt=."""

from pathlib import Path
from statistics import fmean

import pytest
import torch

from normbench.measurements.ratios import divergence
from normbench.probe.noise import SHARE
from normbench.probe.trained_network import find_run
from normbench.records.probes import group_by, read_records
from normbench.results import read as read_rows
from normbench.results import read_row
from normbench.training.datamodule import open_datamodule
from normbench.training.experiment import Experiment
from normbench.training.metrics import Evaluation
from support.cells import SHORT, cell
from support.commands import Command, Probe
from support.probes import KEPT, lines, report_page, values


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "alphas"), [("0", "0,0.5,1"), ("0,1", "0,0.25,0.5,1")])
def test_example_weight_of_runs(
    seeds: str, alphas: str, probe_command: Probe, command: Command
) -> None:
    grid = ("norm=bn,gn", "batch=4", f"seed={seeds}", *KEPT)
    assert command("-m", *grid, "recipe.images=384").code == 0
    found = probe_command("example_weight", "ckpt=all", f"alphas={alphas}", "reports=alpha")
    assert found.code == 0, found.err
    table = read_records(Path("alpha/probes/example_weight.csv"))
    assert [*group_by(table, "network")] == ["bn", "gn"]
    rows = {row.id: row for row in read_rows("runs")}
    assert len(rows) == 2 * len(seeds.split(","))  # those of probes are none of them
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
    report = report_page()
    assert "Weight alpha of an image in its own statistics" in report


@pytest.mark.slow
def test_noise_of_runs(probe_command: Probe, command: Command) -> None:
    """Predictions begin at the run's own test loss; measured are those of finished runs."""
    words = (*KEPT, "checkpoint.epochs=[1]")
    assert command("-m", "norm=bn", "batch=2,8", "seed=0,1", *words).code == 0
    assert command("norm=bn", "batch=2", "recipe.lr=0.01", *words, "checkpoint=last").code == 0
    assert command("norm=gn", "batch=2", *words).code == 0
    rows = {row.id: row for row in read_rows("runs")}
    probed = [id_ for id_, row in rows.items() if "recipe.lr" not in row.options]
    found = probe_command("noise", f"ckpt={','.join(probed)}", "per_worker=2,8,4")
    assert found.code == 0, found.err
    networks = [each for each in lines("noise") if each["layer"] == "all"]
    assert len(networks) == 5 * 2 * 3  # runs, epochs, numbers of images
    biases = [each["bias"] for each in networks]
    assert all(
        (bias == 0) == (each["per_worker"] == 8 or each["network"].startswith("gn"))
        for bias, each in zip(biases, networks, strict=True)
    )
    for id_, of_run in group_by(networks, "run").items():
        first, last = group_by(of_run, "epoch").values()
        assert all(each["predicted"] is None for each in first)
        by_number = {each["per_worker"]: each for each in last}
        row = rows[id_]
        assert row.test_loss is not None
        for n, each in by_number.items():
            rise = each["loss"] - by_number[row.batch]["loss"]
            assert each["predicted"] == pytest.approx(row.test_loss + SHARE * rise, rel=1e-6)
            alike = [rows[i] for i in probed if rows[i].norm == row.norm and rows[i].batch == n]
            losses = [other.test_loss or 0.0 for other in alike]
            assert each["runs"] == len(losses)
            assert each["measured"] == (pytest.approx(fmean(losses)) if losses else None)
    assert found.out.count("From 8 to 2 images per worker the test loss rises by") == 2
    assert Path("runs/reports/probes/noise.png").exists()
    # The test loss of the run is not that of its first epoch.
    assert probe_command("noise", f"ckpt={probed[0]}@1", "per_worker=2,8", "name=first").code == 0
    assert all(each["predicted"] is None for each in lines("first"))
    # Without one that differs in its workers alone there is nothing to compare with.
    assert command("norm=bn", "batch=4", *KEPT, "seed=7", "runs=alone").code == 0
    found = probe_command("noise", "ckpt=all", "runs=alone", "per_worker=4,8", "reports=here")
    assert "Fewer than two columns have finished runs" in found.out
    found = probe_command(
        "noise", "ckpt=all", "runs=alone", "per_worker=2,4,8", "reports=here", "compare=runs"
    )
    assert "From 8 to 2 images per worker the test loss rises by" in found.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("per_worker=2,256",), "it needs 2 batches of 256 held-out images"),
        (
            ("per_worker=2,3",),
            "per_worker=2,3: whole numbers above 0 that divide the largest of them",
        ),
    ],
)
def test_noise_refuses(
    words: tuple[str, ...], message: str, probe_command: Probe, command: Command
) -> None:
    assert command("norm=bn", "batch=4", *KEPT, "recipe.images=256").code == 0
    found = probe_command("noise", "ckpt=all", *words)
    assert found.code == 2
    assert message in found.err


@pytest.mark.slow
def test_corruptions_of_runs(probe_command: Probe, command: Command) -> None:
    """Clean images with running statistics give the accuracies of the runs."""
    assert command("-m", "norm=bn,gn", "batch=16", "seed=0,1", *KEPT).code == 0
    rows = {row.id: row for row in read_rows("runs")}
    assert probe_command("corruptions", "ckpt=all", "per_worker=8,32").code == 0
    records = lines("corruptions")
    assert len(records) == (3 + 1) * 2 * 16  # statistics of bn and gn, seeds, conditions
    for each in records:
        if each["corruption"] == "clean" and each["statistics"] == "running":
            assert each["top1"] == pytest.approx(rows[str(each["run"])].test_top1, abs=1e-4)
    by_run = group_by([x for x in records if x["corruption"] == "noise"], "run", "statistics")
    for of_run in by_run.values():
        strengths = [int(each["strength"]) for each in of_run]
        assert strengths == [1, 2, 3, 4, 5]
    # Statistics of other images than those of the training change the outputs.
    clean = group_by([x for x in records if x["corruption"] == "clean"], "network", "run")
    bn = [of_run for (network, _), of_run in clean.items() if network == "bn"]
    assert any(len({each["top1"] for each in of_run}) > 1 for of_run in bn)
    assert Path("runs/reports/probes/corruptions.png").exists()
    found = probe_command("corruptions", "ckpt=all", "per_worker=400")
    assert "per_worker=400: it has 360 test images" in found.out
    assert {each["statistics"] for each in lines("corruptions")} == {"running"}


@pytest.mark.slow
def test_corruptions_with_statistics_of_a_whole_step(
    probe_command: Probe, command: Command
) -> None:
    """Synchronized statistics are those of the images at hand, and too few make it worse."""
    assert (
        command("-m", "norm=bn,sync_bn,ghost_bn", "batch=16", *KEPT, "recipe.images=6400").code == 0
    )
    found = probe_command("corruptions", "ckpt=all", "per_worker=2,120")
    assert "per_worker=2: norm.ghost=4" in found.out
    clean = [each for each in lines("corruptions") if each["corruption"] == "clean"]
    top1 = {(x["network"], str(x["statistics"])): x["top1"] for x in clean}
    assert ("ghost_bn", "120") in top1
    assert ("ghost_bn", "2") not in top1
    for network in ("bn", "sync_bn"):
        assert top1[network, "2"] < top1[network, "120"] - 10
        assert top1[network, "120"] == pytest.approx(top1[network, "running"], abs=5)


@pytest.mark.slow
def test_conversion_of_runs(probe_command: Probe, command: Command) -> None:
    """A fit restores the same normalizer; distillation recovers; what is written can be read."""
    assert command("norm=bn", "batch=16", *KEPT, "recipe.images=6400").code == 0
    (row,) = read_rows("runs")
    found = probe_command("conversion", "ckpt=all", "to=bn,gn,gn_pn,nf", "steps=0,30")
    assert found.code == 0, found.err
    assert "to=gn_pn is not fitted: " in found.out
    assert "to=nf: the normalizer asks for residual branches of kind nf" in found.out
    by_start = group_by(lines("conversion"), "norm", "start", "step")
    top1 = {key: each[0]["top1"] for key, each in by_start.items()}
    assert all(each[0]["before"] == pytest.approx(row.test_top1) for each in by_start.values())
    assert ("gn_pn", "fitted", 0) not in top1
    assert top1["bn", "copied", 0] == pytest.approx(row.test_top1, abs=3)  # other statistics
    assert top1["gn", "copied", 0] < top1["gn", "fitted", 0]
    assert top1["gn", "copied", 0] < top1["gn", "copied", 30]
    file = next(Path("runs/default").glob(f"{row.id}/probes/conversion-gn-fitted-*.pt"))
    assert probe_command("spp", f"ckpt={file}", "norm=gn").code == 0
    # The network is written with the statistics that it was tested with.
    copied = next(Path("runs/default").glob(f"{row.id}/probes/conversion-bn-copied-*.pt"))
    experiment = Experiment(cell("norm=bn", "batch=16", *KEPT, "recipe.images=6400"))
    network = experiment.build_network().eval()
    network.load_state_dict(torch.load(copied))
    data = open_datamodule(experiment)
    evaluation = Evaluation(data.data.classes)
    with torch.no_grad():
        for batch in data.shuffled_test_batches(120):
            images = data.data.eval_input(batch.images, batch.indices)
            evaluation.update(network(images), batch.labels)
    tested = float(evaluation.summary("test")["test_top1"])
    assert tested == pytest.approx(top1["bn", "copied", 30], abs=1e-4)
    assert probe_command("conversion", "ckpt=all").code == 2


@pytest.mark.slow
def test_a_run_that_a_probe_refuses_is_named_and_others_are_measured(
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


@pytest.mark.slow
def test_runs_with_other_workers_are_not_seeds(probe_command: Probe, command: Command) -> None:
    """Runs that differ in their workers alone are told apart."""
    grid = ("norm=sn", "batch=8", "protocol=fixed_workers", "workers=1,4")
    short = ("model=resnet8", "recipe.images=64", *SHORT[1:])
    assert command("-m", *grid, *short, "checkpoint=keep").code == 0
    assert probe_command("ratios", "ckpt=all", "runs=runs", "name=mine").code == 0
    assert {*group_by(lines("mine"), "network")} == {"sn workers=1", "sn workers=4"}
    assert [*group_by(lines("mine_apart"), "network")] == ["sn workers=1 || sn workers=4"]


@pytest.mark.slow
def test_ratios_of_two_seeds_are_compared(probe_command: Probe, command: Command) -> None:
    grid = (
        "norm=sn",
        "model=resnet8",
        "seed=0,1",
        "recipe.images=256",
        *SHORT[1:],
        "checkpoint=keep",
    )
    assert command("-m", *grid).code == 0
    assert probe_command("ratios", "ckpt=all").code == 0
    apart = read_records(Path("runs/reports/probes/ratios_apart.csv"))
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


@pytest.mark.slow
def test_the_command_keeps_the_records_of_training(probe_command: Probe, command: Command) -> None:
    words = (*KEPT, "probe=spp", "probe.images=64", "recipe.images=384")
    assert command("norm=bn", *words).code == 0
    (row,) = read_rows("runs")
    own = Path("runs/default") / row.id / "probes"
    before = (own / "spp.csv").read_bytes()
    assert probe_command("spp", f"ckpt={row.id}", "images=16").code == 0
    assert (own / "spp.csv").read_bytes() == before
    assert {line["epoch"] for line in read_records(own / "spp.command.csv")} == {1}


@pytest.mark.slow
def test_ratios_over_the_kept_epochs(probe_command: Probe, command: Command) -> None:
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


def test_a_run_and_its_files_are_measured_with_trained_parameters(
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


@pytest.mark.slow
def test_the_average_of_the_weights_is_measured(command: Command) -> None:
    assert command("norm=bn", *KEPT, "recipe.ema=0.9", "recipe.images=384").code == 0
    (row,) = read_rows("runs")
    found = find_run(row.id, Path("runs"))
    state = torch.load(found.checkpoints[found.last_epoch], weights_only=True)
    network = found.network(found.last_epoch)
    name, parameter = next(iter(network.named_parameters()))
    assert torch.equal(parameter, state["average"][f"network.{name}"])
    assert not torch.equal(parameter, state["model"][name])
