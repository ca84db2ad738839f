"""Which switch all members of a group are plugged into."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.network.wired import Wired

__all__ = ["common"]


def common(cluster: Wired, groups: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return a switch for every group that each member has a link to and from, the quickest one; None where a group has none.

    `groups`, shape (n_groups, size), int64: devices.
    Returns shape (n_groups,), int64, or None: node ids of switches.
    """
    links, n = cluster.links, cluster.n_devices
    up = np.flatnonzero((links.source < n) & (links.target >= n))
    rate: dict[int, dict[int, float]] = {}
    for device, switch, value in zip(
        links.source[up].tolist(), links.target[up].tolist(), links.bytes_per_second[up].tolist(), strict=True
    ):
        rate.setdefault(device, {})[switch] = value
    found = []
    for group in groups.tolist():
        shared = set(rate.get(group[0], ())).intersection(*(rate.get(member, ()) for member in group[1:]))
        if not shared:
            return None
        found.append(max(shared, key=lambda switch: (min(rate[member][switch] for member in group), -switch)))
    return np.array(found, dtype=np.int64)
