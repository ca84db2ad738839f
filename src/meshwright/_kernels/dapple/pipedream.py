"""PipeDream's dynamic program: the slowest stage, level by level of the network, made as quick as possible.

Narayanan et al., SOSP 2019, section 3.1: ``A^k(i -> j, m)``, the slowest stage of layers i to j on m components of level k, is
the least over s and m' of ``max(A^k(i -> s, m - m'), 2 a_s / B_k, T^k(s + 1 -> j, m'))`` and ``T^k(i -> j, m)`` alone, where
``T^k(i -> j, m) = max(A^(k-1)(i -> j), 2 (m - 1) |w| / B_k) / m`` is one stage on m components.

Here A^k is `seconds`, A^(k-1) `inner_seconds`, T^k `whole`, a_s `cut_bytes`, |w| a difference of `weight_bytes`, B_k
`bytes_per_second`, m' `last`. Nodes are cuts between layers, so that layers i to j lie between nodes i and j, and s is a node
too.
"""

import numpy as np

from meshwright._kernels.compiling import kernel


@kernel(allocates=True)
def level(inner_seconds, weight_bytes, cut_bytes, allowed, n_components, bytes_per_second, first_only):
    """Smallest slowest stage between any two nodes on 1 to `n_components` components of one level.

    Parameters
    ----------
    inner_seconds : ndarray, shape (n_nodes, n_nodes), float64
        Slowest stage of the layers between two nodes on one whole component of the level below (their sum on one device).
    weight_bytes : ndarray, shape (n_nodes,), float64
        Of everything before each node.
    cut_bytes : ndarray, shape (n_nodes,), float64
        Crossing a cut at each node.
    allowed : ndarray, shape (n_nodes, n_nodes), bool
        Whether a stage may lie between two nodes.
    n_components : int
        Components of this level.
    bytes_per_second : float
        Between them.
    first_only : bool
        Whether only stages that begin at node 0 are asked for.

    Returns
    -------
    seconds : ndarray, shape (n_nodes, n_nodes, n_components + 1), float64
        Slowest stage.
    split, replicas : ndarray, same shape, int32
        Node where the last stage begins (-1: one stage), and its components.
    """
    n_nodes = len(cut_bytes)
    shape = (n_nodes, n_nodes, n_components + 1)
    seconds = np.full(shape, np.inf)
    split = np.full(shape, -1, np.int32)
    replicas = np.zeros(shape, np.int32)
    whole = np.full(shape, np.inf)
    for i in range(n_nodes):
        for j in range(i + 1, n_nodes):
            if allowed[i, j]:
                weights = weight_bytes[j] - weight_bytes[i]
                for m in range(1, n_components + 1):
                    whole[i, j, m] = max(inner_seconds[i, j], 2.0 * (m - 1) * weights / bytes_per_second) / m
    for i in range(1 if first_only else n_nodes):
        for j in range(i + 1, n_nodes):
            for m in range(1, n_components + 1):
                best, best_split, best_replicas = whole[i, j, m], -1, m
                for s in range(i + 1, j):
                    send = 2.0 * cut_bytes[s] / bytes_per_second
                    if send >= best:  # the slowest of three is no less
                        continue
                    for last in range(1, m):
                        t = max(max(seconds[i, s, m - last], send), whole[s, j, last])
                        if t < best:
                            best, best_split, best_replicas = t, s, last
                seconds[i, j, m] = best
                split[i, j, m] = best_split
                replicas[i, j, m] = best_replicas
    return seconds, split, replicas
