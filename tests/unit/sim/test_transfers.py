"""Transfers between stages on real links: who sends to whom, how long alone, and which links are worth watching."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright import clusters, sim
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.network import Network
from meshwright.sim import engine, sharing
from meshwright.sim.transfers import Transfers, channels, pairs, transfers

TWO_NODES = "two-level:16,per_node=8,node_bandwidth=300 GB/s,bandwidth=25 GB/s,latency=1 us,launch=5 us"


def posed(n_stages: int, spec: str) -> Problem:
    graph = Graph("tiny", tuple(Op(f"layers.{i}", "mlp") for i in range(n_stages)))
    return Problem(ModelSpec("tiny", "test", "tiny", graph), clusters.cluster(spec))


def piped(*devices: tuple[int, ...], count: int = 4) -> Plan:
    stages = tuple(Stage((i,), of_stage, Strategy(data=len(of_stage))) for i, of_stage in enumerate(devices))
    return Plan(stages, count, 1, "1f1b", count)


@pytest.mark.parametrize("n_sources", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("n_targets", [1, 2, 3, 4, 6])
def test_every_sender_sends_all_it_has_and_every_receiver_gets_as_much(n_sources: int, n_targets: int) -> None:
    source, target, share = pairs(tuple(range(n_sources)), tuple(range(100, 100 + n_targets)))
    assert np.bincount(source, share).tolist() == pytest.approx([1.0] * n_sources)
    assert np.bincount(target - 100, share).tolist() == pytest.approx([n_sources / n_targets] * n_targets)
    assert len(set(zip(source.tolist(), target.tolist(), strict=True))) == len(source) <= n_sources + n_targets - 1


def test_equal_stages_send_peer_to_peer() -> None:
    source, target, share = pairs((3, 1, 2), (7, 9, 8))
    assert (source.tolist(), target.tolist(), share.tolist()) == ([3, 1, 2], [7, 9, 8], [1.0, 1.0, 1.0])


def test_all_replicas_share_the_link_between_two_nodes() -> None:
    problem = posed(2, TWO_NODES)
    plan = piped(tuple(range(8)), tuple(range(8, 16)))
    load = StageCost(1.0, 1.0, output_bytes=25e9)
    found = transfers(problem, plan, (load, load))
    latency, slope = Network.of(problem.cluster).transfer([(i, i + 8) for i in range(8)])
    assert found.seconds[0, 0] == pytest.approx(latency + 25e9 * slope) == pytest.approx(8.0 + 9e-6)
    assert found.seconds[1, 1] == found.seconds[0, 0]
    assert sharing.flows(found, None, np.arange(2)) is None


def test_a_transfer_to_twice_as_many_devices_is_cut_in_two() -> None:
    problem = posed(2, TWO_NODES)
    load = StageCost(1.0, 1.0, output_bytes=25e9)
    found = transfers(problem, piped((0,), (8, 9)), (load, load))
    assert found.seconds[0, 0] == pytest.approx(1.0 + 9e-6)
    assert sorted(np.unique(np.round(found.busy_bytes[0] / 25e9, 6))) == [0.5, 1.0]


def test_stages_of_one_rank_and_stages_without_output_send_nothing() -> None:
    problem = posed(4, TWO_NODES)
    plan = replace(piped((0,), (8,), (8,), (0,)), schedule="zb_v")
    stage_costs = tuple(StageCost(1.0, 1.0, 1.0, output_bytes=n_bytes) for n_bytes in (25e9, 25e9, 0.0, 25e9))
    found = transfers(problem, plan, stage_costs)
    assert np.round(found.seconds, 3).tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    assert sim.simulate(problem, plan, stage_costs).step_seconds > 0.0


def test_without_a_cluster_transfers_take_no_time() -> None:
    problem = replace(posed(2, TWO_NODES), cluster=None)
    load = StageCost(1.0, 1.0, output_bytes=1e12)
    assert not transfers(problem, piped((0,), (1,)), (load, load)).seconds.any()


def test_going_to_and_fro_between_two_nodes_shares_the_uplinks() -> None:
    """Stages on nodes 0, 1, 0: what stage 0 sends forward and stage 2 sends backward leave node 0 through one link."""
    problem, plan = posed(3, TWO_NODES), piped((0,), (8,), (1,), count=8)
    load = StageCost(0.5, 0.5, output_bytes=25e9)
    found = transfers(problem, plan, (load,) * 3)
    flows = sharing.flows(found, None, np.arange(3))
    assert flows is not None
    # One link of each kind: what leaves node 0, and what comes back to it; each with two flows that could fill it.
    assert np.diff(flows.room).tolist() == [2, 2]
    assert flows.weight.tolist() == [1.0] * 4
    timeline = sim.simulate(problem, plan, (load,) * 3)
    alone = engine.play(plan, (load,) * 3, Transfers(found.channel, found.seconds, found.latency_seconds, found.bytes))
    assert alone.step_seconds < timeline.step_seconds <= 2 * alone.step_seconds
    assert 0.5 < timeline.link_busy_ratio[0][1] <= 1.0
    assert timeline.link_busy_ratio[0][1] >= timeline.link_busy_ratio[-1][1]


def test_the_busiest_links_carry_their_share_of_what_they_could() -> None:
    problem, plan = posed(2, TWO_NODES), piped((0,), (8,), count=3)
    load = StageCost(4.0, 4.0, output_bytes=25e9)
    timeline = sim.simulate(problem, plan, (load, load))
    assert timeline.link_busy_ratio[0][1] == pytest.approx(3.0 / timeline.step_seconds)
    assert timeline.link_bytes[timeline.link_busy_ratio[0][0]] == 3 * 25e9


def test_stages_that_send_between_the_same_ranks_share_a_channel() -> None:
    assert channels(np.array([0, 1, 0, 1])).tolist() == [[0, 1, 0, -1], [-1, 1, 0, 1]]
    assert channels(np.array([0, 1, 1, 0])).tolist() == [[0, -1, 1, -1], [-1, 1, -1, 0]]
    assert channels(np.array([0])).tolist() == [[-1], [-1]]
