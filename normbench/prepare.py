"""Write a data set into files for loader=ffcv, from which images are read and decoded faster.

    python -m normbench.prepare data=imagenet data.root=FOLDER

    data.jpeg=SHARE       share of the images that are stored as JPEG, which takes less space than
                          pixels; a JPEG file that is not resized is copied
    data.resolution=N     reduce larger images to a longer side of N pixels
    data.beton=FOLDER     folder of the files, for example on a fast local disk (data.root)

The words besides readers= are those of `python -m normbench`; only data and its options have an
effect. Give the same options to the training: loader=auto and loader=ffcv then read these files. A
file gets its name when it is complete. After an interruption the same command writes the unfinished
file again; complete files are not written again.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from normbench.config import cli
from normbench.config.build import build
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.plan import share_of_cores
from normbench.data.dataset import Dataset
from normbench.data.ffcv_manifest import fault
from normbench.data.reading import NO_FFCV
from normbench.errors import BadInput


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    readers: int | None = cli.option(None, "processes that read and compress (the CPU's cores)")


@cli.command("normbench.prepare", lambda: f"{__doc__}\n{cli.describe(Options)}", needs_words=True)
def main(arguments: Sequence[str]) -> int:
    """Write the files; 0, 2 for words or images that cannot be used, 130 after Ctrl-C."""
    options, words = cli.parse_options(arguments, Options, pass_on=True)
    cells, settings = compose(words)
    if settings is None:
        return 0
    if len(cells) != 1:
        raise BadInput("one data set is prepared at a time; this is a grid")
    try:
        _prepare(cells[0], options.readers or share_of_cores(1))
    except OSError as error:
        print(f"normbench.prepare: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command writes the unfinished file again", file=sys.stderr)
        return 130
    return 0


def _prepare(cell: Cell, readers: int) -> None:
    data: Dataset = build("data", cell.data.options)
    paths = [data.prepared_file(name) for name in ("train", "test")]
    if not find_spec("ffcv"):
        raise BadInput(NO_FFCV)
    from normbench.data.ffcv_writer import write_prepared  # FFCV takes seconds to import

    jpeg = float(cell.data.options.get("jpeg") or 0.0)
    for path, split in zip(paths, data.load(), strict=True):
        if not fault(path, split, jpeg):
            print(f"{path} is there, {len(split.labels):,} images")
            continue
        write_prepared(path, split, jpeg, readers)
        size = 512 * path.stat().st_blocks / 2**20
        print(f"{path} written, {len(split.labels):,} images, {size:,.0f} MB of the disk")


if __name__ == "__main__":
    cli.run(main)
