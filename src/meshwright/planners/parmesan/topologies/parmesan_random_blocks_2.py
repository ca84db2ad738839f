"""Parmesan's random blocks, second kind: random bandwidth of each pair in a node, falling with distance between nodes."""

from __future__ import annotations

from meshwright.core.cluster import Cluster
from meshwright.planners.parmesan import bandwidth_table
from meshwright.planners.parmesan.bandwidth_table import Drawn as Params

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "64"


def build(params: Params, name: str) -> Cluster:
    """Return the cluster.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section VIII-C.
    """
    import numpy as np

    n = bandwidth_table.check(params.n_devices, name)
    random = np.random.default_rng(params.seed)
    sizes = random.integers(2, 9, size=n)  # the paper does not say how large nodes are
    node = np.repeat(np.arange(n), sizes)[:n]
    inside = random.uniform(1e-5, 1e-2, size=(n, n))
    together = (node[:, None] == node[None, :]) & ~np.eye(n, dtype=bool)
    mean = float(inside[together].mean()) if together.any() else 5e-3
    distance = np.maximum(np.abs(node[:, None] - node[None, :]), 1)
    table = np.where(together, inside, mean / 10 / distance) * bandwidth_table.MEGABYTES_PER_MICROSECOND
    source = f"Parmesan (TCAD 2024), random_blk_2, seed {params.seed}: drawn, not measured"
    return bandwidth_table.pairwise(name, table, params, node, source)
