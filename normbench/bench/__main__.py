"""Measure time and memory of layers, steps, sweeps and loaders, each beside a reference.

    python -m normbench.bench KIND [WORDS]

WORDS are those of `python -m normbench`. All alternatives are measured in turn, so that other work
on the machine slows all of them. Printed are medians, and the ratio to the first alternative with
its quartiles.
"""

import os
import stat
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from normbench.bench import options
from normbench.config import cli
from normbench.errors import BadInput, choose_from
from normbench.run_files import require_writable

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
    if kind in WITHOUT_WORDS and others:
        raise BadInput(f"{others[0]} is unknown to {kind}, which takes no words but its options")
    if parsed.out is not None:
        _require_file(parsed.out)
    try:
        getattr(import_module(f"normbench.bench.{module}"), f"bench_{kind}")(parsed, others)
    except RuntimeError as error:
        cli.print_error("normbench.bench", error)
        return 1
    return 0


def _require_file(out: Path) -> None:
    """Raise `BadInput` if `out` cannot be written, before minutes of measurements."""
    remedy = "name a CSV file in a writable folder, as out=reports/bench/step.csv"
    require_writable(out.parent, f"out={out}", remedy)
    try:
        if not stat.S_ISREG(out.stat().st_mode):
            raise BadInput(f"out={out} is no regular file; {remedy}")
        if not os.access(out, os.W_OK):
            raise BadInput(f"out={out} cannot be written; {remedy}")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise BadInput(f"out={out}: {error.strerror}; {remedy}") from None


if __name__ == "__main__":
    cli.run(main)
