"""Settings of NCCL that a plan was priced with and that are not NCCL's defaults; each with its source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.base.errors import ExportError
from meshwright.core.cluster import Cluster
from meshwright.core.launch import Hosts, StartCommand

__all__ = ["with_environment"]


def with_environment(program: StartCommand, cluster: Cluster | None, hosts: Hosts) -> StartCommand:
    """Return a program with the settings that this cluster and these hosts need.

    Raises
    ------
    ExportError
        When hosts take part with different devices of theirs, which one setting for all cannot say.
    """
    found = list(program.environment)
    if len(set(hosts.first)) > 1:
        numbers = ", ".join(map(str, sorted(set(hosts.first))))
        raise ExportError(
            f"launch: hosts take part with different devices of theirs, from number {numbers} on; plan for whole hosts"
        )
    if hosts.first[0]:
        some = range(hosts.first[0], hosts.first[0] + hosts.per_host)
        found.append(("CUDA_VISIBLE_DEVICES", ",".join(map(str, some)), "the devices of each host that the plan uses"))
    if cluster is not None and len(set(hosts.nodes)) > 1:
        if cluster.reduces_in_switch:
            found.append((
                "NCCL_COLLNET_ENABLE", "1",
                "the plan was priced with reduction in switches (SHARP), which NCCL leaves off by default: NCCL's "
                "documentation, NCCL_COLLNET_ENABLE",
            ))  # fmt: skip
        if _only_rails(cluster):
            found.append((
                "NCCL_CROSS_NIC", "0",
                "the cluster's rails do not meet, so a ring must keep to its adapter: NCCL's documentation, NCCL_CROSS_NIC",
            ))  # fmt: skip
    return replace(program, environment=tuple(found))


def _only_rails(cluster: Cluster) -> bool:
    """Return whether devices of one node reach those of another node only by changing rails inside a node.

    A switch that all devices of a node share is inside; the others with their links are the network. Where that falls apart
    into several pieces which each reach several nodes, these are the rails.
    """
    n, links = cluster.n_devices, cluster.links
    node = cluster.node_of_device
    if cluster.n_switches == 0 or len(np.unique(node)) == 1:
        return False
    meets: dict[int, set[int]] = {}
    for a, b in zip(links.source.tolist(), links.target.tolist(), strict=True):
        if a < n <= b:
            meets.setdefault(b, set()).add(int(node[a]))
    network = {switch for switch in range(n, n + cluster.n_switches) if len(meets.get(switch, {0, 1})) > 1}
    piece = {switch: switch for switch in network}

    def root(switch: int) -> int:
        while piece[switch] != switch:
            switch = piece[switch]
        return switch

    for a, b in zip(links.source.tolist(), links.target.tolist(), strict=True):
        if a in network and b in network:
            piece[root(a)] = root(b)
    return len({root(switch) for switch in network if switch in meets}) > 1
