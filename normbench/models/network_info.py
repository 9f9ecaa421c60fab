"""Properties of a network that are known without training it, from one build on the meta device.

The preflight, the cost model, the catalog and the row of a run read them here. What recognizes
layers of timm is imported when it is needed: timm takes a second, and most grids need none of it.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from normbench.errors import Impossible
from normbench.models.profile import count_macs, count_operations, dry_run
from normbench.models.random_layers import random_layers
from normbench.norms.base.layer import NormAct, Normalizer
from normbench.norms.base.progress import scheduled_layers
from normbench.norms.batch import is_batch_norm
from normbench.norms.workers import set_workers

if TYPE_CHECKING:
    from normbench.models.coverage import Coverage


@dataclass(frozen=True)
class NetworkInfo:
    """Size, work and restrictions of a network; each is computed when it is first read."""

    network: nn.Module  # images (N, C, H, W) -> logits, on the meta device
    norm: Normalizer  # its layers may be of classes outside of this package
    image_shape: tuple[int, int, int]  # (C, H, W) of an evaluation
    train_shape: tuple[int, int, int]
    #: Layers with the shape (C, H, W) of their maps in training, once a forward pass has worked.
    _normalized: list[tuple[NormAct, torch.Size]] = field(default_factory=list, init=False)

    def try_training(self, workers: int, global_batch: int) -> None:
        """Run a forward pass of training on shapes, with the images of all workers.

        With other numbers of images only the normalizers can refuse, so from the second time on
        they alone are asked, if all of them are ours.

        Raises:
            Impossible: the images are too small, or a normalizer refuses their number.
        """
        set_workers(self.network, workers)  # a refusal depends on the images per worker
        if not self._normalized or self._has_foreign_norms:
            work = self._dry_run(global_batch)
            vars(self).setdefault("_training_work", work)  # so it is not counted in a second pass
            return
        for layer, maps in self._normalized:
            if reason := layer.refusal(torch.Size((global_batch, *maps))):
                raise Impossible(reason)

    def _dry_run(self, images: int) -> tuple[int, Counter[int]]:
        """Return `_training_work`, and set `_normalized`."""
        normalized: list[tuple[Any, torch.Size]] = []
        hooks = [
            layer.register_forward_pre_hook(
                lambda layer, inputs: normalized.append((layer, inputs[0].shape[1:]))
            )
            for layer in self.layers
        ]
        try:
            work = dry_run(self.network, images, self.train_shape)
        finally:
            for hook in hooks:
                hook.remove()
        self._normalized[:] = normalized
        return work

    @cached_property
    def params(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of the forward pass of one image of an evaluation."""
        if self.image_shape == self.train_shape and self._trains_as_evaluated:
            return self.trained_macs
        return count_macs(self.network, self.image_shape)[0]

    @property
    def trained_macs(self) -> int:
        """Multiply-adds of the forward pass of one image of training."""
        return self._training_work[0]

    @property
    def grouped_macs(self) -> Counter[int]:
        """The part of `trained_macs` in grouped convolutions, by input channels of a group."""
        return self._training_work[1]

    @cached_property
    def _training_work(self) -> tuple[int, Counter[int]]:
        training = not self._trains_as_evaluated
        return count_macs(self.network, self.train_shape, training=training)

    @property
    def _trains_as_evaluated(self) -> bool:
        """True if a forward pass of training has the operations of one of an evaluation."""
        return bool(getattr(self.network, "trains_as_evaluated", True))

    @cached_property
    def inference(self) -> tuple[int, int] | tuple[None, None]:
        """Parameters, and operations of an evaluation of one image, of the folded network.

        None where the network cannot be traced or folded.
        """
        from normbench.models.fold import fold

        try:
            folded = fold(self.network, self.image_shape)
            operations = count_operations(folded, self.image_shape)
        except Exception:  # foreign code can raise anything, and no run needs these numbers
            return None, None
        return sum(parameter.numel() for parameter in folded.parameters()), operations

    @cached_property
    def coverage(self) -> "Coverage":
        """Layers that the normalizer provides, and those that it left alone."""
        from normbench.models.coverage import coverage

        return coverage(self.network, self.norm)

    @cached_property
    def layers(self) -> list[NormAct]:
        """Normalization layers."""
        return [module for module in self.network.modules() if isinstance(module, NormAct)]

    @property
    def groups(self) -> list[int]:
        """Numbers of groups in use, sorted."""
        groups: set[Any] = {layer.groups for layer in self.layers if hasattr(layer, "groups")}
        return sorted(groups)

    def row_fields(self) -> dict[str, Any]:
        """Return the fields of a row that follow from the network."""
        inference_params, inference_operations = self.inference
        return {
            "params": self.params,
            "macs": self.macs,
            "inference_params": inference_params,
            "inference_operations": inference_operations,
            "coverage": str(self.coverage),
            "groups": self.groups,
            "batch_independent": self.batch_independent,
        }

    @property
    def is_library_model(self) -> bool:
        """True if the normalizer was swapped into a model of timm."""
        return isinstance(self.network, fx.GraphModule)  # which the swap returns

    @cached_property
    def has_library_batch_norm(self) -> bool:
        """True if batch normalizations of torch or timm are left, which know no workers."""
        return any(map(is_batch_norm, self.network.modules()))

    @property
    def _has_foreign_norms(self) -> bool:
        """True if a normalization is of a class outside of this package."""
        ours = all(type(layer).__module__.startswith("normbench.norms.") for layer in self.layers)
        return self.has_library_batch_norm or not ours

    @property
    def batch_independent(self) -> bool:
        """True if no image of a batch influences another one."""
        return self._is_declared("batch_independent")

    @property
    def worker_independent(self) -> bool:
        """True if the division of the images among workers changes nothing."""
        return self._is_declared("worker_independent")

    def _is_declared(self, attribute: str) -> bool:
        declared = all(getattr(each, attribute) for each in (self.norm, *self.layers))
        return declared and not self.has_library_batch_norm

    @property
    def whole_step(self) -> bool:
        """True if batch statistics are those of all images of a step (synchronized)."""
        return any(layer.whole_step for layer in self.layers)

    @cached_property
    def exact_accumulation_refusal(self) -> str:
        """Reason why `ExactAccumulation` refuses the network, or ""."""
        from normbench.models.exact_accumulation import ExactAccumulation

        try:
            ExactAccumulation(self.network).check(self.train_shape)
        except Impossible as reason:
            return str(reason)
        return ""

    @property
    def requires_checkpoint(self) -> str:
        """Reason why the network cannot be trained from scratch, or ""."""
        return next((layer.unfinished for layer in self.layers if layer.unfinished), "")

    @property
    def changes_every_step(self) -> bool:
        """True if Python code sets something anew in every step: dropped paths, bounds."""
        return bool(scheduled_layers(self.network) or random_layers(self.network))
