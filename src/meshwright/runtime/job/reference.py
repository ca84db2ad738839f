"""The same training in one process: what a run is compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from meshwright.runtime.model.data import Batches, rows_of_inputs
from meshwright.runtime.model.naming import first_tensor
from meshwright.runtime.ranks.layout import rows_of
from meshwright.runtime.step.autocast import autocast

__all__ = ["reference_losses"]


def reference_losses(
    model: nn.Module,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    n_steps: int,
    n_parts: int,
    precision: torch.dtype | None = None,
) -> list[float]:
    """Train the whole model in this process and return the loss of every step.

    `batches`: from the number of a step to inputs and targets.
    `n_parts`: micro-batches of a step; their gradients are added up.
    `precision`: of products, by autocast; None for that of the weights. With fp16, PyTorch's own scaler scales the loss.
    """
    losses = []
    scaler = torch.amp.GradScaler(next(model.parameters()).device.type, enabled=precision == torch.float16)
    for step in range(n_steps):
        inputs, targets = batches(step)
        optimizer.zero_grad()
        total = 0.0
        for part in range(n_parts):
            start, stop = rows_of(len(targets), n_parts, part)
            with autocast(targets.device, precision):
                result = first_tensor(model(*rows_of_inputs(inputs, start, stop)))
                value = loss(result, targets[start:stop]) * ((stop - start) / len(targets))
            scaler.scale(value).backward()  # type: ignore[no-untyped-call]
            total += float(value.detach())
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
    return losses
