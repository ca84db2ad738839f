"""One step, played: small cases solved by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright import sim
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.clusters import cluster
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.core.timeline import PHASES, Timeline
from meshwright.sim import engine
from meshwright.sim.transfers import fixed


def posed(n_stages: int) -> Problem:
    graph = Graph("tiny", tuple(Op(f"layers.{i}", "mlp") for i in range(n_stages)))
    return Problem(ModelSpec("tiny", "test", "tiny", graph))


def piped(n_stages: int, n_microbatches: int, schedule: str = "1f1b") -> Plan:
    return Plan(tuple(Stage((i,), (i,)) for i in range(n_stages)), n_microbatches, 1, schedule, n_microbatches)


def rows(timeline: Timeline) -> list[tuple[int, int, str, float, float]]:
    columns = (timeline.stage, timeline.microbatch, timeline.phase, timeline.start_seconds, timeline.end_seconds)
    return [(s, j, PHASES[p], a, b) for s, j, p, a, b in zip(*(column.tolist() for column in columns), strict=True)]


def test_two_stages_and_two_microbatches_solved_by_hand() -> None:
    """1F1B by hand: forward 1 s and backward 2 s on stage 0, 2 s and 3 s on stage 1, half a second between them.

    ========  =====================  =====================================================
    seconds   rank 0                 rank 1
    ========  =====================  =====================================================
    0 - 1     F0
    1 - 2     F1 (F0 arrives 1.5)    F0 from 1.5 to 3.5 (F1 sent 2 - 2.5, waits)
    3.5-6.5                          B0; its gradient arrives at 7
    6.5-8.5   B0 from 7 to 9         F1
    8.5-11.5                         B1; its gradient arrives at 12
    12-14     B1
    14-15     reduction of 1 s       half of 4 s beside B1 (8.5 - 10.5), half after it (11.5 - 13.5)
    15-15.25  update                 update 13.5 - 14.5
    ========  =====================  =====================================================
    """
    stage_costs = (
        StageCost(1.0, 1.5, 0.5, reduce_seconds=1.0, optimizer_seconds=0.25, activation_bytes=3.0, weight_bytes=10.0),
        StageCost(2.0, 2.0, 1.0, reduce_seconds=4.0, overlap_ratio=0.5, optimizer_seconds=1.0, working_bytes=7.0),
    )
    timeline = engine.play(piped(2, 2), stage_costs, fixed(np.arange(2), np.array([0.5])))
    assert timeline.step_seconds == 15.25
    assert rows(timeline) == [
        (0, 0, "forward", 0.0, 1.0),
        (0, 1, "forward", 1.0, 2.0),
        (0, 0, "send", 1.0, 1.5),
        (1, 0, "forward", 1.5, 3.5),
        (0, 1, "send", 2.0, 2.5),
        (1, 0, "backward", 3.5, 6.5),
        (1, 1, "forward", 6.5, 8.5),
        (1, 0, "send", 6.5, 7.0),
        (0, 0, "backward", 7.0, 9.0),
        (1, 1, "backward", 8.5, 11.5),
        (1, -1, "reduce", 8.5, 10.5),
        (1, 1, "send", 11.5, 12.0),
        (1, -1, "reduce", 11.5, 13.5),
        (0, 1, "backward", 12.0, 14.0),
        (1, -1, "optimizer", 13.5, 14.5),
        (0, -1, "reduce", 14.0, 15.0),
        (0, -1, "optimizer", 15.0, 15.25),
    ]
    # Rank 0 works 6 s; it waits 2 - 7 (half a second of it for the transfer) and 9 - 12 (again half). Rank 1 works 10 s, 4 s
    # more.
    assert dict(timeline.causes) == {
        "compute": 6.0, "recompute": 0.0, "gather": 0.0, "imbalance": 4.0, "bubble": 3.0, "transfer": 1.0, "reduce": 1.0,
        "optimizer": 0.25,
    }  # fmt: skip
    assert timeline.peak_bytes == (16.0, 7.0)
    assert timeline.memory_seconds[0].tolist() == [0.0, 1.0, 9.0, 14.0]
    assert timeline.memory_bytes[0].tolist() == [13.0, 16.0, 13.0, 10.0]
    assert timeline.memory_seconds[1].tolist() == [0.0, 1.5, 11.5]
    assert dict(timeline.memory_causes[0])["activations"] == 6.0
    assert dict(timeline.memory_causes[1])["working"] == 7.0


def test_blocking_communication_and_recomputation_lengthen_the_tasks_and_are_named() -> None:
    load = StageCost(
        1.0, 1.0, 1.0, recompute_seconds=0.5,
        forward_communication=(("tensor", 0.25), ("expert", 0.125)), backward_communication=(("tensor", 0.5),),
    )  # fmt: skip
    timeline = sim.simulate(posed(1), piped(1, 4), (load,))
    assert timeline.step_seconds == 4 * (1.375 + 3.0)
    causes = dict(timeline.causes)
    assert (causes["compute"], causes["recompute"], causes["tensor"], causes["expert"]) == (12.0, 2.0, 3.0, 0.5)
    assert sum(causes.values()) == timeline.step_seconds


def test_a_long_transfer_queues_behind_the_one_before_it() -> None:
    """Forward 1 s, transfer 3 s: stage 1 gets micro-batches at 4, 7 and 10 although stage 0 is done with all of them at 3."""
    stage_costs = (StageCost(1.0, 1.0), StageCost(1.0, 1.0))
    timeline = engine.play(piped(2, 3, "gpipe"), stage_costs, fixed(np.arange(2), np.array([3.0])))
    sends = [(a, b) for stage, _, phase, a, b in rows(timeline) if phase == "send" and stage == 0]
    assert sends == [(1.0, 4.0), (4.0, 7.0), (7.0, 10.0)]


def test_the_quick_answers_equal_the_whole_one_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    for n_stages in (1, 2, 5):
        stage_costs = tuple(StageCost(*rng.random(3), reduce_seconds=0.3, overlap_ratio=0.4) for _ in range(n_stages))
        transfer = rng.random(n_stages - 1)
        plan = piped(n_stages, 7)
        whole = engine.play(plan, stage_costs, fixed(np.arange(n_stages), transfer))
        assert sim.estimate(plan, stage_costs, transfer) == whole.step_seconds
        columns = [np.array([getattr(load, name) for load in stage_costs]) for name in
                   ("forward_seconds", "backward_input_seconds", "backward_weight_seconds")]  # fmt: skip
        tasks_end = whole.end_seconds[(whole.rank >= 0) & (whole.microbatch >= 0)].max()
        assert sim.step_seconds("1f1b", n_stages, 1, 7, *columns, transfer) == pytest.approx(tasks_end, rel=1e-15)


def wrong_plans() -> list[tuple[Plan, str]]:
    good = piped(2, 2)
    return [
        (Plan(()), "no stages"),
        (replace(good, n_microbatches=0), "n_microbatches is 0"),
        (replace(good, micro_batch="two"), "micro_batch is 'two'"),  # type: ignore[arg-type]
        (replace(good, n_microbatches=3), "3 micro-batches of 1 x 1 replicas make 3 samples, but global_batch is 2"),
        (replace(good, global_batch=4), "make 2 samples, but global_batch is 4: make it 2, or n_microbatches 4"),
        (replace(good, n_microbatches=10**8), "at most 10000000 can be simulated"),
        (replace(good, stages=(Stage((0,), ()), Stage((1,), (1,)))), "stage 0 names no devices"),
        (replace(good, stages=(Stage((0,), (0, 0)), Stage((1,), (1,)))), "stage 0 names a device twice"),
        (replace(good, stages=(Stage((0,), (-1,)), Stage((1,), (1,)))), "device -1 is not a device"),
        (replace(good, stages=(Stage((0,), ("a",)), Stage((1,), (1,)))), "'a' is not a device"),  # type: ignore[arg-type]
        (replace(good, stages=(Stage((0,), (0, 1)), Stage((1,), (1, 2)))), "device 1 also works for a stage"),
        (replace(good, stages=(Stage((0,), (0,)), Stage((1,), (0,)))), "2 stages per rank"),
        (replace(good, stages=(Stage((0,), (0, 1)), Stage((1,), (1, 0)))), "device 1 also works for a stage"),
        (
            replace(good, stages=(Stage((0,), (0,)), Stage((), (1,)))),
            "layer 'layers.1' is in no stage; a plan of tiny has each of its 2",
        ),
        (replace(good, stages=(Stage((), (0,)), Stage((), (1,)))), r"layer 'layers.0' \(and 1 more\) is in no stage"),
        (replace(good, stages=(Stage((0, 1), (0,)), Stage((1,), (1,)))), "layer 'layers.1' is in two stages, 0 and 1"),
        (replace(good, stages=(Stage((0, 0), (0,)), Stage((1,), (1,)))), "layer 'layers.0' is twice in stage 0"),
        (replace(good, stages=(Stage((0, 1), (0,)), Stage((2,), (1,)))), "stage 1: 2 is no layer; a plan of tiny"),
        (replace(good, stages=(Stage((0, -1), (0,)), Stage((1,), (1,)))), "stage 0: -1 is no layer"),
        (replace(good, stages=(Stage((0, "a"), (0,)), Stage((1,), (1,)))), "stage 0: 'a' is no layer"),
        # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(("plan", "message"), wrong_plans())
def test_a_plan_that_cannot_be_played_is_refused_with_the_reason(plan: Plan, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sim.simulate(posed(2), plan, (StageCost(1.0, 1.0),) * len(plan.stages))


def test_virtual_stages_on_one_device_and_layers_in_any_order_are_a_plan() -> None:
    plan = Plan((Stage((2,), (0,)), Stage((0, 1), (1,)), Stage((3,), (0,)), Stage((), (1,))), 2, 1, "interleaved_1f1b", 2)
    sim.check_plan(posed(4), plan)


def test_layers_come_after_those_that_they_read_from() -> None:
    """In the wrong order a pipeline would send nothing, or play transfers that do not happen."""
    ops = tuple(Op(f"layers.{i}", "mlp") for i in range(4))
    chain = Graph("tiny", ops, tuple(Edge(i, i + 1) for i in range(3)))
    problem = Problem(ModelSpec("tiny", "test", "tiny", chain))

    def cut(*parts: tuple[int, ...]) -> Plan:
        return Plan(tuple(Stage(part, (i,)) for i, part in enumerate(parts)), 2, 1, "1f1b", 2)

    sim.check_plan(problem, cut((0, 1), (2, 3)))
    for parts, told in (
        (((2, 3), (0, 1)), "layer 'layers.2' of stage 0 reads from 'layers.1' of stage 1; stages are in pipeline order"),
        (((0, 2), (1, 3)), "layer 'layers.2' of stage 0 reads from 'layers.1' of stage 1"),
        (((1, 0), (2, 3)), "stage 0: layer 'layers.1' is before 'layers.0', which it reads from; .* topological order"),
    ):
        with pytest.raises(InputError, match=told):
            sim.check_plan(problem, cut(*parts))
    back = Graph("step", (*ops[:2], Op("b.1", "backward"), Op("b.0", "backward")), chain.edges)  # the whole step as one graph
    sim.check_plan(replace(problem, model_spec=replace(problem.model_spec, graph=back)), cut((0, 3), (1, 2)))


def test_a_published_cost_model_may_round_and_ours_may_not() -> None:
    plan = replace(piped(2, 2), micro_batch=2, global_batch=5)
    sim.check_plan(replace(posed(2), costs="piper"), plan)
    for costs in ("analytic", "sharded", "profiled", "partition"):
        with pytest.raises(InputError, match="global_batch is 5"):
            sim.check_plan(replace(posed(2), costs=costs), plan)


def test_an_unknown_schedule_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="no schedule called '1f1bb'; did you mean '1f1b'"):
        sim.simulate(posed(2), piped(2, 2, "1f1bb"), (StageCost(1.0, 1.0),) * 2)


@pytest.mark.parametrize(
    "load",
    [
        StageCost(-1.0, 1.0),
        StageCost(np.nan, 1.0),
        StageCost(1.0, 1.0, overlap_ratio=1.5),
        StageCost(1.0, 1.0, weight_bytes=np.inf),
    ],
)
def test_loads_that_are_not_finite_and_positive_are_refused(load: StageCost) -> None:
    with pytest.raises(InputError, match="stage 1: "):
        sim.simulate(posed(2), piped(2, 2), (StageCost(1.0, 1.0), load))


def test_a_load_for_every_stage_is_needed() -> None:
    with pytest.raises(InputError, match="2 stages, but 1 loads"):
        sim.simulate(posed(2), piped(2, 2), (StageCost(1.0, 1.0),))


def test_the_time_of_all_devices_is_told_and_adds_up_to_the_step() -> None:
    """Rank 0 computes 4 s and rank 1 20 s; of four devices rank 1 has two, and one is idle."""
    problem = replace(posed(2), cluster=cluster("flat:4"))
    stages = Stage((0,), (0,), Strategy(data=1)), Stage((1,), (1, 2), Strategy(tensor=2))
    plan = replace(piped(2, 4), stages=stages)
    loads = (StageCost(0.25, 0.5, 0.25), StageCost(2.0, 2.0, 1.0))
    step = sim.simulate(problem, plan, loads).step_seconds
    found = dict(sim.device_causes(problem, plan, loads))
    assert sum(found.values()) == pytest.approx(step)
    assert found["compute"] == pytest.approx((4.0 + 2 * 20.0) / 4)
    assert found["imbalance"] == pytest.approx(((20.0 - 4.0) + step) / 4)
