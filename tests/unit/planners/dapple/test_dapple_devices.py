"""Orders of devices and the costs along them: shortcuts for regular orders say what asking every position says."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import clusters
from meshwright.planners.dapple import device_orders, machines


def test_orders_are_machine_by_machine_by_size_and_scattered() -> None:
    cluster = machines.machines_cluster((1, 3))
    assert device_orders.orders(cluster) == ((0, 1, 2, 3), (1, 2, 3, 0))
    cluster = machines.machines_cluster((2, 2))
    assert device_orders.orders(cluster) == ((0, 1, 2, 3), (0, 2, 1, 3))


@pytest.mark.parametrize("sizes", [(4, 4, 4), (2, 2), (1, 1, 1, 1), (3, 2)])
def test_repeating_positions_cost_what_they_cost_when_asked(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = machines.machines_cluster(sizes)
    widths = np.arange(1, 5)
    for order in device_orders.orders(cluster):
        quick = device_orders.tables(cluster, order, widths, 1, published_links=True)
        with monkeypatch.context() as patch:
            patch.setattr(device_orders, "_period", lambda nodes, unit: 0)
            slow = device_orders.tables(cluster, order, widths, 1, published_links=True)
        there = quick.reduce_class >= 0
        assert np.array_equal(there, slow.reduce_class >= 0)
        assert np.allclose(quick.reduce_lines[quick.reduce_class][there], slow.reduce_lines[slow.reduce_class][there])
        assert np.allclose(quick.send_lines[quick.send_class], slow.send_lines[slow.send_class])
        assert np.array_equal(quick.gate, slow.gate)


def test_a_gate_is_a_stage_whose_machine_sends_both_ways() -> None:
    cluster = machines.machines_cluster((1, 2, 1))
    gate = device_orders.tables(cluster, (0, 1, 2, 3), np.array([1, 2]), 1, published_links=True).gate
    assert {(p, i) for p, i in zip(*np.nonzero(gate), strict=True)} == {(1, 1)}


def test_on_any_cluster_the_free_reduction_is_no_slower_than_a_real_one() -> None:
    from meshwright.network import Network

    for spec in ("dgx-h100:16", "torus:2x4", "dgx-a100:8"):
        cluster = clusters.cluster(spec)
        widths = np.array([1, 2, 4, 8])
        lines = device_orders.free_reductions(cluster, widths, published_links=False)
        for i, width in enumerate(widths):
            real = Network.of(cluster).axis([list(range(width))]).seconds("all_reduce", 1e9)
            assert lines[i, 0, 0] + lines[i, 0, 1] * 1e9 <= real * (1 + 1e-12)
