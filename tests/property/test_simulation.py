"""What holds for every simulated step, whatever the schedule, the loads and the links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import schedules
from meshwright.core.plan import Plan, Stage
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import PHASES, Timeline
from meshwright.sim import engine
from meshwright.sim.traffic import PARTS, Traffic
from meshwright.sim.transfers import Transfers, channels

WORDS = [
    (word, chunks)
    for word in schedules.words()
    for chunks in {
        "zb_v": (2,),
        "v_half": (2,),
        "v_min": (2,),
        "dualpipe_v": (2,),
        "combined_dualpipe_v": (2,),
        "combined_1f1b": (2, 3),
        "interleaved_1f1b": (1, 2, 3),
        "looped_bfs": (1, 2),
    }.get(word, (1,))
]
SECONDS = st.floats(0.0, 4.0, allow_subnormal=False).map(lambda value: round(value, 3))
BYTES = st.floats(0.0, 100.0, allow_subnormal=False)


@st.composite
def stage_costs(draw: st.DrawFn) -> StageCost:
    return StageCost(
        forward_seconds=draw(SECONDS) + 0.001,
        backward_input_seconds=draw(SECONDS) + 0.001,
        backward_weight_seconds=draw(SECONDS),
        recompute_seconds=draw(SECONDS),
        forward_communication=(("tensor", draw(SECONDS)),),
        backward_communication=(("tensor", draw(SECONDS)), ("gather", draw(SECONDS))),
        reduce_seconds=draw(SECONDS),
        overlap_ratio=draw(st.floats(0.0, 1.0)),
        gather_seconds=draw(SECONDS),
        optimizer_seconds=draw(SECONDS),
        weight_bytes=draw(BYTES),
        gradient_bytes=draw(BYTES),
        optimizer_bytes=draw(BYTES),
        activation_bytes=draw(BYTES),
        working_bytes=draw(BYTES),
        reserved_bytes=draw(BYTES),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[Plan, tuple[StageCost, ...], Timeline]:
    word, chunks = draw(st.sampled_from(WORDS))
    ranks, count = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    place = schedules.load(word).placement(ranks, chunks)
    plan = Plan(tuple(Stage((i,), (int(rank),)) for i, rank in enumerate(place)), count, 1, word, count)
    of_stages = tuple(draw(stage_costs()) for _ in place)
    between = draw(sends(place))
    return plan, of_stages, engine.play(plan, of_stages, between, draw(st.none() | collectives(of_stages)))


@st.composite
def collectives(draw: st.DrawFn, of_stages: tuple[StageCost, ...]) -> Traffic:
    """Traffic on the links of `sends` that takes the seconds of the loads; beside a task up to half of it."""
    speed, links, amounts = np.array([1.0, 2.0, 3.0]), [], []
    seconds = np.zeros((len(PARTS), len(of_stages)))
    for part, word in enumerate(PARTS):
        for stage, load in enumerate(of_stages):
            seconds[part, stage] = {
                "forward": sum(value for _, value in load.forward_communication),
                "backward": sum(value for _, value in load.backward_communication),
                "forward_beside": 0.5 * load.forward_seconds,
                "backward_beside": 0.5 * load.backward_input_seconds,
                "reduce": load.reduce_seconds,
                "gather": load.gather_seconds,
            }[word]
            used = sorted(draw(st.sets(st.integers(0, 2)))) if seconds[part, stage] else []
            links.append(np.array(used, np.int64))
            amounts.append(speed[used] * seconds[part, stage] * np.array([draw(st.floats(0.1, 1.0)) for _ in used]))
    return Traffic(seconds, tuple(links), tuple(amounts))


@st.composite
def sends(draw: st.DrawFn, place: np.ndarray) -> Transfers:
    """Transfers over three links that anything may share."""
    n_stages, speed = len(place), np.array([1.0, 2.0, 3.0])
    channel = channels(place)
    seconds, latency, sent = (np.zeros((2, n_stages)) for _ in range(3))
    links, busy = [np.empty(0, np.int64)] * (2 * n_stages), [np.empty(0)] * (2 * n_stages)
    for way, stage in zip(*np.nonzero(channel >= 0), strict=True):
        flow = way * n_stages + stage
        sent[way, stage] = draw(st.floats(0.1, 5.0))
        latency[way, stage] = draw(st.floats(0.0, 1.0))
        links[flow] = np.array(sorted(draw(st.sets(st.integers(0, 2), min_size=1))), np.int64)
        busy[flow] = np.full(len(links[flow]), sent[way, stage])
        seconds[way, stage] = latency[way, stage] + (busy[flow] / speed[links[flow]]).max()
    return Transfers(channel, seconds, latency, sent, tuple(links), tuple(busy), speed)


@given(steps())
@settings(max_examples=60, deadline=None)
def test_no_rank_does_two_things_at_once_and_everything_happens_within_the_step(
    step: tuple[Plan, tuple[StageCost, ...], Timeline],
) -> None:
    plan, _, timeline = step
    assert np.all(timeline.start_seconds >= 0.0)
    assert np.all(timeline.end_seconds >= timeline.start_seconds)
    assert timeline.end_seconds.max() == pytest.approx(timeline.step_seconds, rel=1e-12)
    assert np.all(np.diff(timeline.start_seconds) >= 0.0)
    for rank in range(len(plan.ranks())):
        mine = timeline.rank == rank
        start, end = np.sort(timeline.start_seconds[mine]), np.sort(timeline.end_seconds[mine])
        assert np.all(start[1:] >= end[:-1])


@given(steps())
@settings(max_examples=60, deadline=None)
def test_every_task_waits_for_what_it_needs(step: tuple[Plan, tuple[StageCost, ...], Timeline]) -> None:
    plan, _, timeline = step
    when = {}
    for s, j, p, a, b in zip(
        timeline.stage.tolist(), timeline.microbatch.tolist(), timeline.phase.tolist(),
        timeline.start_seconds.tolist(), timeline.end_seconds.tolist(), strict=True,
    ):  # fmt: skip
        if PHASES[p] in ("forward", "backward", "backward_input", "backward_weight"):
            when[s, j, "input" if PHASES[p] in ("backward", "backward_input") else PHASES[p]] = (a, b)
    for stage in range(len(plan.stages)):
        for j in range(plan.n_microbatches):
            assert when[stage, j, "input"][0] >= when[stage, j, "forward"][1]
            if stage:
                assert when[stage, j, "forward"][0] >= when[stage - 1, j, "forward"][1]
                assert when[stage - 1, j, "input"][0] >= when[stage, j, "input"][1]
            if (stage, j, "backward_weight") in when:
                assert when[stage, j, "backward_weight"][0] >= when[stage, j, "input"][1]


@given(steps())
@settings(max_examples=60, deadline=None)
def test_a_step_is_no_shorter_than_the_work_of_a_rank_or_the_way_of_a_microbatch(
    step: tuple[Plan, tuple[StageCost, ...], Timeline],
) -> None:
    plan, of_stages, timeline = step
    through = sum(load.forward_total_seconds for load in of_stages)
    through += sum(load.backward_total_seconds - load.backward_weight_seconds for load in of_stages)
    assert timeline.step_seconds >= through * (1 - 1e-9)
    for rank in range(len(plan.ranks())):
        mine = [load for load, place in zip(of_stages, plan.rank_of_stage(), strict=True) if place == rank]
        work = sum(load.forward_total_seconds + load.backward_total_seconds for load in mine) * plan.n_microbatches
        work += sum(load.optimizer_seconds + load.gather_seconds for load in mine)
        # of the stage that is through last, some reduction is left; those of the others may be over by then
        work += min((1 - load.overlap_ratio) * load.reduce_seconds for load in mine)
        assert timeline.step_seconds >= work * (1 - 1e-9)


@given(steps())
@settings(max_examples=60, deadline=None)
def test_the_causes_add_up_to_the_step_and_none_is_negative(step: tuple[Plan, tuple[StageCost, ...], Timeline]) -> None:
    _, _, timeline = step
    seconds = [value for _, value in timeline.causes]
    assert sum(seconds) == pytest.approx(timeline.step_seconds, rel=1e-12)
    assert min(seconds) >= -1e-12 * timeline.step_seconds


@given(steps())
@settings(max_examples=60, deadline=None)
def test_memory_never_falls_below_what_is_always_held_and_returns_to_it(
    step: tuple[Plan, tuple[StageCost, ...], Timeline],
) -> None:
    plan, of_stages, timeline = step
    for rank in range(len(plan.ranks())):
        mine = [load for load, place in zip(of_stages, plan.rank_of_stage(), strict=True) if place == rank]
        static = sum(load.static_bytes for load in mine) + max(load.reserved_bytes for load in mine)
        level = timeline.memory_bytes[rank]
        assert level[0] >= static * (1 - 1e-12)
        assert level[-1] == pytest.approx(static, rel=1e-12)
        assert level.min() >= static * (1 - 1e-12)
        assert np.all(np.diff(timeline.memory_seconds[rank]) > 0.0)
        assert level.max() <= timeline.peak_bytes[rank] * (1 + 1e-12)
        assert sum(n_bytes for _, n_bytes in timeline.memory_causes[rank]) == pytest.approx(
            timeline.peak_bytes[rank], rel=1e-12
        )


@given(steps())
@settings(max_examples=60, deadline=None)
def test_no_link_carries_more_in_a_step_than_it_can(step: tuple[Plan, tuple[StageCost, ...], Timeline]) -> None:
    _, _, timeline = step
    assert np.all(timeline.link_bytes <= np.array([1.0, 2.0, 3.0]) * timeline.step_seconds * (1 + 1e-9))


@st.composite
def shared(draw: st.DrawFn) -> tuple[Plan, tuple[StageCost, ...], Transfers, Traffic]:
    word, chunks = draw(st.sampled_from(WORDS))
    place = schedules.load(word).placement(draw(st.integers(1, 4)), chunks)
    plan = Plan(tuple(Stage((i,), (int(rank),)) for i, rank in enumerate(place)), draw(st.integers(1, 6)), 1, word, 1)
    of_stages = tuple(draw(stage_costs()) for _ in place)
    return plan, of_stages, draw(sends(place)), draw(collectives(of_stages))


@given(shared())
@settings(max_examples=60, deadline=None)
def test_collectives_on_links_never_shorten_a_step_of_plain_transfers(
    step: tuple[Plan, tuple[StageCost, ...], Transfers, Traffic],
) -> None:
    """Without links nothing is shared: every task, transfer and item takes its seconds and no less."""
    plan, of_stages, between, traffic = step
    alone = Transfers(between.channel, between.seconds, between.latency_seconds, between.bytes)
    least = engine.play(plan, of_stages, alone)
    timeline = engine.play(plan, of_stages, between, traffic)
    assert timeline.step_seconds >= least.step_seconds * (1 - 1e-9)


@given(steps())
@settings(max_examples=60, deadline=None)
def test_links_are_busy_for_no_longer_than_the_step(step: tuple[Plan, tuple[StageCost, ...], Timeline]) -> None:
    _, _, timeline = step
    ratios = [ratio for _, ratio in timeline.link_busy_ratio]
    assert ratios == sorted(ratios, reverse=True)
    assert all(0.0 <= ratio <= 1.0 + 1e-12 for ratio in ratios)
