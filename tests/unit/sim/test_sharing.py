"""Collectives, transfers and the end of a step on shared links: cases solved by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright import api, clusters, sim
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, ModelSpec, Problem
from meshwright.core.stage_cost import Collective, StageCost
from meshwright.core.strategy import Strategy
from meshwright.core.timeline import PHASES, Timeline
from meshwright.costs.analytic import device_mesh
from meshwright.network import Network
from meshwright.sim import engine, sharing, traffic, transfers

PORTS = "flat:4,bandwidth=1 GB/s,latency=0 s,launch=0 s"
"""Four devices on one switch, a gigabyte a second each way."""
NODES = "two-level:16,per_node=8,node_bandwidth=1000 GB/s,bandwidth=1 GB/s,latency=0 s,launch=0 s"
"""Two nodes of eight; all of a node leave it through one gigabyte a second."""
TREE = "fat-tree:16,oversubscription=4,bandwidth=8 GB/s,latency=0 s,launch=0 s"
"""Two devices on an edge switch, whose two uplinks have a quarter of a device's bandwidth each."""


def posed(spec: str, n_layers: int = 2) -> Problem:
    graph = Graph("tiny", tuple(Op(f"layers.{i}", "mlp") for i in range(n_layers)))
    return Problem(ModelSpec("tiny", "test", "tiny", graph), clusters.cluster(spec))


def piped(*devices: tuple[int, ...], count: int = 1) -> Plan:
    stages = tuple(Stage((i,), of_stage, Strategy(data=len(of_stage))) for i, of_stage in enumerate(devices))
    return Plan(stages, count, 1, "1f1b", count * max(map(len, devices)))


def reduction(problem: Problem, devices: tuple[int, ...], n_bytes: float) -> Collective:
    """Return an all-reduce over all devices of a stage with the seconds the network room says."""
    axis = Network.of(problem.cluster).axis(np.array([devices]))
    return Collective("reduce", "all_reduce", len(devices), 1, n_bytes, 1.0, axis.seconds("all_reduce", n_bytes))


def when(timeline: Timeline, phase: str) -> list[tuple[int, float, float]]:
    mine = timeline.phase == PHASES.index(phase)
    columns = (timeline.stage, timeline.start_seconds, timeline.end_seconds)
    return sorted(zip(*(column[mine].tolist() for column in columns), strict=True))


def two_reductions(spec: str, first: tuple[int, ...], second: tuple[int, ...], n_bytes: float, seconds: float) -> Timeline:
    """Forward and backward of a second on each of two stages; both reduce `n_bytes`, which takes `seconds` alone."""
    problem = posed(spec)
    stage_costs = []
    for devices in (first, second):
        one = reduction(problem, devices, n_bytes)
        assert one.seconds == pytest.approx(seconds, rel=1e-12)
        stage_costs.append(StageCost(1.0, 1.0, reduce_seconds=one.seconds, collectives=(one,)))
    return sim.simulate(problem, piped(first, second), tuple(stage_costs))


@pytest.mark.parametrize(
    ("spec", "first", "second", "n_bytes"),
    [(NODES, (0, 8), (1, 9), 2e9), (TREE, (0, 8), (1, 9), 8e9)],
    ids=["one port of a node", "uplinks of an oversubscribed fat tree"],
)
def test_two_reductions_on_one_link_get_half_of_it_each(
    spec: str, first: tuple[int, ...], second: tuple[int, ...], n_bytes: float
) -> None:
    """Two seconds each alone; stage 1 starts at 3, stage 0 at 4.

    Until 4 stage 1 has the link and does half. From 4 on each gets half of the link: stage 1's other second of work takes two,
    until 6. By then stage 0 has done one second's work; the other one it does alone, until 7.

    In the fat tree half of 8 GB takes each of the two uplinks of 2 GB/s; a ring of two devices sends every byte once.
    """
    timeline = two_reductions(spec, first, second, n_bytes, 2.0)
    assert when(timeline, "reduce") == [
        (0, pytest.approx(4.0), pytest.approx(7.0)),
        (1, pytest.approx(3.0), pytest.approx(6.0)),
    ]
    assert timeline.step_seconds == pytest.approx(7.0)
    # Of seven seconds the link is full for four.
    assert timeline.link_busy_ratio[0][1] == pytest.approx(4.0 / 7.0)


def test_reductions_on_different_links_do_not_meet() -> None:
    timeline = two_reductions(PORTS, (0, 1), (2, 3), 2e9, 2.0)
    assert when(timeline, "reduce") == [(0, 4.0, 6.0), (1, 3.0, 5.0)]
    assert timeline.step_seconds == 6.0


def test_a_reduction_beside_a_transfer_on_one_port_slows_both() -> None:
    """Stage 1 on devices 2 and 3 sends its gradient back, a second alone, and reduces, a second alone: both leave by its ports.

    Forward 0 - 1, activation sent 1 - 2, stage 1 works from 2 to 4. From 4 on both have half of the port: both end at 6, a
    second late. Stage 0 runs backward from 6 to 7.
    """
    problem = posed(PORTS)
    one = reduction(problem, (2, 3), 1e9)
    stage_costs = (
        StageCost(1.0, 1.0, output_bytes=1e9),
        StageCost(1.0, 1.0, reduce_seconds=one.seconds, collectives=(one,)),
    )
    timeline = sim.simulate(problem, piped((0, 1), (2, 3)), stage_costs)
    assert when(timeline, "reduce") == [(1, pytest.approx(4.0), pytest.approx(6.0))]
    assert when(timeline, "send")[-1] == (1, pytest.approx(4.0), pytest.approx(6.0))
    assert timeline.step_seconds == pytest.approx(7.0)
    alone = sim.simulate(problem, piped((0, 1), (2, 3)), tuple(replace(load, collectives=()) for load in stage_costs))
    assert alone.step_seconds == pytest.approx(6.0)


def test_whoever_needs_less_than_half_of_a_link_leaves_the_rest() -> None:
    """The reduction of stage 0 says it takes 8 seconds for 2 GB: a quarter of the link is all it can use.

    Stage 1 starts at 3 and is done with half at 4; then it has three quarters of the link and needs 4/3 seconds more. Stage 0
    is never slowed down.
    """
    problem = posed(NODES)
    slow, fast = reduction(problem, (0, 8), 2e9), reduction(problem, (1, 9), 2e9)
    stage_costs = (
        StageCost(1.0, 1.0, reduce_seconds=8.0, collectives=(replace(slow, seconds=8.0),)),
        StageCost(1.0, 1.0, reduce_seconds=2.0, collectives=(fast,)),
    )
    timeline = sim.simulate(problem, piped((0, 8), (1, 9)), stage_costs)
    assert when(timeline, "reduce") == [
        (0, pytest.approx(4.0), pytest.approx(12.0)),
        (1, pytest.approx(3.0), pytest.approx(4.0 + 4.0 / 3.0)),
    ]


def test_what_blocks_a_task_lengthens_it_and_the_rest_is_called_contention() -> None:
    """One stage on two nodes: each of two micro-batches computes for a second each way and then all-reduces for a second.

    Half of the 3 s reduction may run beside the last backward task, from 6 on: beside its compute until 7 alone, then both
    share the port. The task's second of communication takes two, until 9, during which the reduction does one second's work:
    1.5 of the 1.5 s are done at 8, so that the task is alone from then on: at 8 it has half a second left, and ends at 8.5. The
    other half of the reduction follows, until 10.
    """
    problem = posed(NODES, 1)
    one = reduction(problem, (0, 8), 1e9)
    three = replace(one, n_bytes=3e9, seconds=3.0)
    blocking = tuple(replace(one, part=part) for part in ("forward", "backward"))
    load = StageCost(
        1.0, 1.0, forward_communication=(("tensor", 1.0),), backward_communication=(("tensor", 1.0),), reduce_seconds=3.0,
        overlap_ratio=0.5, collectives=(*blocking, three),
    )  # fmt: skip
    timeline = sim.simulate(problem, piped((0, 8), count=2), (load,))
    assert when(timeline, "backward") == [(0, 2.0, pytest.approx(4.0)), (0, pytest.approx(6.0), pytest.approx(8.5))]
    assert when(timeline, "reduce") == [(0, 6.0, pytest.approx(8.0)), (0, pytest.approx(8.5), pytest.approx(10.0))]
    causes = dict(timeline.causes)
    assert (causes["compute"], causes["tensor"]) == (pytest.approx(4.0), pytest.approx(4.0))
    assert (causes["contention"], causes["reduce"]) == (pytest.approx(0.5), pytest.approx(1.5))
    assert sum(causes.values()) == pytest.approx(timeline.step_seconds)


def test_what_runs_beside_a_task_delays_its_end_only_when_it_is_slowed_down() -> None:
    """Two stages on the port of a node, each gathering for 0.8 s beside a second of compute, forward and backward.

    Nothing runs at the same time in this pipeline of one micro-batch but stage 0's reduction of nothing: no delay. With two
    micro-batches stage 0's second forward task and stage 1's first run side by side from 1 on: at half the link both gathers
    need until 2.6.
    """
    problem = posed(NODES)
    gather = Collective("forward_beside", "all_gather", 2, 1, 1.6e9, 1.0, 0.8)
    load = StageCost(1.0, 1.0, collectives=(gather,))
    assert sim.simulate(problem, piped((0, 8), (1, 9)), (load,) * 2).step_seconds == 4.0
    timeline = sim.simulate(problem, piped((0, 8), (1, 9), count=2), (load,) * 2)
    assert when(timeline, "forward")[:3] == [(0, 0.0, 1.0), (0, 1.0, pytest.approx(2.6)), (1, 1.0, pytest.approx(2.6))]


def test_more_beside_a_task_than_its_links_carry_lengthens_it_even_alone() -> None:
    """Two gathers of 0.8 s each beside one second of compute: together they need 1.6 s of the port."""
    problem = posed(NODES, 1)
    gathers = tuple(Collective("forward_beside", kind, 2, 1, 1.6e9, 1.0, 0.8) for kind in ("all_gather", "reduce_scatter"))
    load = StageCost(1.0, 1.0, collectives=gathers)
    timeline = sim.simulate(problem, piped((0, 8)), (load,))
    assert timeline.step_seconds == pytest.approx(2.6)


def test_groups_are_those_of_the_stages_mesh() -> None:
    devices = (5, 4, 7, 6, 1, 0, 3, 2, 11, 10, 9, 8)
    stage = Stage((0,), devices, Strategy(data=3, context=2, tensor=2))
    for kind, degrees, size, stride in (
        ("tensor", (2,), 2, 1), ("consecutive", (2, 2), 2, 2), ("consecutive", (6, 2), 6, 2), ("strided", (2, 2), 3, 4),
    ):  # fmt: skip
        expected = device_mesh._groups(kind, degrees, devices)
        assert traffic.groups(stage, size, stride).tolist() == expected.tolist()


@pytest.fixture(scope="module")
def planned() -> tuple[Problem, tuple[tuple[Plan, tuple[StageCost, ...]], ...]]:
    """Return a small model with every sharding, context and expert degrees, as the cost model prices them."""
    found = []
    problem = api.make_problem("mixtral-8x7b", "dgx-h100:32", batch=Batch(global_batch=64))
    n_ops = len(problem.graph.ops)
    for shard in (0, 1, 2, 3):
        for strategy in (
            Strategy(data=8, tensor=2, sequence_parallel=True, shard=shard),
            Strategy(data=4, context=4, expert=4, shard=shard),
        ):
            halves = (tuple(range(n_ops // 2)), tuple(range(n_ops // 2, n_ops)))
            how = ("none", "full")[shard % 2]
            stages = tuple(
                Stage(ops, tuple(range(16 * i, 16 * i + 16)), strategy, (how,) * len(ops)) for i, ops in enumerate(halves)
            )
            plan = Plan(stages, 64 // strategy.data, 1, "1f1b", 64)
            found.append((plan, api.evaluate(problem, plan)[0]))
    return problem, tuple(found)


def test_sharing_never_shortens_a_step_and_no_link_carries_more_than_it_can(
    planned: tuple[Problem, tuple[tuple[Plan, tuple[StageCost, ...]], ...]],
) -> None:
    problem, cases = planned
    longer = 0
    for plan, stage_costs in cases:
        timeline = sim.simulate(problem, plan, stage_costs)
        least = sim.least_seconds(problem, plan, stage_costs)
        assert timeline.step_seconds >= least * (1 - 1e-9)
        assert sum(value for _, value in timeline.causes) == pytest.approx(timeline.step_seconds)
        assert (timeline.link_bytes / problem.cluster.links.bytes_per_second).max() <= timeline.step_seconds
        longer += timeline.step_seconds > least * (1 + 1e-6)
    assert longer >= 2


def test_a_plan_without_contention_takes_to_the_last_bit_what_it_takes_alone(
    planned: tuple[Problem, tuple[tuple[Plan, tuple[StageCost, ...]], ...]],
) -> None:
    problem, _ = planned
    graph_stage = Stage(tuple(range(len(problem.graph.ops))), tuple(range(8)), Strategy(data=1, tensor=8))
    plan = Plan((graph_stage,), 8, 1, "1f1b", 8)
    stage_costs, timeline = api.evaluate(problem, plan)
    assert any(load.collectives for load in stage_costs)
    sends = transfers.transfers(problem, plan, stage_costs)
    assert timeline is not None
    assert timeline.step_seconds == engine.play(plan, stage_costs, sends).step_seconds
    assert timeline.link_bytes.any()


@pytest.mark.parametrize("seed", range(8))
def test_one_link_of_every_class_says_what_all_links_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of a few links, in any order, with loads that are shared between flows, equal or a little different."""
    random = np.random.default_rng(seed)
    n_links, n_stages = 60, 4
    pattern = random.integers(0, 6, n_links)
    rate = random.choice([1.0, 2.0], 6)[pattern]
    rate[random.integers(0, n_links)] *= 1.5
    loads = []
    for _ in range((2 + len(traffic.PARTS)) * n_stages):
        if loads and random.random() < 0.3:
            loads.append(loads[random.integers(0, len(loads))])  # the same arrays, as virtual stages of a rank have them
            continue
        links = np.flatnonzero(random.choice([True, False], 6)[pattern])
        amount = random.choice([0.0, 0.3, 0.7, 1.0], 6)[pattern[links]]
        if len(links) and random.random() < 0.3:
            amount[random.integers(0, len(links))] *= 1.0 + 1e-15
        loads.append((links, amount))
    seconds = random.choice([0.0, 0.9, 1.0], (2 + len(traffic.PARTS), n_stages))
    first, after = loads[: 2 * n_stages], loads[2 * n_stages :]
    channel = transfers.channels(np.arange(n_stages))
    sends = transfers.Transfers(
        channel, seconds[:2], np.zeros((2, n_stages)), seconds[:2], tuple(links for links, _ in first),
        tuple(amount for _, amount in first), rate,
    )  # fmt: skip
    beside = traffic.Traffic(seconds[2:], tuple(links for links, _ in after), tuple(amount for _, amount in after))
    found = sharing.flows(sends, beside, np.arange(n_stages))
    few = sharing._examples(loads, rate)
    assert sum(len(links) for links, _ in few) < sum(len(links) for links, _ in loads) / 2
    monkeypatch.setattr(sharing, "_examples", lambda loads, _: [(own[n > 0], n[n > 0]) for own, n in loads])
    wanted = sharing.flows(sends, beside, np.arange(n_stages))
    assert (found is None) == (wanted is None)
    for a, b in zip(found or (), wanted or (), strict=True):
        assert np.array_equal(a, b)
