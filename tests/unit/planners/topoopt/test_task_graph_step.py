"""Task graphs played on networks: small ones by hand, fair shares by definition, files that cannot be played."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.planners.topoopt.task_graphs.graph import FlexNetTask, TaskGraph
from meshwright.planners.topoopt.task_graphs.paths import Paths, fair_rates
from meshwright.planners.topoopt.task_graphs.played import HEADER_BYTES, PACKET_BYTES, play

RATE, LATENCY = 1e9, 1e-6
HEADERS = PACKET_BYTES / (PACKET_BYTES - HEADER_BYTES)
N = 4
CLUSTER = clusters.cluster(f"flat:{N},bandwidth={RATE:g},latency={LATENCY:g}")


def graph(*tasks: FlexNetTask, rings: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()) -> TaskGraph:
    """Return tasks on four servers behind one switch: device i computes on server i, 100 + 10 a + b sends from a to b."""
    devices = [(0, i, i, 0) for i in range(N)]
    devices += [(14, 100 + 10 * a + b, a, a * (N + 1) + b) for a, b in itertools.product(range(N), repeat=2)]
    return TaskGraph(1, N, 1, (1.0, 1.0, 1.0), (), (), tasks, tuple(devices), (), rings)


def work(identity: int, device: int, milliseconds: float, *after: int) -> FlexNetTask:
    return FlexNetTask("forward", identity, device, (milliseconds,), 0, after)


def send(identity: int, source: int, target: int, n_bytes: int, *after: int) -> FlexNetTask:
    return FlexNetTask("nominal_comm", identity, 100 + 10 * source + target, (0.0,), n_bytes, after)


def reduce(identity: int, n_bytes: int, *servers: int, milliseconds: float = 0.0) -> FlexNetTask:
    return FlexNetTask("all_reduce", identity, 0, (milliseconds,), n_bytes, servers)


def latency_seconds(source: int, target: int) -> float:
    """Return what the links of the one path between two devices add."""
    paths = Paths(CLUSTER)
    return float(paths.latency_seconds[paths.path(source, target, np.random.default_rng(0))].sum())


def test_tasks_of_a_device_follow_each_other_and_a_transfer_takes_its_bytes_with_headers_and_the_latency() -> None:
    step = play(graph(work(1, 0, 2.0, 3), work(2, 0, 1.0), send(3, 0, 1, 1_000_000, 4), work(4, 1, 0.5)), CLUSTER)
    assert step.step_seconds == pytest.approx(2e-3 + 1e6 * HEADERS / RATE + latency_seconds(0, 1) + 0.5e-3, rel=1e-12)
    assert step.compute_seconds == pytest.approx(3e-3)
    assert step.transfer_bytes == 1e6 and step.all_reduce_bytes == 0.0 and step.n_tasks == 4
    assert step.link_busy_ratio[0][1] == pytest.approx(1e6 * HEADERS / RATE / step.step_seconds)


def test_transfers_into_one_device_share_its_link_until_the_shorter_is_over() -> None:
    small, large = 1_000_000, 3_000_000
    step = play(graph(work(9, 3, 0.0, 1, 2), send(1, 0, 2, small), send(2, 1, 2, large)), CLUSTER)
    assert step.step_seconds == pytest.approx((small + large) * HEADERS / RATE + latency_seconds(1, 2), rel=1e-9)
    apart = play(graph(send(1, 0, 2, small), send(2, 1, 3, large)), CLUSTER)
    assert apart.step_seconds == pytest.approx(large * HEADERS / RATE + latency_seconds(1, 3), rel=1e-9)


@pytest.mark.parametrize("servers", [(0, 1), (0, 1, 3), (0, 1, 2, 3)])
def test_a_ring_takes_a_share_of_the_tensor_and_a_latency_in_each_of_its_rounds(servers: tuple[int, ...]) -> None:
    g, n_bytes = len(servers), 12_000_000
    step = play(graph(work(1, 0, 1.0, 2), reduce(2, n_bytes, *servers, milliseconds=0.25)), CLUSTER)
    rounds = 2 * (g - 1) * (n_bytes / g * HEADERS / RATE + latency_seconds(0, 1))
    assert step.step_seconds == pytest.approx(1.25e-3 + rounds, rel=1e-9)
    assert step.all_reduce_bytes == n_bytes


def test_a_tensor_of_less_than_a_packet_a_server_takes_one_round_with_all_its_bytes() -> None:
    just = PACKET_BYTES * N
    one = play(graph(reduce(1, just - 4, 0, 1, 2, 3)), CLUSTER).step_seconds
    many = play(graph(reduce(1, just, 0, 1, 2, 3)), CLUSTER).step_seconds
    assert one == pytest.approx(2 * (N - 1) / N * (just - 4) * HEADERS / RATE + latency_seconds(0, 1), rel=1e-9)
    assert many == pytest.approx(2 * (N - 1) * (just / N * HEADERS / RATE + latency_seconds(0, 1)), rel=1e-9)


def test_rings_of_the_file_run_at_once_on_its_own_network_only() -> None:
    tasks, rings = (reduce(1, 12_000_000, 0, 1, 2, 3),), ((N, ((1,), (3,))),)
    both = clusters.cluster(f"ring:{N},bandwidth={RATE:g},latency={LATENCY:g}")  # a link each way
    on_both = play(graph(*tasks, rings=rings), both, has_rings=True).step_seconds
    on_one = play(graph(*tasks, rings=rings), both)
    assert on_both < 0.51 * on_one.step_seconds
    assert any("rings" in note for note in on_one.notes)
    assert on_one.step_seconds == play(graph(*tasks), both).step_seconds


def test_what_is_done_alone_or_empty_takes_no_network() -> None:
    step = play(graph(reduce(1, 10**9, 2), send(2, 0, 0, 10**9), send(3, 0, 1, 0), work(4, 0, 1.0)), CLUSTER)
    assert step.step_seconds == pytest.approx(1e-3)
    assert step.link_busy_ratio == () and step.all_reduce_bytes == 0.0


def test_on_a_fat_tree_the_seed_draws_the_paths_and_the_same_seed_the_same() -> None:
    tree = clusters.cluster("fat-tree:16,oversubscription=2")
    tasks = tuple(send(i, i % 2, 2 + i % 2, 10**7) for i in range(8))
    found = graph(*tasks)
    assert play(found, tree, seed=1) == play(found, tree, seed=1)
    assert len({play(found, tree, seed=seed).step_seconds for seed in range(8)}) > 1


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair_by_definition(seed: int) -> None:
    dice = random.Random(seed)
    speeds = np.array([dice.choice((1.0, 2.0, 5.0)) for _ in range(6)])
    paths = [dice.sample(range(6), dice.randint(1, 3)) for _ in range(dice.randint(1, 8))]
    rates = fair_rates(paths, speeds)
    load = np.zeros(6)
    for path, rate in zip(paths, rates, strict=True):
        load[path] += rate
    assert (load <= speeds * (1 + 1e-9)).all() and (rates > 0).all()
    for path, rate in zip(paths, rates, strict=True):  # each has a full link on which nobody has more
        full = [link for link in path if load[link] >= speeds[link] * (1 - 1e-9)]
        most = [max(other for other, links in zip(rates, paths, strict=True) if link in links) for link in full]
        assert any(rate >= there * (1 - 1e-9) for there in most)


def test_paths_are_shortest_and_every_shortest_one_is_drawn() -> None:
    mesh = clusters.cluster("torus:3x3")
    paths, dice = Paths(mesh), np.random.default_rng(0)
    drawn = {tuple(paths.path(0, 4, dice)) for _ in range(50)}
    assert {len(path) for path in drawn} == {2} and len(drawn) == 2
    assert paths.path(5, 5, dice) == []


def test_a_file_that_cannot_be_played_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="has 2 devices, the task graph 4 servers"):
        play(graph(work(1, 0, 1.0)), clusters.cluster("flat:2"))
    with pytest.raises(InputError, match="2 tasks of the task graph wait for each other"):
        play(graph(work(1, 0, 1.0, 2), work(2, 0, 1.0, 1)), CLUSTER)
    with pytest.raises(InputError, match="kind update"):
        play(graph(dataclasses.replace(work(1, 0, 1.0), kind="update")), CLUSTER)
    with pytest.raises(InputError, match=r"takes -1\.0 ms"):
        play(graph(work(1, 0, -1.0)), CLUSTER)
    with pytest.raises(InputError, match="which two servers"):
        play(dataclasses.replace(graph(send(1, 0, 1, 10)), devices=((14, 101, 0, N),)), CLUSTER)  # to the switch


def test_devices_without_a_way_between_are_refused() -> None:
    paths = Paths(dataclasses.replace(CLUSTER, n_switches=CLUSTER.n_switches + 1))
    with pytest.raises(InputError, match=f"no links lead from node 0 to node {N + CLUSTER.n_switches}"):
        paths.path(0, N + CLUSTER.n_switches, np.random.default_rng(0))
