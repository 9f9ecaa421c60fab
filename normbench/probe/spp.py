"""Signal propagation over the residual blocks of networks."""

from statistics import fmean

from normbench.probe.output import finish, show
from normbench.probe.request import Asked
from normbench.probe.tables import looked
from normbench.run_files import group_by, network_label


def look(asked: Asked) -> None:
    """Signal propagation."""
    lines = looked(asked)
    shown = []
    for key, blocks in group_by(lines, "network", "epoch").items():
        for stage, of_stage in group_by(blocks, "stage").items():
            ends = [of_stage[0], of_stage[-1]]
            variances = " to ".join(f"{b['variance']:.3g}" for b in ends)
            means = " to ".join(f"{b['squared_mean']:.3g}" for b in ends)
            branch = fmean(block["branch_variance"] for block in of_stage)
            shown.append(
                [network_label(key), stage, len(of_stage), means, variances, f"{branch:.3g}"]
            )
    head = ["network", "stage", "blocks", "squared mean", "variance", "residual variance, mean"]
    show(shown, head)
    finish(asked, lines)
