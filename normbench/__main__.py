"""The command line: Hydra composes cells, the sweep gives each a row, the report prints tables.

    python -m normbench -m norm=evonorm_s0,bn batch=2,4,128 seed=0,1,2,3,4

Exit codes: 0 every cell has its row; 1 a run failed; 2 the command line cannot be used and nothing
was trained; 128 + n stopped by signal n, as 130 for Ctrl-C.
"""

from collections.abc import Sequence

from normbench import __version__
from normbench.config import cli
from normbench.config.compose import compose
from normbench.errors import BadInput
from normbench.execution.conclusion import stop_by_signals, train
from normbench.execution.sweep import Interrupted
from normbench.report import build
from normbench.report.table_spec import TableSpec


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code."""
    if list(arguments) == ["--version"]:  # Hydra's would print its own
        print(f"normbench {__version__}")
        return 0
    with cli.name_left_out("normbench"):
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        with stop_by_signals():
            cells, settings = compose(list(arguments))
            if settings is None:
                return 0
            sweep = settings.sweep
            return train(cells, settings, lambda: _specs_of(sweep))
    except BadInput as error:
        cli.print_error("normbench", error)
        return 2
    except Interrupted as stop:
        return 128 + stop.number


def _specs_of(sweep: str) -> list[TableSpec]:
    """Return the tables that `sweep` trains, and those of axes."""
    return [spec for spec in build.specs() if spec.axes or spec.is_trained_by(sweep)]


def entry() -> None:
    """Run the console script `normbench`."""
    cli.run(main)


if __name__ == "__main__":
    entry()
