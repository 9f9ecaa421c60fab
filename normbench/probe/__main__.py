"""Measure quantities inside networks, before or after training, and draw them.

    python -m normbench.probe KIND [WORDS] [vs WORDS ...]
    python -m normbench.probe FIGURE [WORDS]

WORDS are those of `python -m normbench`. A list such as norm=bn,gn describes several networks. The
words after vs describe another network by its differences from the first. FIGURE is a figure of a
paper, from the list at the end.

Each command writes STEM.csv, STEM.png and STEM.pdf. A training measures spp, power or ratios after
its epochs with probe=KIND: `python -m normbench norm=sn probe=ratios probe.every=2`.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from normbench.config import cli
from normbench.config.files import FIGURES, headline, names
from normbench.errors import BadInput
from normbench.probe.options import KINDS, ProbeOptions
from normbench.probe.request import parse_request
from normbench.run_files import require_writable


def _describe_kinds() -> str:
    kinds = [cli.describe_kind(name, kind, ProbeOptions) for name, kind in KINDS.items()]
    figures = [f"    {name:<20}{headline(FIGURES / f'{name}.yaml')}" for name in names(FIGURES)]
    return "\n\n".join(
        [
            __doc__.rstrip(), *kinds, f"All kinds:\n{cli.describe(ProbeOptions)}",
            "\n".join(["Figures:", *figures]),
        ]
    )  # fmt: skip


@cli.command("normbench.probe", _describe_kinds, needs_words=True)
def main(arguments: Sequence[str]) -> int:
    """Run a probe."""
    request = parse_request(arguments[0], arguments[1:])
    folder = request.options.folder
    require_writable(folder, str(folder), "use a writable folder, as reports=runs/reports")
    for path in (folder / f"{request.stem}.{form}" for form in ("csv", "json", "png", "pdf")):
        if os.path.lexists(path) and not path.is_file():
            raise BadInput(f"{path} is no file that can be replaced; name=STEM names others")
    # A kind without a module of its own is measured in a forward pass.
    has_module = Path(__file__).with_name(f"{request.kind}.py").exists()
    module = import_module(f"normbench.probe.{request.kind if has_module else 'forward_pass'}")
    module.run(request)
    return 0


if __name__ == "__main__":
    cli.run(main)
