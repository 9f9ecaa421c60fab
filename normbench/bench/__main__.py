"""Time and memory of layers, steps, sweeps and loaders; what is compared is measured in turn.

    python -m normbench.bench KIND [WORDS]

    layers    every normalizer's layer, forward and backward, over torch's batch normalization and
              ReLU; how many maps of its input's size it keeps for the backward pass
        norm=NAME,...     (all; peers=false leaves out the layers of torch and timm)
        impl=IMPL,...     eager, lean, compile, and on a CUDA device triton
        shape=NxCxHxW,... (4x256x56x56,32x256x14x14)   act=relu   dtype=float32|bfloat16
        device=cpu|cuda   format=contiguous|channels_last
    step      processor time of an optimizer step over a bare loop of PyTorch; on a GPU wall time,
              with and without CUDA graphs of steps
        device=cpu|cuda   WORDS of one cell, as norm=gn batch=4
    seeds     processor time of stacked seeds over the same seeds one after the other
        seeds=N,...       (3,8)   WORDS of one cell, as norm=gn batch=4
    sweep     a sweep over a process for each of its runs, one after the other; seconds from the
              command to the first step, and from a run's row to the next run's first step
        against=FOLDER    another checkout of normbench, whose sweep is timed as well
        WORDS of a grid of lists, as norm=bn,gn seed=0,1,2
    report    tables from made-up rows, over reading their JSON
        rows=N            (10000)
    workers   plans of one run, over the first of them
        plans=PLAN,...    devices x per_forward x accumulation; their product is the workers
        WORDS of one cell, as protocol=fixed_workers workers=8 norm=bn batch=4
    loader    loaders of one run, over the first of them; nothing is trained
        loaders=L,...     memory, torch, ffcv, and usual: a DataLoader of torch as in tutorials,
                          `batch` images at a time by trainer.readers processes. All but memory need
                          a data set of files, as data=fashion_mnist, of more than a few hundred
                          images: otherwise most of the time is their start
        WORDS of one cell, as data=cifar10 trainer.readers=2 batch=4

    rounds=N    measurements of each, in turn (7)
    threads=N   CPU threads (layers, step, seeds: 1)
    steps=N     optimizer steps of a training (step, seeds: 300)
    cores=N     CPU cores that all processes share (workers, loader: those of this machine)
    out=FILE    CSV with machine, versions and commit, as those of reports/bench

The output has medians, and ratios to the first of each group with their quartiles.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from normbench.config import cli
from normbench.errors import BadInput, choose_from

#: The module of each kind; it has a function `bench_KIND`.
KINDS = {
    "layers": "layers", "step": "step", "seeds": "seeds", "sweep": "sweep", "report": "report",
    "workers": "run", "loader": "run",
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 0, 2 for words that cannot be used, or 1 if it failed."""
    if {"-h", "--help"} & {*arguments} or not arguments:
        print(__doc__)
        return 0
    kind, *words = arguments
    try:
        if kind not in KINDS:
            raise BadInput(f"{kind} is no kind; {choose_from(kind, KINDS)}")
        module = import_module(f"normbench.bench.{KINDS[kind]}")
        getattr(module, f"bench_{kind}")(words)
    except BadInput as error:
        print(f"normbench.bench: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"normbench.bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    cli.run(main)
