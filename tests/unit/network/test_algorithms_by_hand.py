"""Latency and seconds per byte of every algorithm on three networks, each worked out beside its row."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import clusters
from meshwright.network import collectives

RAILS = "rail-optimised:8,per_node=4,node_bandwidth=100 GB/s,bandwidth=10 GB/s,latency=1 us"
"""Two nodes of four devices: 100 GB/s and 2 us over a node's switch, 10 GB/s and 2 us between the same devices of both nodes."""  # noqa: E501
TORUS = "torus:4x3,bandwidth=1 GB/s,latency=1 us"
RING = "ring:5,bandwidth=1 GB/s,latency=1 us"


def quickest(spec: str, kind: str, algorithm: str) -> tuple[float, float]:
    """Return microseconds and nanoseconds per byte; where inner algorithms can be chosen, those with the least latency."""
    cluster = clusters.cluster(spec)
    found = [
        (line.latency_seconds * 1e6, line.seconds_per_byte * 1e9)
        for line in collectives.lines(cluster, np.arange(cluster.n_devices)[None], kind)
        if line.algorithm == algorithm
    ]
    return min(found)


@pytest.mark.parametrize(
    ("kind", "algorithm", "microseconds", "nanoseconds"),
    [
        # a ring for every rail: all cross the border between nodes on all four adapters
        ("all_reduce", "ring", 14 * 2, 2 * 7 / 8 / 40),
        ("all_gather", "ring", 7 * 2, 7 / 8 / 40),
        ("reduce_scatter", "ring", 7 * 2, 7 / 8 / 40),
        ("broadcast", "ring", 7 * 2, 1 / 40),
        ("broadcast", "bidirectional_ring", 7 * 2, 1 / 2 / 40),
        # three hops along the chain of a node and one across, half of the bytes on each of two trees
        ("all_reduce", "tree", 2 * (3 * 2 + 2), 2 / 2 / 40),
        ("broadcast", "tree", 3 * 2 + 2, 1 / 2 / 40),
        # three exchanges: a half with the neighbour, a quarter with the next, an eighth with the other node
        ("all_reduce", "halving_doubling", 2 * 3 * 2, 2 * (1 / 2 / 100 + 1 / 4 / 100 + 1 / 8 / 10)),
        ("all_gather", "halving_doubling", 3 * 2, 1 / 2 / 100 + 1 / 4 / 100 + 1 / 8 / 10),
        # scattered by halving inside (two exchanges), one exchange of the quarter across, gathered inside
        ("all_reduce", "hierarchical(halving_doubling)", 2 * 2 + 2 * 2 + 2 * 2, 2 * (3 / 4) / 100 + 2 * (1 / 2) / 4 / 10),
        ("all_gather", "hierarchical(ring)", 2 + 2 * 2, (3 / 4) / 100 + (1 / 2) / 4 / 10),
        ("reduce_scatter", "hierarchical(ring)", 2 + 2 * 2, (3 / 4) / 100 + (1 / 2) / 4 / 10),
        # half of the bytes along each dimension: half of it across; then the eighth that is left of the other half
        ("all_gather", "dimension_rings", 2 * 3 * 2, 1 / 2 * 1 / 2 / 10 + 1 / 8 * 1 / 2 / 10),
        ("all_reduce", "dimension_rings", 2 * 2 * 3 * 2, 2 * (1 / 2 * 1 / 2 / 10 + 1 / 8 * 1 / 2 / 10)),
        # all but one's own quarter inside, then the other node's half across
        ("all_to_all", "hierarchical(direct)", 2 + 2, 3 / 4 / 100 + 1 / 2 / 10),
    ],
)
def test_on_two_nodes_with_rails(kind: str, algorithm: str, microseconds: float, nanoseconds: float) -> None:
    assert quickest(RAILS, kind, algorithm) == pytest.approx((microseconds, nanoseconds))


@pytest.mark.parametrize(
    ("spec", "kind", "algorithm", "microseconds", "nanoseconds"),
    [
        # half of the bytes round rings of four, both ways at once; a quarter and a third are left for the other dimension
        (TORUS, "all_gather", "dimension_rings", 2 * 3, 1 / 2 * 3 / 4 / 2 + 1 / 6 * 3 / 4 / 2),
        (TORUS, "all_reduce", "dimension_rings", 2 * 2 * 3, 2 * (1 / 2 * 3 / 4 / 2 + 1 / 6 * 3 / 4 / 2)),
        # over every link: to one neighbour, and on the way to the one after it
        (RING, "all_to_all", "direct", 2, (1 + 2) / 5),
        (RING, "all_gather", "bidirectional_ring", 4, 4 / 5 / 2),
        (RING, "broadcast", "ring", 4, 1),
        # all NVLinks of four devices of a DGX-1: four of 22.5 GB/s leave each
        ("dgx-v100:4", "all_gather", "packed_rings", 3 * 3.5, 3 / 4 / 90),
        ("dgx-v100:4", "all_reduce", "packed_rings", 6 * 3.5, 2 * 3 / 4 / 90),
        ("dgx-v100:4", "broadcast", "packed_rings", 3 * 3.5, 1 / 90),
    ],
)
def test_on_a_torus_a_ring_and_a_cube_mesh(
    spec: str, kind: str, algorithm: str, microseconds: float, nanoseconds: float
) -> None:
    assert quickest(spec, kind, algorithm) == pytest.approx((microseconds, nanoseconds))


def test_each_cluster_has_the_algorithms_that_suit_it() -> None:
    def names(spec: str, kind: str) -> set[str]:
        cluster = clusters.cluster(spec)
        found = collectives.lines(cluster, np.arange(cluster.n_devices)[None], kind)
        return {line.algorithm.partition("(")[0] for line in found}

    assert names("flat:4", "all_reduce") == {"ring", "tree", "halving_doubling"}
    assert names("flat:6", "all_reduce") == {"ring", "tree"}  # no power of two
    assert names("flat:4", "all_gather") == {"ring", "halving_doubling"}  # nothing to reduce on a tree
    assert names("flat:4", "all_to_all") == {"direct"}
    assert names("flat:4", "broadcast") == {"ring", "tree"}
    assert names(RAILS, "all_to_all") == {"direct", "hierarchical"}
    assert names(RAILS, "all_gather") == {"ring", "halving_doubling", "hierarchical", "dimension_rings"}
    assert names(RAILS, "broadcast") == {"ring", "bidirectional_ring", "tree"}
    assert names("ring:256", "all_reduce") == {"ring", "bidirectional_ring"}  # far partners would cross everything
