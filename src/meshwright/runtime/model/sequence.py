"""Which part of a sequence each rank of a context axis has: an early and a late chunk, so that causal attention is balanced."""

from __future__ import annotations

import torch

__all__ = ["in_order", "part_of_sequence", "ranges_of"]


def ranges_of(length: int, rank: int, degree: int) -> list[tuple[int, int]]:
    """Return from where to where the parts of a sequence lie that a rank has: an early and a late one, or one."""
    if length % (2 * degree):
        return [(rank * length // degree, (rank + 1) * length // degree)]
    chunk = length // (2 * degree)
    return [(i * chunk, (i + 1) * chunk) for i in (rank, 2 * degree - 1 - rank)]


def part_of_sequence(value: torch.Tensor, axis: int, rank: int, degree: int) -> torch.Tensor:
    """Return a rank's part of a sequence: of the positions of a tensor along one of its dimensions."""
    pieces = [value.narrow(axis, start, stop - start) for start, stop in ranges_of(value.shape[axis], rank, degree)]
    return torch.cat(pieces, axis)


def in_order(value: torch.Tensor, axis: int, degree: int) -> torch.Tensor:
    """Return a sequence in order, of the parts of all ranks one after the other."""
    length = value.shape[axis]
    places = sorted((start, stop) for rank in range(degree) for start, stop in ranges_of(length, rank, degree))
    held = [one for rank in range(degree) for one in ranges_of(length, rank, degree)]
    pieces = dict(zip(held, value.split([stop - start for start, stop in held], axis), strict=True))
    return torch.cat([pieces[place] for place in places], axis)
