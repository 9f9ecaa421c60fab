"""Look inside networks, before or after training: the papers' figures that explain results.

    python -m normbench.probe KIND [WORDS] [vs WORDS ...]
    python -m normbench.probe FIGURE [WORDS]

    spp             signal propagation over the residual blocks
    power           power of the normalized maps over depth, and channel-wise linearity
    ratios          ratios that switchable normalization learned, by receptive field (needs ckpt=)
    example_weight  metrics over the weight alpha of an image in its statistics      (needs ckpt=)
    speed           steps per second and memory of normalizers, compared with bn
    gains           1/sqrt(Var g(u)) of activations, by quadrature and by sampling

WORDS are those of `python -m normbench`; a list makes several networks: norm=bn,gn. The words after
vs describe another network by its differences from the first. FIGURE is a figure of a paper, from
the list below.

    ckpt=RUN           the network of a finished run with checkpoint=keep: its id, RUN@EPOCH,
                       RUN,RUN or all. The run knows its norm= and model=
    ckpt=FILE          a checkpoint or a state_dict of the network that the other words describe
                       (spp, power)
    input=normal|data  N(0, 1), the default of spp, or training images, the default of power
    images=N           images in the forward pass (spp 8, power 256)
    image=N            pixels of a side with input=normal (those of data=)
    statistics=batch|running
                       statistics of the images at hand (default), or those of evaluation
    eps=X              instead of the layers' own eps; 0 is allowed (power)
    alphas=A,B,...     weights from 0 to 1 (example_weight)
    repeats=N          rounds (speed: 7)
    mode=M             training or inference (speed: both)
    act=NAME,...       activations (gains: all), as hardswish or package.module.function
    out=DIR            folder of the files (reports/probes); those of runs are in their folders, too
    name=STEM          name of the files (the kind); existing ones are replaced

Each command writes STEM.csv, STEM.png and STEM.pdf. A training can measure itself after epochs by
probe=KIND (spp, power, ratios): `python -m normbench norm=sn probe=ratios probe.every=2`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from normbench.config import cli
from normbench.config.files import FIGURES, headline, names
from normbench.errors import BadInput
from normbench.probe.request import OUT, parse_request
from normbench.run_files import require_writable


def main(arguments: Sequence[str]) -> int:
    """Run a probe; return 0, 2 for unusable words, 130 after Ctrl-C."""
    if {"-h", "--help"} & {*arguments} or not arguments:
        print(__doc__)
        print("Figures:")
        for name in names(FIGURES):
            print(f"    {name:<22} {headline(FIGURES / f'{name}.yaml')}")
        return 0
    try:
        request = parse_request(arguments[0], arguments[1:])
        out = request.option("out", OUT)
        require_writable(Path(out), f"out={out}", "use a writable folder, as out=reports/probes")
        # A kind without a module of its own is measured in a forward pass.
        has_module = Path(__file__).with_name(f"{request.kind}.py").exists()
        import_module(f"normbench.probe.{request.kind if has_module else 'forward_pass'}").run(
            request
        )
    except BadInput as error:
        print(f"normbench.probe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    cli.run(main)
