"""Parmesan's mesh: bandwidth between any two devices by the number of hops."""

from __future__ import annotations

from meshwright.core.cluster import Cluster
from meshwright.planners.parmesan import bandwidth_table
from meshwright.planners.parmesan.bandwidth_table import Grid as Params

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "8x8"


def build(params: Params, name: str) -> Cluster:
    """Return the cluster.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section VIII, Table IX.
    """
    return bandwidth_table.by_hops(params, name, around=False)
