"""Where the columns of a product that is split lie in a result: through views, transpositions and choices of one part."""

from __future__ import annotations

import math
from typing import NamedTuple

from meshwright.runtime.capture.trace import TracedOperator

__all__ = ["Part", "Split", "agreed", "columns", "through_view"]


class Part(NamedTuple):
    """Some of the columns: on an axis of the result, counted from the last;
    `n_outer` other indices of that axis vary slower.
    """

    axis: int
    n_outer: int
    n: int


Split = tuple[Part, ...]
"""The columns of a product as factors, slowest first; ranks share out the first. A view as (3, heads, head) has three; after
one of the three was chosen every rank holds its heads of each."""


def columns(axis: int, n: int) -> Split:
    """Return the split of a product that makes `n` columns on an axis."""
    return (Part(axis, 1, n),)


def agreed(splits: list[Split]) -> Split | None:
    """Return the split that several inputs share: the first factors lie alike, though one may have fewer (shared key heads)."""
    if len({(split[0].axis, split[0].n_outer) for split in splits}) != 1:
        return None
    return max(splits, key=lambda split: math.prod(part.n for part in split))


def through_view(operator: TracedOperator, split: Split) -> Split | None:
    """Return where a split ends up in a result that shows the same elements otherwise; None where it is lost.

    `operator`: a view, or a copy of one, of its first input.
    """
    before, after = operator.inputs[0].shape, operator.outputs[0].shape
    name = operator.name
    if name in ("t", "transpose", "permute", "numpy_T"):
        return _moved(_order(operator, len(before)), split)
    if name in ("select", "unbind"):
        return _without(operator.numbers[0] % len(before) if operator.numbers else 0, len(before), split)
    if name in ("view_as_complex", "view_as_real"):  # the last axis is the pair of parts
        step = 1 if name == "view_as_complex" else -1
        return tuple(part._replace(axis=part.axis + step) for part in split if part.axis + step) or None
    if math.prod(before) == math.prod(after) and name not in ("expand", "slice"):
        return _reshaped(before, after, split)
    if len(before) == len(after):
        return tuple(part for k, part in enumerate(split) if k == 0 or before[part.axis] == after[part.axis])
    return split if after[-len(before) :] == before else None  # expanded along new axes in front


def _order(operator: TracedOperator, n: int) -> list[int]:
    """Return for every axis of the result the axis of the input that it was."""
    if operator.name == "permute":
        return [number % n for number in operator.numbers]
    order = list(range(n))
    if operator.name == "numpy_T":
        return order[::-1]
    one, other = (0, n - 1) if operator.name == "t" else operator.numbers[:2]
    order[one], order[other] = order[other], order[one]
    return order


def _moved(order: list[int], split: Split) -> Split:
    n = len(order)
    return tuple(part._replace(axis=order.index(n + part.axis) - n) for part in split)


def _without(gone: int, n: int, split: Split) -> Split | None:
    """Return the split after one index of axis `gone` was chosen: what is left of the factors."""
    kept = [part for part in split if n + part.axis != gone]
    moved = tuple(part if n + part.axis > gone else part._replace(axis=part.axis + 1) for part in kept)
    return moved or None


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], split: Split) -> Split | None:
    """Return the factors on the axes of another shape with the same elements in the same order."""
    found: list[Part] = []
    for part in split:
        start = math.prod(before[: part.axis]) * part.n_outer
        stop = start * part.n
        for place, size in enumerate(after):
            low = math.prod(after[:place])
            first, last = max(low, start), min(low * size, stop)
            if first >= last:
                continue
            if first % low or last % first or (low * size) % last:
                return None
            piece = Part(place - len(after), first // low, last // first)
            previous = found[-1] if found else None
            if previous and previous.axis == piece.axis and previous.n_outer * previous.n == piece.n_outer:
                found[-1] = previous._replace(n=previous.n * piece.n)
            else:
                found.append(piece)
    return tuple(found) or None
