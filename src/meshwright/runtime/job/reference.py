"""The same training in one process: what a run is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from meshwright.runtime.model.data import Batches, rows_of_inputs, share_of_loss
from meshwright.runtime.model.naming import first_tensor
from meshwright.runtime.model.routers import own_loss
from meshwright.runtime.ranks.layout import rows_of
from meshwright.runtime.step.autocast import autocast

__all__ = ["ReferenceStep", "reference_steps"]


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
