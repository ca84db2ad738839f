"""Parmesan's random blocks, first kind: nodes of random size, one random bandwidth in each, slow links between."""

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
    rate = random.uniform(1e-4, 1e-2, size=n)
    table = np.where(node[:, None] == node[None, :], rate[node][:, None], 1e-4) * bandwidth_table.MEGABYTES_PER_MICROSECOND
    source = f"Parmesan (TCAD 2024), random_blk_1, seed {params.seed}: drawn, not measured"
    return bandwidth_table.pairwise(name, table, params, node, source)
