"""Gains of activations."""

from contextlib import suppress

from normbench.errors import BadInput
from normbench.measurements import gains
from normbench.norms.base.activations import GAINS
from normbench.probe.output import finish, show
from normbench.probe.request import Asked
from normbench.run_files import Record


def look(asked: Asked) -> None:
    """Gains."""
    if any(words for _, words in asked.networks):
        raise BadInput("gains: it is of activations and no networks; act=NAME,... says of which")
    wanted = asked.option("act", ",".join(GAINS)).split(",")
    lines: list[Record] = []
    for name in wanted:
        function = gains.function_of(name)
        line: Record = {"act": name, "exact": None, "sampled": gains.by_sampling(function)}
        with suppress(ValueError, RuntimeError):  # a function of whole vectors has none
            line["exact"] = gains.by_quadrature(function)
        lines.append({**line, "normbench": GAINS.get(name)})
    table = [[_digits(value) for value in line.values()] for line in lines]
    show(table, ["activation", "by quadrature", "by sampling", "in nf"])
    finish(asked, lines)


def _digits(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value or "")
