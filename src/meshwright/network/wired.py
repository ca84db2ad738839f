"""What routing and collectives read of a network (`Wired`), and a part of a cluster that stands for itself (`ClusterPart`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Links

__all__ = ["ClusterPart", "Wired"]


class Wired(Protocol):
    """Devices, switches and links: a `meshwright.core.cluster.Cluster`, or a `ClusterPart`; fields mean the same."""

    @property
    def n_devices(self) -> int:
        """Number of devices."""

    @property
    def n_switches(self) -> int:
        """Number of switches."""

    @property
    def links(self) -> Links:
        """Directed links."""

    @property
    def groups(self) -> NDArray[np.int64]:
        """Physical grouping, innermost first; shape (n_levels, n_devices)."""

    @property
    def forwards(self) -> bool:
        """Whether devices pass on traffic of others."""

    @property
    def reduces_in_switch(self) -> bool:
        """Whether switches add up what passes."""

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Algorithms that the communication library has; empty for all."""


@dataclass(frozen=True, slots=True, eq=False)
class ClusterPart:
    """Some devices, switches and links of a cluster whose devices do not forward, numbered from 0 in the order that they had.

    Parameters
    ----------
    n_devices, n_switches : int
        How many of each.
    links : Links
        The links between them.
    groups : ndarray, shape (n_levels, n_devices), int64
        Which of the devices are together on each level of the cluster.
    reduces_in_switch, algorithms
        As in the cluster.
    even : bool
        Whether all links between switches of the whole cluster cost the same, which decides how paths are searched.
    forwards : bool
        Never.
    """

    n_devices: int
    n_switches: int
    links: Links
    groups: NDArray[np.int64]
    reduces_in_switch: bool
    algorithms: tuple[str, ...]
    even: bool
    forwards: bool = False
