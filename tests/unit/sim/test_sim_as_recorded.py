"""Steps of small pipelines of every schedule, played alone and on shared links, and plans that are refused, as recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright import sim
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.plan import Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import Collective, StageCost
from meshwright.core.strategy import Strategy
from meshwright.sim import engine, links, tasks, traffic, transfers
from recorded import Recorded
from returned import Returned, refusal
from small_clusters import boxes, device
from small_pipelines import PIPELINES, posed

KEPT_ELSEWHERE = tuple(
    f"sim/{name}"
    for name in ("memory:memory", "memory:_of_rank", "memory:_changes", "fits:context_bytes", "engine:simulate", "engine:play")
)
"""What is said of memory is compared figure by figure, in the timeline."""


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_step_of_every_schedule_is_played_as_recorded(name: str, linked: bool, recorded: Recorded) -> None:
    problem, plan, loads = posed(name, linked=linked)
    with Returned("sim/", without=KEPT_ELSEWHERE) as found:
        timeline = sim.simulate(problem, plan, loads)
        least, alone = engine.least_seconds(problem, plan, loads), engine.estimate(plan, loads, np.arange(len(loads) - 1.0) / 8)
    columns = [
        (timeline.start_seconds + 3 * timeline.end_seconds) @ np.arange(len(timeline.stage)),
        timeline.phase @ np.arange(len(timeline.stage)),
    ]
    recorded([timeline.step_seconds, least, alone, timeline.peak_bytes, columns], "timeline")
    recorded({key: value for key, value in timeline_of(timeline).items() if key not in ("phase", "stage")}, "ranks")
    recorded(found.lines(), "functions")


def timeline_of(timeline: object) -> dict[str, object]:
    """Return what a timeline says of ranks and links: short tuples and numbers."""
    found = {}
    for name in timeline.__dataclass_fields__:
        value = getattr(timeline, name)
        if isinstance(value, (int, float)) or (
            isinstance(value, tuple) and len(value) <= 6 and all(isinstance(of, (int, float)) for of in value)
        ):
            found[name] = value
        elif isinstance(value, np.ndarray):
            found[name] = [len(value), float(np.abs(value.astype(float)).sum())]
    return found


def test_transfers_channels_and_pairs_are_as_recorded(recorded: Recorded) -> None:
    found = {
        "pairs": [transfers.pairs(range(a), range(10, 10 + b)) for a, b in ((1, 1), (1, 3), (3, 1), (2, 3), (4, 2), (3, 3))],
        "channels": [transfers.channels(np.array(ranks)) for ranks in ((0,), (0, 1, 2), (0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1))],
        "fixed": [
            transfers.fixed(np.array(ranks), np.array(seconds))
            for ranks, seconds in (((0, 1, 2), (0.5, 0.0)), ((0, 1, 1, 0), (1.0, 2.0, 3.0)))
        ],
        "groups": [
            traffic.groups(Stage((0,), (4, 5, 6, 7, 8, 9, 10, 11)), size, stride)
            for size, stride in ((8, 1), (2, 1), (2, 4), (4, 2), (1, 1))
        ],
        "busiest": [
            links.busiest(carried, rates, seconds, n)
            for carried in (np.array([4.0, 0.0, 2.0, 4.0, 1.0]), np.zeros(5))
            for rates in (np.array([2.0, 1.0, 1.0, 2.0, 8.0]), None)
            for seconds in (0.0, 2.0)
            for n in (0, 1, 2, 4, 9)
        ],
    }
    recorded(found)


@pytest.mark.parametrize("stride", [1, 2])
def test_traffic_of_unlike_collectives_is_added_up_as_recorded(stride: int, recorded: Recorded) -> None:
    """Collectives of one stage on the same and on other links, some that carry nothing, some longer than the compute."""
    cluster = boxes([2, 2], across=1e9)
    problem, plan, _ = posed("one_rank")
    problem = replace(problem, cluster=cluster)
    stage = Stage((0,), (0, 1, 2, 3), Strategy(data=4))
    plan = replace(plan, stages=(stage,), global_batch=16)
    own = (
        Collective("forward_beside", "all_gather", 2, stride, 1e9, 2.0, 9.0),
        Collective("forward_beside", "all_reduce", 4, 1, 1e8, 1.0, 0.5),
        Collective("forward_beside", "all_reduce", 2, 1, 0.0, 1.0, 0.0),
        Collective("reduce", "all_to_all", 2, stride, 1e6, 3.0, 0.1),
    )
    load = StageCost(
        1.0,
        2.0,
        0.5,
        forward_communication=(("a", 0.25), ("b", 0.125)),
        backward_communication=(("a", 0.5),),
        reduce_seconds=0.75,
        gather_seconds=0.5,
        collectives=own,
    )
    found = [
        traffic.traffic(problem, plan, loads)
        for loads in ((load,), (replace(load, forward_seconds=0.1),), (replace(load, collectives=own[3:]),))
    ]
    assert traffic.traffic(problem, plan, (replace(load, collectives=()),)) is None
    assert traffic.traffic(replace(problem, cluster=None), plan, (load,)) is None
    recorded([[one, one.before_weights(np.array([1.0]), np.array([4.0]))] for one in found])


def test_what_fits_is_as_recorded(recorded: Recorded) -> None:
    small, large = (
        device("small", memory_bytes=10e9, reserved_bytes=1e9),
        device("large", memory_bytes=30e9, reserved_bytes=2e9),
    )
    cluster = boxes([2, 2], kinds=[small, large])
    problem, plan, _ = posed("gpipe")
    problem = replace(problem, cluster=cluster)
    found = {
        "free": [
            sim.free_bytes(devices, ratio) for devices in ((small,), (large,), (large, small)) for ratio in (1.0, 0.5, 0.05)
        ],
        "tightest": [sim.fits.tightest(cluster, devices).name for devices in ((0,), (2,), (3, 0), (2, 3))],
        "excess": [
            sim.fits.excess_bytes(problem, plan, peaks, ratio)
            for peaks in ((1e9, 1e9), (12e9, 1e9), (1e9, 40e9), (20e9, 40e9), (9e9, 28e9))
            for ratio in (1.0, 0.8)
        ],
        "shared": [
            sim.fits.shared_excess_bytes(n_bytes, one, n)
            for n_bytes in (1e9, 25e9, 90e9)
            for one in (small, large)
            for n in (1, 2, 3)
        ],
    }
    recorded(found)


def graph(n: int, edges: tuple[tuple[int, int], ...], kinds: dict[int, str] | None = None) -> Graph:
    return Graph(
        "g", tuple(Op(f"op{i}", (kinds or {}).get(i, "mlp")) for i in range(n)), tuple(Edge(a, b, 4) for a, b in edges)
    )


def test_refusals_are_as_recorded(recorded: Recorded) -> None:
    problem, plan, loads = posed("gpipe")
    first, second = plan.stages

    def staged(*stages: Stage, problem: Problem = problem, **fields: object) -> object:
        return lambda: tasks.check_plan(problem, replace(plan, stages=stages, **fields))

    def loaded(**fields: object) -> object:
        return lambda: tasks.check_loads(plan, (replace(loads[0], **fields), loads[1]))

    def wired(edges: tuple[tuple[int, int], ...], *stages: tuple[int, ...], kinds: dict[int, str] | None = None) -> object:
        other = replace(problem, model_spec=replace(problem.model_spec, graph=graph(3, edges, kinds)))
        return staged(*(replace(stage, ops=ops) for stage, ops in zip(plan.stages, stages, strict=True)), problem=other)

    calls = {
        "as it is": staged(first, second),
        "no stages": staged(),
        "no micro-batches": staged(first, second, n_microbatches=0),
        "half": staged(first, second, micro_batch=1.5),
        "most": staged(first, second, global_batch=10**9),
        "more": staged(first, second, global_batch=10**9 + 1),
        "tasks": staged(first, second, n_microbatches=2_500_001),
        "most tasks": staged(first, second, n_microbatches=2_500_000),
        "schedule": staged(first, second, schedule=3),
        "batch": staged(first, second, global_batch=13),
        "unknown schedule": lambda: sim.simulate(problem, replace(plan, schedule="x"), loads),
        "ranks": lambda: sim.simulate(problem, replace(plan, schedule="zb_v"), loads),
        "no devices": staged(replace(first, devices=()), second),
        "device": staged(replace(first, devices=("0", 1)), second),
        "twice": staged(replace(first, devices=(1, 1)), second),
        "negative": staged(replace(first, devices=(-1, 1)), second),
        "beyond": staged(first, replace(second, devices=(2, 4))),
        "last": staged(first, replace(second, devices=(2, 3))),
        "shared": staged(first, replace(second, devices=(1, 2))),
        "same": staged(first, replace(second, devices=(0, 1))),
        "no cluster": staged(first, second, problem=replace(problem, cluster=None)),
        "degree": staged(replace(first, strategy=Strategy(data=0)), second),
        "word": staged(replace(first, strategy=Strategy(data=2, tensor="1")), second),
        "shard": staged(replace(first, strategy=Strategy(data=2, shard=4)), second),
        "shard 3": staged(replace(first, strategy=Strategy(data=2, shard=3)), second),
        "mesh": staged(replace(first, strategy=Strategy(data=1)), second),
        "recompute": staged(replace(first, recompute=("none", "full")), second),
        "recompute word": staged(replace(first, recompute=("some",)), second),
        "recompute full": staged(replace(first, recompute=("full",)), second),
        "layer": staged(replace(first, ops=(7,)), second),
        "layer word": staged(replace(first, ops=("0",)), second),
        "layer below": staged(replace(first, ops=(-1,)), second),
        "layer twice": staged(replace(first, ops=(0, 0)), second),
        "layer in two": staged(first, replace(second, ops=(1, 0))),
        "lost": staged(first, replace(second, ops=())),
        "lost two": wired((), (1,), ()),
        "in order": wired(((0, 1), (1, 2)), (0, 1), (2,)),
        "backwards": wired(((0, 1), (1, 2)), (1, 2), (0,)),
        "inside": wired(((0, 1), (1, 2)), (1, 0), (2,)),
        "a backward layer": wired(((0, 1), (1, 2)), (0, 2), (1,), kinds={2: "backward"}),
        "loads": lambda: tasks.check_loads(plan, loads[:1]),
        "good loads": loaded(),
        "negative load": loaded(forward_seconds=-1.0),
        "nan": loaded(working_bytes=float("nan")),
        "endless": loaded(output_bytes=float("inf")),
        "overlap": loaded(overlap_ratio=1.1),
        "negative overlap": loaded(overlap_ratio=-0.1),
        "overlap of all": loaded(overlap_ratio=1.0),
        "communication": loaded(forward_communication=(("tensor", -1.0),)),
        "zero": loaded(weight_bytes=0.0),
        "too much": lambda: sim.step_seconds("zb_v", 2, 1, 2, *np.ones((3, 2)), np.ones(1)),
    }
    recorded({name: refusal(call) for name, call in calls.items()})
