"""Write docs/reference/ from docstrings, conf/, sweeps/, reports/bench/ and a study.

    python docs/build.py             # all pages but coverage.md
    python docs/build.py readme      # table and recommendation of the README, from its study
    python docs/build.py coverage    # coverage.md: every normalizer in 42 networks of timm; this
                                     # takes a quarter of an hour

Parameter counts on the pages are measured on the layers and networks themselves.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from markdown_table import markdown_table
from performance_tables import performance
from small_sweeps import small_sweeps

from normbench import catalog, norms, results
from normbench.config.build import build, options
from normbench.config.files import CONF, ROOT, comment, headline, load, names, sizes_line
from normbench.errors import Impossible
from normbench.models.coverage import Coverage
from normbench.norms.base.layer import Normalizer
from normbench.report.build import specs
from normbench.report.exports import table_markdown
from normbench.report.pivot import tables
from normbench.report.recommendation import recommendations
from normbench.report.recommendation_text import short_sentences
from normbench.training.recipe import Recipe

REFERENCE = ROOT / "docs" / "reference"
#: Modules on the normalizers' page that are no family of layers.
BESIDE_LAYERS = (
    "base.standardized_conv", "base.residual", "base.activations",
    "channels_last", "inference", "recalibration", "ratios",
)  # fmt: skip
#: Modules on the page of data sets that are no data set; some import what need not be installed.
BESIDE_DATA_SETS = (
    "dataset", "maps", "scenes", "reading", "ffcv_manifest", "random_crop",
    "augmentation_policies", "ffcv_reader", "ffcv_writer",
)  # fmt: skip
#: Global batches whose peak learning rates are listed.
GLOBAL_BATCHES = (4, 8, 32, 64, 128, 256, 512, 768, 1024)
#: Networks of timm on the coverage page: those of the papers, and others of other kinds.
COVERED = [
    "resnet50", "resnetv2_50", "resnext50_32x4d", "mobilenetv2_100", "efficientnet_b0",
    "efficientnet_b2", "mnasnet_100", "inception_v3", "densenet121", "regnety_004", "resnet18",
    "skresnet18", "dla34", "mobilenetv3_small_100", "convnext_atto", "vgg11_bn", "xception41",
    "hrnet_w18_small", "res2net50_26w_4s", "ghostnet_100", "tf_efficientnet_b0", "repvgg_a0",
    "dpn68", "cspresnet50", "convnext_tiny", "vit_tiny_patch16_224", "deit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224", "beit_base_patch16_224", "eva02_tiny_patch14_224",
    "mixer_s32_224", "poolformer_s12", "caformer_s18", "maxvit_tiny_rw_224", "coatnet_nano_rw_224",
    "efficientformer_l1", "edgenext_xx_small", "pvt_v2_b0", "fastvit_t8", "xcit_nano_12_p16_224",
    "levit_128s", "mobilevit_s",
]  # fmt: skip
WIDEST = 8  # options in which yamls of one class differ and that still fit one table


def normalizers() -> str:
    """Return docs/reference/normalizers.md."""
    families = _by_module("norm", catalog.normalizers())
    norms_by_name = {name: catalog.normalizer(name) for name in catalog.normalizers()}
    batch_dependent = {name for name, norm in norms_by_name.items() if not norm.batch_independent}
    # Families with batch statistics come first, each group in the order of its names.
    modules = sorted(families, key=lambda module: batch_dependent.isdisjoint(families[module]))
    return _page(
        "Normalizers",
        _written_from("normbench/norms", "conf/norm"),
        _markdown(inspect.getdoc(norms) or "").partition("\n\n")[2],
        _normalizer_table(norms_by_name),
        *(_family(module, "norm", families[module]) for module in modules),
        *(_family(f"normbench.norms.{name}", "norm") for name in BESIDE_LAYERS),
    )


def architectures() -> str:
    """Return docs/reference/architectures.md."""
    families = _by_module("model", catalog.models())
    rows = []
    for name in catalog.models():
        path = CONF / "model" / f"{name}.yaml"
        size = sizes_line(path).removeprefix("Parameters ").rstrip(".")
        rows.append([f"[{name}](#{name})", headline(path), size])
    return _page(
        "Architectures",
        _written_from("normbench/models", "conf/model"),
        "`python -m normbench.catalog models NAME norm=...` prints which layers of a network a "
        "normalizer replaces; [coverage.md](coverage.md) lists that for networks of timm.",
        markdown_table(["model", "", "parameters"], rows),
        _family("normbench.models.swap", "model"),
        *(_family(module, "model", families[module]) for module in sorted(families)),
        *(_family(f"normbench.models.{name}", "model") for name in ("blocks", "dropout")),
    )


def data() -> str:
    """Return docs/reference/data.md."""
    modules = _by_module("data", catalog.datasets())
    return _page(
        "Data",
        _written_from("normbench/data", "conf/data"),
        *(_family(module, "data", modules[module]) for module in sorted(modules)),
        *(_module_text(f"normbench/data/{name}.py") for name in BESIDE_DATA_SETS),
    )


def tasks() -> str:
    """Return docs/reference/tasks.md."""
    modules = _by_module("task", names(CONF / "task"))
    return _page(
        "Tasks",
        _written_from("normbench/training/tasks", "conf/task"),
        *(_family(module, "task", modules[module]) for module in sorted(modules)),
        _family("normbench.models.backbone", "task"),
        *(_family(f"normbench.models.heads.{name}", "task") for name in ("segmentation", "depth")),
        _family("normbench.data.maps", "task"),
    )


def recipes() -> str:
    """Return docs/reference/recipes.md."""
    every: dict[str, Recipe] = {
        name: build("recipe", options("recipe", name, {})) for name in names(CONF / "recipe")
    }
    rows = [[f"[{name}](#{name})", *_peak_rates(recipe)] for name, recipe in every.items()]
    return _page(
        "Recipes and levels of regularization",
        "Written by `python docs/build.py` from [conf/recipe](../../conf/recipe), "
        "[conf/reg](../../conf/reg) and the classes that they name. A value that no source gives "
        "is marked `unverified` here, in the row of a run and below the tables.",
        "Peak learning rate by global batch:",
        markdown_table(["recipe", *map(str, GLOBAL_BATCHES)], rows),
        "`python -m normbench.catalog recipes NAME global_batch=256` prints the schedule step by "
        "step.",
        _family("normbench.training.recipe", "recipe", list(every)),
        _family("normbench.training.regularization", "reg", names(CONF / "reg")),
        *(_family(f"normbench.training.{name}", "recipe") for name in ("parameter_groups", "ema")),
    )


def coverage() -> str:
    """Return docs/reference/coverage.md, by a forward pass of every normalizer in 42 networks."""
    reasons: list[str] = []
    rows = [coverage_row(name, reasons) for name in COVERED]
    head = [
        "model of timm", "norm and activation", "norm alone", "activation alone", "convolutions",
        "standardized by gn_ws", "left", "n/a",
    ]  # fmt: skip
    return _page(
        "Coverage",
        f"How many layers of a network of timm each of the {len(catalog.normalizers())} "
        "normalizers replaces: pairs of normalization and activation, normalizations and "
        "activations that stand alone. `n/a` names the normalizers that do not fit the network, "
        "with the number of the reason below. `left` are normalizations of timm's that stay with "
        "every normalizer: in MobileViT those of patches, whose first axis is not the images. "
        "Written by `python docs/build.py coverage`, by a forward pass of every pair at 224x224 in "
        "training mode.",
        markdown_table(head, rows),
        "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)),
    )


def coverage_row(name: str, reasons: list[str]) -> list[str]:
    """Return the entries of a model in the coverage table.

    Args:
        name: a model of timm.
        reasons: why normalizers do not fit; new reasons are appended.
    """
    counts: dict[str, Coverage] = {}
    refused: dict[int, list[str]] = {}
    for norm in catalog.normalizers():
        try:
            counts[norm] = catalog.network_info(f"timm/{name}", norm, 1000, 224).coverage
        except Impossible as error:
            if str(error) not in reasons:
                reasons.append(str(error))
            refused.setdefault(reasons.index(str(error)) + 1, []).append(norm)
    if not counts:
        numbers = ", ".join(str(number) for number in refused)
        return [name, *["n/a"] * 6, f"all ({numbers})"]
    kinds = {(each.pairs, each.alone, each.activations, each.convs) for each in counts.values()}
    assert len(kinds) == 1, f"{name}: normalizers replace different layers: {counts}"
    left = {str(dict(each.kinds())["left"]) for each in counts.values()}
    assert len(left) == 1, f"{name}: normalizers leave different layers: {left}"
    standardized = counts["gn_ws"].standardized if "gn_ws" in counts else "n/a"
    refusals = "; ".join(f"{' '.join(norms)} ({number})" for number, norms in refused.items())
    return [name, *map(str, (*kinds.pop(), standardized)), left.pop(), refusals]


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _written_from(package: str, folder: str) -> str:
    return (
        f"Written by `python docs/build.py` from the docstrings of [{package}](../../{package}) "
        f"and the yamls of [{folder}](../../{folder})."
    )


def _by_module(group: str, members: Sequence[str]) -> dict[str, list[str]]:
    """Group the yamls of conf/`group` by the module of their `_target_`."""
    modules: dict[str, list[str]] = {}
    for name in members:
        modules.setdefault(_target(group, name).rpartition(".")[0], []).append(name)
    return modules


def _target(group: str, name: str) -> str:
    return str(load(CONF / group / f"{name}.yaml")["_target_"])


def _peak_rates(recipe: Recipe) -> list[str]:
    defined = [batch for batch in GLOBAL_BATCHES if not recipe.rates or batch in recipe.rates]
    return [f"{recipe.peak_lr(b):.6g}" if b in defined else "-" for b in GLOBAL_BATCHES]


def _normalizer_table(norms_by_name: dict[str, Normalizer]) -> str:
    head = [
        "norm", "", "parameters per channel", "batch-independent", "batch-invariant",
        "convolutions", "residual",
    ]  # fmt: skip
    rows = [
        [
            f"[{name}](#{name})", headline(CONF / "norm" / f"{name}.yaml"),
            catalog.count_parameters(norm), "yes" if norm.batch_independent else "no",
            "yes" if norm.batch_invariant else "no",
            str(norm.conv or "-"), str(norm.residual),
        ]
        for name, norm in norms_by_name.items()
    ]  # fmt: skip
    return markdown_table(head, rows)


def _family(module: str, group: str, members: Sequence[str] = ()) -> str:
    """Return the docstring of `module` and the options of the yamls whose classes stand there."""
    doc = inspect.getdoc(import_module(module)) or ""
    path = module.replace(".", "/") + ".py"
    by_target: dict[str, list[str]] = {}
    for name in members:
        by_target.setdefault(_target(group, name), []).append(name)
    return "\n\n".join(
        [
            *_titled(doc, path),
            *(_options(group, target, yamls) for target, yamls in by_target.items()),
        ]
    )


def _module_text(path: str) -> str:
    """Return the docstring of the module at `path`, which is not imported."""
    return "\n\n".join(_titled(ast.get_docstring(ast.parse((ROOT / path).read_text())) or "", path))


def _titled(doc: str, path: str) -> list[str]:
    title = re.split(r" \(|: |, for |\.\n|\.$", doc)[0]
    return [f"## {title}", _markdown(doc), f"Source: [{path}](../../{path})"]


def _options(group: str, target: str, members: Sequence[str]) -> str:
    """Return the options of one class: a table of all, and what its yamls set differently."""
    meanings = _arguments(target)
    values = {name: _written_options(CONF / group / f"{name}.yaml") for name in members}
    keys = dict.fromkeys(key for each in values.values() for key in each)
    different = [key for key in keys if len({each.get(key) for each in values.values()}) > 1]
    rows = []
    for key in keys:
        value = "see below" if key in different else values[members[0]][key]
        rows.append([f"`{key}`", value.replace("|", "\\|"), meanings[key].replace("|", "\\|")])
    parts = [markdown_table([f"option of `{group}`", "value", ""], rows)] if rows else []
    if 0 < len(different) <= WIDEST:
        lines = [[name, *(values[name].get(key, "") for key in different)] for name in members]
        parts.append(markdown_table([group, *(f"`{key}`" for key in different)], lines))
    for name in members:
        parts += [f"### {name}", comment(CONF / group / f"{name}.yaml")]
        if len(different) > WIDEST:
            chosen = {key: values[name][key] for key in different if key in values[name]}
            set_ = [f"{key}: {value}" for key, value in chosen.items() if not _is_empty(value)]
            parts.append("```yaml\n" + "\n".join(set_ or ["# all null or empty"]) + "\n```")
    return "\n\n".join(parts)


def _is_empty(value: str) -> bool:
    return value.partition("  #")[0] in ("null", "[]", "{}")


def _arguments(target: str) -> dict[str, str]:
    """Return what the `Args:` of a function, or of a class and its bases, say of each argument."""
    module, _, attribute = target.rpartition(".")
    described = getattr(import_module(module), attribute)
    meanings: dict[str, str] = {}
    for each in reversed(getattr(described, "__mro__", [described])):
        text = (each.__doc__ or "").partition("Args:\n")[2]
        for name, meaning in re.findall(
            r"^(?: {4}){1,2}(\w+): (.+?)(?=^ {4,8}\w|^\n|\Z)", text, re.M | re.S
        ):
            meanings[name] = " ".join(meaning.split())
    return meanings


def _written_options(path: Path) -> dict[str, str]:
    """Return the options of a yaml as written there, comments included, lists on one line."""
    pairs = re.findall(r"^(\w+):((?: .+)?(?:\n  - .+)*)$", path.read_text(), re.M)
    return {
        key: value.replace("\n  - ", ", ").lstrip(", ")
        for key, value in pairs
        if key not in ("_target_", "defaults")
    }


def _markdown(doc: str) -> str:
    """Return a docstring as Markdown: an indented formula needs an empty line before it."""
    return re.sub(r"(?<!\n)\n(    )", r"\n\1", doc.strip())


PAGES: list[Callable[[], str]] = [
    normalizers, architectures, data, tasks, recipes, performance, small_sweeps,
]  # fmt: skip


def demonstration() -> tuple[str, str]:
    """Return the table of the demonstration and what it recommends, in Markdown."""
    rows = results.read(ROOT / "reports" / "studies" / "default")
    (table,) = tables(specs(["batch_size"]), rows, None)
    lines = [line for line in table_markdown(table).splitlines() if line.startswith("|")]
    return "\n".join(lines), short_sentences(table, recommendations(table))[0]


def _write_demonstration() -> None:
    """Replace the table and the recommendation in the README."""
    path = ROOT / "README.md"
    table, recommended = demonstration()
    text = _replace_lines(path.read_text(), r"^\| norm \\ batch .*\n(?:\|.*\n)+", f"{table}\n")
    path.write_text(_replace_lines(text, r"^> With .*", f"> {recommended}"))


def _replace_lines(text: str, pattern: str, new: str) -> str:
    """Return `text` with what matches `pattern` replaced by `new`, as it is written."""
    return re.sub(pattern, lambda _: new, text, flags=re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Write the pages and print their paths."""
    if arguments and list(arguments) not in (["coverage"], ["readme"]):
        print(__doc__)
        return 0 if list(arguments) in (["--help"], ["-h"]) else 2
    if list(arguments) == ["readme"]:
        _write_demonstration()
        return 0
    for page in [coverage] if arguments else PAGES:
        path = REFERENCE / f"{page.__name__}.md"
        path.write_text(page())
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
