"""How a run is started: what every host starts, and which hosts there are, in the order of their ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from meshwright.base.errors import ExportError
from meshwright.base.identity import ById, distinct, locked
from meshwright.core.cluster import Cluster
from meshwright.core.plan import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Hosts", "LaunchJob", "StartCommand", "fills_hosts", "hosts_of"]


@dataclass(frozen=True, slots=True)
class StartCommand:
    """What a framework starts on every host.

    Parameters
    ----------
    command : str
        Shell words that read ``NODE_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` and pass on ``"$@"``.
    axes : tuple of str
        How the framework numbers its ranks, the axis that changes fastest first, of ``tensor``, ``context``, ``data`` and
        ``pipeline``; empty where rank k takes the k-th device of the plan, whatever it does there.
    needs : tuple of (str, str)
        Environment variables that the user sets, and what each is.
    environment : tuple of (str, str, str)
        Variables that are set, their values, and why.
    """

    command: str
    axes: tuple[str, ...] = ("tensor", "context", "data", "pipeline")
    needs: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a plan in the order of their ranks: host k has ranks ``k * per_host`` and following.

    Parameters
    ----------
    devices : tuple of tuple of int
        Devices of each host that take part, ascending.
    nodes : tuple of int
        Node (or NVLink domain) of the cluster that each host is part of.
    kinds : tuple of str
        Kind of device of each host.
    first : tuple of int
        Number of the first device that takes part among those of its host.
    """

    devices: tuple[tuple[int, ...], ...]
    nodes: tuple[int, ...]
    kinds: tuple[str, ...]
    first: tuple[int, ...]

    @property
    def per_host(self) -> int:
        """Number of devices of each host."""
        return len(self.devices[0])

    @property
    def per_domain(self) -> int:
        """How many hosts of every node (or NVLink domain) take part; 0 where it is not the same number of each."""
        counts = {self.nodes.count(node) for node in set(self.nodes)}
        return counts.pop() if len(counts) == 1 else 0


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """What a launcher writes down.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and dashes.
    title : str
        One line about the plan.
    file, text : str
        Name and content of the framework's configuration.
    program : StartCommand
        What every host starts.
    hosts : Hosts
        Where.
    remarks : tuple of str
        Sentences about groups and nodes, without a full stop.
    """

    name: str
    title: str
    file: str
    text: str
    program: StartCommand
    hosts: Hosts
    remarks: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """The configuration's name without its ending, with which the launcher's file begins."""
        return self.file.rpartition(".")[0] or self.file


def hosts_of(plan: Plan, cluster: Cluster | None) -> Hosts:
    """Return the hosts of a plan, in the order of their devices.

    `cluster`: None where there is none: then all devices are of one host.

    Raises
    ------
    ExportError
        When hosts take part with different numbers of devices, or with different ones.
    """
    import numpy as np

    used = sorted({device for stage in plan.stages for device in stage.devices})
    if cluster is None:
        return Hosts((tuple(used),), (0,), ("",), (0,))
    node = cluster.node_of_device
    starts = {int(n): int(np.flatnonzero(node == n)[0]) for n in distinct(node[used])}
    found: dict[tuple[int, int], list[int]] = {}
    for device in used:
        place = device - starts[int(node[device])]
        found.setdefault((int(node[device]), place // (cluster.devices_per_host or cluster.n_devices)), []).append(device)
    devices = tuple(tuple(found[key]) for key in found)
    first = []
    for (own, host), some in found.items():
        first.append(some[0] - starts[own] - host * cluster.devices_per_host)
        if some != list(range(some[0], some[0] + len(some))):
            raise ExportError(f"the plan uses devices {some} of one host, which do not follow each other")
    sizes = sorted({len(some) for some in devices})
    if len(sizes) > 1:
        raise ExportError(
            f"nodes of different sizes: hosts take part with {' and '.join(map(str, sizes))} devices, and launchers start the "
            "same number of processes on every host"
        )
    return Hosts(devices, tuple(key[0] for key in found), tuple(cluster.device(some[0]).name for some in devices), tuple(first))


def fills_hosts(cluster: Cluster) -> NDArray[np.bool_]:
    """Return whether the first devices of a cluster are equally many of every host that takes part.

    Of the first ``n``, at place ``n``; shape (n_devices + 1,), bool. The hosts are those of `hosts_of`.
    """
    return _fills_hosts(ById(cluster))


@lru_cache(maxsize=4)
def _fills_hosts(cluster: ById[Cluster]) -> NDArray[np.bool_]:
    """Return `fills_hosts` of a cluster: the fullest host so far, times the hosts so far, is all devices so far."""
    import numpy as np

    node, n = cluster.of.node_of_device, cluster.of.n_devices
    _, first, number = np.unique(node, return_index=True, return_inverse=True)
    host = (np.arange(n) - first[number]) // (cluster.of.devices_per_host or n)
    _, of_device = np.unique(number * n + host, return_inverse=True)
    order = np.argsort(of_device, kind="stable")
    starts = np.flatnonzero(np.diff(of_device[order], prepend=-1))
    nth = np.empty(n, dtype=np.int64)
    nth[order] = np.arange(n) - np.repeat(starts, np.diff(starts, append=n)) + 1
    even = np.maximum.accumulate(nth) * np.cumsum(nth == 1) == np.arange(1, n + 1)
    return locked(np.concatenate(([True], even)))
