"""Transfers, bounds, places, rings, trees and folds on small clusters, as recorded; keys in order, by plain sorting."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.network import Network, bounds, canonical, fold, orders, packing, placement, reach, routes
from recorded import Recorded
from returned import Returned, refusal
from small_clusters import boxes, mesh
from small_networks import CLUSTERS

ROOM = "network/"


@pytest.mark.parametrize("name", CLUSTERS)
def test_transfers_bounds_and_places_are_as_recorded(name: str, recorded: Recorded) -> None:
    cluster = CLUSTERS[name]()
    n = cluster.n_devices
    ids, dice = np.arange(n), np.random.default_rng(1)
    with Returned(ROOM) as found:
        network = Network.of(cluster)
        sent = [
            network.transfer(pairs)
            for pairs in ([[0, 1]], [[0, n - 1]], [[0, 0]], [], np.stack((ids, np.roll(ids, 1)), 1), [[0, 1], [0, 2]])
        ]
        shares = [
            network.sends(ids[:k], (ids[:k] + step) % n, np.arange(1.0, k + 1))
            for k, step in ((0, 1), (1, 1), (n, 1), (n, n // 2))
        ]
        orders_of = placement.orders(cluster), placement.orders(cluster, n - 1), placement.coordinates(cluster)
        limits = [
            [bounds.all_gather(cluster, group), bounds.reduce_scatter(cluster, group)]
            for group in ([0, 1], [0, n - 1], [2, 0, 1], list(range(n)))
        ]
        source, target = dice.integers(0, n, 20), dice.integers(0, n, 20)
        load, latency = routes.load(cluster, source, target, dice.random(20))
    recorded(
        [
            sent,
            shares,
            [[name, order] for name, order in orders_of[0] + orders_of[1]],
            limits,
            float((load * np.arange(len(load))).sum()),
            float(latency.sum()),
        ],
        "said",
    )
    recorded(found.lines(), "functions")


def test_orders_rings_trees_and_packed_rings_are_as_recorded(recorded: Recorded) -> None:
    trees = [orders.double_binary_tree(size) for size in (2, 3, 4, 5, 6, 7, 8, 11)]
    for (child, parent, depth), size in zip(trees, (2, 3, 4, 5, 6, 7, 8, 11), strict=True):
        for one in range(2):
            at = dict(zip(child[one].tolist(), parent[one].tolist(), strict=True))
            (root,) = set(range(size)) - set(at)
            assert len(at) == size - 1 and depth >= 1
            for v in range(size):
                while v in at:
                    v = at[v]
                assert v == root
        if size % 2 == 0:
            assert not set(parent[0].tolist()) & set(parent[1].tolist())
    cluster = boxes([4, 4])
    shapes = [
        orders.layout(cluster, np.array(groups))
        for groups in ([[0, 4, 1, 5]], [[5, 0, 6, 1], [7, 3, 4, 2]], [[0, 1, 4]], [[0, 4]], [[1, 3, 0]])
    ]
    rings = [orders.rings(shape) for shape in shapes]
    grids = [orders.grid(cluster, shape) for shape in shapes] + [
        orders.grid(mesh(2, 4), orders.layout(mesh(2, 4), np.arange(8)[None]))
    ]
    direct = [packing.direct_links(mesh(2, 3), np.array(group)) for group in ([0, 1, 2], [4, 1], [0, 5])]
    rates = [np.ones((n, n)) - np.eye(n) for n in (2, 3, 4, 5)]
    rates += [
        np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [1.5, 0.0, 0.0]]),
        np.array([[0.0, 1.0], [0.0, 0.0]]),
        np.array([[0.0, 2.0, 1.0], [1.0, 0.0, 2.0], [2.0, 1.0, 0.0]]),
    ]
    packed = [packing.ring_bandwidth(rate) for rate in rates]
    assert packed == pytest.approx([1.0, 2.0, 3.0, 4.0, 1.5, 0.0, 3.0])
    recorded([trees, shapes, rings, grids, direct])


def test_alike_blocks_are_told_as_recorded(recorded: Recorded) -> None:
    found = []
    for periods in ((), (4,), (4, 8), (2, 12)):
        cluster = boxes([4, 4, 4, 4], periods=periods)
        for table in (
            np.arange(16).reshape(4, 4),
            np.arange(16).reshape(8, 2),
            np.arange(16).reshape(2, 8),
            np.arange(16).reshape(2, 8).T,
            np.array([[5, 6], [1, 2]]),
            np.array([[1, 2], [5, 7]]),
            np.array([[4, 5], [6, 7], [12, 13], [14, 15]]),
            np.array([[4, 6], [5, 7], [12, 14]]),
            np.array([[3, 4], [7, 8]]),
        ):
            found.append(canonical.representative(cluster, table))
    lengths = [canonical._lengths(periods, span) for periods in ((4,), (4, 8), (2, 12), (1, 4)) for span in (3, 4, 9, 16, 40)]
    recorded([found, lengths])


def test_keys_are_put_in_order_and_counted() -> None:
    """Against plain sorting: rising, falling, equal, very large keys; of each set's values, which is the how-manieth."""
    dice = np.random.default_rng(0)
    for keys in (
        np.arange(5),
        np.array([3, 1, 3, 0, 1]),
        np.array([7]),
        dice.integers(0, 9, 40),
        np.array([2**61, 5, 2**61, 0]),
        np.array([1, 0]),
    ):
        assert reach.in_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()
    for low in (0, -7, 2**40):
        of = np.sort(dice.integers(0, 4, 20))
        values = low + dice.integers(0, 5, 20) * (2**35 if low == 2**40 else 1)
        wanted = [
            sorted(set(values[of == one].tolist())).index(value)
            for one, value in zip(of.tolist(), values.tolist(), strict=True)
        ]
        assert fold._ranks(of, values).tolist() == wanted


@pytest.mark.parametrize("name", ["rails", "joined", "fat_tree"])
def test_pairs_routed_in_parts_load_links_as_all_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, dice = CLUSTERS[name](), np.random.default_rng(3)
    source, target = dice.integers(0, cluster.n_devices, (2, 11))
    amount = dice.random(11)
    whole = routes.load(cluster, source, target, amount)
    for most in (1, 2, 5, 10):
        monkeypatch.setattr(routes, "MOST_PAIRS", most)
        parts = routes.load(cluster, source, target, amount)
        assert parts[0] == pytest.approx(whole[0]) and parts[1] == pytest.approx(whole[1])


def test_refusals_are_as_recorded(recorded: Recorded) -> None:
    cluster = boxes([2, 2])
    network = Network.of(cluster)
    calls = {
        "flat": lambda: network.axis([0, 1]),
        "none": lambda: network.axis(np.zeros((0, 2))),
        "empty": lambda: network.axis(np.zeros((2, 0))),
        "below": lambda: network.axis([[0, -1]]),
        "above": lambda: network.axis([[0, 4]]),
        "last": lambda: network.axis([[0, 3]]),
        "twice": lambda: network.axis([[1, 0, 1]]),
        "kind": lambda: network.axis([[0, 1]]).seconds("all_gathers", 1.0),
        "alone": lambda: network.axis([[0]]).lines("x"),
        "pair below": lambda: network.transfer([[0, -1]]),
        "pair above": lambda: network.transfer([[4, 0]]),
        "pair last": lambda: network.transfer([[3, 0]]),
        "large": lambda: placement.orders(cluster, 5),
        "whole": lambda: placement.orders(cluster, 4),
        "negative": lambda: placement.orders(cluster, -1),
        "bound": lambda: bounds.all_gather(cluster, [0]),
        "bound twice": lambda: bounds.all_gather(cluster, [0, 0]),
        "bound above": lambda: bounds.all_gather(cluster, [0, 4]),
    }
    recorded({name: refusal(call) for name, call in calls.items()})
    assert Network.of(cluster) is network and network.axis([[0, 1]]) is network.axis([[0, 1]])
    assert network.axis([[0]]).seconds("all_reduce", 1e9) == 0.0 == network.axis([[0, 1]]).seconds("all_reduce", 0.0)
