"""The compiled simulator says what the plain one says, on random small cases, with and without shared links."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from events import Play  # tests/oracle/order.py

from meshwright import schedules
from meshwright._kernels.events import max_min, order, shared_events
from meshwright.core.stage_cost import StageCost
from meshwright.schedules import Actions, Durations
from meshwright.sim import engine, pairs, sharing, tasks
from meshwright.sim.end_of_step import TailTasks, followed, items
from meshwright.sim.traffic import PARTS, Traffic
from meshwright.sim.transfers import Transfers, channels, fixed

PAIRED = [("combined_1f1b", 1), ("combined_1f1b", 2), ("combined_1f1b", 3), ("combined_dualpipe_v", 2)]
KINDS = [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 3), ("zb_h1", 1), ("zb_h2", 1), ("zb_v", 2)]


def random_times(rng: np.random.Generator, n_stages: int) -> Durations:
    # Multiples of an eighth make ties frequent and sums exact.
    forward, backward, weight = (rng.integers(1, 9, n_stages) / 8 for _ in range(3))
    return Durations(forward, backward, weight, rng.integers(0, 9, n_stages - 1) / 8)


def random_links(rng: np.random.Generator, rank_of_stage: np.ndarray) -> Transfers:
    """Send over random links, few of them, so that most are shared by several channels and several times by one flow."""
    n_stages, n_links = len(rank_of_stage), 5
    speed = rng.integers(1, 5, n_links).astype(float)
    channel = channels(rank_of_stage)
    seconds, latency, sent = (np.zeros((2, n_stages)) for _ in range(3))
    links, busy = [np.empty(0, np.int64)] * (2 * n_stages), [np.empty(0)] * (2 * n_stages)
    for way, stage in zip(*np.nonzero(channel >= 0), strict=True):
        flow = way * n_stages + stage
        sent[way, stage] = rng.integers(1, 4)
        latency[way, stage] = rng.integers(0, 3) / 8
        links[flow] = np.sort(rng.choice(n_links, rng.integers(1, 4), replace=False))
        busy[flow] = sent[way, stage] * rng.integers(1, 3, len(links[flow])) / 2
        seconds[way, stage] = latency[way, stage] + (busy[flow] / speed[links[flow]]).max()
    return Transfers(channel, seconds, latency, sent, tuple(links), tuple(busy), speed)


def random_traffic(rng: np.random.Generator, times: Durations, speed: np.ndarray) -> Traffic:
    """Put collectives of every part on the same few links; what blocks takes up to half of its task."""
    n_stages = len(times.forward_seconds)
    tasks_of = {"forward": times.forward_seconds, "backward": times.backward_input_seconds}
    seconds = np.zeros((len(PARTS), n_stages))
    links, amounts = [], []
    for part, word in enumerate(PARTS):
        for stage in range(n_stages):
            whole = tasks_of.get(word.removesuffix("_beside"), np.ones(n_stages))[stage]
            seconds[part, stage] = whole * rng.integers(0, 5) / 8
            own = (
                np.sort(rng.choice(len(speed), rng.integers(1, 4), replace=False)) if seconds[part, stage] else np.empty(0, int)
            )
            links.append(own.astype(np.int64))
            amounts.append(speed[own] * seconds[part, stage] * rng.integers(1, 5, len(own)) / 4)
    return Traffic(seconds, tuple(links), tuple(amounts))


def random_pairs(rng: np.random.Generator, slots: Actions) -> pairs.TaskPairs:
    """Return the pairs of an order, of any length."""
    found = pairs.of_order(slots, (StageCost(1.0, 1.0),) * slots.n_stages)
    return dataclasses.replace(found, seconds=rng.integers(1, 9, found.seconds.shape) / 8)


def with_random_pairs(
    rng: np.random.Generator, traffic: Traffic, slots: Actions, together: pairs.TaskPairs, speed: np.ndarray
) -> Traffic:
    """Put what pairs wait for, and what runs beside them, on the same links."""
    seconds, links, amounts = [], [], []
    for k in range(len(together.stages)):
        for flow in range(4):
            seconds.append(together.seconds[k, flow // 2] * rng.integers(0, 5) / 8)
            own = np.sort(rng.choice(len(speed), rng.integers(1, 4), replace=False)) if seconds[-1] else np.empty(0, int)
            links.append(own.astype(np.int64))
            amounts.append(speed[own] * seconds[-1] * rng.integers(1, 5, len(own)) / 4)
    return dataclasses.replace(
        traffic, paired_seconds=np.array(seconds), paired_links=tuple(links), paired_bytes=tuple(amounts),
        paired_ranks=slots.rank_of_stage[together.stages[:, 0]],
    )  # fmt: skip


def random_items(rng: np.random.Generator, slots: Actions, traffic: Traffic | None) -> TailTasks:
    """Return an end of step whose reductions and gatherings take what the traffic says."""
    once = rng.integers(0, 5, (2, slots.n_stages)) / 8 if traffic is None else traffic.seconds[4:6]
    stage_costs = tuple(
        StageCost(
            1.0, 1.0, reduce_seconds=float(reduce), overlap_ratio=float(rng.integers(0, 3)) / 2, gather_seconds=float(gather),
            optimizer_seconds=float(rng.integers(0, 3)) / 8,
        )
        for reduce, gather in once.T
    )  # fmt: skip
    return items(slots, stage_costs)


def played(
    slots: Actions,
    times: Durations,
    sends: Transfers,
    traffic: Traffic | None,
    what: TailTasks,
    together: pairs.TaskPairs | None = None,
) -> tuple[order.TaskTimes, np.ndarray, np.ndarray]:
    """Return what the compiled simulator says."""
    flows = sharing.flows(sends, traffic, slots.rank_of_stage)
    task_seconds = tasks.task_seconds(times)
    if flows is None:
        moments = engine._alone(slots, task_seconds, sends, "any", together)
        return moments, *followed(slots, moments.start, moments.end, what.ends)
    arguments = engine._arguments(slots, task_seconds, sends, together)
    status, moments, start, end = shared_events.play(*arguments, flows, what.ends, slots.rank_of_stage, slots.n_microbatches)
    assert status == 0
    return moments, start, end


def compared(
    slots: Actions,
    times: Durations,
    sends: Transfers,
    rel: float,
    traffic: Traffic | None = None,
    what: TailTasks | None = None,
    together: pairs.TaskPairs | None = None,
) -> None:
    what = what or items(slots, (StageCost(0.0, 0.0),) * slots.n_stages)
    moments, item_start, item_end = played(slots, times, sends, traffic, what, together)
    plain = Play(slots, tasks.task_seconds(times).tolist(), sends, traffic, what, together).run()
    names = list(zip(slots.stage.tolist(), slots.microbatch.tolist(), slots.phase.tolist(), strict=True))
    for task, name in enumerate(names):
        assert (moments.start[task], moments.end[task]) == pytest.approx(plain.tasks[name], rel=rel, abs=rel), name
        if name in plain.sends:
            assert (moments.send_start[task], moments.send_end[task]) == pytest.approx(plain.sends[name], rel=rel, abs=rel), (
                name
            )
        else:
            assert moments.send_end[task] == moments.end[task]
    for item, pair in plain.ends.items():
        assert (item_start[item], item_end[item]) == pytest.approx(pair, rel=max(rel, 1e-12), abs=rel), item


@pytest.mark.parametrize(("word", "n_chunks"), KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_without_shared_links_the_longest_path_is_what_happens(word: str, n_chunks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_ranks, count = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    times = random_times(rng, n_ranks * n_chunks)
    slots = schedules.load(word).order(n_ranks, n_chunks, count, times)
    sends = fixed(slots.rank_of_stage, times.transfer_seconds)
    compared(slots, times, sends, rel=0.0)


@pytest.mark.parametrize(("word", "n_chunks"), KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_shared_links_are_shared_as_the_plain_simulator_shares_them(word: str, n_chunks: int, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    n_ranks, count = int(rng.integers(2, 5)), int(rng.integers(1, 7))
    times = random_times(rng, n_ranks * n_chunks)
    slots = schedules.load(word).order(n_ranks, n_chunks, count, times)
    sends = random_links(rng, slots.rank_of_stage)
    compared(slots, times, sends, rel=1e-9)


@pytest.mark.parametrize(("word", "n_chunks"), KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_collectives_share_links_as_the_plain_simulator_shares_them(word: str, n_chunks: int, seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    n_ranks, count = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    times = random_times(rng, n_ranks * n_chunks)
    slots = schedules.load(word).order(n_ranks, n_chunks, count, times)
    sends = random_links(rng, slots.rank_of_stage)
    assert sends.link_bytes_per_second is not None
    traffic = random_traffic(rng, times, sends.link_bytes_per_second)
    compared(slots, times, sends, 1e-8, traffic, random_items(rng, slots, traffic))


@pytest.mark.parametrize(("word", "n_chunks"), PAIRED)
@pytest.mark.parametrize("seed", range(9))
def test_pairs_of_tasks_are_played_as_the_plain_simulator_plays_them(word: str, n_chunks: int, seed: int) -> None:
    """On links of their own, on links that transfers share, with collectives; what either sends leaves when both are done."""
    rng = np.random.default_rng(400 + seed)
    n_ranks, count = 1 if n_chunks == 1 else int(rng.integers(1, 5)), int(rng.integers(2, 9))
    times = random_times(rng, n_ranks * n_chunks)
    slots = schedules.load(word).order(n_ranks, n_chunks, count, times)
    together = random_pairs(rng, slots)
    if seed % 3 == 0:
        sends = fixed(slots.rank_of_stage, times.transfer_seconds)
        compared(slots, times, sends, 0.0, together=together)
        return
    sends = random_links(rng, slots.rank_of_stage)
    assert sends.link_bytes_per_second is not None
    if seed % 3 == 1:
        compared(slots, times, sends, 1e-9, together=together)
        return
    traffic = random_traffic(rng, times, sends.link_bytes_per_second)
    traffic = with_random_pairs(rng, traffic, slots, together, sends.link_bytes_per_second)
    compared(slots, times, sends, 1e-8, traffic, random_items(rng, slots, traffic), together)


@pytest.mark.parametrize("seed", range(3))
def test_dozens_of_flows_of_any_size_on_one_link_are_shared_to_the_end(seed: int) -> None:
    """Weights that leave rounding behind when they are taken off a link one by one must not keep it waiting for flows."""
    rng = np.random.default_rng(300 + seed)
    n_stages = 24
    times = Durations(*(0.5 + rng.random((3, n_stages))), rng.random(n_stages - 1))
    slots = schedules.load("gpipe").order(n_stages, 1, 4, times)
    channel = channels(slots.rank_of_stage)
    seconds = np.where(channel >= 0, 0.5 + rng.random((2, n_stages)), 0.0)
    own = [np.array([0, 1 + flow % n_stages], np.int64) if there else np.empty(0, np.int64)
           for flow, there in enumerate(channel.ravel() >= 0)]  # fmt: skip
    speed = np.append(9.7, rng.uniform(0.5, 1.5, n_stages))
    carried = [
        speed[links] * alone * rng.uniform(0.05, 1.0, len(links)) for links, alone in zip(own, seconds.ravel(), strict=True)
    ]
    sends = Transfers(channel, seconds, np.zeros_like(seconds), seconds, tuple(own), tuple(carried), speed)
    traffic = random_traffic(rng, times, speed)
    slower = played(slots, times, sends, traffic, random_items(rng, slots, traffic))[0].end.max()
    assert np.isfinite(slower)
    assert slower >= engine._alone(slots, tasks.task_seconds(times), sends, "gpipe").end.max() * (1 - 1e-12)
    compared(slots, times, sends, 1e-7, traffic, random_items(rng, slots, traffic))


def test_random_links_are_really_shared() -> None:
    slower = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        slots = schedules.load("1f1b").order(4, 1, 6, None)
        times, sends = random_times(rng, 4), random_links(rng, slots.rank_of_stage)
        alone = Transfers(sends.channel, sends.seconds, sends.latency_seconds, sends.bytes)
        what = items(slots, (StageCost(0.0, 0.0),) * 4)
        ends = [played(slots, times, which, None, what)[0].send_end.max() for which in (sends, alone)]
        assert ends[0] >= ends[1] - 1e-9
        slower += ends[0] > ends[1] + 1e-9
    assert slower >= 3


@pytest.mark.parametrize(("word", "n_chunks"), KINDS)
def test_the_event_loop_equals_the_longest_path_to_the_last_bit_where_nothing_is_shared(word: str, n_chunks: int) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        n_ranks, count = int(rng.integers(2, 6)), int(rng.integers(1, 12))
        n_stages = n_ranks * n_chunks
        times = Durations(*rng.random((3, n_stages)), rng.random(n_stages - 1))
        slots = schedules.load(word).order(n_ranks, n_chunks, count, times)
        sends = fixed(slots.rank_of_stage, times.transfer_seconds)
        orders = order.Orders(slots.first, slots.stage, slots.microbatch, slots.phase, sends.channel)
        seconds = order.Seconds(tasks.task_seconds(times), sends.seconds)
        n_flows = 8 * n_stages
        no_ids, none = np.empty(0, np.int64), np.empty(0)
        flows = max_min.Flows(
            np.zeros(n_flows), np.zeros(n_flows), np.ones(n_flows), np.zeros(n_flows + 1, np.int64), no_ids, no_ids.copy(),
            none,
            np.zeros(1, np.int64), sharing.lanes(sends, slots.rank_of_stage),
        )  # fmt: skip
        for array in flows:
            array.setflags(write=False)
        what = random_items(rng, slots, None)
        status, by_event, item_start, item_end = shared_events.play(
            orders, seconds, flows, what.ends, slots.rank_of_stage, count
        )
        assert status == 0
        _, by_path = order.play(orders, seconds, count)
        for left, right in zip(by_event, by_path, strict=True):
            np.testing.assert_array_equal(left, right)
        for left, right in zip((item_start, item_end), followed(slots, by_path.start, by_path.end, what.ends), strict=True):
            np.testing.assert_array_equal(left, right)


def test_an_order_that_deadlocks_is_reported_not_waited_for() -> None:
    slots = schedules.slots([[(0, 0, 3), (0, 0, 0)], [(1, 0, 0), (1, 0, 3)]], np.array([0, 1]))
    with pytest.raises(ValueError, match="deadlocks"):
        engine._alone(slots, np.ones((4, 2)), fixed(slots.rank_of_stage, np.zeros(1)), "broken")
