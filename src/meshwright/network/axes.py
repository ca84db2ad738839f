"""One axis of a device mesh on a cluster (`Axis`): the time of its collectives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import UnknownNameError
from meshwright.core.cluster import Cluster
from meshwright.network import collectives
from meshwright.network.alpha_beta import AlphaBeta
from meshwright.network.fold import Fold, fold
from meshwright.network.remembered import Remembered

__all__ = ["Axis"]


class Axis:
    """All groups of one mesh axis, communicating at once and sharing links; `Network.axis` makes it.

    `groups`, shape (n_groups, size), int64: devices of each group, in rank order; of one set of every class of groups that look
    alike (`meshwright.network.fold`). `folds`: what the network remembers of parts of the cluster.
    """

    __slots__ = ("_folds", "_found", "cluster", "groups")

    def __init__(self, cluster: Cluster, groups: NDArray[np.int64], folds: Remembered[Fold]) -> None:
        self.cluster = cluster
        self._folds = folds
        self.groups = groups.copy()
        self.groups.setflags(write=False)
        self._found: dict[str, tuple[AlphaBeta, ...]] = {}

    @property
    def size(self) -> int:
        """Number of devices of one group."""
        return int(self.groups.shape[1])

    def lines(self, kind: str) -> tuple[AlphaBeta, ...]:
        """Return the algorithms for a collective, launch included, without those that are never the quickest.

        `kind`: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``broadcast``.
        Returns: latency rising, seconds per byte falling; a single line of zeros for groups of one device.
        Raises `UnknownNameError` when there is no such collective.
        """
        found = self._found.get(kind)
        if found is None:
            if kind not in collectives.KINDS:
                raise UnknownNameError("collective", kind, collectives.KINDS)
            found = (AlphaBeta("none", 0.0, 0.0),)
            if self.size > 1:
                launch = self.cluster.launch_seconds
                folded = self._folds.get(self, lambda: fold(self.cluster, self.groups).sized())
                found = tuple(
                    AlphaBeta(line.algorithm, launch + line.latency_seconds, line.seconds_per_byte)
                    for line in _envelope(collectives.lines(folded.part, folded.groups, kind))
                )
            self._found[kind] = found
        return found

    def seconds(self, kind: str, n_bytes: float) -> float:
        """Return the time of a collective with the algorithm that is quickest for its size.

        `kind`: as for `lines`.
        `n_bytes`: the full tensor: of every rank for an all-reduce and a broadcast, the gathered result of an all-gather, the
        input of one rank of a reduce-scatter, what one rank holds before an all-to-all.
        Returns: seconds; 0 for a group of one device or no bytes.
        """
        if n_bytes <= 0:
            return 0.0
        lines = self._found.get(kind) or self.lines(kind)
        least = lines[0].latency_seconds + lines[0].seconds_per_byte * n_bytes
        for line in lines[1:]:  # one or two of them, millions of times
            least = min(least, line.latency_seconds + line.seconds_per_byte * n_bytes)
        return least

    def algorithm(self, kind: str, n_bytes: float) -> str:
        """Return the name of the algorithm that `seconds` picks."""
        return min(self.lines(kind), key=lambda line: line.latency_seconds + line.seconds_per_byte * n_bytes).algorithm


def _envelope(lines: tuple[AlphaBeta, ...]) -> list[AlphaBeta]:
    """Return the lines that are the lowest somewhere: sorted by latency, each cheaper per byte than all before it."""
    kept: list[AlphaBeta] = []
    for line in sorted(lines, key=lambda line: (line.latency_seconds, line.seconds_per_byte, line.algorithm)):
        if not kept or line.seconds_per_byte < kept[-1].seconds_per_byte:
            kept.append(line)
    return kept
