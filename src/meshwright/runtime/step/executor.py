"""Playing one training step: every task of this rank in the order that the plan's schedule gives it.

PyTorch has pipeline schedules of its own; this executor exists because theirs cannot give stages different numbers of replicas
and run any order of work through a private interface only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel

from meshwright.runtime.model.classes import as_classes
from meshwright.runtime.model.data import Sample
from meshwright.runtime.parallel.sharding import StageWeights
from meshwright.runtime.ranks.layout import Layout
from meshwright.runtime.step.autocast import autocast
from meshwright.runtime.step.clock import Clock
from meshwright.runtime.step.feed import Feed, WholeBatch
from meshwright.runtime.step.p2p import P2PCommunicator
from meshwright.runtime.step.router_loss import RouterLoss
from meshwright.runtime.step.split_backward import DeferredWeightGrad, WaitingGradient
from meshwright.runtime.step.stage import StageModule
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

__all__ = ["Executor", "Span", "StageRun"]


@dataclass(frozen=True, slots=True)
class Span:
    """One task as it happened; seconds since the step began on this rank.

    `stage`, `microbatch`: what.
    `phase`: one of `meshwright.core.timeline.PHASES`, or ``wait`` for messages of other stages.
    `start_seconds`, `end_seconds`: when.
    `cpu_seconds`: time of this thread on a core: less than the span where other programs ran in between.
    """

    stage: int
    microbatch: int
    phase: str
    start_seconds: float
    end_seconds: float
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage as this rank runs it.

    `module`: its layers, wrapped as the plan says.
    `weights`: its weights, and how their gradients are added up.
    `later`: where its weight gradients wait.
    `splits`: whether its backward pass can run in two halves.
    `classes`: the mesh whose ranks each have some classes of the logits; None where each has all, and for other stages than
    the last.
    """

    module: StageModule
    weights: StageWeights
    later: DeferredWeightGrad
    splits: bool
    classes: DeviceMesh | None = None


class Executor:
    """Plays steps.

    Parameters
    ----------
    layout : Layout
        The plan as ranks.
    rank : int
        This process.
    stages : dict of int to StageRun
        The stages of this rank.
    mail : P2PCommunicator
        Its transfers.
    loss_function : callable
        From output and target rows to their mean loss.
    device : torch.device
        Where tensors live.
    precision : torch.dtype or None
        Of products, by autocast; None for that of the weights.

    Attributes
    ----------
    loss_factor_ratio : float
        What the loss is multiplied by before its backward pass; the loss returned is not.
    routers : RouterLoss or None
        What the routers of a mixture add to the loss, where the model asks for that.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        stages: dict[int, StageRun],
        mail: P2PCommunicator,
        loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        device: torch.device,
        precision: torch.dtype | None = None,
    ) -> None:
        self.precision, self.loss_factor_ratio = precision, 1.0
        self.layout, self.rank, self.stages, self.mail = layout, rank, stages, mail
        self.loss_function, self.device = loss_function, device
        self.routers: RouterLoss | None = None
        self.clock = Clock(device)
        self.kept: list[tuple[int, int, str, Any, Any, float]] = []
        self.began = self.cpu = 0.0
        self.origin: Any = self.clock.mark()
        self.loss: torch.Tensor | None = None
        self.held: dict[tuple[int, int], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self.waiting: dict[tuple[int, int], list[WaitingGradient]] = {}
        self.tasks = self._tasks()
        self.parts = {(stage, i): self._slice(stage, i) for stage in stages for i in range(layout.plan.n_microbatches)}
        self.last_backward = {stage: max(i for i, task in enumerate(self.tasks) if task[0] == stage) for stage in stages}

    def _tasks(self) -> list[tuple[int, int, int]]:
        slots = self.layout.slots
        row = self.layout.pipeline_rank_of(self.rank)
        tasks = slice(int(slots.first[row]), int(slots.first[row + 1]))
        return list(
            zip(slots.stage[tasks].tolist(), slots.microbatch[tasks].tolist(), slots.phase[tasks].tolist(), strict=True)
        )

    def whole_batch(self, inputs: Sample, targets: torch.Tensor) -> WholeBatch:
        """Return what feeds a step from a global batch that every process holds, under the loss function given."""
        last, n_samples = self.layout.n_stages - 1, self.layout.plan.global_batch
        return WholeBatch(inputs, targets, self.loss_function, self.parts, last, n_samples, self.routers)

    def _begin(self) -> torch.Tensor:
        """Forget the spans and the loss of the step before; return the loss so far."""
        self.began, self.cpu = time.perf_counter(), time.thread_time()
        self.origin = self.clock.mark()
        self.kept.clear()
        self.loss = torch.zeros((), device=self.device)
        return self.loss

    def evaluate(self, feed: Feed) -> torch.Tensor:
        """Run the forward passes of one step only, in the schedule's order, with layers as in evaluation and no gradients.

        Returns: this rank's share of the loss; zero where it does not hold the last stage.
        """
        loss = self._begin()
        modes = [(part, part.training) for run in self.stages.values() for part in run.module.modules()]
        for run in self.stages.values():
            run.module.eval()
        try:
            with torch.no_grad(), self._losses():
                self.mail.post_first(backward=False)
                for stage, microbatch, phase in self.tasks:
                    if phase == FORWARD:
                        self._forward(stage, microbatch, feed)
                        del self.held[stage, microbatch]
                self.mail.finish()
        finally:
            for part, training in modes:
                part.training = training
            for run in self.stages.values():
                run.weights.reshard()
        return loss

    def run(self, feed: Feed) -> torch.Tensor:
        """Run forward and backward passes of one step; gradients are complete afterwards.

        Returns: this rank's share of the loss; zero where it does not hold the last stage.
        """
        with self._losses():
            return self._run(feed)

    def _losses(self) -> AbstractContextManager[object]:
        """Return a context in which losses may be of logits of which each rank has some classes."""
        return loss_parallel() if any(run.classes is not None for run in self.stages.values()) else nullcontext()

    def _run(self, feed: Feed) -> torch.Tensor:
        """Do what `run` does."""
        loss = self._begin()
        self.mail.post_first()
        for i, (stage, microbatch, phase) in enumerate(self.tasks):
            last = i == self.last_backward[stage]
            if phase == FORWARD:
                self._forward(stage, microbatch, feed)
            elif phase == BACKWARD_WEIGHT:
                self._weight(stage, microbatch, last)
            else:
                self._backward(stage, microbatch, phase == BACKWARD_INPUT, last)
            if last:
                started = self.clock.mark()
                self.stages[stage].weights.start_reduction()
                self.note(stage, -1, "reduce", started)
        self.mail.finish()
        started = self.clock.mark()
        for stage, run in self.stages.items():
            run.weights.finish_reduction()
            self.note(stage, -1, "reduce", started)
            started = self.clock.mark()
        return loss

    def note(self, stage: int, microbatch: int, phase: str, started: Any) -> None:
        """Keep a span that began at the mark `started` and ends now."""
        now = time.thread_time()
        self.kept.append((stage, microbatch, phase, started, self.clock.mark(), now - self.cpu))
        self.cpu = now

    @property
    def spans(self) -> list[Span]:
        """What this rank did in the last step, and when."""
        self.clock.finish()
        since = self.clock.seconds
        return [
            Span(stage, microbatch, phase, since(self.origin, first), since(self.origin, last), cpu)
            for stage, microbatch, phase, first, last, cpu in self.kept
        ]

    def _slice(self, stage: int, microbatch: int) -> tuple[int, int]:
        """Return the samples of the step that this rank's replica of a stage works on."""
        first, stop = self.layout.microbatch_rows(microbatch)
        low, high = self.layout.rows(stage, self.layout.seat(self.rank, stage).data, stop - first)
        return first + low, first + high

    def _receive(self, stage: int, microbatch: int, direction: int) -> list[torch.Tensor]:
        started = self.clock.mark()
        tensors = self.mail.receive(stage, microbatch, direction)
        self.note(stage, microbatch, "wait", started)
        return tensors

    def _forward(self, stage: int, microbatch: int, feed: Feed) -> None:
        if stage == 0:
            carried = list(feed.inputs(microbatch))
        else:
            received = zip(self.mail.crossings[stage - 1], self._receive(stage, microbatch, 0), strict=True)
            carried = [tensor.requires_grad_(entry.comes_back) for entry, tensor in received]
        started = self.clock.mark()
        with autocast(self.device, self.precision):
            result = list(self.stages[stage].module(*carried))
            if stage == self.layout.n_stages - 1:
                assert self.loss is not None
                classes = self.stages[stage].classes
                result[0] = result[0] if classes is None else as_classes(result[0], classes)
                loss = feed.loss(microbatch, *result)
                self.loss += loss.detach()
                result = [loss * self.loss_factor_ratio]
        self.held[stage, microbatch] = (carried, result)
        self.note(stage, microbatch, "forward", started)
        if stage < self.layout.n_stages - 1:
            self.mail.send(stage, microbatch, 0, [tensor.detach() for tensor in result])

    def _backward(self, stage: int, microbatch: int, input_only: bool, last: bool) -> None:
        run = self.stages[stage]
        carried, result = self.held.pop((stage, microbatch))
        gradients: list[Any] = [None]
        if stage < self.layout.n_stages - 1:
            gradients = list(self._receive(stage, microbatch, 1))
            result = [tensor for entry, tensor in zip(self.mail.crossings[stage], result, strict=True) if entry.comes_back]
        started = self.clock.mark()
        delayed = input_only and run.splits
        ends = last or (input_only and not run.splits and self._is_last_input(stage, microbatch))
        run.weights.before_backward(is_last=ends, completes=last and not input_only)
        run.later.collecting = [] if delayed else None
        pairs = [(tensor, gradient) for tensor, gradient in zip(result, gradients, strict=True) if tensor.requires_grad]
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        if delayed:
            self.waiting[stage, microbatch] = run.later.collecting or []
        run.later.collecting = None
        if not input_only:
            run.weights.after_backward()
        self.note(stage, microbatch, "backward_input" if input_only else "backward", started)
        if stage > 0:
            sent = [_gradient(tensor) for tensor in carried if tensor.requires_grad]
            self.mail.send(stage, microbatch, 1, sent)

    def _is_last_input(self, stage: int, microbatch: int) -> bool:
        passes = [task[1] for task in self.tasks if task[0] == stage and task[2] in (BACKWARD, BACKWARD_INPUT)]
        return passes[-1] == microbatch

    def _weight(self, stage: int, microbatch: int, last: bool) -> None:
        started = self.clock.mark()
        waiting, weights = self.waiting.pop((stage, microbatch), []), self.stages[stage].weights
        left = Counter(weight for _, own in waiting for weight in own)
        if last:  # what does not wait has been complete since the last pass back
            weights.complete(weight for weight in weights.parameters if weight not in left)
        for gradient, own in waiting:
            gradient()
            left.subtract(own)
            if last:
                weights.complete(weight for weight in own if not left[weight])
        weights.after_backward()
        self.note(stage, microbatch, "backward_weight", started)


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Return the gradient of what a stage received: zeros where nothing depends on it."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
