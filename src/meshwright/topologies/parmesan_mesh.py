"""Parmesan's mesh: bandwidth between any two devices by the number of hops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cluster import Cluster
from meshwright.topologies import _fields, _pairwise

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "8x8"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters.

    Parameters
    ----------
    shape : tuple of int
        Sizes of one to three dimensions.
    device : str
        Kind of device.
    latency_seconds : float
        Latency between two devices (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    shape: tuple[int, ...]
    device: str = _fields.kind()
    latency_seconds: float = _fields.latency(0.0)
    launch_seconds: float = _fields.launch()


def build(params: Params, name: str) -> Cluster:
    """Return the cluster.

    Parameters
    ----------
    params : Params
        What the user typed.
    name : str
        As the user named it.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    InputError
        When a number is out of range.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section VIII, Table IX.
    """
    n = _pairwise.check(_fields.sizes(params.shape, (1, 2, 3), name), name)
    where = np.stack(np.unravel_index(np.arange(n), params.shape))
    apart = np.abs(where[:, :, None] - where[:, None, :])
    hops = apart.sum(axis=0)
    table = _pairwise.hop_table(hops)
    return _pairwise.pairwise(name, table, params, None, "Parmesan (TCAD 2024), Table IX: bandwidth by hops")
