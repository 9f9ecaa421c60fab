"""Refusals of cells that cannot be trained, in one sentence each, before any training.

Every function takes what it needs to know, and raises `BadInput` for an option that no run can use,
or `Impossible` for a cell of a grid that cannot work.
"""

from normbench.config.cells import Cell
from normbench.data.maps import CLASS, INSTANCE
from normbench.errors import BadInput, Impossible
from normbench.models.network_info import NetworkInfo
from normbench.norms import kernels
from normbench.norms.inference import weighable_layers
from normbench.training.experiment import Experiment
from normbench.training.hardware import missing_compiler, uses_gpu
from normbench.training.parameter_groups import FEATURES, list_parameters, number_blocks
from normbench.training.recipe import Recipe


def require_task(experiment: Experiment) -> None:
    """Refuse a data set without the targets of the task, and what only classification supports.

    Raises:
        BadInput: no run of this task can use an option.
    """
    cell, task, reg = experiment.cell, experiment.task, experiment.reg
    known = experiment.data.known_maps
    fitting = "task=classify"
    if known:
        fitting = "task=segment" if CLASS in known else "task=depth"
        if INSTANCE in known:
            fitting = "task=detect"
    if not set(task.maps) <= set(known):
        raise BadInput(
            f"task={cell.task.name}: data={cell.data.name} has not the targets that it predicts; "
            f"data=scattered_digits has them, and with this data set {fitting} works"
        )
    if task.by_image and experiment.data.maps:
        raise BadInput(
            f"task={cell.task.name}: data={cell.data.name} has targets for pixels and none for an "
            f"image; {fitting} works"
        )
    if experiment.data.skew is not None:
        _require_divisible(experiment)
    if task.by_image:
        return
    weight = experiment.recipe.example_weight
    refused = [
        (reg.mixes, f"reg={cell.reg.name} mixes images and not targets of pixels", "reg=none"),
        (
            bool(reg.policies),
            f"reg={cell.reg.name} distorts images and not targets of pixels",
            "reg=none",
        ),
        (
            bool(reg.erasing),
            f"reg.erasing={reg.erasing} erases parts of images and not targets of pixels",
            "reg.erasing=null",
        ),
        (
            weight is not None,
            f"recipe.example_weight={weight} counts images that are right or wrong",
            "recipe.example_weight=null",
        ),
        (
            bool(reg.label_smoothing) and not task.smooths_labels,
            f"reg={cell.reg.name} smooths labels, and the loss of this task has no label smoothing",
            "reg.label_smoothing=0",
        ),
        (
            experiment.recipe.adaptive_clip is not None,
            f"recipe.adaptive_clip={experiment.recipe.adaptive_clip} leaves out the classifier, "
            "which this network lacks",
            "recipe.adaptive_clip=null",
        ),
        *_refusals_of_regions(experiment),
    ]
    for applies, reason, remedy in refused:
        if applies:
            raise BadInput(f"task={cell.task.name}: {reason}; {remedy} works")


def _require_divisible(experiment: Experiment) -> None:
    """Refuse to divide classes among workers where images are mixed or have no class."""
    cell, skew = experiment.cell, experiment.data.skew
    if experiment.reg.mixes:
        raise BadInput(
            f"data.skew={skew}: every worker has images of its own, and reg={cell.reg.name} mixes "
            "them with those of others; reg=none works"
        )
    if not experiment.task.by_image:
        raise BadInput(
            f"task={cell.task.name}: data.skew={skew} divides the classes of images, and scenes "
            "have none; data.skew=null works"
        )


def _refusals_of_regions(experiment: Experiment) -> list[tuple[bool, str, str]]:
    """Return (applies, reason, remedy) for options that a varying number of regions rules out."""
    if not experiment.task.by_region:
        return []
    trainer, recalibration = experiment.cell.trainer, experiment.recipe.recalibration
    dropout, varies = experiment.reg.norm_dropout, "the number of an image's regions varies"
    return [
        (
            recalibration is not None,
            f"recipe.recalibration={recalibration} computes running statistics without targets, "
            "without which the heads get no regions of a training",
            "recipe.recalibration=null",
        ),
        (
            dropout is not None,
            f"reg.norm_dropout={dropout} drops by image, and {varies}",
            "reg.norm_dropout=null",
        ),
        (
            trainer.impl == "compile",
            f"trainer.impl=compile compiles steps of equal shapes, and {varies}",
            "trainer.impl=eager",
        ),
        (
            trainer.cuda_graph,
            f"trainer.cuda_graph=true repeats a step of equal shapes, and {varies}",
            "trainer.cuda_graph=false",
        ),
    ]


def require_plan(experiment: Experiment, info: NetworkInfo) -> None:
    """Refuse a plan that the network does not allow, and roles in which it has no parameter."""
    cell, trainer = experiment.cell, experiment.cell.trainer
    plan = trainer.plans(cell.workers)[0]
    if plan.accumulation > 1 and (reason := experiment.explain_single_pass(info)):
        raise BadInput(
            f"trainer.per_forward={trainer.per_forward}: {cell.title} has synchronized statistics, "
            f"and {reason}; trainer.per_forward=null works, perhaps with more trainer.devices"
        )
    if info.has_library_batch_norm and (plan.devices > 1 or plan.accumulation > 1):
        raise BadInput(
            f"trainer.devices={trainer.devices} trainer.per_forward={trainer.per_forward}: "
            f"{cell.title} keeps batch normalizations of the library, which compute statistics of "
            "a whole forward pass; trainer.devices=1 trainer.per_forward=null works"
        )
    roles = sorted({each.role for each in list_parameters(info.network)})
    for role in cell.init_only or ():
        if role not in (*roles, FEATURES):
            raise BadInput(
                f"init_only=[{role}]: {cell.title} has no parameter of that role; it has "
                f"{', '.join(roles)}; {FEATURES} takes everything but the classifier"
            )


def require_compiler(cell: Cell) -> None:
    """Refuse layers that need a compiler or a device that is missing here.

    Raises:
        BadInput: `trainer.impl` asks for them.
    """
    if cell.trainer.impl == "compile" and (name := missing_compiler(cell)):
        raise BadInput(
            f"trainer.impl=compile: torch needs a compiler, and {name} is not installed; "
            "trainer.impl=eager works"
        )
    if cell.trainer.impl == "triton" and not (kernels.available() and uses_gpu(cell)):
        reason = "triton is not installed" if uses_gpu(cell) else "this run is for a CPU"
        raise BadInput(
            "trainer.impl=triton: the kernels need a CUDA device and the package triton, and "
            f"{reason}; trainer.impl=eager works"
        )


def require_cuda_graph(cell: Cell, *, changes_every_step: bool) -> None:
    """Refuse CUDA graphs of steps that differ: a graph repeats what was captured in the first one.

    Raises:
        BadInput: `trainer.cuda_graph` asks for them.
    """
    devices = cell.trainer.plans(cell.workers)[0].devices
    reasons = {
        "it needs a CUDA device, and this run is for a CPU": not uses_gpu(cell),
        f"a graph belongs to one process, and trainer.devices={devices} are several": devices > 1,
        "precision=16-mixed changes the loss scale from step to step": cell.precision == "16-mixed",
        f"{cell.title} drops other paths, or has other bounds, in each step": changes_every_step,
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if cell.trainer.cuda_graph and reason is not None:
        raise BadInput(f"trainer.cuda_graph=true: {reason}; trainer.cuda_graph=false works")


def require_images(cell: Cell, images: int) -> None:
    """Refuse a global batch that is larger than the training split of `images`."""
    if not images:
        raise BadInput(f"data={cell.data.name} has no training image; name one with images")
    if cell.global_batch > images:
        workers = images // cell.batch
        largest = f"workers={workers}"
        if cell.protocol != "fixed_workers":
            largest = f"global_batch={workers * cell.batch}"
        if not workers:
            largest = f"batch={images}"
        raise BadInput(
            f"batch={cell.batch}: {cell.workers} workers of {cell.batch} images make a global "
            f"batch of {cell.global_batch}; data={cell.data.name} has {images} training images "
            f"(data.val={cell.data.options['val']} held out); at most {largest} works"
        )


def require_learning_rate(cell: Cell, recipe: Recipe) -> None:
    """Refuse a global batch for which the recipe has no learning rate."""
    if recipe.rates and "lr" in cell.recipe.changed:
        raise BadInput(
            f"recipe.lr={recipe.lr:g}: recipe={cell.recipe.name} has recipe.rates in its place; "
            "'~recipe.rates' '+recipe.rates={}' empties these"
        )
    try:
        recipe.peak_lr(cell.global_batch)
    except ValueError as error:  # a paper's table of learning rates lacks this global batch
        raise BadInput(f"{cell.title}: recipe={cell.recipe.name} {error}") from None


def require_held_out(recipe: Recipe, images: int) -> None:
    """Refuse to choose the weight of an image without held-out `images`."""
    if recipe.example_weight and not images:
        raise BadInput(
            f"recipe.example_weight={recipe.example_weight}: data.val=0 holds out no images to "
            "choose the weight on, and it must not be chosen on the test images; data.val=0.1 works"
        )


def require_weighable(cell: Cell, recipe: Recipe, info: NetworkInfo) -> None:
    """Refuse to weight images in a network whose layers have no running mean and variance.

    Raises:
        Impossible: no layer supports an example weight.
    """
    if recipe.example_weight and not weighable_layers(info.network):
        raise Impossible(
            f"recipe.example_weight={recipe.example_weight}: norm={cell.norm.name} has no layer "
            "with running means in which an image could count; bn, bgn or gn works, as does "
            "recipe.example_weight=null"
        )


def require_trainable(cell: Cell, info: NetworkInfo) -> None:
    """Refuse a training from scratch where layers only continue another one.

    Raises:
        Impossible: the network has layers that need values of a checkpoint.
    """
    takes_values = cell.init_only is None or not {"ratio", FEATURES}.isdisjoint(cell.init_only)
    # Weights of timm have the running statistics of batch normalizations, but no ratios.
    unfinished = [each for each in info.layers if each.unfinished]
    keeps = all(getattr(each, "has_inherited_statistics", False) for each in unfinished)
    pretrained = keeps and cell.model.options.get("arguments", {}).get("pretrained")
    if info.requires_checkpoint and not (pretrained or (cell.init_from and takes_values)):
        raise Impossible(info.requires_checkpoint)


def require_ratios(cell: Cell, recipe: Recipe, info: NetworkInfo) -> None:
    """Refuse to clip the gradients of ratios in a network without ratios.

    Raises:
        Impossible: no parameter is a ratio's.
    """
    if recipe.ratio_clip and all(each.role != "ratio" for each in list_parameters(info.network)):
        raise Impossible(
            f"recipe.ratio_clip={recipe.ratio_clip:g}: {cell.title} has no ratios, whose gradients "
            "it clips; norm=sn or ssn works, as does recipe.ratio_clip=null"
        )


def require_blocks(recipe: Recipe, info: NetworkInfo) -> None:
    """Refuse learning rates by block in a network that does not tell its blocks.

    Raises:
        Impossible: it does not.
    """
    if recipe.layer_decay is None:
        return
    try:
        number_blocks(info.network)
    except ValueError as reason:
        raise Impossible(
            f"recipe.layer_decay={recipe.layer_decay:g}: {reason}; a ResNet, a mobile network or "
            "most models of timm do, and recipe.layer_decay=null works with all"
        ) from None


def require_epochs(cell: Cell, recipe: Recipe, images: int) -> None:
    """Refuse checkpoints of epochs that the training does not reach."""
    steps = recipe.count_steps(images, cell.global_batch)
    complete = steps // (images // cell.global_batch)  # training may end within an epoch
    if late := [epoch for epoch in cell.checkpoint.epochs if epoch > complete]:
        raise BadInput(
            f"checkpoint.epochs={list(cell.checkpoint.epochs)}: {cell.title} ends after {steps} "
            f"steps, which are {complete} complete epochs, and never reaches the end of epoch "
            f"{late[0]}"
        )


def require_device(cell: Cell, gpus: int, needed: int) -> None:
    """Refuse a device that this machine does not have."""
    if cell.trainer.accelerator == "gpu" and not gpus:
        raise BadInput("trainer=gpu: no CUDA device is visible; trainer=cpu or trainer=auto works")
    if gpus and cell.trainer.accelerator != "cpu" and needed > gpus:
        raise BadInput(
            f"trainer.devices={cell.trainer.devices}: {needed} processes of a run on this machine "
            f"need as many CUDA devices, and {gpus} are visible; use at most "
            f"trainer.devices={gpus}"
        )
    on_cpu = cell.trainer.accelerator == "cpu" or not gpus
    if cell.precision == "16-mixed" and on_cpu:
        raise BadInput("precision=16-mixed needs a CUDA device; on the CPU bf16-mixed works")
