"""The recorder of a training: what it reports goes into the folder of its run and to W&B."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from PIL import Image
from torch import Tensor

from normbench import run_files
from normbench.execution.job import Job
from normbench.execution.wandb_logger import Mirror
from normbench.measurements.training_probes import curve_columns
from normbench.records.history import CurveRecord, History
from normbench.records.hits import write_hits
from normbench.records.probes import Record, append_epoch
from normbench.results import PREDICTIONS
from normbench.training.training import Listener, Training

WIDTH = 600  # of pictures, about; larger ones keep their size

Report = Callable[[Any], None]  # sends a progress message to the scheduler


class Recorder(Listener):
    """Write what one training reports into the folder of its run and to W&B.

    Args:
        job: of the run.
        index: of the job among those that are trained together.
        report: sends the progress to the scheduler.
        mirror: of the run in W&B.
        training: whose reports these are.
        past: records of the curve until there.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        report: Report,
        mirror: Mirror,
        training: Training,
        past: list[CurveRecord],
    ) -> None:
        self.folder, self.index, self.report, self.mirror = job.folder, index, report, mirror
        self.training = replace(training, listener=self)
        task = training.experiment.task
        self.history = History(
            job.folder,
            past,
            curve_columns(job.cell.probe.kinds),
            (f"train_{task.score}", f"val_{task.metric}"),
        )
        self.result: dict[str, Any] = {}
        self.status = ""
        self.wrote_steps = False
        mirror.define_curve(self.history.columns)
        mirror.restore(past)

    def on_record(self, record: CurveRecord) -> None:
        """Add a record to the curve."""
        self.history.add(record)
        self.mirror.log(record)

    def on_progress(self, done: int, steps: int, loss: float) -> None:
        """Report that `done` of `steps` steps are done."""
        if not self.wrote_steps:  # for readers of the folder, such as the scheduler of a cluster
            run_files.update_state(self.folder, steps=steps)
            self.wrote_steps = True
        self.report((self.index, {"done": done, "steps": steps, "loss": loss}))

    def on_probe(self, kind: str, records: Sequence[Record], epoch: int) -> None:
        """Write the records of a probe after `epoch`."""
        append_epoch(self.folder, kind, records, epoch)

    def on_picture(self, picture: Tensor) -> None:
        """Write a picture of predictions, enlarged, and send it to W&B."""
        image = Image.fromarray(picture.permute(1, 2, 0).numpy())
        factor = max(1, WIDTH // image.width)
        size = (factor * image.width, factor * image.height)
        image = image.resize(size, Image.Resampling.NEAREST)
        with run_files.replace_atomically(self.folder / PREDICTIONS) as temporary:
            image.save(temporary, "PNG")
        self.mirror.log_image("predictions", image)

    def on_test_hits(self, hits: Sequence[bool]) -> None:
        """Write the test images that are classified correctly, before the row is written."""
        write_hits(self.folder, hits)
