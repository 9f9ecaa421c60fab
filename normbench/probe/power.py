"""The power of normalized maps over the depth of networks."""

from normbench.probe.output import finish, show
from normbench.probe.request import Asked
from normbench.probe.tables import looked
from normbench.run_files import group_by, network_label


def look(asked: Asked) -> None:
    """The power decomposition."""
    lines = looked(asked)
    shown = []
    for key, layers in group_by(lines, "network", "epoch").items():
        bent = [layer for layer in layers if layer["linearity"] is not None] or layers
        for layer in (bent[0], bent[len(bent) // 2], bent[-1]):
            terms = [f"{float(layer[name]):.4f}" for name in ("p1", "p2", "p3", "p4", "total")]
            share = "" if layer["linearity"] is None else f"{layer['linearity']:.4f}"
            shown.append([network_label(key), layer["depth"], *terms, share])
    show(shown, ["network", "layer", "P1", "P2", "P3", "P4", "sum", "linearity"])
    finish(asked, lines)
