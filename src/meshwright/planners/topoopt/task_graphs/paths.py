"""Links that a transfer takes, one path of the shortest drawn for each, and the fair rates of all that are under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Paths", "fair_rates"]


class Paths:
    """Shortest paths of a cluster, by number of links.

    Parameters
    ----------
    cluster : Cluster
        Where transfers run.

    Attributes
    ----------
    bytes_per_second, latency_seconds : ndarray, shape (n_links,), float64
        Of each link.
    """

    def __init__(self, cluster: Cluster) -> None:
        links = cluster.links
        self.bytes_per_second, self.latency_seconds = links.bytes_per_second, links.latency_seconds
        self._target = links.target
        n_nodes = cluster.n_devices + cluster.n_switches
        self._out: list[list[int]] = [[] for _ in range(n_nodes)]
        self._into: list[list[int]] = [[] for _ in range(n_nodes)]
        for link, (a, b) in enumerate(zip(links.source.tolist(), links.target.tolist(), strict=True)):
            self._out[a].append(link)
            self._into[b].append(a)
        self._steps: dict[int, list[int]] = {}

    def _steps_to(self, target: int) -> list[int]:
        """Return the number of links from every node to a node; -1 where there is no way."""
        found = self._steps.get(target)
        if found is None:
            found = [-1] * len(self._out)
            found[target], queue = 0, [target]
            for node in queue:
                for before in self._into[node]:
                    if found[before] < 0:
                        found[before] = found[node] + 1
                        queue.append(before)
            self._steps[target] = found
        return found

    def path(self, source: int, target: int, dice: np.random.Generator) -> list[int]:
        """Return the links of one of the shortest paths; at every node each link that leads nearer is as likely.

        Raises
        ------
        InputError
            When no links join the two.
        """
        steps = self._steps_to(target)
        if steps[source] < 0:
            raise InputError(f"no links lead from node {source} to node {target} of the cluster")
        found, node = [], source
        while node != target:
            nearer = [link for link in self._out[node] if steps[int(self._target[link])] == steps[node] - 1]
            link = nearer[0] if len(nearer) == 1 else nearer[int(dice.integers(len(nearer)))]
            found.append(link)
            node = int(self._target[link])
        return found


def fair_rates(paths: Sequence[Sequence[int]], bytes_per_second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the max-min fair rate of every transfer, by progressive filling.

    Parameters
    ----------
    paths : sequence of sequences of int
        Links of each transfer, at least one.
    bytes_per_second : ndarray, shape (n_links,), float64
        Of each link.

    Returns
    -------
    ndarray, shape (n_transfers,), float64
        Bytes per second: none can have more without one that has no more than it having less.
    """
    n, n_links = len(paths), len(bytes_per_second)
    owner = np.repeat(np.arange(n), [len(path) for path in paths])
    link = np.concatenate([np.asarray(path, dtype=np.int64) for path in paths])
    left = bytes_per_second.astype(np.float64)
    rates, open_ = np.zeros(n), np.ones(n, dtype=bool)
    while len(owner):
        count = np.bincount(link, minlength=n_links)
        share = left[link] / count[link]  # of what nobody has yet, along every link of every transfer still open
        least = share.min()
        open_[owner[share <= least * (1.0 + 1e-12)]] = False
        closing = ~open_[owner]
        rates[owner[closing]] = least
        left = np.maximum(left - least * np.bincount(link[closing], minlength=n_links), 0.0)
        owner, link = owner[~closing], link[~closing]
    return rates
