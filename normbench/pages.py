"""docs/normalizers.md, from the docstrings of the layers and the yamls of conf/norm/.

    python -m normbench.pages

writes it anew. What the page says of parameters is measured on the layers themselves.
"""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

from normbench import catalog, norms
from normbench.catalog import Facts, facts
from normbench.home import CONF, ROOT, comment, load

PAGE = ROOT / "docs" / "normalizers.md"
#: What goes with layers: around them, and after training.
_BESIDES = ("convolution", "residual", "activations", "inference", "recalibration", "ratios")


def page() -> str:
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
        *(_family(module, families[module]) for module in order),
        *(_family(f"normbench.norms.{name}", []) for name in _BESIDES),
    ]
    return "\n\n".join(parts) + "\n"


def _table(every: list[Facts]) -> str:
    head = "| norm | | parameters per channel | batch-independent | convolutions | residual |"
    rows = [
        f"| [{f.name}](#{f.name}) | {f.headline} | {f.parameters} "
        f"| {'yes' if f.batch_independent else 'no'} | {f.conv or '-'} | {f.residual or 'plain'} |"
        for f in every
    ]
    return "\n".join([head, "|:--|:--|:--|:--|:--|:--|", *rows])


def _family(module: str, members: list[str]) -> str:
    """The docstring of a module, and the options of each normalizer that lives there."""
    found = import_module(module)
    doc = inspect.getdoc(found) or ""
    title = re.split(r" \(|: |\.\n|, for ", doc)[0]
    path = module.replace(".", "/") + ".py"
    source = f"Source: [{path}](../{path})"
    return "\n\n".join([f"## {title}", _text(doc), source, *(_member(name) for name in members)])


def _member(name: str) -> str:
    path = CONF / "norm" / f"{name}.yaml"
    options = _typed(path)
    meanings = _arguments(options.pop("_target_"))
    parts = [f"### {name}", comment(path)]
    if options:
        meant = {key: meanings[key].replace("|", "\\|") for key in options}
        rows = [f"| `{key}` | {value} | {meant[key]} |" for key, value in options.items()]
        parts.append("\n".join(["| option | default | |", "|:--|:--|:--|", *rows]))
    return "\n\n".join(parts)


def _arguments(target: str) -> dict[str, str]:
    """What the docstrings of a class and of those above it say of its arguments."""
    module, _, attribute = target.rpartition(".")
    found: dict[str, str] = {}
    for each in reversed(getattr(import_module(module), attribute).__mro__):
        text = (each.__doc__ or "").partition("Args:\n")[2]
        for name, meaning in re.findall(
            r"^ {8}(\w+): (.+?)(?=^ {8}\w|^ {4}\w|\Z)", text, re.M | re.S
        ):
            found[name] = " ".join(meaning.split())
    return found


def _text(doc: str) -> str:
    """A docstring as Markdown: indented formulas are code blocks, and need an empty line before."""
    return re.sub(r"(?<!\n)\n(    )", r"\n\1", doc.strip())


def _typed(path: Path) -> dict[str, str]:
    """The options of a yaml and their values as they stand there."""
    return dict(re.findall(r"^(\w+): (.+)$", path.read_text(), re.M))


def main() -> int:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
