"""Words that a command line may not have: refused in one sentence before Hydra composes."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from normbench import status
from normbench.bench import __main__ as bench
from normbench.config import cli
from normbench.config.compose import compose
from normbench.config.files import CONF, MOST_LEVELS, SMALL, groups, names
from normbench.config.parse import derive_workers
from normbench.config.plan import plans
from normbench.errors import BadInput, choose_from, for_screen
from support.cells import cell, composed

GN = (CONF / "norm/gn.yaml").read_text()


def write(root: Path, name: str, text: str) -> Path:
    """Write a yaml of a user's own; return the folder for --config-dir."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def refusal(*words: str) -> str:
    """Return the sentence with which a command line is refused, as it is printed."""
    with pytest.raises(BadInput) as error:
        compose([*words])
    return for_screen(error.value)


# Code and files


@pytest.mark.parametrize(
    "word",
    [
        "norm._target_=normbench.norms.group.GroupNorm", "norm._target_=null", "~norm._target_",
        "++norm._target_=os.system", "+recipe.optimizer._target_=os.system",
        "++norm={_target_:os.system}", "++norm={eps:{_target_:os.system}}",
        "+recipe.rates=[{_target_:os.system}]", "hydra.sweeper._target_=os.system",
        "+hydra.callbacks.x._target_=os.system",
    ],
)  # fmt: skip
def test_the_command_line_chooses_no_code(word: str) -> None:
    for words in ([word], ["-m", word]):
        says = refusal(*words)
        assert says.startswith(f"{word}: the command line cannot choose code")
        assert "--config-dir mine" in says


@pytest.mark.parametrize(
    "word",
    [
        "+norm@hydra.callbacks.x=gn", "norm@hydra.callbacks.x=gn", "+norm@hydra.sweeper=gn",
        "+norm@extra=gn", "norm@norm=gn", "~norm@hydra.callbacks.x",
    ],
)  # fmt: skip
def test_a_choice_takes_no_package(word: str) -> None:
    for flags in ([], ["-m"]):
        assert refusal(*flags, word) == f"{word}: a choice takes no @PACKAGE; write norm=NAME"


def test_a_sweep_of_ones_own_chooses_no_code_either(tmp_path: Path) -> None:
    grid = "# @package _global_\nhydra: {sweeper: {params: {norm._target_: os.system}}}\n"
    own = write(tmp_path, "sweeps/own.yaml", grid)
    says = refusal("-m", "--config-dir", str(own), "sweeps=own", "norm=gn")
    assert says.startswith("norm._target_=os.system: another class needs another name")


def test_what_a_yaml_of_ones_own_targets_is_part_of_the_id(tmp_path: Path) -> None:
    def id_of(name: str, text: str) -> str:
        own = write(tmp_path, f"norm/{name}.yaml", text)
        return composed("--config-dir", str(own), f"norm={name}").id

    group, layer = (f"normbench.norms.group.{name}" for name in ("GroupNorm", "LayerNorm"))
    assert group in GN
    assert id_of("own", GN) != id_of("own", GN.replace(group, layer))
    # Of two files of one name Hydra takes normbench's.
    assert id_of("gn", GN.replace(group, layer)) == composed("norm=gn").id


@pytest.mark.parametrize("target", ["3", "[a]", "null", "''", "'...'", "nowhere.X", "os.environ"])
def test_a_target_that_is_none_is_refused(target: str, tmp_path: Path) -> None:
    from normbench.config.build import build

    own = write(tmp_path, "norm/own.yaml", f"_target_: {target}\n")
    with pytest.raises(BadInput, match=r"_target_"):
        build("norm", composed("--config-dir", str(own), "norm=own").norm.options)


@pytest.mark.parametrize(
    "word",
    [
        "norm=../norm/gn", "trainer=../norm/gn", "sweeps=../x", "norm=/etc/passwd", "norm=..",
        "norm=gn.yaml", "norm=bn,../norm/gn", "norm=choice(../norm/gn)", "protocol=[1]",
        "'norm=${oc.create:[1]}'", "norm=${oc.env:HOME}", "hydra/launcher=../norm",
        "norm=[../norm/gn]", "norm=???",
    ],
)  # fmt: skip
def test_a_choice_is_a_name_and_no_path(word: str) -> None:
    word = word.strip("'")
    for flags in ([], ["-m"]):
        says = refusal(*flags, word)
        assert "takes the name of a yaml file, without folder and suffix" in says
        assert says.startswith(word.partition("=")[0])


def test_a_choice_within_a_yaml_of_ones_own_is_no_path_either(tmp_path: Path) -> None:
    text = "# @package _global_\ndefaults:\n  - override /norm: ../norm/gn\n"
    own = write(tmp_path, "protocol/own.yaml", text + "workers: null\nglobal_batch: 64\n")
    assert refusal("--config-dir", str(own), "protocol=own").startswith("norm=../norm/gn: norm")


@pytest.mark.parametrize(
    "word",
    [
        "hydra.run.dir=/etc", "hydra.sweeper.params={}", "+hydra.sweeper.params.seed=3",
        "hydra.searchpath=[/etc]", "hydra/sweeper=basic", "~hydra/sweeper", "~hydra", "hydra={}",
        "hydra/job_logging=default", "~hydra/launcher", "hydra.output_subdir=x", "hydra.foo=1",
        "hydra.job.chdir=true", "hydra.mode=RUN", "+hydra.job.env_set.A=1", "~hydra.launcher.nodes",
    ],
)  # fmt: skip
def test_hydras_own_settings_stay(word: str) -> None:
    assert refusal(word).startswith(f"{word}: of Hydra's own settings the command line takes")


# Options of Hydra


COMPLETION = "--shell-completion takes one word, as in --shell-completion install=bash"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--experimental-rerun=job.pickle"], "--experimental-rerun is not available here"),
        (["--experimental-rerun", "x", "norm=gn"], "--experimental-rerun is not available here"),
        (["norm=gn", "--exp", "x"], "--experimental-rerun is not available here"),
        (["--config-name", "x"], "--config-name is not available here: normbench has one"),
        (["-cn=x"], "--config-name is not available here"),
        (["--config-path", "/etc"], "--config-path is not available here: normbench has its own"),
        (["--version", "norm=gn"], "--version is not available here: give it alone"),
        (["--config-dir", "/nowhere"], "--config-dir=/nowhere: there is no such folder"),
        (["--config-dir="], "--config-dir=: there is no such folder"),
        (["--config-dir"], "argument --config-dir/-cd: expected one argument"),
        (["--cfg", "foo"], "argument --cfg/-c: invalid choice: 'foo'"),
        (["--info", "norm=gn"], "argument --info/-i: invalid choice: 'norm=gn'"),
        (["--cfg", "job", "--package", "nowhere"], "--package names a part of the configuration"),
        (["-m", "--cfg", "job"], "--cfg=job prints one cell: leave -m out"),
        (["--resolve"], "The --resolve flag can only be used"),
        (["--foo"], "unrecognized arguments: --foo"),
        (["--co", "x"], "ambiguous option: --co could match"),
        (["--shell-completion", "query=bash"], "--shell-completion query=SHELL is a question of"),
        (["--shell-completion"], f"{COMPLETION}, not none"),
        (["-sc", "reg=none", "a:b"], f"{COMPLETION}, not reg=none a:b"),
    ],
    ids=str,
)
def test_options_of_hydra_that_cannot_work_are_refused(words: list[str], says: str) -> None:
    assert refusal(*words).startswith(says)


def test_no_pickle_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpickling this file would call os.mkdir."""
    import pickle

    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "called"),)

    (tmp_path / "job.pickle").write_bytes(pickle.dumps(Code()))
    monkeypatch.chdir(tmp_path)
    for option in ("--experimental-rerun", "--experimental", "--exp"):
        assert "pickled file" in refusal(option, "job.pickle")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("words", "prints"),
    [
        (["--cfg", "job"], "batch: 8"),
        (["-c", "job", "norm=gn", "--package", "norm"], "groups: 32"),
        (["norm=gn", "--cfg=job", "--resolve", "-p", "norm"], "groups: 32"),
        (["--info", "searchpath"], "conf"),
        (["--help"], "Usage: python -m normbench"),
        (["--hydra-help"], "Hydra"),
        (["norm=gn", "--hydra-help"], "Hydra"),
        (["--shell-completion", "install=bash"], "complete"),
    ],
    ids=str,
)
def test_options_of_hydra_that_work_are_kept(
    words: list[str], prints: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compose(words) == ([], None)
    assert prints in capsys.readouterr().out


def test_help_fits_two_screens_and_names_all_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write(tmp_path, "model/plain.yaml", GN)
    write(tmp_path, "sweeps/small.yaml", "# @package _global_\n# Is this one listed?\n")
    compose(["--config-dir", str(own), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100
    heads = [line.split()[0] for line in lines if line.startswith("  ") and line.strip()]
    assert set(groups()) <= set(heads)
    text = " ".join(" ".join(lines).split())
    assert f"norm {', '.join(names(CONF / 'norm'))} probe" in text
    assert "model plain, efficientnet_b0," in text
    assert f"... {len(names(CONF / 'model')) + 1} in all: `python -m normbench.catalog mo" in text
    assert "small Is this one listed? ... " in text
    assert "`python -m normbench.catalog sweeps`" in text


@pytest.mark.parametrize("words", [["--multi"], ["-m"], ["--run"], ["-r", "--"]])
def test_options_may_be_shortened_and_stand_anywhere(words: list[str]) -> None:
    ((only,), _) = compose(["norm=gn", *words])
    assert only.norm.name == "gn"


# Grids and numbers


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["seed=range(0,1000000000)"], "1,000,000,000"),
        (["seed=range(0,1e9)"], "1,000,000,000"),
        (["seed=range(0,1e9,0.5)"], "2,000,000,000"),
        (["seed=shuffle(range(0,1000000000))"], "1,000,000,000"),
        (["seed=sort(range(0,1000000000))"], "1,000,000,000"),
        (["seed=range(0,1,1e-300)"], "1.0e+300"),
        (["seed=range(0,99999999999999999999999999)"], "1.0e+26"),
        (["seed=range(0,400)", "batch=range(1,400)"], "159,600"),
        (["seed=0", "+grids=[{seed:'range(0,60000)'},{seed:'range(0,50000)'}]"], "110,001"),
    ],
    ids=str,
)  # fmt: skip
def test_a_huge_grid_is_refused_with_its_size_before_it_is_expanded(
    words: list[str], size: str
) -> None:
    if words[0] == "seed=0":  # the grids of a sweep; what is typed would take their place
        words = ["norm=bn", "+grids=[{seed:'range(0,60000)'},{seed:'range(0,50000)'}]"]
    started = time.process_time()
    says = refusal("-m", *words)
    assert f"the grid has {size} cells" in says
    assert "one command takes 100,000" in says
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("norm=glob(zzz*)", "norm=glob(zzz*): there is no such value"),
        ("norm=glob(*,exclude=*)", "norm=glob(*,exclude=*): there is no such value"),
        ("norm.eps=glob(*)", "norm.eps=glob(*): there is no such value"),
        ("seed=range(5,0)", "seed=range(5,0): there is no such value"),
        ("seed=range(0,5,-1)", "seed=range(0,5,-1): there is no such value"),
        ("seed=range(0,5,0)", "seed=range(0,5,0): a range is START,STOP"),
        ("seed=range(0,inf)", "seed=range(0,inf): a range is START,STOP"),
        ("seed=range(0,nan)", "seed=range(0,nan): a range is START,STOP"),
        ("norm=bn,glob(gn*)", "norm=bn,glob(gn*): range(), glob() and choice() stand alone"),
        ("recipe.rates=1,range(0,3)", "recipe.rates=1,range(0,3): range(), glob()"),
        ("+grids=[3]", "grids=[3]: it is a list of grids"),
        ("+grids={a:1}", "grids={'a': 1}: it is a list of grids"),
        ("+grids=[{3:1}]", "3=1: this is no key=value"),
    ],
)
def test_a_list_without_values_is_refused(word: str, says: str) -> None:
    assert refusal("-m", word).startswith(says)


def test_ranges_of_any_kind_still_make_grids() -> None:
    for word, expected in {
        "seed=range(0,5,2)": [0, 2, 4],
        "seed=range(4,0,-2)": [4, 2],
        "seed=sort(range(0,3),reverse=true)": [2, 1, 0],
    }.items():
        assert [each.seed for each in compose(["-m", word])[0]] == expected
    cells, _ = compose(["-m", "recipe.lr=range(0.5,2,0.5)"])
    assert [each.recipe.options["lr"] for each in cells] == [0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["global_batch=100000000000000000000"], "may be at most 10,000,000,000"),
        (["batch=99999999999999999999"], "may be at most 1,000,000"),
        (["protocol=fixed_workers", "workers=99999999"], "workers=99999999: "),
        (["seed=4294967296"], "seed=4294967296: numpy takes seeds below 2**32"),
        (["jobs=99999"], "jobs=99999: the number of runs at the same time may be at most 1,024"),
        (["trainer.threads=100000"], "trainer.threads=100000: torch starts so many threads"),
        (["trainer.devices=100000"], "may be at most 4,096"),
        (["trainer.chunk=99999999"], "may be at most 1,000,000"),
        (["trainer.readers=99999"], "may be at most 1,024"),
        (["checkpoint.every=inf"], "checkpoint.every=inf: seconds between two checkpoints"),
        (["checkpoint.every=nan"], "checkpoint.every=nan: seconds between two checkpoints"),
        (["checkpoint.epochs=[9999999999]"], "checkpoint.epochs=9999999999: "),
        (["probe.every=9999999999"], "may be at most 1,000,000"),
        (["probe.images=9999999999"], "may be at most 1,000,000"),
        (["recipe.epochs=99999999"], "recipe.epochs=99999999: it may be at most 1,000,000"),
        (["recipe.images=1e300"], "recipe.images=1e+300: it may be at most 1,000,000,000,000"),
        (["model.depth=99999999"], "model.depth=99999999: it may be at most 10,000"),
        (["norm.groups=99999999999"], "norm.groups=99999999999: it may be at most"),
        (["recipe.lr=nan"], "recipe.lr=nan: it must be a finite number"),
        (["norm.eps=inf"], "norm.eps=inf: it must be a finite number"),
        (["recipe.momentum=-inf"], "recipe.momentum=-inf: it must be a finite number"),
        (["+recipe.rates.1=nan"], "recipe.rates=nan: it must be a finite number"),
        (["recipe.milestones=[0.1,nan]"], "recipe.milestones=nan: it must be a finite number"),
        (["+recipe.rates={1:2,a:3}"], "its keys are all names or all numbers"),
        (["~trainer.threads"], "trainer.threads is missing from the configuration"),
        (["~probe.kinds"], "probe.kinds is missing from the configuration"),
        (["~norm.eps"], "norm.eps is missing from the configuration"),
    ],
    ids=str,
)
def test_a_number_beyond_its_bounds_is_refused(words: list[str], says: str) -> None:
    assert says in refusal(*words)


def test_divisors_of_large_numbers_are_found_at_once() -> None:
    started = time.process_time()
    assert plans(10**6, 4096)[0].devices == 4000
    assert plans(999_983)[0].per_forward == 999_983  # a prime
    with pytest.raises(BadInput, match="batch=1 or batch=9999999967 does"):
        derive_workers("fixed_global_batch", 7, None, 9_999_999_967)
    assert time.process_time() - started < 2


# Yamls of a user's own


def bomb(levels: int) -> str:
    """Return a yaml of a kilobyte that has 10**levels values when aliases are written out."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (bomb(9), "is too large: a yaml may have 100,000 values"),
        ("a: &a [*a]", "is too large"),
        ("a: " + "[" * 60_000 + "]" * 60_000, "is too large"),
        (
            f"#{' ' * SMALL}\na: {'[' * (MOST_LEVELS + 1)}{']' * (MOST_LEVELS + 1)}",
            "and 100 levels",
        ),
        ("a: " + "x" * 2_000_000, "has 2,000,003 bytes; a yaml may have 1,048,576"),
    ],
    ids=["bomb", "of itself", "60,000 levels", "101 levels", "2 MB"],
)
@pytest.mark.parametrize("group", ["norm", "sweeps"])
def test_a_yaml_bomb_is_refused(text: str, says: str, group: str, tmp_path: Path) -> None:
    own = write(tmp_path, f"{group}/own.yaml", text)
    started = time.process_time()
    assert f"own.yaml {says}" in refusal("--config-dir", str(own), f"{group}=own").replace(
        "yaml is too large: a yaml may have 100,000 values, each alias counted with what it "
        "repeats, and 100 levels",
        f"yaml {says}" if "levels" in says else "yaml is too large: a yaml may have 100,000 values",
    )
    assert time.process_time() - started < 5


@pytest.mark.parametrize("levels", [400, SMALL // 2 - 10])
@pytest.mark.parametrize("group", ["norm", "sweeps"])
def test_levels_of_a_small_yaml_are_refused(levels: int, group: str, tmp_path: Path) -> None:
    own = write(tmp_path, f"{group}/own.yaml", f"a: {'[' * levels}{']' * levels}")
    assert refusal("--config-dir", str(own), f"{group}=own")


def test_aliases_are_fine(tmp_path: Path) -> None:
    text = GN.replace("groups: 32", "groups: &n 2").replace("eps: 1e-5", "eps: *n")
    own = write(tmp_path, "norm/own.yaml", text)
    assert composed("--config-dir", str(own), "norm=own").norm.options["eps"] == 2


def test_a_pipe_in_place_of_a_yaml_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    os.mkfifo(tmp_path / "norm/own.yaml")
    says = refusal("--config-dir", str(tmp_path), "norm=own")
    assert says == f"{tmp_path}/norm/own.yaml is no regular file"


MULTIRUN = "# @package _global_\nhydra: {mode: MULTIRUN}\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("norm/own", "[1,2]", "must hold options with their values"),
        ("norm/own", "defaults: [own, _self_]\n" + GN, "refers to itself"),
        ("norm/own", "# @package _global_\nnorm: 3\n", "norm=3: norm takes the name of a yaml"),
        ("norm/own", GN.replace("1e-5", ".nan"), "norm.eps=nan: it must be a finite number"),
        ("norm/own", GN.replace("1e-5", "!!binary aGk="), "norm.eps=b'hi': a bytes is no value"),
        ("norm/own", GN + "x: {3: 4, a: b}\n", "its keys are all names or all numbers"),
        ("sweeps/own", "grids: [3]", "sweeps=own: the first line of its file must be"),
        ("sweeps/own", "# @package _global_\nhydra: null\n", "perhaps below `hydra:` in"),
        ("sweeps/own", "# @package _global_\nhydra: x\n", "sweeps/own.yaml: Merge error"),
        ("sweeps/own", "# @package _global_\nhydra: {mode: foo}\n", "Invalid value 'foo'"),
        ("sweeps/own", "# @package _global_\nbatch: x\n", "batch=x: the number of images"),
        ("sweeps/own", MULTIRUN + "grids: [{~x: 3}]\n", "grids: ~x: 3: write ~x: null to leave"),
        (
            "sweeps/own",
            MULTIRUN + "grids: [{~x: null}]\n",
            "grids: ~x: the first grid lacks it; it has no word",
        ),
    ],
)
def test_a_yaml_that_cannot_be_used_is_one_sentence(
    name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write(tmp_path, f"{name}.yaml", text)
    sentence = refusal("--config-dir", str(own), f"{name.partition('/')[0]}=own")
    assert says in sentence
    assert "\n" not in sentence
    assert capsys.readouterr().err == ""


def test_a_yaml_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    own = write(tmp_path, "norm/own.yaml", "")
    (own / "norm/own.yaml").write_bytes(b"a: \xff")
    assert "own.yaml is not UTF-8" in refusal("--config-dir", str(own), "norm=own")


def test_a_normalizer_of_ones_own_is_found_nearby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--config-dir DIR, as DIR/norm/NAME.yaml" in refusal("norm=identity")
    write(tmp_path / "mine", "norm/identity.yaml", GN)
    says = refusal("-m", "norm=identity,bn")
    assert says.endswith("; mine/norm/identity.yaml is found with --config-dir mine")


# Words and messages


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("norm=\udcff", "is not UTF-8"),
        ("runs=a\0b", "control character U+0000"),
        ("runs=a\nb", "control character U+000A"),
        ("norm=\x1b[31m", "control character U+001B"),
        ("seed=" + "1" * 30_000, "has 30,005 letters; a word may have 20,000"),
        ("seed=" + "1" * 5_000, "seed has too many digits"),
        ("norm=" + "x" * 5_000, "takes the name of a yaml file"),
        ("norm.eps=" + "[" * 5_000, "is no key=value"),
        ("x" * 5_000 + "=1", "this is no key=value"),
        ("norm.eps=" + "a " * 2_500, "norm.eps"),
        ("'runs=~nosuchuser/x'", "is no key=value"),
        ("runs='~nosuchuser/x'", "runs=~nosuchuser/x: "),
        ("runs=" + "x" * 300, "the name is too long for a file"),
        ("=", "this is no key=value"),
        ("+=", "this is no key=value"),
    ],
    ids=range(15),
)
def test_strange_words_are_short_sentences(
    word: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.process_time()
    with pytest.raises(BadInput) as error:
        cell_or_build(word)
    cli.print_error("normbench", error.value)
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1
    assert printed.isascii()
    assert printed[:-1].isprintable()
    assert len(printed) < 1600
    assert time.process_time() - started < 5


def cell_or_build(word: str) -> None:
    """Compose a cell of `word`, and build what its options describe."""
    from normbench.config.build import build

    build("norm", composed(word).norm.options)


def test_messages_are_cut_in_one_place() -> None:
    assert for_screen("a\tb\n c") == "a b c"
    assert for_screen("\x1b[31m\u202e") == "\\x1b[31m\\u202e"
    assert for_screen("/a/long/path" * 10) == "/a/long/path" * 10
    cut = for_screen(f"norm={'x' * 5000} is unknown")
    assert cut == f"norm={'x' * 75}...{'x' * 40} is unknown"
    assert len(for_screen("a b " * 5000)) < 1600


def test_of_a_long_list_the_nearest_names_are_listed() -> None:
    names = [f"name_{number}" for number in range(1000)]
    says = choose_from("name_12", names, "`list`")
    assert says.startswith("did you mean name_12? (1000 known, as name_12, ")
    assert says.endswith("; `list` lists all)")
    assert len(says) < 200
    assert len(choose_from("x" * 5000, names)) < 200


# Options of the other commands


@dataclass(frozen=True)
class Options:
    """Options."""

    rounds: int = cli.option(7, "measurements", most=100)
    out: Path | None = cli.option(None, "folder")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("rounds=101", "rounds=101: it may be at most 100"),
        ("rounds=" + "9" * 5000, "it may be at most 100"),
        ("rounds=٣", "it is a whole number above 0"),
        ("rounds=²", "it is a whole number above 0"),
        ("out=~nosuchuser/x", "out=~nosuchuser/x: "),
        ("out=" + "x" * 5000, "the name is too long for a file"),
    ],
    ids=range(6),
)
def test_options_have_bounds(word: str, says: str) -> None:
    with pytest.raises(BadInput) as error:
        cli.parse_options([word], Options)
    assert says in str(error.value)
    assert cli.parse_options(["rounds=0100"], Options)[0].rounds == 100


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (".", "is no regular file"),
        ("/dev/full", "is no regular file"),
        ("file/x.csv", "cannot be written"),
        ("/proc/x.csv", "cannot be written"),
        ("x" * 300, "the name is too long for a file"),
    ],
)
def test_bench_looks_at_its_file_before_it_measures(
    out: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "normbench.bench.report", None)  # whose import would fail
    Path("file").touch()
    assert bench.main(["report", f"out={out}", "rows=1", "rounds=1"]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert "out=" in printed


@pytest.mark.parametrize("word", ["runs=\udcff", "runs=a\0b", "\x1b[31m"])
def test_every_command_refuses_such_words(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main([word]) == 2
    assert capsys.readouterr().err.startswith("normbench.status: ")


def test_cells_of_normal_size_are_not_refused() -> None:
    large = cell("protocol=fixed_workers", "workers=1024", "batch=128", "recipe.epochs=1000")
    assert large.global_batch == 131_072
