"""What a step is fed, micro-batch by micro-batch: the inputs of its first stage, and the loss of what its last one gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from meshwright.runtime.model.data import Sample, rows_of_inputs, share_of_loss
from meshwright.runtime.step.router_loss import RouterLoss

__all__ = ["Feed", "WholeBatch"]


class Feed(Protocol):
    """Where a rank's rows of every micro-batch come from, and what is made of the model's output for them."""

    def inputs(self, microbatch: int) -> Sample:
        """Return this rank's rows of every input; asked on ranks of the first stage."""

    def loss(self, microbatch: int, output: torch.Tensor, *sums: torch.Tensor) -> torch.Tensor:
        """Return what this rank's rows add to the loss of the step; asked on ranks of the last stage.

        `sums`: of routers, where the model asks for their loss.
        """


class WholeBatch:
    """A global batch that every process holds, of which each rank takes its rows; every sample counts the same, of the default
    loss every labelled class.

    `inputs`, `targets`: all samples of the step, on this rank's device.
    `loss_function`: from output and target rows to their mean loss.
    `rows`: first and last-but-one row by stage and micro-batch; those of the first and last stage are asked for.
    `last`: number of the last stage.
    `n_samples`: of the step.
    `routers`: what routers add, where the model asks for that.
    """

    def __init__(
        self,
        inputs: Sample,
        targets: torch.Tensor,
        loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        rows: Mapping[tuple[int, int], tuple[int, int]],
        last: int,
        n_samples: int,
        routers: RouterLoss | None = None,
    ) -> None:
        self.given, self.targets, self.loss_function = inputs, targets, loss_function
        self.rows, self.last, self.n_samples, self.routers = rows, last, n_samples, routers

    def inputs(self, microbatch: int) -> Sample:
        """Return this rank's rows of every input."""
        return rows_of_inputs(self.given, *self.rows[0, microbatch])

    def loss(self, microbatch: int, output: torch.Tensor, *sums: torch.Tensor) -> torch.Tensor:
        """Return what this rank's rows add to the mean loss of the step."""
        low, high = self.rows[self.last, microbatch]
        value = share_of_loss(self.loss_function, output, self.targets, (low, high))
        return value if self.routers is None else value + self.routers.share(sums[0], high - low) / self.n_samples
