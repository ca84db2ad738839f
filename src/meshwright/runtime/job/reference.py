"""The same training in one process: what a run is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from meshwright.runtime.job import weight_files
from meshwright.runtime.job.job import Job
from meshwright.runtime.job.trainer import adamw
from meshwright.runtime.model import source
from meshwright.runtime.model.data import Batches, batches_of, default_loss, example_of, rows_of_inputs, share_of_loss
from meshwright.runtime.model.naming import first_tensor
from meshwright.runtime.model.routers import own_loss
from meshwright.runtime.ranks.layout import rows_of
from meshwright.runtime.ranks.plan_file import PlanFile
from meshwright.runtime.step.autocast import autocast, dtype_of

__all__ = ["ReferenceStep", "losses_of", "reference_steps"]


class ReferenceStep(NamedTuple):
    """Loss of a step, and the norm of its gradient before it was scaled down."""

    loss: float
    gradient_norm: float


def reference_steps(
    model: nn.Module,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    n_steps: int,
    n_parts: int,
    precision: torch.dtype | None = None,
    clip_norm: float = 0.0,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> list[ReferenceStep]:
    """Train the whole model in this process and return what every step gave.

    `batches`: from the number of a step to inputs and targets.
    `n_parts`: micro-batches of a step; their gradients are added up.
    `precision`: of products, by autocast; None for that of the weights. With fp16, PyTorch's own scaler scales the loss.
    `schedule`: of learning rates; a step each, but for steps that a scaler skips.
    `clip_norm`: the largest norm of the gradient; 0 for no limit.
    """
    steps = []
    scaler = torch.amp.GradScaler(next(model.parameters()).device.type, enabled=precision == torch.float16)
    for step in range(n_steps):
        inputs, targets = batches(step)
        optimizer.zero_grad()
        total = 0.0
        for part in range(n_parts):
            start, stop = rows_of(len(targets), n_parts, part)
            with autocast(targets.device, precision):
                output = model(*rows_of_inputs(inputs, start, stop))
                value = share_of_loss(loss, first_tensor(output), targets, (start, stop))
                value = value + own_loss(model, output) * ((stop - start) / len(targets))
            scaler.scale(value).backward()  # type: ignore[no-untyped-call]
            total += float(value.detach())
        scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf))
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if schedule is not None and scaler.get_scale() >= before:  # a step that overflows halves the scale
            schedule.step()
        steps.append(ReferenceStep(total, norm))
    return steps


def losses_of(job: Job, read: PlanFile) -> list[float]:
    """Train as a run says, in this process and from the same weights, and return the losses."""
    model, examples = source.build(job.model, job.seed)
    if job.weights:
        weight_files.read_whole(model, job.weights)
    sample = example_of(model, examples, read.sequence_length)
    data = source.load(job.data, "--data") if job.data else None
    make: Any = (
        source.load(job.optimizer, "--optimizer") if job.optimizer else partial(adamw, learning_rate=job.learning_rate_value)
    )
    loss = source.load(job.loss, "--loss") if job.loss else default_loss
    optimizer = make(list(model.parameters()))
    schedule = source.load(job.lr_schedule, "--lr-schedule")(optimizer) if job.lr_schedule else None
    steps = reference_steps(
        model, batches_of(data, model, sample, read.plan.global_batch, job.seed), optimizer, loss, schedule=schedule,
        n_steps=job.n_steps, n_parts=read.plan.n_microbatches,
        precision=dtype_of(job.precision), clip_norm=job.clip_norm_value,
    )  # fmt: skip
    return [step.loss for step in steps]
