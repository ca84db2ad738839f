"""Parmesan's uniform distribution: a random bandwidth for each pair of devices."""

from __future__ import annotations

import numpy as np

from meshwright.cluster import Cluster
from meshwright.topologies import _pairwise
from meshwright.topologies._pairwise import Drawn as Params

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "64"


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
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section VIII-C.
    """
    n = _pairwise.check(params.n_devices, name)
    table = np.random.default_rng(params.seed).uniform(1e-5, 1e-2, size=(n, n)) * _pairwise.MEGABYTES_PER_MICROSECOND
    source = f"Parmesan (TCAD 2024), uniform_dist, seed {params.seed}: drawn, not measured"
    return _pairwise.pairwise(name, table, params, None, source)
