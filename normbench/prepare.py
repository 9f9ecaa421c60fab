"""Write FFCV files of a data set, for loader=ffcv to read and decode its images faster.

    python -m normbench.prepare data=imagenet data.root=FOLDER

    data.jpeg=SHARE       share of the images stored as JPEG, which is smaller, instead of pixels;
                          a JPEG file that is not resized keeps its bytes
    data.resolution=N     shrink larger images to a longer side of N pixels
    data.beton=FOLDER     folder of the files, for example on a fast local disk (data.root)

All words but readers= are those of `python -m normbench`; data and its options count. Train with
the same options and loader=ffcv; loader=auto, the default, takes such files where they are. A file
appears under its name when it is whole, and is not written again while it has these images. After
an interruption the same command writes the unfinished file again.
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
from normbench.data.dataset import Dataset, DatasetOnDisk
from normbench.data.ffcv_manifest import check_prepared, jpeg_share
from normbench.data.reading import NO_FFCV
from normbench.errors import BadInput
from normbench.run_files import require_writable


@dataclass(frozen=True)
class PrepareOptions:
    """Options of the command line."""

    readers: int | None = cli.option(
        None, "processes that read and compress (the CPU's cores)", most=1024
    )


@cli.command(
    "normbench.prepare", lambda: f"{__doc__}\n{cli.describe(PrepareOptions)}", needs_words=True
)
def main(arguments: Sequence[str]) -> int:
    """Write the files; return 2 for words or images that cannot be used, 130 after Ctrl-C."""
    options, words = cli.parse_options(arguments, PrepareOptions, pass_on=True)
    cells, settings = compose(words)
    if settings is None:
        return 0
    if len(cells) != 1:
        raise BadInput("one data set is prepared at a time; this is a grid")
    try:
        _prepare(cells[0], options.readers or share_of_cores(1))
    except OSError as error:
        cli.print_error("normbench.prepare", error)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command writes the unfinished file again", file=sys.stderr)
        return 130
    return 0


def _prepare(cell: Cell, readers: int) -> None:
    """Write the files of the data set of `cell` that are not there yet."""
    data: Dataset = build("data", cell.data.options)
    if not isinstance(data, DatasetOnDisk):
        raise BadInput(
            f"data={cell.data.name} of task={cell.task.name}: its images are always in memory, so "
            "that there is nothing to prepare; loader=auto trains on them"
        )
    path = data.prepared_file("train")
    # Before anything is loaded; a data set that is not there is reported with its own sentence.
    if not path.exists() and (cell.data.options.get("beton") or path.parent.is_dir()):
        require_writable(path.parent, f"data.beton={path.parent}", "name another folder there")
    if not find_spec("ffcv"):
        raise BadInput(NO_FFCV)
    from normbench.data.ffcv_writer import write_prepared  # FFCV takes seconds to import

    splits = data.load()
    for split, (path, problem) in zip(splits, check_prepared(data, splits), strict=True):
        if not problem:
            print(f"{path} is there, {len(split.labels):,} images")
            continue
        write_prepared(path, split, jpeg_share(data), readers)
        size = path.stat().st_size / 2**20
        print(f"{path} written, {len(split.labels):,} images, {size:,.0f} MB")


if __name__ == "__main__":
    cli.run(main)
