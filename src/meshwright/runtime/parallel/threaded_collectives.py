"""Ranks of an axis as threads of this process, which put together what each holds as collectives would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["ThreadedCollectives", "cause", "together"]

_PATIENCE_SECONDS = 120.0
"""A thread that waits longer does so for one that never comes."""


class ThreadedCollectives:
    """Where the threads of an axis put together what each holds.

    `degree`: length of the axis.
    """

    def __init__(self, degree: int) -> None:
        self.barrier = threading.Barrier(degree, timeout=_PATIENCE_SECONDS)
        self.held: list[Any] = [None] * degree

    def _all(self, rank: int, value: Any) -> list[Any]:
        """Return what all ranks hold."""
        self.held[rank] = value
        self.barrier.wait()
        everyone = list(self.held)
        self.barrier.wait()
        return everyone

    def total(self, rank: int, value: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks."""
        return torch.stack(self._all(rank, value)).sum(0)

    def gather(self, rank: int, value: torch.Tensor, axis: int) -> torch.Tensor:
        """Return the values of all ranks, one after the other along an axis."""
        return torch.cat(self._all(rank, value), axis)

    def swap(self, rank: int, rows: torch.Tensor, sent: list[int]) -> torch.Tensor:
        """Return the rows that the ranks send this one, of which each sends so many to every rank."""
        return torch.cat([parts[rank] for parts in self._all(rank, rows.split(sent))])


def together(degree: int, run: Callable[[int, ThreadedCollectives], Any]) -> list[Any]:
    """Run every rank of an axis in a thread of its own; return what each gives, or the exception that it, or another, ended
    with.

    `run`: from rank and meeting to anything.
    """
    meeting = ThreadedCollectives(degree)
    found: list[Any] = [None] * degree

    def one(rank: int) -> None:
        try:
            found[rank] = run(rank, meeting)
        except Exception as error:
            found[rank] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(degree)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def cause(found: Sequence[Any]) -> Exception | None:
    """Return the exception that ended a rank, not those of ranks that waited for it."""
    errors = [value for value in found if isinstance(value, Exception)]
    return next(
        (error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0] if errors else None
    )
