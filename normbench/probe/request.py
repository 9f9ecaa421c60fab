"""What a command line asks of a probe. Apart from the looking, which needs torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OUT = "reports/probes"  # where files go if nobody says otherwise


@dataclass(frozen=True)
class Asked:
    """What the command line asks for.

    Args:
        kind: of the probe.
        networks: words of each network, or grid of networks, with a label or "".
        options: of the probe itself.
        title: of the figure.
        stem: of the files.
    """

    kind: str
    networks: Sequence[tuple[str, list[str]]]
    options: Mapping[str, str]
    title: str = ""
    stem: str = ""

    def option(self, name: str, usual: str = "") -> str:
        return self.options.get(name, usual)
