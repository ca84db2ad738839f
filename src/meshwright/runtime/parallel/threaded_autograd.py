"""Collectives between threads that gradients pass through, as those of `torch.distributed` would have them."""

from __future__ import annotations

from typing import Any

import torch

from meshwright.runtime.parallel.threaded_collectives import ThreadedCollectives

__all__ = ["Gather", "Scatter", "SumBackward", "SumForward"]


class SumForward(torch.autograd.Function):
    """The sum over ranks of what a row product gives."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, meeting: ThreadedCollectives, rank: int) -> torch.Tensor:
        """Return the sum."""
        return meeting.total(rank, value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the gradient, which all ranks have."""
        return gradient, None, None


class SumBackward(torch.autograd.Function):
    """The sum over ranks of the gradients of what column products take."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, meeting: ThreadedCollectives, rank: int) -> torch.Tensor:
        """Return the value, which all ranks have."""
        ctx.meeting, ctx.rank = meeting, rank
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the sum."""
        return ctx.meeting.total(ctx.rank, gradient), None, None


class Gather(torch.autograd.Function):
    """The parts of all ranks, along the sequence."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, meeting: ThreadedCollectives, rank: int, axis: int) -> torch.Tensor:
        """Return them."""
        ctx.meeting, ctx.rank, ctx.axis = meeting, rank, axis
        return meeting.gather(rank, value, axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the sum of what all ranks say of this rank's part."""
        total = ctx.meeting.total(ctx.rank, gradient)
        return total.chunk(len(ctx.meeting.held), ctx.axis)[ctx.rank], None, None, None


class Scatter(torch.autograd.Function):
    """This rank's part, along the sequence, of the sum of what row products give."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, meeting: ThreadedCollectives, rank: int) -> torch.Tensor:
        """Return it."""
        ctx.meeting, ctx.rank = meeting, rank
        return meeting.total(rank, value).chunk(len(meeting.held), 1)[rank]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the gradients of all parts."""
        return ctx.meeting.gather(ctx.rank, gradient, 1), None, None
