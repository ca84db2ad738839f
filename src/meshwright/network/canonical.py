"""Groups that look alike on a periodic cluster are costed once: one block of them stands for all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster

__all__ = ["representative"]


def representative(cluster: Cluster, table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return groups whose traffic meets the same loads as that of all groups together.

    `cluster`: its `periods` say by how much ids may be shifted.
    `table`, shape (n_groups, size), int64: groups (or pairs) that communicate at once.
    Returns shape (n_representatives, size), int64: where the groups are copies of those of one block of ids, each block
    shifted by its length, only that block, shifted to the beginning: groups of different blocks share no link, and the
    links of every block are alike. All groups otherwise.
    """
    if not cluster.periods:
        return table
    table = table[np.argsort(table.min(axis=1), kind="stable")]
    for length in _lengths(cluster.periods, int(table.max()) + 1):
        first = int(table.min()) // length * length
        block = (table - first) // length
        if not (block == block[:, :1]).all():
            continue
        index = np.unique(block[:, 0], return_inverse=True)[1]
        n_blocks = int(index[-1]) + 1
        if len(table) % n_blocks or (index != np.repeat(np.arange(n_blocks), len(table) // n_blocks)).any():
            continue
        inside = (table - first - block * length).reshape(n_blocks, -1)
        if (inside == inside[0]).all():
            return np.asarray(inside[0].reshape(-1, table.shape[1]))
    return table


def _lengths(periods: tuple[int, ...], span: int) -> list[int]:
    """Return block lengths by which ids may be shifted, rising, up to `span`: each divides or is a multiple of every period."""
    node, pod = periods[0], periods[-1]
    found = [node * k for k in range(1, pod // node + 1) if (pod // node) % k == 0]
    length = pod
    while length < span:
        length *= 2
        found.append(length)
    return found
