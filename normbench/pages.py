"""Pages of docs/ on normalizers, architectures, data and recipes, from docstrings and conf/, and on
performance, from reports/bench/.

    python -m normbench.pages

writes them anew. What the pages say of parameters is measured on layers and networks themselves.
With `coverage` it also writes docs/coverage.md, every normalizer in networks of timm, which takes
minutes.
"""

import ast
import inspect
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from normbench import catalog, norms
from normbench.catalog import Facts, facts
from normbench.config import cli
from normbench.config.build import build, options
from normbench.config.files import CONF, ROOT, comment, headline, load, names, sizes_line
from normbench.errors import Impossible
from normbench.models.coverage import Coverage
from normbench.performance import performance
from normbench.training.recipe import Recipe

DOCS = ROOT / "docs"
#: What goes with layers: around them, and after training.
_BESIDES = ("convolution", "residual", "activations", "inference", "recalibration", "ratios")
#: Global batches whose learning rates are shown.
BATCHES = (4, 8, 32, 64, 128, 256, 512, 768, 1024)
#: Networks of timm whose coverage is shown: those of the papers, and others of other kinds.
SHOWN = [
    "resnet50", "resnetv2_50", "resnext50_32x4d", "mobilenetv2_100", "efficientnet_b0",
    "efficientnet_b2", "mnasnet_100", "inception_v3", "densenet121", "regnety_004", "resnet18",
    "skresnet18", "dla34", "mobilenetv3_small_100", "convnext_atto", "vgg11_bn", "xception41",
    "hrnet_w18_small", "res2net50_26w_4s", "ghostnet_100", "tf_efficientnet_b0", "repvgg_a0",
    "dpn68", "cspresnet50",
]  # fmt: skip


def normalizers() -> str:
    """The whole of docs/normalizers.md."""
    families: dict[str, list[str]] = {}
    for name in catalog.normalizers():
        target = load(CONF / "norm" / f"{name}.yaml")["_target_"]
        families.setdefault(target.rpartition(".")[0], []).append(name)
    every = [facts(name) for name in catalog.normalizers()]
    dependent = {fact.name: not fact.batch_independent for fact in every}
    # Families with batch statistics first, as their names come.
    order = sorted(families, key=lambda module: not any(map(dependent.get, families[module])))
    parts = [
        "# Normalizers",
        "Written by `python -m normbench.pages` from the docstrings of "
        "[normbench/norms](../normbench/norms) and the yamls of [conf/norm](../conf/norm).",
        _text(inspect.getdoc(norms) or "").partition("\n\n")[2],
        _table(every),
        *(_family(module, "norm", families[module]) for module in order),
        *(_family(f"normbench.norms.{name}", "norm", []) for name in _BESIDES),
    ]
    return "\n\n".join(parts) + "\n"


def architectures() -> str:
    """The whole of docs/architectures.md."""
    families: dict[str, list[str]] = {}
    for name in catalog.models():
        target = load(CONF / "model" / f"{name}.yaml")["_target_"]
        families.setdefault(target.rpartition(".")[0], []).append(name)
    head = ["| model | | parameters |", "|:--|:--|:--|"]
    rows = []
    for name in catalog.models():
        path = CONF / "model" / f"{name}.yaml"
        size = sizes_line(path).removeprefix("Parameters ").rstrip(".")
        rows.append(f"| [{name}](#{name}) | {headline(path)} | {size} |")
    parts = [
        "# Architectures",
        "Written by `python -m normbench.pages` from the docstrings of "
        "[normbench/models](../normbench/models) and the yamls of [conf/model](../conf/model).",
        "What a normalizer reaches in one of them: `python -m normbench.catalog models NAME "
        "norm=...`; in networks of timm also [coverage.md](coverage.md).",
        "\n".join(head + rows),
        _family("normbench.models.swap", "model", []),
        *(_family(module, "model", families[module]) for module in sorted(families)),
        *(_family(f"normbench.models.{name}", "model", []) for name in ("blocks", "dropping")),
    ]
    return "\n\n".join(parts) + "\n"


def data() -> str:
    """The whole of docs/data.md."""
    kinds: dict[str, list[str]] = {}
    for name in catalog.datasets():
        target = load(CONF / "data" / f"{name}.yaml")["_target_"]
        kinds.setdefault(target.rpartition(".")[0], []).append(name)
    about = ("dataset", "reading", "prepared", "frame", "distort", "beton", "storing")
    parts = [
        "# Data",
        "Written by `python -m normbench.pages` from the docstrings of "
        "[normbench/data](../normbench/data) and the yamls of [conf/data](../conf/data).",
        *(_family(module, "data", kinds[module]) for module in sorted(kinds)),
        *(_of_source(f"normbench/data/{name}.py") for name in about),
    ]
    return "\n\n".join(parts) + "\n"


def recipes() -> str:
    """The whole of docs/recipes.md."""
    known = names(CONF / "recipe")
    every: dict[str, Recipe] = {
        name: build("recipe", options("recipe", name, {})) for name in known
    }
    head = f"| recipe | {' | '.join(map(str, BATCHES))} |"
    rows = [f"| [{name}](#{name}) | {_peaks(recipe)} |" for name, recipe in every.items()]
    parts = [
        "# Recipes and levels of regularization",
        "Written by `python -m normbench.pages` from [conf/recipe](../conf/recipe), "
        "[conf/reg](../conf/reg) and the code that they name. A value that no source gives is "
        "marked `unverified`, and so is every row that it has a part in.",
        "Peak learning rate by global batch:",
        "\n".join([head, "|:--" * (len(BATCHES) + 1) + "|", *rows]),
        "What a recipe does when: `python -m normbench.catalog recipes NAME global_batch=256`.",
        _family("normbench.training.recipe", "recipe", []),
        _alike("recipe", known),
        _family("normbench.training.regularization", "reg", []),
        _alike("reg", names(CONF / "reg")),
        *(_family(f"normbench.{name}", "recipe", []) for name in ("decay", "ema")),
    ]
    return "\n\n".join(parts) + "\n"


def _peaks(recipe: Recipe) -> str:
    known = [batch for batch in BATCHES if not recipe.rates or batch in recipe.rates]
    return " | ".join(f"{recipe.peak(b):.6g}" if b in known else "-" for b in BATCHES)


def coverage() -> str:
    """The whole of docs/coverage.md."""
    reasons: list[str] = []
    rows = [covered(name, reasons) for name in SHOWN]
    head = [
        "| model of timm | norm and activation | norm alone | activation alone | convolutions "
        "| standardized by gn_ws | n/a |",
        "|:--|--:|--:|--:|--:|--:|:--|",
    ]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    count = len(catalog.normalizers())
    parts = [
        "# Coverage",
        f"What each of the {count} normalizers reaches in networks of timm: how many pairs of "
        "normalization and activation, normalizations and activations it takes the place of, and "
        "with which it does not go together, with the reason below. No normalization of timm's "
        "is left in any of them. Written by `python -m normbench.pages coverage`, by a forward "
        "pass of training of every pair at 224x224.",
        "\n".join(head + rows),
        "\n".join(notes),
    ]
    return "\n\n".join(parts) + "\n"


def covered(name: str, reasons: list[str]) -> str:
    """A model's row of docs/coverage.md; new reasons against a normalizer go to `reasons`."""
    counts: dict[str, Coverage] = {}
    refused: dict[int, list[str]] = {}
    for norm in catalog.normalizers():
        try:
            _, _, counts[norm] = catalog.sizes(f"timm/{name}", norm, 1000, 224)
        except Impossible as error:
            if str(error) not in reasons:
                reasons.append(str(error))
            refused.setdefault(reasons.index(str(error)) + 1, []).append(norm)
    kinds = {
        (found.pairs, found.alone, found.activations, found.convs) for found in counts.values()
    }
    assert len(kinds) == 1, f"{name}: normalizers reach different parts of it: {counts}"
    assert not any(found.left for found in counts.values()), f"{name}: something is left: {counts}"
    numbers = " | ".join(map(str, (*kinds.pop(), _standardized(counts))))
    against = "; ".join(f"{' '.join(names)} ({number})" for number, names in refused.items())
    return f"| {name} | {numbers} | {against} |"


def _standardized(counts: dict[str, Coverage]) -> int | str:
    return counts["gn_ws"].standardized if "gn_ws" in counts else "n/a"


def _table(every: list[Facts]) -> str:
    head = "| norm | | parameters per channel | batch-independent | convolutions | residual |"
    rows = [
        f"| [{f.name}](#{f.name}) | {f.headline} | {f.parameters} "
        f"| {'yes' if f.batch_independent else 'no'} | {f.conv or '-'} | {f.residual or 'plain'} |"
        for f in every
    ]
    return "\n".join([head, "|:--|:--|:--|:--|:--|:--|", *rows])


def _family(module: str, group: str, members: list[str]) -> str:
    """The docstring of a module, and the options of each member of `group` that lives there."""
    found = import_module(module)
    doc = inspect.getdoc(found) or ""
    title = re.split(r" \(|: |\.\n|, for ", doc)[0].rstrip(".")
    path = module.replace(".", "/") + ".py"
    source = f"Source: [{path}](../{path})"
    parts = [f"## {title}", _text(doc), source, *(_member(group, name) for name in members)]
    return "\n\n".join(parts)


def _of_source(path: str) -> str:
    """The docstring of a module, which may import what is not installed."""
    doc = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
    title = re.split(r" \(|: |, |\.\n", doc)[0].rstrip(".")
    return f"## {title}\n\n{_text(doc)}\n\nSource: [{path}](../{path})"


def _member(group: str, name: str) -> str:
    path = CONF / group / f"{name}.yaml"
    options = _typed(path)
    meanings = _arguments(options.pop("_target_"))
    parts = [f"### {name}", comment(path)]
    if options:
        meant = {key: meanings[key].replace("|", "\\|") for key in options}
        rows = [f"| `{key}` | {value} | {meant[key]} |" for key, value in options.items()]
        parts.append("\n".join(["| option | default | |", "|:--|:--|:--|", *rows]))
    return "\n\n".join(parts)


def _alike(group: str, members: list[str]) -> str:
    """Members of one kind: the options of all of them once, and of each what it sets."""
    meant: dict[str, str] = {}
    parts = []
    for name in members:
        path = CONF / group / f"{name}.yaml"
        options = _typed(path)
        meanings = _arguments(options.pop("_target_"))
        meant |= {key: meaning.replace("|", "\\|") for key, meaning in meanings.items()}
        own = "\n".join(
            f"{key}: {value}"
            for key, value in options.items()
            if value.partition("  #")[0] not in ("null", "[]", "{}")
        )
        parts += [f"### {name}", comment(path), f"```yaml\n{own}\n```"]
    rows = [f"| `{key}` | {meaning} |" for key, meaning in meant.items()]
    head = [f"| {group}. | null or empty where it is not listed below |", "|:--|:--|"]
    table = "\n".join(head + rows)
    return "\n\n".join([table, *parts])


def _arguments(target: str) -> dict[str, str]:
    """What the docstrings of a class and of those above it, or of a function, say of arguments."""
    module, _, attribute = target.rpartition(".")
    described = getattr(import_module(module), attribute)
    found: dict[str, str] = {}
    for each in reversed(getattr(described, "__mro__", [described])):
        text = (each.__doc__ or "").partition("Args:\n")[2]
        for name, meaning in re.findall(
            r"^(?: {4}){1,2}(\w+): (.+?)(?=^ {4,8}\w|^\n|\Z)", text, re.M | re.S
        ):
            found[name] = " ".join(meaning.split())
    return found


def _text(doc: str) -> str:
    """A docstring as Markdown: indented formulas are code blocks, and need an empty line before."""
    return re.sub(r"(?<!\n)\n(    )", r"\n\1", doc.strip())


def _typed(path: Path) -> dict[str, str]:
    """The options of a yaml and their values as they stand there, lists on one line."""
    found = re.findall(r"^(\w+):((?: .+)?(?:\n  - .+)*)$", path.read_text(), re.M)
    return {key: value.replace("\n  - ", ", ").lstrip(", ") for key, value in found}


def main(arguments: Sequence[str]) -> int:
    """Write the pages."""
    made = {
        "normalizers": normalizers,
        "architectures": architectures,
        "data": data,
        "recipes": recipes,
        "performance": performance,
    }
    if arguments == ["coverage"]:
        made["coverage"] = coverage
    elif arguments:
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    DOCS.mkdir(exist_ok=True)
    for name, page in made.items():
        (DOCS / f"{name}.md").write_text(page())
        print(DOCS / f"{name}.md")
    return 0


if __name__ == "__main__":
    cli.run(main)
