"""Copies, sums and extremes of arrays as plain loops: Numba's own compile messages about shapes and axes into every kernel.

One assignment of a slice, ``.sum()`` or ``.max()`` took 2 to 3 s to compile in each process, all pieces here together 0.5 s.
"""

from __future__ import annotations

from meshwright._kernels.compiling import part

__all__ = ["copy", "copy_rows", "largest", "smallest", "total"]


@part
def copy(target, source, n):
    """Write the first `n` entries of `source` over those of `target`."""
    for i in range(n):
        target[i] = source[i]


@part
def copy_rows(target, source, n):
    """Write the first `n` rows of `source` over those of `target`, which has as many columns."""
    for i in range(n):
        for k in range(source.shape[1]):
            target[i, k] = source[i, k]


@part
def total(values):
    """Return the sum, first to last."""
    found = values[0] - values[0]
    for value in values:
        found += value
    return found


@part
def largest(values):
    """Return the largest of at least one value."""
    found = values[0]
    for value in values:
        found = max(found, value)
    return found


@part
def smallest(values):
    """Return the smallest of at least one value."""
    found = values[0]
    for value in values:
        found = min(found, value)
    return found
