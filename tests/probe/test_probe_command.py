"""The words of `python -m normbench.probe`, its help and its files."""

import csv
import json
import shlex
from pathlib import Path

import pytest
import torch

from normbench.config.files import FIGURES, ROOT, names
from normbench.probe.options import KINDS, WORDS
from normbench.results import read as read_rows
from support.cells import SHORT
from support.commands import Command, Probe
from support.probes import KEPT, SMALLER
from support.slow import slow_except


@pytest.mark.slow
def test_the_commands_of_the_guide(probe_command: Probe, command: Command) -> None:
    """In their order and smaller; the last ones measure the runs of the one before."""
    guide = (ROOT / "docs/guide/probes.md").read_text()
    blocks = [part.partition("```")[0] for part in guide.split("```sh\n")[1:]]
    typed = [shlex.split(line) for block in blocks for line in block.splitlines()]
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
    assert Path("runs/reports/probes/ratios_apart.csv").exists()


REFUSED: list[tuple[list[str], str]] = [
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
    (["speed", "image=64"], "image=64 is unknown to speed; known: mode, name, repeats, reports"),
    (["speed", "trainer.impl=compile"], "speeds are of eager or triton networks"),
    (
        ["power", "norm=bn", "model=resnet8", "images=1", "input=normal", "image=8"],
        "bn is n/a: ",
    ),
    (["gains", "act=torch.zeros_like"], "it maps all numbers to one"),
    (["gains", "act=torch.sum"], "act=torch.sum is no activation"),
    (["spp", "ckpt=gone.pt", "norm=bn"], "ckpt=gone.pt: there is no such file"),
    (["spp", "ckpt=list.pt", "norm=bn"], "it holds a list and no state_dict"),
    (["noise", "ckpt=list.pt", "norm=bn"], "ckpt=list.pt: noise needs a finished run"),
    (["corruptions", "ckpt=all", "kind=fog"], "kind is unknown to corruptions; "),
    (["spp", "bach=4"], "bach is unknown to spp; did you mean batch?"),
    (["speed", "repeats=some"], "repeats=some: it is a whole number above 0"),
    (["speed", "data=digits,cifar10"], "data: speeds are compared on images of one size"),
    (["gains", "act=nothing"], "act=nothing cannot be found"),
    (["gains", "norm=bn"], "gains measures activations, not networks"),
    (["spp", "ckpt=broken.pt", "norm=bn"], "ckpt=broken.pt cannot be read"),
    (["spp", "ckpt=other.pt", "norm=gn"], "it is of another network than gn"),
    (["spp", "ckpt=other.pt", "norm=gn,bn"], "a file holds one network; 2 are described"),
    (["spp", "reports=broken.pt/x"], "broken.pt/x/probes cannot be written"),
    (["spp", "imges=3"], "imges is unknown"),
    (["gains", "name=../../x"], "name=../../x: it becomes part of file names, so it must"),
    (["gains", "name=/x"], "name=/x: it becomes part of file names"),
    (["gains", "name=.."], "name=..: it becomes part of file names"),
    (["gains", f"name={'x' * 201}"], "at most 200 bytes"),
    (["gains", "reports=.", "name=taken"], "taken.png is no file that can be replaced"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), slow_except(REFUSED, REFUSED[::2]))
def test_bad_words_end_with_one_sentence(words: list[str], says: str, probe_command: Probe) -> None:
    Path("broken.pt").write_text("this is no checkpoint")
    torch.save({"stem.weight": torch.zeros(1)}, "other.pt")
    torch.save([1, 2], "list.pt")
    Path("probes/taken.png").mkdir(parents=True)
    found = probe_command(*words)
    assert found.code == 2
    assert says in found.err
    assert found.err.splitlines()[-1].startswith("normbench.probe: ")
    assert not list(Path().glob("runs/reports/probes/*.*"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("kind: [", "mine.yaml line 2: did not find"),
        ("kind: spp\n", "mine.yaml: title is missing, or no str"),
        ("kind: x\ntitle: t\nsource: s\nwords: []\nnetworks: {}\n", "kind=x; known: "),
        ("kind: spp\ntitle: t\nsource: s\nwords: [5]\nnetworks: {}\n", "lists of texts"),
    ],
)
def test_an_invalid_figure_is_refused(
    content: str, says: str, probe_command: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.yaml").write_text(content)
    monkeypatch.setattr("normbench.probe.request.FIGURES", Path())
    end = probe_command("mine")
    assert end.code == 2
    *of_torch, line = end.err.splitlines()  # it may log that there is no CUDA
    assert says in line
    assert all("torch/" in each for each in of_torch)


def test_a_run_without_checkpoint_is_refused(probe_command: Probe, command: Command) -> None:
    assert command("norm=bn", *SHORT, "recipe.images=256").code == 0
    (row,) = read_rows("runs")
    found = probe_command("spp", f"ckpt={row.id}")
    assert found.code == 2
    assert "has no such checkpoint; checkpoint=keep keeps the last one" in found.err


def test_words_that_change_the_run_are_refused(probe_command: Probe, command: Command) -> None:
    assert command("norm=bn", *SHORT, "recipe.images=256", "checkpoint=keep").code == 0
    (row,) = read_rows("runs")
    found = probe_command("spp", f"ckpt={row.id}", "recipe.images=2560")
    assert found.code == 2
    assert "cannot be composed again" in found.err


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
def test_bad_options_of_training_probes(word: str, says: str, command: Command) -> None:
    found = command("norm=sn", word)
    assert found.code == 2
    assert says in found.err


def test_help_names_every_kind_option_and_figure(probe_command: Probe) -> None:
    found = probe_command("--help")
    assert found.code == 0
    for word in (*KINDS, *WORDS, *names(FIGURES)):
        assert word in found.out
    assert probe_command().out == found.out


def test_csv_has_plain_columns(probe_command: Probe) -> None:
    assert probe_command("gains", "act=relu,glu").code == 0
    with Path("runs/reports/probes/gains.csv").open() as file:
        header, relu, glu = csv.reader(file)
    assert header == ["act", "exact", "sampled", "normbench"]
    assert relu[0] == "relu"
    assert glu[1] == ""


def test_the_row_of_a_probe_names_its_run(probe_command: Probe, command: Command) -> None:
    assert command("norm=bn", *KEPT, "recipe.images=384").code == 0
    (row,) = read_rows("runs")
    assert probe_command("spp", f"ckpt={row.id}", "images=32").code == 0
    path = Path("runs/default") / row.id / "probes/spp.command.json"
    content = json.loads(path.read_text())
    assert content["kind"] == "probe"
    assert content["probed_run"] == row.id != content["id"]
    assert content["versions"]["torch"]
    assert "ckpt" not in content["options"]


@pytest.mark.slow
def test_networks_of_dense_tasks_are_probed(probe_command: Probe, command: Command) -> None:
    small = ("task=segment", "norm=sn", "model.width=4", "data.size=40", "data.scenes=40")
    words = (*small, "data.test_scenes=4", "recipe.images=160", *SHORT[1:])
    ended = command(*words, "checkpoint=keep", "probe=ratios")
    assert ended.code == 0, ended.err
    (row,) = read_rows("runs")
    assert row.metrics["test_miou"] > 0
    assert Path("runs/default", row.id, "predictions.png").read_bytes()[1:4] == b"PNG"
    for kind, more in {
        "ratios": (f"ckpt={row.id}",),
        "spp": ("image=40", "images=2"),
        "power": ("images=4",),
        "speed": ("batch=2", "repeats=1", "mode=training"),
    }.items():
        found = probe_command(kind, *(small if len(more) > 1 or kind == "power" else ()), *more)
        assert found.code == 0, found.err
        assert Path("runs/reports/probes", f"{kind}.csv").exists() or kind == "ratios"
