"""Networks at initialization: grids, vs, input, and the tables of each kind."""

from pathlib import Path

import pytest

from normbench.config.compose import compose
from normbench.execution.provenance import processor
from normbench.probe.networks import require_classifier
from normbench.records.probes import group_by
from normbench.report.measured_times import network_key
from support.cells import cell
from support.commands import Probe
from support.probes import lines, values


def test_a_grid_is_several_networks(probe_command: Probe) -> None:
    found = probe_command("spp", "norm=bn,gn", "model=resnet14_v2", "images=16")
    assert found.code == 0, found.err
    assert [*group_by(lines("spp"), "network")] == ["bn", "gn"]
    assert "squared mean" in found.out


def test_vs_starts_another_network(probe_command: Probe) -> None:
    words = ("norm=nf", "norm.alpha=1", "model=resnet14_v2", "images=16")
    found = probe_command(
        "spp", *words, "vs", "norm=bn", "vs", "model.width=8", "norm.skip_gain=false"
    )
    assert found.code == 0, found.err
    networks = [*group_by(lines("spp"), "network")]
    assert [network.split()[0] for network in networks] == ["nf", "bn", "nf"]
    assert "alpha=1" in networks[0]  # bn has none, and the words of nf are not its
    assert "width=8" in networks[2]


def test_input_data_uses_images_of_the_data_set(probe_command: Probe) -> None:
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


def test_powers_sum_to_1_in_double_precision(probe_command: Probe) -> None:
    words = ("power", "norm=bn", "model=resnet14_v2", "images=64", "eps=0")
    assert probe_command(*words, "precision=64-true").code == 0
    assert values(lines("power"), "total") == pytest.approx([1.0] * 13, abs=1e-9)


def test_power_of_a_random_net_has_its_bound(probe_command: Probe) -> None:
    words = ("model=random_net", "model.depth=4", "model.width=32", "images=16")
    assert probe_command("power", "norm=ln,in", *words).code == 0
    for layers in group_by(lines("power"), "network").values():
        rho = 1.04 / 1.08
        assert values(layers, "bound") == pytest.approx([1, rho, rho**2, rho**3], rel=1e-6)


def test_a_changed_figure_has_another_name(probe_command: Probe) -> None:
    small = ("model.depths=[1,1,1,1]", "model.width=8", "image=32")
    assert probe_command("nf_1", *small, "model.act=silu").code == 0
    assert not Path("runs/reports/probes/nf_1.csv").exists()
    found = group_by(lines("nf_1-changed"), "network")
    one, other = (values(blocks, "variance") for blocks in found.values())
    assert one != other  # each network keeps what makes it that
    found_2 = probe_command("nf_2", "norm=gn", *small)
    assert found_2.code == 2
    assert "norm=gn: the networks of nf_2 differ in this word" in found_2.err


def test_a_network_without_normalized_maps_is_named_and_others_are_measured(
    probe_command: Probe,
) -> None:
    found = probe_command("power", "norm=evonorm_s0,bn", "images=64")
    assert found.code == 0
    assert "evonorm_s0 is n/a: the power decomposition needs" in found.out
    assert [*group_by(lines("power"), "network")] == ["bn"]


@pytest.mark.slow
def test_speed_compares_with_bn(probe_command: Probe) -> None:
    words = ("norm=gn,in", "model=resnet8", "batch=4,8", "repeats=1")
    found = probe_command("speed", *words)
    assert found.code == 0, found.err
    table = group_by(lines("speed"), "batch", "mode", "network")
    assert "1e" not in found.out.split("in: ")[0]  # numbers are easy to read
    assert [*table] == [
        (batch, mode, norm)
        for batch in (4, 8)
        for mode in ("training", "inference", "folded")
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
            assert line["bn_again"] > 0
            sizes = {key: line[key] for key in ("params", "operations")}
            (inference,) = table[batch, "inference", norm]
            vanishes = norm == "bn" and mode == "folded"
            assert all((size < inference[key]) == vanishes for key, size in sizes.items())
    assert "in: a group of 1 channel on a 1x1 map" in found.out
    ((gn,), _) = compose(["norm=gn", "model=resnet8", "batch=8", "seed=7"])
    (line,) = table[8, "training", "gn"]
    assert line["key"] == network_key(gn.identity)
    assert line["device"] == processor()


def test_each_architecture_is_compared_with_its_own_bn(probe_command: Probe) -> None:
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


def test_gains_of_chosen_activations(probe_command: Probe) -> None:
    assert (
        probe_command("gains", "act=relu,glu,torch.nn.functional.hardsigmoid", "name=mine").code
        == 0
    )
    relu, glu, own = lines("mine")
    assert relu["exact"] == pytest.approx(relu["normbench"], rel=1e-8)
    assert glu["exact"] is None
    assert glu["sampled"] == pytest.approx(1.848, rel=0.01)
    assert own["normbench"] is None


def test_probes_of_classifiers_refuse_other_runs() -> None:
    """Dense tasks; and, where gradients are taken, runs whose gradients needed a loss scale."""
    with pytest.raises(ValueError, match="task=segment: the probe noise needs task=classify"):
        require_classifier(cell("task=segment"), "noise")
    half = cell("precision=16-mixed", "trainer=gpu")
    require_classifier(half, "corruptions")
    with pytest.raises(ValueError, match="precision=16-mixed: without a loss scale"):
        require_classifier(half, "noise", gradients=True)
