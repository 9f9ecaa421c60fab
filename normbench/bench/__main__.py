"""Measure time and memory of layers, steps, sweeps and loaders, each beside a reference.

    python -m normbench.bench KIND [WORDS]

WORDS are those of `python -m normbench`. All alternatives are measured in turn, so that other work
on the machine slows all of them. Printed are medians, and the ratio to the first alternative with
its quartiles.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from normbench.bench import options
from normbench.config import cli
from normbench.errors import BadInput, choose_from

#: Module and options of each kind; the module has a function `bench_KIND`.
KINDS: dict[str, tuple[str, type[Any]]] = {
    "layers": ("layers", options.BenchLayersOptions),
    "step": ("step", options.BenchStepOptions),
    "seeds": ("seeds", options.BenchSeedsOptions),
    "sweep": ("sweep", options.BenchSweepOptions),
    "report": ("report", options.BenchReportOptions),
    "workers": ("plans_and_loaders", options.BenchWorkersOptions),
    "loader": ("plans_and_loaders", options.BenchLoaderOptions),
}
WITHOUT_WORDS = ("layers", "report")


def _describe_kinds() -> str:
    kinds = [cli.describe_kind(name, of, options.BenchOptions) for name, (_, of) in KINDS.items()]
    return "\n\n".join(
        [__doc__.rstrip(), *kinds, f"All kinds:\n{cli.describe(options.BenchOptions)}"]
    )


@cli.command("normbench.bench", _describe_kinds, needs_words=True)
def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if it failed."""
    kind, *words = arguments
    if kind not in KINDS:
        raise BadInput(f"{kind} is no kind; {choose_from(kind, KINDS)}")
    module, declared = KINDS[kind]
    parsed, others = cli.parse_options(
        words, declared, owner=kind, pass_on=kind not in WITHOUT_WORDS
    )
    try:
        getattr(import_module(f"normbench.bench.{module}"), f"bench_{kind}")(parsed, others)
    except RuntimeError as error:
        print(f"normbench.bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    cli.run(main)
