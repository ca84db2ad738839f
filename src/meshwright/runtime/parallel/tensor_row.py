"""Tensors as one vector that is never put together: its elements are read and written where they lie."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

import torch

__all__ = ["TensorRow"]


class TensorRow:
    """Tensors laid one after the other, without being copied; zeros lie beyond the last.

    `tensors`: of one type, at least one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self.ends = list(itertools.accumulate(tensor.numel() for tensor in tensors))

    def _parts(self, start: int, stop: int) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Yield the tensors that have some of these elements, and which of theirs."""
        for i in range(bisect.bisect_right(self.ends, start), len(self.ends)):
            begin = self.ends[i] - self.tensors[i].numel()
            if begin >= stop:
                return
            if self.tensors[i].numel():
                yield self.tensors[i], max(start, begin) - begin, min(stop, self.ends[i]) - begin

    def between(self, start: int, stop: int) -> list[torch.Tensor]:
        """Return some of the elements, in pieces."""
        found = [tensor.reshape(-1)[first:last] for tensor, first, last in self._parts(start, stop)]
        missing = stop - start - sum(piece.numel() for piece in found)
        return [*found, self.tensors[0].new_zeros(missing)] if missing else found

    def fill(self, start: int, stop: int, values: torch.Tensor) -> None:
        """Overwrite some of the elements."""
        place = 0
        for tensor, first, last in self._parts(start, stop):
            flat = tensor.reshape(-1)  # a view, unless it lies otherwise
            flat[first:last] = values[place : place + last - first]
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view_as(tensor))
            place += last - first
