"""Seeds of one cell trained as one network: more work in a step, instead of more steps.

The weights of K networks that differ in their seeds lie in one tensor each, (K, ...), and
torch.vmap computes all of them in one pass. Each network has views of its parts, so what looks at
one between two steps (evaluation, average, probes, checkpoints) sees it as if it were alone. Their
losses are added: as no weight is of two networks, each gets its own gradient, and optimizers that
treat every number by itself (SGD, RMSProp) move it as they would alone. Rounding is all that
differs.
"""

import time
from collections.abc import Callable, Iterator, Sequence, Sized
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from normbench.config.cells import Cell
from normbench.config.plan import Plan
from normbench.errors import one_line
from normbench.measurements.training_probes import SaveRecords
from normbench.models.drop import drop_layers
from normbench.norms.base.running import NetworkStatistics
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.datamodule import Chunk, Images, Loaders
from normbench.training.lightning_module import Diverged, Task, seen
from normbench.training.metrics import Record
from normbench.training.trainer import facts, hardware, measured, prepare, tested, trainer_of


class Run(NamedTuple):
    """One of the trainings; its fields are those of `normbench.training.trainer.train`."""

    cell: Cell
    curve: Callable[[Record], None]
    progress: Callable[[int, int, float], None]
    checkpoints: Checkpoints | None = None
    state: State | None = None
    save_probe: SaveRecords | None = None


class Stack:
    """Networks of one kind as one, whose weights have K in front.

    Args:
        networks: K of them; their parameters and buffers become views of the common ones.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        #: Has their structure and the roles of their parameters; only `__call__` can compute it.
        self.model = deepcopy(networks[0])
        named = [dict(network.named_parameters()) for network in networks]
        whole = {
            name: nn.Parameter(torch.stack([own[name].detach() for own in named]), learned)
            for name, learned in ((n, each.requires_grad) for n, each in named[0].items())
        }
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for module in self.model.modules():
            for leaf, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, leaf, whole[names[parameter]])
        for name, parameter in whole.items():
            for own, part in zip(named, parameter.detach(), strict=True):
                own[name].data = part
        #: Of each network its parameters, in the order of those of `model`.
        self.parts = [[own[name] for name in whole] for own in named]
        self.buffers = {name: _common(name, networks) for name, _ in self.model.named_buffers()}

    def __call__(self, inner: Callable[..., Any], *inputs: Tensor) -> Any:
        """`inner` of the model and of each network's part of `inputs`, all (K, ...).

        `inner` takes a function images -> logits, and then the inputs of one network.
        """

        def one(weights: dict[str, Tensor], *own: Tensor) -> Any:
            return inner(lambda x: functional_call(self.model, weights, (x,)), *own)

        return torch.vmap(one)(dict(self.model.named_parameters()) | self.buffers, *inputs)

    def hand_out(self, whole: Optimizer, own: Sequence[Optimizer]) -> None:
        """Give the optimizer of each network its part of what the common one has gathered."""
        for number, (optimizer, parts) in enumerate(zip(own, self.parts, strict=True)):
            for parameter, part in zip(self.model.parameters(), parts, strict=True):
                gathered = whole.state[parameter].items()
                optimizer.state[part] = {
                    name: value[number] if _of_each(value) else value for name, value in gathered
                }

    def take_up(self, whole: Optimizer, own: Sequence[Optimizer]) -> None:
        """The converse, for trainings that go on."""
        for parameter, *parts in zip(self.model.parameters(), *self.parts, strict=True):
            states = [each.state[part] for each, part in zip(own, parts, strict=True)]
            whole.state[parameter] = {
                name: torch.stack([state[name] for state in states])
                if isinstance(value, Tensor) and value.shape == parts[0].shape
                else value
                for name, value in states[0].items()
            }


def _common(name: str, networks: Sequence[nn.Module]) -> Tensor:
    """A buffer of all networks (K, ...), of which each has its part from now on."""
    common = torch.stack([network.get_buffer(name) for network in networks])
    place, _, leaf = name.rpartition(".")
    for network, part in zip(networks, common, strict=True):
        setattr(network.get_submodule(place), leaf, part)
    return common


def _of_each(value: Any) -> bool:
    """Whether something that an optimizer has gathered has a part of each network."""
    return isinstance(value, Tensor) and value.dim() > 0


class Together(LightningModule):
    """The trainings of several seeds, a step of all at a time.

    Args:
        tasks: one a seed; all begin at the same step.
        loaders: their images.
    """

    def __init__(self, tasks: Sequence[Task], loaders: Sequence[Loaders]) -> None:
        super().__init__()
        self.automatic_optimization = False  # a Lightning batch is a chunk of many steps
        self.tasks, self.loaders = list(tasks), list(loaders)
        self.models = nn.ModuleList(tasks)  # Lightning moves them and says when they train
        self.done = tasks[0].done
        self.diverged: dict[Task, str] = {}

    @property
    def living(self) -> list[Task]:
        """Those that have not diverged."""
        return [task for task in self.tasks if task not in self.diverged]

    def configure_optimizers(self) -> tuple[list[object], list[object]]:  # type: ignore[override]
        first = self.tasks[0]
        # Before the weights become common: what they go on from is in the tasks.
        self.own: list[Any] = [task.configure_optimizers()[0][0] for task in self.tasks]
        self.stack = Stack([task.model for task in self.tasks])
        optimizer = first.recipe.optimizer(self.stack.model, first.global_batch)
        if first.done:
            self.stack.take_up(optimizer, self.own)
        return [optimizer], [first.scheduled(optimizer)]

    def on_fit_start(self) -> None:
        self.optimizer: Any = self.optimizers(use_pl_optimizer=False)
        self.schedule: Any = self.lr_schedulers()
        for task, optimizer, loaders in zip(self.tasks, self.own, self.loaders, strict=True):
            task.trainer, task.optimizer = self.trainer, optimizer
            task.begin(loaders)

    def on_train_epoch_start(self) -> None:
        for task in self.living:
            task.on_train_epoch_start()

    def training_step(self, chunks: list[Chunk], _index: int) -> None:
        """As many optimizer steps as the chunks hold, and one look at the device.

        Raises:
            Diverged: none of the seeds is left.
        """
        told = [self._update(chunks, ahead) for ahead in range(len(chunks[0].images))]
        numbers = [
            seen([[(loss[k], logits[k])] for loss, logits in told], chunk.labels)
            for k, chunk in enumerate(chunks)
        ]
        self.done += len(told)
        pairs = dict(zip(self.tasks, torch.stack(numbers).tolist(), strict=True))
        due = any(task.checkpoints is not None and task.checkpoints.due() for task in self.living)
        ends_epoch = chunks[0].ends_epoch
        if due or ends_epoch:  # each may be asked for its state
            self.stack.hand_out(self.optimizer, self.own)
        for task in self.living:
            try:
                task.account(pairs[task], due, ends_epoch=ends_epoch)
            except Diverged as reason:
                self.diverged[task] = str(reason)
        if not self.living:
            raise Diverged("all of them")

    def _update(self, chunks: Sequence[Chunk], ahead: int) -> tuple[Tensor, Tensor]:
        """An optimizer step of all, on N images each: losses (K,) and logits (K, N, classes)."""
        images = torch.stack([chunk.images[ahead, 0] for chunk in chunks]).to(self.dtype)
        of_images = [_targets(chunk, ahead) for chunk in chunks]
        self.optimizer.zero_grad()
        targets = [torch.stack(each) for each in zip(*of_images, strict=True)]
        losses, logits = self.stack(self._loss, images, *targets)
        losses.sum().backward()
        rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.schedule.step()
        for task in self.living:
            task.rate = rate
            if task.average is not None and not task.of_epochs:
                task.average.update(task.model, self.done + ahead)
        return losses.detach(), logits.detach()

    def _loss(
        self, model: Callable[[Tensor], Tensor], images: Tensor, *targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = model(images)
        return self.tasks[0].reg.loss(logits, *targets), logits

    def on_train_epoch_end(self) -> None:
        saving = [task.checkpoints for task in self.living if task.checkpoints is not None]
        if any(each.due() for each in saving):
            for each in saving:  # those that are as far go on together
                each.hurry()
        for task in self.living:
            task.on_train_epoch_end()

    def on_train_end(self) -> None:
        for task in self.living:
            task.on_train_end()

    def on_validation_epoch_start(self) -> None:
        for task in self.living:
            task.on_validation_epoch_start()

    def validation_step(self, batch: list[Images], index: int) -> None:
        for task, images in self._beside(batch):
            task.validation_step(images, index)

    def test_step(self, batch: list[Images], index: int) -> None:
        for task, images in self._beside(batch):
            task.test_step(images, index)

    def _beside(self, batch: list[Images]) -> list[tuple[Task, Images]]:
        """Those that have not diverged, each with its images."""
        both = zip(self.tasks, batch, strict=True)
        return [(task, images) for task, images in both if task not in self.diverged]


def _targets(chunk: Chunk, ahead: int) -> tuple[Tensor, ...]:
    """What the loss of a step takes beside the logits."""
    labels = chunk.labels[ahead, 0]
    if chunk.partners is None:
        return (labels,)
    return labels, chunk.partners.labels[ahead, 0], chunk.partners.label_share[ahead, 0]


class Side(LightningDataModule):
    """The images of several trainings side by side: a batch is a list with one of each."""

    def __init__(self, together: Together) -> None:
        super().__init__()
        self.together, self.loaders = together, together.loaders

    def train_dataloader(self) -> "_Epochs":
        return _Epochs(self.together)

    def val_dataloader(self) -> "_Beside":
        return _Beside([each.val_dataloader() for each in self.loaders])

    def test_dataloader(self) -> "_Beside":
        return _Beside([each.test_dataloader() for each in self.loaders])

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        both = zip(self.loaders, batch, strict=True)
        return [loaders.on_after_batch_transfer(own, dataloader_idx) for loaders, own in both]


class _Epochs:
    """The chunks of whatever epoch the trainings are in: what is left of it."""

    def __init__(self, together: Together) -> None:
        self.together = together

    def __iter__(self) -> Iterator[list[Chunk]]:
        loaders = self.together.loaders
        place = divmod(self.together.done, loaders[0].order.steps_per_epoch)
        return map(list, zip(*(each.chunks(*place) for each in loaders), strict=True))


class _Beside:
    """Equally long loaders, side by side."""

    def __init__(self, loaders: Sequence[Any]) -> None:
        self.loaders = loaders

    def __len__(self) -> int:
        first: Sized = self.loaders[0]
        return len(first)

    def __iter__(self) -> Iterator[list[Images]]:
        return map(list, zip(*self.loaders, strict=True))


def train(runs: Sequence[Run], plan: Plan) -> list[dict[str, Any]]:
    """Train and test the networks of `runs`, which differ in their seeds; fields of their rows."""
    eager = [run._replace(cell=_eager(run.cell)) for run in runs]
    prepared: list[tuple[Task, Loaders]] = []
    for run in eager:
        one = prepare(
            run.cell, run.curve, run.progress,
            plan=plan, checkpoints=run.checkpoints, state=run.state, save_probe=run.save_probe,
            like=prepared[0][1] if prepared else None,
        )  # fmt: skip
        prepared.append(one)
    tasks, loaders = zip(*prepared, strict=True)
    cell, data = eager[0].cell, loaders[0].data
    known = facts(cell, data) | {
        "plan": str(plan), "loader": loaders[0].means, "stacked_seeds": len(runs),
    }  # fmt: skip
    together = Together(tasks, loaders)
    started = time.monotonic()
    found = _fit_and_test(cell, together)
    seconds = {"seconds": time.monotonic() - started}
    return [
        {**known, **found[task], **seconds, **hardware(cell, task), "resumed": task.resumed}
        for task in tasks
    ]


def _eager(cell: Cell) -> Cell:
    return replace(cell, trainer=replace(cell.trainer, impl="eager"))


def _fit_and_test(cell: Cell, together: Together) -> dict[Task, dict[str, Any]]:
    first, images = together.tasks[0], Side(together)
    trainer = trainer_of(cell, first, together.loaders[0])
    held_out = bool(len(together.loaders[0].splits.val.labels))
    ended = first.done >= first.steps
    try:
        if not ended:
            trainer.fit(together, images)
    except Diverged:
        return {task: _lost(reason) for task, reason in together.diverged.items()}
    if held_out and (first.recipe.recalibration or ended):
        trainer.validate(together, images, verbose=False)  # under the final statistics
    classes = together.loaders[0].data.classes
    found = {task: measured(task, classes, held_out) for task in together.living}
    trainer.test(together, images, verbose=False)
    found = {task: own | tested(task) for task, own in found.items()}
    return found | {task: _lost(reason) for task, reason in together.diverged.items()}


def _lost(reason: str) -> dict[str, Any]:
    return {"status": "diverged", "reason": reason}


def hindrance(cell: Cell) -> str:
    """Why seeds of `cell` cannot be trained together, whatever its network; or nothing."""
    plan, trainer = cell.trainer.layouts(cell.workers)[0], cell.trainer
    reasons = {
        f"trainer.devices={plan.devices}": plan.devices > 1,
        f"{plan.accumulation} forward passes a step": plan.accumulation > 1,
        "precision=16-mixed": cell.precision == "16-mixed",
        "trainer.channels_last=true": trainer.channels_last,
        f"trainer.impl={trainer.impl}": trainer.impl not in ("auto", "eager"),
        "trainer.graphs=true": trainer.graphs,
    }
    return next((reason for reason, there in reasons.items() if there), "")


def unstackable(network: nn.Module, images: int, image: tuple[int, ...]) -> str:
    """Why torch.vmap cannot compute several of `network`, or nothing.

    Args:
        network: on the meta device.
        images: of a step.
        image: shape (C, H, W) of one.
    """
    if drop_layers(network):
        return "paths that are dropped by the seed of each run"
    if NetworkStatistics(network).read_in_training:
        return "running statistics that training reads"
    try:
        x = torch.empty(2, images, *image, device="meta")
        tried = deepcopy(network)
        before = dict(tried.named_buffers())
        tried(x[0])
        if any(each is not before[name] for name, each in tried.named_buffers()):
            return "a layer that replaces its buffers, where vmap needs them changed in place"
        stack = Stack([deepcopy(network), deepcopy(network)])
        stack(lambda model, own: model(own), x).sum().backward()
    except Exception as error:  # code of other people can fail in any way
        return one_line(error)
    return ""
