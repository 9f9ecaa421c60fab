"""Gradient accumulation with batch statistics over all passes.

Gradients and running statistics equal those of one pass over all images, up to rounding. Plain
accumulation normalizes each pass by its own statistics. Here the network is split into segments
before each layer with statistics of the whole step (`norm=sync_bn`, `norm.sync=true` of switchable
normalization). Forward, all passes compute a segment, then their moments are merged for the next
one. Backward, from the last segment to the first, each pass computes its segment again, with
gradients. The gradients of merged moments are summed over the passes before each pass
backpropagates them into its maps.

    accumulation = ExactAccumulation(network)
    accumulation.backward(
        passes, lambda logits, k: F.cross_entropy(logits, labels[k]) / len(passes)
    )

The device holds the activations of one segment of one pass. Main memory holds the tensors that
later segments use, and their gradients, for all passes. Every segment but the last is computed
twice.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from normbench.errors import Impossible
from normbench.models.fx_graph import is_in_place, layer, trace_training
from normbench.norms.base.devices import count_devices, merge_devices
from normbench.norms.base.layer import NormAct
from normbench.norms.base.moments import Moments, merge_moments
from normbench.norms.batch import is_batch_norm
from normbench.norms.whole_step import is_synchronized

Results = dict[fx.Node, Any]


@dataclass
class Segment:
    """Calls between two layers with statistics of the whole step.

    Args:
        layer: of the first call; None in the first segment.
        calls: the calls, each after those whose results it uses.
        inputs: calls before the segment whose results it uses, and attributes of the network.
        outputs: calls whose results later segments use.
    """

    layer: Any
    calls: list[fx.Node] = field(default_factory=list)
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)

    @property
    def maps(self) -> fx.Node:
        """The call whose result `layer` normalizes."""
        return self.calls[0].all_input_nodes[0]


class ExactAccumulation:
    """The gradients of a network over several passes, with batch statistics of all of them.

    Args:
        network: from images (N, C, H, W) to any output, in training mode and on its device.

    Raises:
        Impossible: a layer has statistics of one pass, or the network cannot be traced or split.
    """

    def __init__(self, network: nn.Module) -> None:
        _require_synchronized(network)
        self.module = trace_training(network)
        calls = [call for call in self.module.graph.nodes if call.op != "placeholder"]
        self.images, *others = self.module.graph.find_nodes(op="placeholder")
        if required := [each.target for each in others if not each.args]:
            raise Impossible(f"the network has another input than images, {required[0]}")
        self.defaults: Results = {each: each.args[0] for each in others}
        self.segments = _split(self.module, calls)
        self._interpreter = fx.Interpreter(self.module, garbage_collect_values=False)

    def backward(
        self,
        passes: Sequence[Tensor],
        loss: Callable[[Any, int], Tensor],
        before_segment: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Add the gradients of the sum of the losses to those of the parameters.

        Running statistics move once, towards the statistics of all images.

        Args:
            passes: images (N, C, H, W) of each pass, equally many, on the network's device.
            loss: returns a pass's share in the loss, from the network's output and the number of
                the pass.
            before_segment: called with the number of a pass before each computation of a segment,
                the second one, too, so that layers can draw the same random numbers in both.

        Raises:
            ValueError: there is no pass, or passes have unequal numbers of images.
            Impossible: a later segment uses a list of tensors, or a channel has a single value.
        """
        if len({len(images) for images in passes}) != 1:
            raise ValueError(
                f"passes of {[len(images) for images in passes]} images: all have equally many"
            )
        step = _Step(self, passes, before_segment)
        try:
            step.compute_moments()
            torch.clear_autocast_cache()  # of weights without gradients, in older versions of torch
            step.backpropagate(loss)
        finally:
            self._forget_moments()

    def check(self, image: tuple[int, int, int]) -> None:
        """Compute all segments but the last for two passes of noise; raise as `backward` does.

        Args:
            image: (C, H, W) of an image.
        """
        parameter = next(self.module.parameters())
        noise = torch.randn(2, *image, device=parameter.device, dtype=parameter.dtype)
        try:
            _Step(self, [noise, noise], lambda _: None).compute_moments()
        finally:
            self._forget_moments()

    def compute(self, segment: Segment, results: Results, device: torch.device) -> Results:
        """Return the results of all calls of `segment`, from `results` of earlier ones."""
        own: Results = {}
        for call in segment.inputs:
            if call.op == "get_attr":
                own[call] = self._interpreter.run_node(call)
            else:
                own[call] = _copy(results[call], device)
        self._interpreter.env = own
        for call in segment.calls:
            own[call] = self._interpreter.run_node(call)
        self._interpreter.env = {}  # or it keeps the results
        return own

    def _forget_moments(self) -> None:
        for segment in self.segments[1:]:
            segment.layer.shared_moments = None


class _Step:
    """The passes of one optimizer step."""

    def __init__(
        self,
        accumulation: ExactAccumulation,
        passes: Sequence[Tensor],
        before_segment: Callable[[int], object],
    ) -> None:
        self.accumulation, self.segments = accumulation, accumulation.segments
        self.before_segment, self.device = before_segment, passes[0].device
        #: Of each pass: what later segments use; gradients accumulate in `grad` of each tensor.
        self.stored: list[Results] = [
            {accumulation.images: images, **accumulation.defaults} for images in passes
        ]
        self.merged: list[_MergedMoments] = []  # before each segment but the first
        #: Of torch's generators before a segment of a pass, for layers as nn.Dropout.
        self.random_states: dict[tuple[int, int], list[Tensor]] = {}

    def compute_moments(self) -> None:
        """Compute all segments but the last, and merge the moments before each next one."""
        for index, following in enumerate(self.segments[1:]):
            passes = [self._compute_pass(index, number) for number in range(len(self.stored))]
            self.merged.append(_MergedMoments([moments for moments, _ in passes]))
            values = sum(values for _, values in passes) * count_devices()
            if values == 1:
                raise Impossible("synchronized statistics of a single value per channel")
            following.layer.track_step(self.merged[-1].leaves, values)

    def _compute_pass(self, index: int, pass_number: int) -> tuple[Moments, int]:
        """Store what later segments use; return the moments of the next layer and their values."""
        segment, layer = self.segments[index], self.segments[index + 1].layer
        with torch.no_grad():
            results = self._compute(index, pass_number)
            maps = results[self.segments[index + 1].maps]
            moments = layer.pass_moments(maps)
        stored = {call: _store(call, results[call]) for call in segment.outputs}
        self.stored[pass_number] |= stored
        return moments, maps.numel() // layer.channels

    def backpropagate(self, loss: Callable[[Any, int], Tensor]) -> None:
        """Compute all segments again, from the last to the first, and add their gradients."""
        last = len(self.segments) - 1
        output = self.segments[last].calls[-1]
        for number in range(len(self.stored)):
            loss(self._compute(last, number)[output], number).backward()
        after = _random_state(self.device)
        for index in range(last - 1, -1, -1):
            self.merged[index].backpropagate()
            for number in range(len(self.stored)):
                self._backpropagate_pass(index, number)
        _set_random_state(after, self.device)

    def _backpropagate_pass(self, index: int, pass_number: int) -> None:
        segment, following = self.segments[index], self.segments[index + 1]
        stored = self.stored[pass_number]
        results = self._compute(index, pass_number)
        tensors = [call for call in segment.outputs if isinstance(stored[call], Tensor)]
        outputs = [(results[call], stored[call].grad) for call in tensors]
        moments = following.layer.pass_moments(results[following.maps])
        outputs += zip(moments, self.merged[index].gradients(pass_number), strict=True)
        _backpropagate(outputs)
        for call in segment.outputs:
            del stored[call]  # all that use it have been computed

    def _compute(self, index: int, pass_number: int) -> Results:
        segment = self.segments[index]
        if index:
            segment.layer.shared_moments = self.merged[index - 1].leaves
        self.before_segment(pass_number)
        if (index, pass_number) in self.random_states:
            _set_random_state(self.random_states[index, pass_number], self.device)
        else:
            self.random_states[index, pass_number] = _random_state(self.device)
        return self.accumulation.compute(segment, self.stored[pass_number], self.device)


class _MergedMoments:
    """Moments merged over all passes, and their gradients with respect to those of each pass."""

    def __init__(self, of_passes: Sequence[Moments]) -> None:
        #: Means and variances (A, 1, C) of the passes.
        self.parts = [torch.stack(each).requires_grad_() for each in zip(*of_passes, strict=True)]
        self.merged = merge_devices(*merge_moments(self.parts[0], self.parts[1], dim=0))
        #: Mean and variance (1, C) of all passes, which collect the gradients of the layer.
        self.leaves = tuple(each.detach().requires_grad_() for each in self.merged)

    def backpropagate(self) -> None:
        """Backpropagate the gradients of `leaves` into `parts`, on all devices."""
        torch.autograd.backward(self.merged, [_gradient(each) for each in self.leaves])

    def gradients(self, pass_number: int) -> list[Tensor]:
        """Return the gradients of the mean and the variance of a pass."""
        return [_gradient(each)[pass_number] for each in self.parts]


def _split(module: fx.GraphModule, calls: Sequence[fx.Node]) -> list[Segment]:
    segments = [Segment(None)]
    home: dict[fx.Node, Segment] = {}
    for call in calls:
        called = layer(module, call)
        if is_synchronized(called) and called.training:
            segments.append(Segment(called))
        elif called is not None and any(map(is_synchronized, called.modules())):
            raise Impossible(
                f"{call.target}: only normalizations of maps (N, C, H, W) can have statistics of "
                f"several passes, in training, not those inside of {type(called).__name__}"
            )
        if call.op != "get_attr":  # parameters are looked up where they are used
            # An element belongs to its list, as single tensors alone are stored; but not a part
            # whose place is computed in a later segment.
            home[call] = segments[-1]
            if call.target is operator.getitem and call.args[0] in home:
                source, *place = call.all_input_nodes
                if all(home.get(each) is home[source] for each in place):
                    home[call] = home[source]
            home[call].calls.append(call)
    for index, segment in enumerate(segments):
        sources = [source for call in segment.calls for source in call.all_input_nodes]
        if index + 1 < len(segments):
            sources.append(segments[index + 1].maps)
        segment.inputs = [
            source for source in dict.fromkeys(sources) if home.get(source) is not segment
        ]
        for source in segment.inputs:
            if source in home and source not in home[source].outputs:
                home[source].outputs.append(source)
    _require_visible_changes(module, segments)
    return segments


def _require_visible_changes(module: fx.GraphModule, segments: Sequence[Segment]) -> None:
    """Raise Impossible if an operation changes a copy in place, which later segments do not see."""
    for index, segment in enumerate(segments):
        later = {call for each in segments[index + 1 :] for call in each.inputs}
        passed_on = later.intersection(segment.inputs)
        for call in segment.calls:
            if is_in_place(module, call) and call.all_input_nodes[0] in passed_on:
                raise Impossible(
                    f"{call.all_input_nodes[0].name} is changed in place after a synchronized "
                    "normalization and used after the next one, too; norm=bn or a plan of one pass "
                    "works"
                )


def _require_synchronized(network: nn.Module) -> None:
    """Raise Impossible if a layer has batch statistics of one pass."""
    for name, module in network.named_modules():
        per_pass = isinstance(module, NormAct) and not module.worker_independent
        if is_batch_norm(module) or per_pass:
            raise Impossible(
                f"{name}: {type(module).__name__} has statistics of one pass; accumulation is "
                "exact if all layers with batch statistics are synchronized (norm=sync_bn)"
            )


def _copy(value: Any, device: torch.device) -> Any:
    # A copy, as operations in place may overwrite it.
    return value.to(device, copy=True) if isinstance(value, Tensor) else value


def _store(call: fx.Node, value: Any) -> Any:
    """Return a result for later segments; a tensor in main memory, which collects its gradient."""
    if isinstance(value, Tensor):
        kept = value.detach().cpu() if value.is_cuda else value.detach()
        return kept.requires_grad_(value.is_floating_point())
    if isinstance(value, Iterable) and any(isinstance(each, Tensor) for each in value):
        raise Impossible(
            f"{call.name}: a list of tensors is used beyond the next synchronized normalization, "
            "and only single tensors can be; norm=bn or a plan of one pass works"
        )
    return value


def _backpropagate(outputs: Sequence[tuple[Any, Tensor | None]]) -> None:
    """Backpropagate the gradients of outputs into parameters and stored inputs."""
    reached = [
        (value, gradient.to(value.device))
        for value, gradient in outputs
        if gradient is not None and value.requires_grad
    ]
    if reached:
        values, gradients = zip(*reached, strict=True)
        torch.autograd.backward(values, gradients)


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
