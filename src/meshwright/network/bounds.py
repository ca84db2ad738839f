"""A lower bound on the time of an all-gather on any network: what must leave a part of it, over what can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.core.cluster import Cluster

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["all_gather", "reduce_scatter"]


def all_gather(cluster: Cluster, group: ArrayLike) -> float:
    """Return a lower bound on the seconds per gathered byte of an all-gather by any algorithm.

    Whatever the algorithm, everything that members inside a part of the network hold must leave it if a member is outside. The
    bound is the largest ratio of the two over all parts, found by maximum flows.

    `cluster`: the network. Members pass on what they have received; other devices only where devices forward.
    `group`, shape (size,): devices.
    Returns: seconds per byte of the gathered result; 0 for one device.

    References
    ----------
    .. [1] Zhao et al., "ForestColl: throughput-optimal collective communications on heterogeneous network fabrics",
       arXiv 2402.06787, section 4: the bound is reached by packing spanning trees.

    Notes
    -----
    The cut is found by Dinkelbach's method: take a ratio, look for a part that beats it, take its ratio, until none does.
    """
    links = cluster.links
    return _bound(cluster, np.asarray(group, dtype=np.int64), links.source, links.target)


def reduce_scatter(cluster: Cluster, group: ArrayLike) -> float:
    """Return a lower bound on the seconds per input byte of a reduce-scatter without reduction in switches.

    It is the all-gather run backwards, so its bound is that of `all_gather` on links turned round.

    `group`, shape (size,): devices.
    Returns: seconds per byte of one rank's input; 0 for one device.
    """
    links = cluster.links
    return _bound(cluster, np.asarray(group, dtype=np.int64), links.target, links.source)


def _bound(cluster: Cluster, group: NDArray[np.int64], source: NDArray[np.int64], target: NDArray[np.int64]) -> float:
    """Return the largest ratio of members inside to bandwidth that leaves, divided by the number of members."""
    from scipy.sparse import coo_array

    if len(group) < 2:
        return 0.0
    scale = float(cluster.links.bytes_per_second.max())
    passes_on = np.arange(cluster.n_devices + cluster.n_switches) >= (0 if cluster.forwards else cluster.n_devices)
    passes_on[group] = True
    kept = passes_on[source] & passes_on[target]
    rates = cluster.links.bytes_per_second[kept] / scale
    everybody = len(passes_on)  # one node more, which feeds the members
    capacity = coo_array((rates, (source[kept], target[kept])), shape=(everybody + 1, everybody + 1)).tolil()
    ratio = (len(group) - 1) / float(capacity[:, group[0]].sum())  # everybody but one: the simplest part
    while True:
        capacity[everybody, group] = 1.0 / ratio
        table = capacity.tocsr()
        better = max(_ratio_of_cut(table, group, int(sink)) for sink in group)
        if better <= ratio * (1 + 1e-9):
            return ratio / scale / len(group)
        ratio = better


def _ratio_of_cut(capacity: csr_array, members: NDArray[np.int64], sink: int) -> float:
    """Return members over leaving bandwidth of the part without `sink` that is worst where members are fed as the last row
    says.

    Notes
    -----
    Flows are counted in parts of the whole feed, so many that what is left both ways fits 31 bits. Rounding may choose a part
    that is not quite the worst; its ratio is taken from the bandwidths themselves, and the ratio of every part is a bound.
    """
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    feed = float(capacity[[-1]].sum())
    counted = capacity.copy()
    counted.data = np.floor(np.minimum(capacity.data / feed, 1.0) * (2**30 - 1)).astype(np.int32)
    last = counted.shape[0] - 1
    left = counted - maximum_flow(counted, last, sink).flow
    left.eliminate_zeros()
    inside = np.zeros(last + 1, dtype=bool)
    inside[breadth_first_order(left, last, return_predecessors=False)] = True
    n_inside = int(inside[members].sum())
    inside[last] = False
    leaving = float(capacity[inside][:, ~inside].sum())
    return n_inside / leaving if n_inside else 0.0
