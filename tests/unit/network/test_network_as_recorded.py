"""Collectives on small clusters of every kind: what every function of the room said, as recorded."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.network import Network, collectives
from recorded import Recorded
from returned import Returned
from small_networks import CLUSTERS

ROOM = "network/"


def tables(n: int) -> dict[str, np.ndarray]:
    """Groups of all sizes: all devices, halves, strided pairs, a shuffled three, one pair, everyone alone."""
    ids = np.arange(n)
    found = {"all": ids[None, :], "pair": np.array([[0, n - 1]]), "three": np.array([[2, 0, n - 1]]), "alone": ids[:, None]}
    if n % 2 == 0:
        found |= {"halves": ids.reshape(2, -1), "strided": ids.reshape(2, -1).T, "neighbours": ids.reshape(-1, 2)[::-1]}
    if n % 4 == 0:
        found |= {
            "fours": ids.reshape(-1, 4),
            "crossed": ids.reshape(4, -1).T[:1],
            "two of": np.array([[0, 1, n // 2, n // 2 + 1]]),
        }
    return found


@pytest.mark.parametrize("name", CLUSTERS)
def test_collectives_of_all_groups_are_as_recorded(name: str, recorded: Recorded) -> None:
    cluster = CLUSTERS[name]()
    said, used = {}, {}
    with Returned(ROOM) as found:
        network = Network.of(cluster)
        for groups, table in tables(cluster.n_devices).items():
            axis = network.axis(table)
            said[groups] = [
                f"{axis.algorithm(kind, n_bytes)} {axis.seconds(kind, n_bytes):.6g}"
                for kind in collectives.KINDS
                for n_bytes in (1e3, 1e8)
            ]
            for kind, n_bytes in (("all_reduce", 1e3), ("all_gather", 1e8), ("all_to_all", 1e6)):
                links, amounts = network.load(table, kind, n_bytes)
                used[f"{groups} {kind}"] = [len(links), float(amounts.sum()), float((links * amounts).sum())]
            used[f"{groups} nothing"] = [len(network.load(table, "all_reduce", n_bytes)[0]) for n_bytes in (0.0, -1.0, 1e-9)]
    recorded(said, "said")
    recorded(used, "used")
    recorded(found.lines(), "functions")
