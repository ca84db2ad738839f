"""DAPPLE's machines and its published constants: 25 GB/s inside a machine, 1 GB/s between, 3 GB/s for collectives."""

from __future__ import annotations

import pytest

from meshwright.planners.dapple import machines


def test_devices_are_on_their_machines_switch_and_machines_on_one() -> None:
    cluster = machines.machines_cluster((2, 1))
    links = cluster.links
    ends = zip(links.source.tolist(), links.target.tolist(), links.bytes_per_second.tolist(), strict=True)
    assert sorted((a, b, rate) for a, b, rate in ends if a < b) == [
        (0, 3, 25e9),
        (1, 3, 25e9),
        (2, 4, 25e9),
        (3, 5, 1e9),
        (4, 5, 1e9),
    ]
    assert cluster.n_switches == 3 and cluster.node_of_device.tolist() == [0, 0, 1] and not links.latency_seconds.any()
    alone = machines.machines_cluster((3,))
    assert (alone.n_switches, len(alone.links), alone.name) == (1, 6, "machines:3")
    assert cluster.name == "machines:2,3" and machines.machines_cluster((1,) * 9).name == "machines:9 machines"


def test_machines_are_given_by_where_they_end() -> None:
    assert machines.sizes_of((8, 12, 13), "here") == (8, 4, 1)


def test_an_all_reduce_is_a_ring_through_ethernet_or_through_half_as_many_nvlinks_as_devices() -> None:
    """12 bytes over n devices: 2 (n - 1) / n of them; inside a machine of four, two NVLinks carry them."""
    cluster = machines.machines_cluster((4, 2))
    assert machines.all_reduce_seconds(cluster, (0,), 12.0) == 0.0
    assert machines.all_reduce_seconds(cluster, (0, 1), 12.0) == pytest.approx(12.0 / 25e9)
    assert machines.all_reduce_seconds(cluster, (0, 1, 2), 12.0) == pytest.approx(16.0 / 25e9)
    assert machines.all_reduce_seconds(cluster, (0, 1, 2, 3), 12.0) == pytest.approx(18.0 / 25e9 / 2)
    assert machines.all_reduce_seconds(cluster, (3, 4), 12.0) == pytest.approx(12.0 / 3e9)


def test_a_micro_batch_waits_for_its_slowest_link() -> None:
    """Equal parts of the whole on every device; between machines all that crosses goes through one link of 1 GB/s."""

    def seconds(sources: tuple[int, ...], targets: tuple[int, ...]) -> float:
        return machines.send_seconds_per_byte(cluster, sources, targets)

    cluster = machines.machines_cluster((4, 2))
    assert seconds((0,), (1,)) == pytest.approx(1 / 25e9)
    assert seconds((0, 1), (2, 3)) == pytest.approx(1 / 2 / 25e9)
    assert seconds((0, 1), (2,)) == pytest.approx(1 / 25e9)  # all of it arrives at one device
    assert seconds((0,), (4,)) == pytest.approx(1 / 1e9)
    assert seconds((0, 1), (2, 4)) == pytest.approx(1 / 2 / 1e9)  # half of it crosses
    assert seconds((0, 1, 2), (3, 4)) == pytest.approx(1 / 2 / 1e9)
