"""Files for loader=ffcv of a data set, so that a training reads and decodes its images faster.

    python -m normbench.prepare data=imagenet data.root=FOLDER

    readers=N             processes that read and compress (the CPU's cores)
    data.jpeg=SHARE       of the images that are stored as JPEG, which are smaller, and not as
                          pixels; a JPEG file that is not resized keeps its bytes
    data.resolution=N     larger images are reduced to a longer side of N pixels
    data.beton=FOLDER     where the files go, a fast local disk say (data.root)

All other words are those of `python -m normbench`; data and its options count. The same options are
then given to the training, with loader=ffcv or without (auto takes such files where they are). A
file appears when it is whole. After an interruption the same command goes on where it stopped; of a
file that is there and has these images nothing is written.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from normbench.config import cli
from normbench.config.build import build
from normbench.config.cells import Cell
from normbench.config.compose import compose
from normbench.config.plan import share_of_cores
from normbench.data.dataset import Dataset
from normbench.data.reading import NO_FFCV
from normbench.errors import BadInput


def main(arguments: Sequence[str]) -> int:
    """Write the files; 0, 2 for words or images that cannot be used, 130 after Ctrl-C."""
    if {"-h", "--help"} & {*arguments} or not arguments:
        print(__doc__)
        return 0
    try:
        own = [word for word in arguments if word.startswith("readers=")]
        cells, settings = compose([word for word in arguments if word not in own])
        if settings is None:
            return 0
        if len(cells) != 1:
            raise BadInput("one data set is prepared at a time; this is a grid")
        _prepare(cells[0], _readers(own[-1] if own else ""))
    except BadInput as error:
        print(f"normbench.prepare: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"normbench.prepare: {error}; nothing that is written is lost", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _readers(word: str) -> int:
    number = word.partition("=")[2]
    if not word:
        return share_of_cores(1)
    if not number.isdecimal():
        raise BadInput(f"{word}: it is a whole number of processes, as readers=4")
    return int(number)


def _prepare(cell: Cell, readers: int) -> None:
    data: Dataset = build("data", cell.data.options)
    paths = {split: data.stored(split) for split in ("train", "test")}
    if not find_spec("ffcv"):
        raise BadInput(NO_FFCV)
    from normbench.data.ffcv_writer import Store  # FFCV takes seconds, and may not be there

    share = float(cell.data.options.get("jpeg") or 0.0)
    for (split, path), part in zip(paths.items(), data.load(), strict=True):
        store = Store(path, part, share)
        if store.finished:
            print(f"{path} is there, {len(part.labels):,} images")
            continue
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn()) as bar:
            task = bar.add_task(split, total=len(part.labels))
            store.write(readers, lambda done: bar.update(task, completed=done))  # noqa: B023
        taken = 512 * path.stat().st_blocks / 2**20  # a page that is not full takes no room
        print(f"{path} written, {len(part.labels):,} images, {taken:,.0f} MB of the disk")


if __name__ == "__main__":
    cli.run(main)
