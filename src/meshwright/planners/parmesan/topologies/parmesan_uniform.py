"""Parmesan's uniform distribution: a random bandwidth for each pair of devices."""

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
    table = np.random.default_rng(params.seed).uniform(1e-5, 1e-2, size=(n, n)) * bandwidth_table.MEGABYTES_PER_MICROSECOND
    source = f"Parmesan (TCAD 2024), uniform_dist, seed {params.seed}: drawn, not measured"
    return bandwidth_table.pairwise(name, table, params, None, source)
