"""From the command line to cells: what is asked, what is refused, what the id depends on."""

import ast
import json
import re
import shutil
from dataclasses import fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from normbench.config import files
from normbench.config.cells import Cell, Hardware, Settings
from normbench.config.compose import compose
from normbench.config.files import CONF, ROOT, SWEEPS, TABLES, names
from normbench.config.parse import derive_workers
from normbench.errors import BadInput, DamagedFile, choose_from
from support.cells import PLUGIN, cell, composed
from support.commands import Command
from support.covering import covering
from support.slow import slow_except

GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
YAMLS = sorted(path for path in (*CONF.rglob("*.yaml"), *SWEEPS.glob("*.yaml")))


def test_a_grid_is_composed_in_the_order_in_which_it_is_typed() -> None:
    cells, settings = compose(["-m", "norm=evonorm_s0,bn", "batch=4,8,128", "seed=range(0,2)"])
    found = [(each.norm.name, each.batch, each.seed) for each in cells]
    assert found == [(n, b, s) for n in ("evonorm_s0", "bn") for b in (4, 8, 128) for s in (0, 1)]
    assert settings is not None
    assert (settings.sweep, settings.runs, settings.force, settings.jobs) == (
        "default",
        "runs",
        False,
        None,
    )


@pytest.mark.parametrize(
    ("arguments", "workers", "global_batch"),
    [
        (("batch=4",), 32, 128),
        (("batch=8", "global_batch=64"), 8, 64),
        (("protocol=fixed_workers", "batch=4"), 8, 32),
        (("protocol=fixed_workers", "workers=3", "batch=5"), 3, 15),
    ],
)
def test_one_of_workers_and_global_batch_is_given_the_other_follows(
    arguments: tuple[str, ...], workers: int, global_batch: int
) -> None:
    found = cell(*arguments)
    assert (found.workers, found.global_batch) == (workers, global_batch)


# Those of the papers' tables are composed in test_tables.
OWN = [name for name in names(SWEEPS) if name.removesuffix("_small") not in names(TABLES)]


@pytest.mark.parametrize("name", slow_except(OWN, ["demo", "demo_fixed_workers"]))
def test_every_sweep_is_a_grid_of_its_own_name(name: str) -> None:
    cells, settings = compose([f"sweeps={name}"])
    assert len(cells) > 1
    assert settings is not None
    assert settings.sweep == name


@pytest.mark.parametrize("name", slow_except(OWN, ["demo"]))
def test_the_command_line_can_change_a_sweep(name: str) -> None:
    fewer, _ = compose(["-m", f"sweeps={name}", "seed=7", "norm=ln"])
    assert {(each.seed, each.norm.name) for each in fewer} == {(7, "ln")}


def test_a_sweep_of_several_grids_has_the_cells_of_all() -> None:
    """GN and GN+PN with 8 and with 32 groups, beside normalizers that have no groups."""
    cells, settings = compose(["sweeps=proxy_norm_2_small", "seed=0", "reg=none"])
    found = {(each.norm.name, each.norm.options.get("groups")) for each in cells}
    assert found == {
        ("bn", None), ("bn_pn", None), ("ln", None), ("ln_pn", None), ("gn", 8), ("gn", 32),
        ("gn_pn", 8), ("gn_pn", 32), ("gn_ws", 8), ("gn_ws_pn", 8),
    }  # fmt: skip
    assert settings is not None
    assert settings.sweep == "proxy_norm_2_small"


def test_a_further_grid_leaves_out_words_of_the_first() -> None:
    cells, _ = compose(["-m", "sweeps=evonorm_3_small", "seed=0", "norm=bn"])
    depths = {cell.model.name: cell.model.options.get("depth") for cell in cells}
    assert depths == {"resnet20_v2": 8, "mobilenetv2_cifar": 1.0, "efficientnet_cifar": 0.25}


def test_what_is_typed_is_not_in_a_grid_that_leaves_it_out() -> None:
    cells, _ = compose(["-m", "sweeps=evonorm_3_small", "seed=0", "norm=bn", "model.head_std=0.1"])
    stds = {cell.model.name: cell.model.options.get("head_std") for cell in cells}
    assert stds == {"resnet20_v2": 0.1, "mobilenetv2_cifar": None, "efficientnet_cifar": None}


def test_a_cell_of_a_grid_is_what_it_is_alone(tmp_path: Path) -> None:
    """Choices are composed once each, also those of files that fill other places than their own."""
    for group in ("norm", "protocol"):
        (tmp_path / group).mkdir()
    (tmp_path / "norm/own.yaml").write_text((CONF / "norm/gn.yaml").read_text())
    (tmp_path / "protocol/small.yaml").write_text(
        "# @package _global_\nworkers: null\nglobal_batch: 64\n"
    )
    base = ("--config-dir", str(tmp_path), "reg=mixup")
    lists = {
        "norm": ("bn", "own"),
        "protocol": ("fixed_global_batch", "small"),
        "model": ("resnet14", "timm"),
        "recipe.lr": ("0.1", "0.2"),
    }
    found, _ = compose([*base, "-m", *(f"{key}={','.join(of)}" for key, of in lists.items())])
    by_values = dict(zip(product(*lists.values()), found, strict=True))
    for row in covering(lists):
        ((alone,), _) = compose([*base, *map("=".join, row.items())])
        assert by_values[tuple(row.values())] == alone
    assert {each.global_batch for each in found} == {64, 128}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["recipe.lr=0.3", "++recipe.lr=0.4"], {("bn", 0.4, 1e-5), ("gn", 0.4, 1e-5)}),
        (["++recipe.lr=0.4", "recipe.lr=0.3"], {("bn", 0.3, 1e-5), ("gn", 0.3, 1e-5)}),
        (["++norm={eps:0.001}"], {("bn", 0.1, 1e-3), ("gn", 0.1, 1e-3)}),
        (["norm.eps=0.002", "++norm.eps=0.001"], {("bn", 0.1, 1e-3), ("gn", 0.1, 1e-3)}),
        (["++norm.eps=0.001", "norm.eps=0.002"], {("bn", 0.1, 2e-3), ("gn", 0.1, 2e-3)}),
    ],
)
def test_of_additions_the_order_counts(words: list[str], expected: set[tuple[Any, ...]]) -> None:
    cells, _ = compose(["-m", "norm=bn,gn", *words])
    found = {(c.norm.name, c.recipe.options["lr"], c.norm.options["eps"]) for c in cells}
    assert found == expected


def test_a_launcher_may_follow_the_cell() -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["-m", "hydra/launcher=slurm", "norm=bn,gn", "hydra.launcher.name='n-${recipe.lr}'"]
    _, settings = compose([*words, "recipe.lr=0.2"])
    assert settings is not None
    assert json.loads(settings.launcher)["name"] == "n-0.2"
    with pytest.raises(BadInput, match="hold for all runs of a command line"):
        compose([*words, "recipe.lr=0.2,0.3"])


def test_what_is_typed_takes_the_place_of_every_grids() -> None:
    """And with a norm go the options that a grid has for its own."""
    cells, _ = compose(["sweeps=proxy_norm_2_small", "norm=bn", "seed=7"])
    assert [(each.norm.name, each.reg.name, each.seed) for each in cells] == [
        ("bn", "none", 7),
        ("bn", "extra", 7),
    ]


@pytest.mark.parametrize(
    "name",
    slow_except(["sn_input", "four_things_fig3", "four_things_decay"], ["sn_input"]),
)
def test_seeds_that_are_typed_are_those_of_every_grid(name: str) -> None:
    once, _ = compose(["-m", f"sweeps={name}", "seed=0"])
    cells, _ = compose(["-m", f"sweeps={name}", "seed=0,1,2"])
    expected = {replace(each, seed=seed).id for each in once for seed in (0, 1, 2)}
    assert {each.id for each in cells} == expected
    assert len(cells) == 3 * len(once)
    as_written, _ = compose([f"sweeps={name}"])
    assert {each.id for each in as_written if each.seed == 0} == {each.id for each in once}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1e-3", {"a": 0.001}),
        ("a: [1.e5, 2E+3, -1_0e1, .5e+1, .5e1]", {"a": [1e5, 2e3, -100.0, 5.0, ".5e1"]}),
        ("a: 2026-11-22", {"a": "2026-11-22"}),  # a name, and no date
        ("# nothing", {}),
        ("1: x", {"1": "x"}),
    ],
)
def test_yamls_are_read_as_hydra_reads_them(
    text: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert files.load(tmp_path / "a.yaml") == expected
    read = OmegaConf.to_container(OmegaConf.load(tmp_path / "a.yaml"))
    assert isinstance(read, dict)
    assert {str(key): value for key, value in read.items()} == expected


@pytest.mark.parametrize("text", ["a: 1\na: 2", "a: [1"])
def test_a_yaml_that_is_none_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(DamagedFile, match=r"a\.yaml line 2: (found duplicate key|did not find)"):
        files.load(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("[]")
    with pytest.raises(BadInput, match="must hold options with their values"):
        files.load(tmp_path / "a.yaml")


def test_a_cell_that_is_typed_twice_is_one() -> None:
    assert len(compose(["-m", "batch=4,4,8"])[0]) == 2


# The id


def test_ids_do_not_drift() -> None:
    """Every finished run is found by its id: these change only with the schema."""
    usual = ("model=resnet14", "data=digits")
    assert cell("norm=bn", "batch=4", *usual).id == "3c3cd254daa8"
    other = ("norm=evonorm_s0", "batch=4", "protocol=fixed_workers", "seed=1", *usual)
    assert cell(*other).id == "13bd4382a3a8"
    assert cell("norm=bn", "batch=4").id == "217d44258f79"


@pytest.mark.parametrize(
    ("norms", "options"),
    [
        ("bn,sync_bn", {"momentum": 0.2}),  # options that the usual normalizer does not have
        ("sn,sn_tied", {"mix": "std", "over": ["in", "ln"], "mean_ratios": None}),
        ("gn_pn,ln_pn", {"additional": False, "proxy_eps": 1e-5}),
        ("gn,ln", {"eps": 1e-3}),
    ],
)
def test_an_option_holds_for_every_normalizer_of_a_grid(
    norms: str, options: dict[str, Any]
) -> None:
    words = [
        f"norm.{key}={'null' if value is None else str(value).replace(chr(39), '')}"
        for key, value in options.items()
    ]
    cells, _ = compose(["-m", f"norm={norms}", *words, "batch=4,8"])
    assert len(cells) == 4
    for each in cells:
        assert {key: each.norm.options[key] for key in options} == options


def test_the_folder_of_reports_changes_no_id() -> None:
    (plain,), settings = compose(["norm=bn"])
    (moved,), elsewhere = compose(["norm=bn", "reports=tables"])
    assert plain.id == moved.id
    assert settings is not None
    assert elsewhere is not None
    assert settings.reports is None
    assert elsewhere.reports == "tables"


def test_no_sweep_takes_the_folder_of_reports(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "reports.yaml").write_text("# @package _global_\nseed: 1\n")
    with pytest.raises(BadInput, match=r"^sweeps=reports: its runs would .* runs/reports; give"):
        compose(["--config-dir", str(tmp_path), "sweeps=reports"])


@pytest.mark.parametrize("folder", ["tests", "normbench"])
def test_the_folders_of_a_checkout_are_no_groups(folder: str) -> None:
    """A folder runs/ beside conf/ would otherwise take the place of the key runs."""
    with pytest.raises(BadInput, match=f"{folder} is unknown"):
        compose([f"{folder}=1"])


def test_an_option_that_is_null_is_no_part_of_the_id() -> None:
    """So that one that is added later, null by default, loses no finished run."""
    base = cell("norm=bn")
    assert base.recipe.options["gain_target"] is None
    fewer = {key: value for key, value in base.recipe.options.items() if key != "gain_target"}
    assert replace(base, recipe=replace(base.recipe, options=fewer)).id == base.id
    assert cell("norm=bn", "recipe.gain_target=0").id != base.id


@pytest.mark.parametrize(
    "argument",
    [
        "trainer=cpu", "trainer.threads=2", "trainer.chunk=3", "trainer.log_every=7", "logger=none",
        "runs=elsewhere", "jobs=3", "force=true", "logger.project=mine",
    ],
)  # fmt: skip
def test_hardware_logging_and_paths_are_no_part_of_the_id(argument: str) -> None:
    assert cell(argument).id == cell().id
    assert cell(argument).options == ""


def test_the_folder_of_the_data_is_no_part_of_the_id() -> None:
    here, there = (cell("data=fashion_mnist", *more) for more in ((), ("data.root=/elsewhere",)))
    assert here.id == there.id
    assert there.options == ""


@pytest.mark.parametrize(
    "words", [("data=image_folder",), ("task=segment", "data=mask_folder", "data.classes=5")]
)
def test_a_folder_of_images_is_known_by_its_name_or_else_by_its_path(words: tuple[str]) -> None:
    def id_of(*more: str) -> str:
        return cell(*words, *more).id

    assert id_of("data.root=/one") != id_of("data.root=/other")
    assert id_of("data.root=/one/../one") == id_of("data.root=/one")
    named = id_of("data.root=/one", "data.name=flowers")
    assert named == id_of("data.root=/other", "data.name=flowers")
    assert named != id_of("data.root=/one", "data.name=birds")


def test_files_that_are_not_verified_are_known_by_their_folder() -> None:
    def id_of(*more: str) -> str:
        return cell("data=cifar10", *more).id

    assert id_of("data.root=/one") == id_of("data.root=/other")
    unsure = id_of("data.root=/one", "data.verify=false")
    assert unsure != id_of("data.root=/one")
    assert unsure != id_of("data.root=/other", "data.verify=false")


@pytest.mark.parametrize(
    "argument",
    [
        "norm=bn", "norm.eps=1e-3", "batch=4", "global_batch=64", "protocol=fixed_workers",
        "model=resnet8", "model.width=8", "data.noise=0.2", "data.val=0", "reg=label_smoothing",
        "recipe.lr=0.2", "recipe.decayed=[weight]", "seed=1", "precision=bf16-mixed",
    ],
)  # fmt: skip
def test_all_that_changes_numbers_is_part_of_the_id(argument: str) -> None:
    assert cell(argument).id != cell().id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("reg.label_smoothing=0", "reg.label_smoothing=0.0"),
        ("model.width=16.0", "model.width=16"),
        ("data.val=0", "data.val=0.0"),
    ],
)
def test_a_number_is_the_same_however_it_is_typed(one: str, other: str) -> None:
    assert cell(one).id == cell(other).id


def test_code_of_ones_own_is_part_of_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result of the old code must not answer for the new."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "mine.yaml").write_text("# Mine.\n_target_: own_code.First\n")
    ids = []
    for content in ("First = Second = 1\n", "First = Second = 2\n"):
        (tmp_path / "own_code.py").write_text(content)
        ids.append(composed("--config-dir", str(tmp_path), "norm=mine").id)
    (tmp_path / "norm" / "mine.yaml").write_text("# Mine.\n_target_: own_code.Second\n")
    ids.append(composed("--config-dir", str(tmp_path), "norm=mine").id)
    assert len(set(ids)) == 3


def test_options_are_said_as_they_are_typed() -> None:
    typed = ("norm.eps=1e-3", "model.max_groups=null", "recipe.decayed=[weight, bias]")
    found = cell(*typed, "recipe.nesterov=false")
    assert found.options == (
        "norm.eps=0.001 model.max_groups=null recipe.decayed=[weight,bias] recipe.nesterov=false"
    )
    assert cell(*found.options.split()).id == found.id
    assert found.title.endswith(found.options)


def test_keys_that_are_numbers_take_the_place_of_those_of_the_yaml() -> None:
    base = cell("recipe=nf_resnet_15")
    found = cell("recipe=nf_resnet_15", "+recipe.rates.4=0.02", "+recipe.rates.128=0.1")
    assert found.recipe.options["rates"] == base.recipe.options["rates"] | {4: 0.02, 128: 0.1}
    assert cell("recipe=nf_resnet_15", *found.options.split()).id == found.id


def test_a_model_of_timm_has_its_own_name() -> None:
    found = cell("model=timm", "model.name=resnet50", "+model.arguments.zero_init_last=false")
    assert found.model.name == "timm/resnet50"
    assert found.options == "+model.arguments.zero_init_last=false"
    typed = "model=timm model.name=resnet50 +model.arguments.zero_init_last=false"
    assert found.title.endswith(typed)
    assert cell(*typed.split()).id == found.id
    plain = cell("model=timm", "model.name=resnet50")
    others = [found, cell("model=timm", "model.name=resnet18"), cell("model=resnet50")]
    assert plain.id not in {other.id for other in others}
    assert plain.identity["model"] == {
        "name": "timm/resnet50", "dropout": 0.0, "stochastic_depth": 0.0, "allow_left": False,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["some/weights-2.safetensors", '"epoch=3.pt"', '"a,b.pt"'])
def test_an_option_that_is_a_mapping_is_typed_again(name: str) -> None:
    file = f"+model.arguments.pretrained_cfg_overlay={{file:{name}}}"
    found = cell("model=timm", "model.name=resnet50", file)
    assert found.options == file
    again = cell("model=timm", "model.name=resnet50", *found.options.split())
    assert again.id == found.id


def test_a_yamls_own_name_is_an_option_of_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    text = (CONF / "model" / "timm.yaml").read_text()
    ids = set()
    for name in ("resnet18", "resnet34"):
        (tmp_path / "model" / "mine.yaml").write_text(text.replace("name: null", f"name: {name}"))
        ids.add(composed("--config-dir", str(tmp_path), "model=mine").id)
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (("norm=bn", "batch=4"), "bn batch=4 seed=0"),
        (("model=resnet8", "norm=gn"), "gn batch=8 seed=0 model=resnet8"),
        (
            ("protocol=fixed_workers", "norm=gn"),
            "gn batch=8 seed=0 protocol=fixed_workers workers=8",
        ),
        (("norm=gn", "global_batch=64"), "gn batch=8 seed=0 global_batch=64"),
        (("norm=gn", "precision=bf16-mixed"), "gn batch=8 seed=0 precision=bf16-mixed"),
        (("norm=gn", "norm.groups=2", "trainer=cpu"), "gn batch=8 seed=0 norm.groups=2"),
    ],
)
def test_a_title_says_what_is_not_usual(arguments: tuple[str, ...], title: str) -> None:
    assert cell(*arguments).title == title


# What cannot be used


REFUSED: list[tuple[list[str], str]] = [
    (["norm=evonorm_s"], "norm=evonorm_s is unknown; did you mean evonorm_s"),
    (["norm=group"], "norm=group is unknown; did you mean gn? (known: "),
    (["norm=BatchNorm"], "did you mean bn?"),
    (["norm=filter_response"], "did you mean frn?"),
    (["norm=weight_standardization"], "did you mean bn_ws, gn_ws or ln_ws?"),
    (["norm=proxy_norm"], "did you mean bn_pn, gn_pn, in_pn or ln_pn?"),
    (["norm=bat"], "norm=bat is unknown; known: "),  # too short a word to stand for one
    (["model=resnet114"], "model=resnet114 is unknown; did you mean resnet14?"),
    (["model=timm/resnet50"], "model=timm/resnet50: write model=timm model.name=resnet50"),
    (
        ["model=timm", "model.name=resnet50", "model.arguments.zero_init_last=false"],
        "to add it write +model.arguments.zero_init_last=VALUE",
    ),
    (["data=digit"], "data=digit is unknown; did you mean digits?"),
    (["sweeps=dmo"], "sweeps=dmo is unknown; did you mean demo?"),
    (["bach=4"], "bach is unknown; did you mean batch?"),
    (["nrom=bn"], "nrom is unknown; did you mean norm?"),
    (["norm.grups=4"], "norm.grups is unknown to norm=evonorm_s0; did you mean groups?"),
    (["norm=bn", "norm.groups=4"], "norm.groups is unknown to norm=bn; known: eps, momentum"),
    (["-m", "norm=gn,ln", "norm.groups=4"], "norm.groups is unknown to norm=ln"),
    (["task=segment", "data.siz=9"], "data.siz is unknown to data=scattered_digits; did you mean"),
    (
        ["-m", "task=segment,depth", "recipe.lr_bath=1"],
        "recipe.lr_bath is unknown to recipe=dense;",
    ),
    (["-m", "sweeps=nf_7_small", "recipe.norm_clp=1"], "is unknown to recipe=dense; did you"),
    (["-m", "sweeps=evonorm_9_small", "model.dept=9"], "is unknown to model=resnet20_v2; did you"),
    (["-m", "sweeps=proxy_norm_13_small", "norm.ep=9"], "norm.ep is unknown to norm=gn; did you "),
    (["recipe.optimizer=lamb"], "weight_decay; recipe=adamw, convnext_tiny, deit_small have it"),
    (["recipe.learning_rate=1"], "to recipe=demo; did you mean lr?"),
    (["trainer.accumulation=4"], "unknown to trainer=auto; did you mean per_forward?"),
    (["batch=3"], "batch=2 or batch=4 does, or choose global_batch=129 or protocol=fixed_workers"),
    (["batch=256"], "batch=128 does, or choose global_batch=256 or protocol=fixed_workers"),
    (["--dry-run", "batch=4"], "unrecognized arguments: --dry-run; `python"),
    (["-m", "norm=bn,gn", "--cfg", "job"], "--cfg=job prints one cell: leave -m out, with one"),
    (["init_from=w.safetensors"], "init_from=w.safetensors: it takes runs of normbench; a network"),
    (["norm=[bn,gn]"], "norm takes the name of one yaml file"),
    (["norm=glob(*)"], "norm=glob(*): several values make a grid, and a grid needs -m"),
    (["--config-dir", str(PLUGIN / "conf"), "sweeps=single"], "sweeps=single spans a grid"),
    (["-m", "sweeps=demo,demo_fixed_workers"], "runs, reports, jobs, force, resume, sweeps"),
    (["seed=99999999999"], "seed=99999999999: numpy takes seeds below 2**32"),
    (["logger.mode=foo"], "logger.mode=foo is unknown"),
    (["+foo=1"], "foo=1 is unknown; known: batch"),
    (["+norm.grups=4"], "norm.grups is unknown; did you mean groups?"),
    (["+norm.momentum=0.2"], "norm.momentum is unknown; known: eps, groups"),
    (
        ["batch=0"],
        "batch=0: the number of images per worker must be a whole number of at least 1, as in "
        "batch=8",
    ),
    (["batch=-4"], "batch=-4: the number of images per worker must be a whole number"),
    (["batch=4.5"], "batch=4.5: the number of images per worker must be a whole number"),
    (["batch=abc"], "batch=abc: the number of images per worker must be a whole number"),
    (["batch=true"], "batch=True: the number of images per worker must be a whole number"),
    (
        ["batch=5"],
        "batch=5 does not divide the global batch of 128 images; batch=4 or batch=8 does",
    ),
    (["batch=256"], "batch=256 does not divide the global batch of 128"),
    (["global_batch=null", "workers=8"], "workers=8: under protocol=fixed_global_batch"),
    (["global_batch=1000000007"], "batch=8 does not divide the global batch of 1000000007"),
    (["batch=[1"], "batch=[1: this is no key=value"),
    (["norm=bn,gn"], "norm=bn,gn: several values make a grid, and a grid needs -m"),
    (["workers=4"], "protocol=fixed_workers workers=4 fixes them"),
    (["protocol=fixed_workers", "workers=0"], "workers=0: under protocol=fixed_workers"),
    (
        ["protocol=fixed_workers", "global_batch=8"],
        "global_batch=8: under protocol=fixed_workers it follows",
    ),
    (["seed=-1"], "seed=-1: the seed must be a whole number of at least 0, as in seed=0"),
    (["precision=bf16"], "precision=bf16 is unknown; known: 16-mixed"),
    (["trainer.threads=0"], "trainer.threads=0"),
    (["trainer.chunk=0"], "trainer.chunk=0"),
    (["trainer.accelerator=tpu"], "trainer.accelerator=tpu is unknown"),
    (["jobs=0"], "jobs=0: the number of runs at the same time"),
    (["force=3"], "force=3: it is true or false"),
    (["runs="], "runs=: it names the root folder"),
    (["-m", "force=true,false"], "runs, reports, jobs, force, resume, sweeps"),
    (["norm=4"], "norm=4: norm takes the name of a yaml file, as norm=evonorm_s0"),
    (
        ["trainer.devices=0"],
        "trainer.devices=0: the largest number of devices of a run must be a whole",
    ),
    (
        ["trainer.per_forward=x"],
        "trainer.per_forward=x: the largest number of workers in one forward pass",
    ),
    (["checkpoint.every=often"], "checkpoint.every=often: seconds between two checkpoints"),
    (["checkpoint.epochs=3"], "checkpoint.epochs=3: a list of epochs, as [30,60,90]"),
    (["checkpoint.epochs=[0]"], "checkpoint.epochs=0: an epoch after which a checkpoint"),
    (["init_from=abc@3"], "init_from=abc@3 is not RUN@EPOCH: RUN is a run's id"),
    (["init_from=0123456789ab"], "use init_from=0123456789ab@30"),
    (["init_from=norm.hrd:1@3"], "init_from=norm.hrd:1@3: norm.hrd is unknown to norm=evonorm_s0"),
    (["init_from=seed:x@3"], "init_from=seed:x@3: seed=x: the seed must be a whole number"),
    (["init_only=[ratio]"], "init_only=[ratio] needs init_from; add init_from=0123"),
    (["init_only=ratio"], "init_only=ratio is no list of parameters' roles; use [ratio]"),
    (["resume=maybe"], "resume=maybe: it is true or false"),
    (["hydra/launcher=slrum"], "hydra/launcher=slrum is unknown; did you mean slurm?"),
    (["hydra/launcher=joblib"], "hydra/launcher=joblib is unknown"),
    (["~batch"], "batch is missing"),
    (["recipe.lr=${nowhere}"], "nowhere"),
]


@pytest.mark.parametrize(("arguments", "says"), slow_except(REFUSED, REFUSED[::2]), ids=str)
def test_what_cannot_be_used_is_one_sentence(
    arguments: list[str], says: str, command: Command
) -> None:
    end = command(*arguments)
    assert end.code == 2
    assert end.err.startswith("normbench: ")
    assert says in end.err
    assert end.err.count("\n") == 1
    assert end.out == ""
    assert not Path("runs").exists()


def test_a_yaml_with_a_syntax_error_is_named_with_the_line(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "mine.yaml").write_text("_target_: x\neps: [1,\n")
    end = command("--config-dir", str(tmp_path), "norm=mine")
    assert end.code == 2
    assert re.search(r"normbench: .*mine.yaml, line 3, column 1 is no yaml: ", end.err)
    assert end.err.count("\n") == 1


def test_a_normalizer_of_ones_own_is_found_by_config_dir() -> None:
    found = cell("--config-dir", str(PLUGIN / "conf"), "norm=broken")
    assert (found.norm.name, found.options) == ("broken", "")


@pytest.mark.parametrize("text", ["3.5", "true"])
def test_a_yaml_without_keys_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/mine.yaml").write_text(text)
    with pytest.raises(BadInput, match=r"sweeps/mine\.yaml must hold options with their values"):
        compose(["--config-dir", str(tmp_path), "sweeps=mine"])


def test_defaults_that_are_no_list_are_named_with_their_file(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm/mine.yaml").write_text("defaults: gn\n")
    with pytest.raises(BadInput, match=r"norm/mine\.yaml: defaults must be a list"):
        compose(["--config-dir", str(tmp_path), "norm=mine"])


def test_a_sweep_that_is_a_link_to_nothing_is_unknown(tmp_path: Path, command: Command) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/mine.yaml").symlink_to("nothing")
    end = command("--config-dir", str(tmp_path), "sweeps=mine")
    assert end.code == 2
    assert end.err.startswith("normbench: sweeps=mine")
    assert end.err.count("\n") == 1


def test_a_wrong_option_of_the_sweeper_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    text = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    $params: {seed: 1}\n"
    (tmp_path / "sweeps/mine.yaml").write_text(text)
    with pytest.raises(BadInput, match=rf"in {tmp_path}/sweeps/mine\.yaml .*\$params"):
        compose(["--config-dir", str(tmp_path), "sweeps=mine"])


def test_a_wrong_package_in_a_yaml_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/mine.yaml").write_text("# @package - _global_\nseed: 1\n")
    with pytest.raises(BadInput, match=rf"{tmp_path}/sweeps/mine\.yaml: .*@package"):
        compose(["--config-dir", str(tmp_path), "sweeps=mine"])


@pytest.mark.parametrize(("word", "says"), [("bnn", "did you mean bn?"), ("xyz", "known: bn, gn")])
def test_a_hint_is_the_nearest_word_or_all(word: str, says: str) -> None:
    assert choose_from(word, ["gn", "bn"]).startswith(says)


@pytest.mark.parametrize("batch", [3, 48, 1000])
def test_the_divisors_that_are_offered_divide(batch: int) -> None:
    with pytest.raises(BadInput) as error:
        derive_workers("fixed_global_batch", batch, None, 128)
    (offers,) = re.findall(r"; ([^;,]+) does, ", str(error.value))
    divisors = [int(offer) for offer in re.findall(r"batch=(\d+)", offers)]
    assert divisors == {3: [2, 4], 48: [32, 64], 1000: [128]}[batch]


# The yamls


def test_a_yaml_of_ones_own_may_extend_one_of_conf(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm/wide.yaml").write_text("# GN.\ndefaults: [gn, _self_]\ngroups: 2\n")
    extended = cell("--config-dir", str(tmp_path), "norm=wide")
    gn = cell("norm=gn", "norm.groups=2")
    assert extended.norm.options == gn.norm.options
    assert extended.norm.changed == {}
    assert gn.norm.changed == {"groups": 2}


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_yaml_says_at_its_head_what_it_is(path: Path) -> None:
    assert len(files.headline(path)) > 20
    assert path.read_text().startswith("#")


READ = [field.name for kind in (Cell, Hardware, Settings) for field in fields(kind)]


@pytest.mark.parametrize("name", READ)
def test_what_the_configuration_says_is_read_by_code(name: str) -> None:
    """A key that `parse` does not take is refused; what it takes must have a reader."""
    assert name in attributes_of_the_code()


@cache
def attributes_of_the_code() -> frozenset[str]:
    """Return the names of all attributes that the package reads, apart from parse.py."""
    sources = [path for path in (ROOT / "normbench").rglob("*.py") if path.name != "parse.py"]
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text())))
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "protocol"])
def test_an_option_of_a_group_that_no_code_reads_is_refused(group: str, tmp_path: Path) -> None:
    shutil.copytree(CONF / group, tmp_path / group)
    name = names(CONF / group)[-1]
    with pytest.raises(BadInput, match=f"{group}.surplus is unknown"):
        cell("--config-dir", str(tmp_path), f"{group}={name}", f"+{group}.surplus=1")


@pytest.mark.parametrize("path", sorted(CONF.glob("trainer/*.yaml")), ids=lambda path: path.stem)
def test_hardware_says_nothing_about_the_science(path: Path) -> None:
    speed = {"accelerator", "devices", "per_forward", "threads", "chunk", "readers"}
    speed |= {"channels_last", "impl", "cuda_graph"}
    assert files.load_options(path).keys() == {*speed, "log_every"}


def test_weights_are_known_by_their_content(tmp_path: Path) -> None:
    def id_of(name: str, content: bytes, more: str = "") -> str:
        (tmp_path / name).write_bytes(content)
        overlay = f"+model.arguments.pretrained_cfg_overlay={{file:{tmp_path}/{name}{more}}}"
        words = ("model=timm", "model.name=resnet18", "+model.arguments.pretrained=true", overlay)
        return composed(*words).id

    first = id_of("a.safetensors", b"weights")
    assert id_of("b.safetensors", b"weights") == first
    others = {id_of("a.safetensors", b"others"), id_of("b.safetensors", b"weights", ",url:x")}
    assert len({first, *others}) == 3
    assert composed(
        "model=timm", "model.name=resnet18", "+model.arguments.pretrained_cfg_overlay=x"
    )


def test_values_that_change_no_result_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    compose(["-m", "norm=bn", "probe=power,ratios", "trainer.chunk=1,2"])
    out = capsys.readouterr().out
    assert "probe= has several values, which change no result" in out
    assert "cells differ from another in hardware alone" in out
    compose(["-m", "norm=bn,gn", "logger=none"])
    assert "several values" not in capsys.readouterr().out
