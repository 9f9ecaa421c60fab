"""The papers' figures: the statements that they show, and every file of reports/figures."""

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.files import FIGURES, comment, load, names, training_probes
from normbench.measurements.ratios import largest_member
from normbench.probe.options import WORDS
from normbench.probe.request import parse_request
from normbench.records.probes import Record, group_by, read_records
from normbench.report.figure_kinds import PROBE_CAPTIONS
from normbench.report.probe_drawings import DRAW
from normbench.report.probe_figures import ONE_SEED, draw
from support.cells import SHORT
from support.commands import Command, Probe
from support.probes import SMALLER, lines, values
from support.slow import slow_after, slow_except

#: Figures of networks at initialization; those of SN are of finished runs.
AT_INITIALIZATION = [name for name in names(FIGURES) if not name.startswith("sn_")]


@pytest.fixture
def figure(probe_command: Probe) -> Callable[[str], dict[str, list[Record]]]:
    """The blocks of each network of a figure."""

    def drawn(name: str) -> dict[str, list[Record]]:
        found = probe_command(name, *SMALLER)
        assert found.code == 0, found.err
        return group_by(lines(f"{name}-changed"), "network")

    return drawn


def test_every_probe_of_a_training_has_a_caption_and_a_figure() -> None:
    assert set(training_probes()) <= PROBE_CAPTIONS.keys() <= DRAW.keys()
    assert set(ONE_SEED) <= PROBE_CAPTIONS.keys()


def is_a_line(heights: list[float], within: float) -> bool:
    """Whether they grow in equal steps."""
    steps = [b - a for a, b in pairwise(heights)]
    return all(abs(step - fmean(steps)) < within * fmean(steps) for step in steps)


Figure = Callable[[str], dict[str, list[Record]]]


def test_nf_1_variance_of_bn_grows_linearly_within_a_stage(figure: Figure) -> None:
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


@pytest.mark.slow
def test_nf_2_scaled_weight_standardization_follows_batch_normalization(
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


@pytest.mark.slow
def test_nf_6_variance_explodes_without_normalization(figure: Figure) -> None:
    (blocks,) = figure("nf_6").values()
    variances = [values(blocks, "variance", stage)[-1] for stage in (1, 2, 3, 4)]
    assert all(b > 5 * a for a, b in pairwise(variances))


@pytest.mark.slow
def test_nf_7_linear_networks_have_no_mean_shift(figure: Figure) -> None:
    for blocks in figure("nf_7").values():
        assert max(values(blocks, "squared_mean")) < 0.05
        assert fmean(values(blocks, "branch_variance", 1)) == pytest.approx(1, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [("nf_8", "gain 1.414", "gain 1.713"), ("nf_9", "gate", "2 x gate")],
)
def test_nf_8_and_nf_9_signals_fade_and_are_preserved(
    figure: Figure, name: str, wrong: str, right: str
) -> None:
    found = figure(name)
    branch = [fmean(values(found[wrong], "branch_variance", stage)) for stage in (1, 2, 3, 4)]
    assert all(b < 0.5 * a for a, b in pairwise(branch))
    assert branch[-1] < 0.01
    assert fmean(values(found[right], "branch_variance", 1)) == pytest.approx(1, abs=0.1)
    assert min(values(found[right], "branch_variance", 2)) > 0.8


def test_nf_10_fixup_is_constant_within_a_stage(figure: Figure) -> None:
    (blocks,) = figure("nf_10").values()
    assert set(values(blocks, "branch_variance")) == {0}
    stages = [set(values(blocks, "variance", stage)) for stage in (1, 2, 3, 4)]
    assert [len(stage) for stage in stages] == [1, 1, 1, 1]
    assert len(set.union(*stages)) == 4


@pytest.mark.slow
def test_nf_11_post_activation_branches_have_variance_1(figure: Figure) -> None:
    (blocks,) = figure("nf_11").values()
    assert values(blocks, "branch_variance") == pytest.approx([1.0] * 24, abs=1e-3)
    starts = [values(blocks, "variance", stage)[0] for stage in (1, 2, 3, 4)]
    assert starts == pytest.approx([0.68] * 4, abs=0.05)  # of a rectified sum of two
    for stage in (1, 2, 3, 4):
        heights = values(blocks, "variance", stage)
        assert all(a < b for a, b in pairwise(heights))


@pytest.mark.figures
@pytest.mark.parametrize("name", slow_except(AT_INITIALIZATION, ["nf_1"]))
def test_every_figure_is_written_with_its_records(name: str, probe_command: Probe) -> None:
    content = load(FIGURES / f"{name}.yaml")
    small = {
        "spp": ("model.depths=[2,2,2,2]", "model.width=8", "image=32", "images=2"),
        "power": ("model.depth=3", "model.width=16", "data=digits", "images=8"),
    }[content["kind"]]
    found = probe_command(name, *small, "reports=here", f"name={name}", "trainer=cpu")
    assert found.code == 0, found.err
    assert f"here/probes/{name}.png" in found.out
    networks = group_by(read_records(Path(f"here/probes/{name}.csv")), "network")
    assert [*networks] == [*content["networks"]]
    for form, begin in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert Path(f"here/probes/{name}.{form}").read_bytes().startswith(begin)
    words = sorted([*small, "trainer=cpu"], key=lambda word: word.partition("=")[0] in WORDS)
    title = f"{content['title']} ({content['source']}), but {' '.join(words)}"
    again = draw(content["kind"], read_records(Path(f"here/probes/{name}.csv")), title)
    assert again["png"] == Path(f"here/probes/{name}.png").read_bytes()


@cache
def trained_by(sweep: str) -> dict[str, Cell]:
    """The cells of a sweep by id."""
    cells, _ = compose(["-m", f"sweeps={sweep}"])
    return {cell.id: cell for cell in cells}


@pytest.mark.parametrize(
    "name", slow_after(1, [name for name in names(FIGURES) if name.startswith("sn_")])
)
def test_the_runs_of_a_figure_are_those_of_the_sweeps_in_its_head(name: str) -> None:
    sweeps = re.findall(r"sweeps=(\w+)", comment(FIGURES / f"{name}.yaml"))
    request = parse_request(name, [])
    assert len(request.networks) == len(load(FIGURES / f"{name}.yaml")["networks"])
    for _, words in request.networks:
        (described,), _ = compose(["-m", *words])
        # Of several sweeps with the run the first one trains it.
        trained = next(
            cells[described.id] for cells in map(trained_by, sweeps) if described.id in cells
        )
        assert "ratios" in trained.probe.kinds
        assert trained.checkpoint.keep


def test_folders_are_no_change_of_a_figure() -> None:
    plain, elsewhere = (parse_request("sn_2_small", w) for w in ([], ["runs=mine", "reports=ours"]))
    assert (elsewhere.title, elsewhere.stem) == (plain.title, plain.stem)
    assert parse_request("sn_2_small", ["runs=mine", "epochs=3"]).title.endswith("but epochs=3")


@pytest.mark.slow
def test_hard_ratios_of_described_runs(probe_command: Probe, command: Command) -> None:
    """Also a run that is not there is named by its description."""
    words = ("norm=sn", "model=resnet8", "model.stem_stride=1", "batch=32", *SHORT)
    kept = ("probe=ratios", "checkpoint.epochs=[1,2]", "checkpoint.keep=true")
    assert command(*words, *kept).code == 0
    found = probe_command("hard_ratios", *words)
    assert found.code == 0, found.err
    records = read_records(Path("runs/reports/probes/hard_ratios.csv"))
    assert sorted(group_by(records, "epoch")) == [1, 2]
    last = group_by([each for each in records if each["epoch"] == 2], "layer")
    two = sum(largest_member(mean) != largest_member(var) for mean, var in last.values())
    (line,) = [each for each in found.out.splitlines() if each.split()[:3] == ["sn", "0", "2"]]
    assert line.split()[3:5] == [str(len(last)), str(two)]
    assert probe_command("ratios", *words).code == 0
    missing = probe_command("ratios", *words, "seed=7")
    assert missing.code == 2
    assert "no finished run of sn batch=32 seed=7" in missing.err
    unmeasured = probe_command("hard_ratios", *words, "epochs=9")
    assert "epochs=9: none of them was measured" in unmeasured.err
