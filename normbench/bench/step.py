"""Time that normbench adds to an optimizer step, over a bare loop of PyTorch.

Both take the same steps on the same images of one cell, from the same loader, in one process and in
turn. The time is processor time. On a CUDA device it is wall time, with and without CUDA graphs,
because there the processor runs ahead of the device. The bare loop has forward, loss,
backward, optimizer and schedule; the training has all that a run has except validation.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer

from normbench.bench.layers import require_device
from normbench.bench.measure import Timer, compare, compose_cell, measure_in_turn, save
from normbench.bench.options import BenchStepOptions
from normbench.config.cells import Cell
from normbench.errors import BadInput
from normbench.execution.requirements import require_compiler, require_cuda_graph
from normbench.training.experiment import Experiment
from normbench.training.hardware import autocast_context
from normbench.training.trainer import build_trainer, prepare
from normbench.training.training import Training

CPU = torch.device("cpu")
#: The smallest network: nearly all of its step is the harness.
SMALLEST = ("model=resnet18_cifar", "model.depths=[1]", "model.strides=[2]", "model.width=1")


def bench_step(options: BenchStepOptions, words: Sequence[str]) -> None:
    """Time a step of normbench over a step of a bare loop."""
    torch.set_num_threads(options.threads)
    device = require_device(options.device)
    steps = options.steps
    if device.type == "cuda" and steps < 100:
        raise BadInput(f"steps={steps}: on a CUDA device 100 or more, as the first are left out")
    lines = []
    others = [word for word in words if not word.startswith(("model=", "model."))]
    for name, of in {"smallest": (*others, *SMALLEST), "as typed": words}.items():
        cell = cell_of(of, steps, device)
        require_compiler(cell)
        entries: dict[str, Timer] = {
            "bare loop": partial(_time_bare_loop, cell, device),
            # Its ratio to the same loop shows how noisy the machine is.
            "bare again": partial(_time_bare_loop, cell, device),
            "normbench": partial(_time_normbench, cell, device),
        }
        if device.type == "cuda":
            graphs = replace(cell, trainer=replace(cell.trainer, cuda_graph=True))
            info = Experiment(graphs).info
            require_cuda_graph(graphs, changes_every_step=info.changes_every_step)
            entries["normbench, graphs"] = partial(_time_normbench, graphs, device)
        timings = measure_in_turn(entries, options.rounds)
        base = timings["bare loop"].median
        for line in compare(timings, "loop", "microseconds", 1e6, network=name, cell=cell.title):
            # In microseconds, too: a ratio says more of the network than of the harness.
            line["more"] = 1e6 * (timings[str(line["loop"])].median - base)
            lines.append(line)
    save(options.out, lines)


def cell_of(words: Sequence[str], steps: int, device: torch.device = CPU) -> Cell:
    """Return the one cell of `words` with one worker and `steps` optimizer steps."""
    trainer = "trainer=gpu" if device.type == "cuda" else "trainer=cpu"
    # A bare loop has no validation, no W&B and no statistics per worker.
    fixed = ("data.val=0", trainer, "logger=none", "protocol=fixed_workers", "workers=1")
    cell = compose_cell([*words, *fixed])
    options = {**cell.recipe.options, "images": steps * cell.batch, "epochs": None}
    return replace(cell, recipe=replace(cell.recipe, options=options))


def _now(device: torch.device) -> float:
    """Return processor seconds, or on a CUDA device wall seconds after all its work."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


class _Clock(Callback):
    """Seconds from the beginning of the first step to the end of the last.

    On a CUDA device the first chunk counts as much as the others, since kernels are chosen and
    graphs recorded in it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self.left_out = device, 0.0, 0

    def on_train_start(self, *_: Any) -> None:
        self.seconds = -_now(self.device)

    def on_train_batch_end(self, _trainer: Trainer, module: Any, *_: Any) -> None:
        if self.device.type == "cuda" and not self.left_out:
            self.seconds, self.left_out = -_now(self.device), module.done

    def on_train_end(self, _trainer: Trainer, module: Any) -> None:
        self.seconds += _now(self.device)
        if self.left_out:
            self.seconds *= module.done / (module.done - self.left_out)


def _time_normbench(cell: Cell, device: torch.device) -> float:
    """Return the seconds of a step of normbench's training."""
    module = prepare(Training(Experiment(cell)))
    return time_training(build_trainer(module), module, module.datamodule, device) / module.steps


def time_training(
    trainer: Trainer,
    module: LightningModule,
    datamodule: LightningDataModule,
    device: torch.device = CPU,
) -> float:
    """Return seconds of all steps of a training; on a CPU those of the processor."""
    clock = _Clock(device)
    # Added afterwards, so that the trainer is built as for a run.
    trainer.callbacks.append(clock)  # type: ignore[attr-defined]
    trainer.fit(module, datamodule)
    return clock.seconds


def _time_bare_loop(cell: Cell, device: torch.device) -> float:
    """Seconds of a step of the loop that one would write by hand."""
    module = prepare(Training(Experiment(cell)))
    datamodule = module.datamodule
    network = module.model.to(device).train()
    optimizer = module.recipe.build_optimizer(network, cell.global_batch)
    schedule = module.recipe.build_scheduler(optimizer, module.steps)
    done, epoch, left_out, started = 0, 0, 0, _now(device)
    while done < module.steps:
        for chunk in datamodule.read_chunks(epoch):
            there = datamodule.transfer_batch_to_device(chunk, device, 0)
            ready = datamodule.on_after_batch_transfer(there, 0)
            steps = ready.images.flatten(0, 1), *(each.flatten(0, 1) for each in ready.targets)
            for images, *targets in zip(*steps, strict=True):
                optimizer.zero_grad()
                with autocast_context(cell, device):
                    output = module.task.run_training_pass(network, images, targets)
                    loss = module.task.loss(output, targets, module.reg, 1)
                loss.backward()
                optimizer.step()
                schedule.step()
                done += 1
            if device.type == "cuda" and not left_out:
                left_out, started = done, _now(device)
        epoch += 1
    return (_now(device) - started) / (module.steps - left_out)
