"""No plan hangs where messages of a process group run strictly in the order posted; a plan that would is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import schedules
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import Strategy
from meshwright.runtime.ranks import message_order
from meshwright.runtime.ranks.layout import Channel, Layout, layout
from meshwright.runtime.ranks.message_order import ReceiveOrder, check


def _places(schedule: str, n_ranks: int, n_chunks: int, n_microbatches: int, degrees: list[tuple[int, int]]) -> Layout:
    """Return a plan of one layer a stage; `degrees`: data and tensor degree of every pipeline rank."""
    first = list(itertools.accumulate((data * tensor for data, tensor in degrees), initial=0))
    stages = []
    for i, rank in enumerate(schedules.load(schedule).placement(n_ranks, n_chunks)):
        data, tensor = degrees[rank]
        stages.append(Stage((i,), tuple(range(first[rank], first[rank + 1])), Strategy(data=data, tensor=tensor)))
    return layout(Plan(tuple(stages), n_microbatches, schedule=schedule, global_batch=12 * n_microbatches))


def _chunks(schedule: str) -> int:
    """Return a number of stages per pipeline rank that a schedule can have: one, or two where it needs several."""
    try:
        schedules.load(schedule).placement(2, 1)
        schedules.load(schedule).order(2, 1, 4)
    except (ValueError, AssertionError, InputError):
        return 2
    return 1


@pytest.mark.parametrize("schedule", schedules.words())
def test_no_schedule_hangs_with_alike_or_unlike_replicas(schedule: str) -> None:
    checked = 0
    for n_ranks, n_chunks in itertools.product((2, 3, 4, 5, 8), sorted({_chunks(schedule), 2})):
        for degrees in ([(1, 1)] * n_ranks, [(2, 2)] * n_ranks, [(1 + i % 3, 1 + i % 2) for i in range(n_ranks)]):
            try:
                places = _places(schedule, n_ranks, n_chunks, 2 * n_ranks, degrees)
            except InputError:
                continue  # a schedule that cannot run so many stages per rank
            check(places, "plan.json")
            checked += 1
    assert checked >= 6, "the schedule must run under some of these plans, or this says nothing"


@settings(max_examples=40, deadline=None)
@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "zb_h1", "interleaved_1f1b", "zb_v"]),
    degrees=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2)), min_size=2, max_size=5),
    turns=st.integers(1, 4),
)
def test_no_random_plan_hangs(schedule: str, degrees: list[tuple[int, int]], turns: int) -> None:
    check(_places(schedule, len(degrees), _chunks(schedule), turns * len(degrees), degrees), "plan.json")


def test_one_group_for_all_messages_of_a_direction_hangs_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receives posted ahead would hold up the sends behind them: three stages, 1F1B, eight micro-batches."""
    places = _places("1f1b", 3, 1, 8, [(1, 1)] * 3)
    channels = places.channels()
    merged = tuple(Channel(way, tuple(pair for c in channels if c.direction == way for pair in c.pairs)) for way in (0, 1))
    monkeypatch.setattr(Layout, "channels", lambda _: merged)
    with pytest.raises(InputError, match=r"plan\.json: schedule 1f1b would hang: rank \d waits for ever for the"):
        check(places, "plan.json")


def test_an_order_of_work_that_never_ends_is_told() -> None:
    """The second stage begins with the second micro-batch while its sender hands on the first one."""
    stages = (Stage((0,), (0,)), Stage((1,), (1,)))
    work: list[Any] = [[(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)], [(1, 1, 0), (1, 1, 1), (1, 0, 0), (1, 0, 1)]]
    places = layout(Plan(stages, n_microbatches=2, schedule="1f1b", global_batch=4), work)
    with pytest.raises(InputError, match=r"rank 0 waits for ever for the gradients of micro-batch 0 for stage 0 from rank 1"):
        check(places, "plan.json")


def test_a_replica_that_never_comes_to_a_task_of_the_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    places = _places("gpipe", 2, 1, 2, [(2, 1), (2, 1)])
    program = message_order._Step._program
    monkeypatch.setattr(message_order._Step, "_program", lambda game, rank: iter(()) if rank == 1 else program(game, rank))
    monkeypatch.setattr(message_order._Step, "_played", lambda _: list(range(4)))
    with pytest.raises(InputError, match=r"would hang: rank 0 waits for ever for rank 1 in a task of micro-batch 0 of stage 0"):
        check(places, "plan.json")


def test_receives_are_posted_once_each_in_the_order_of_the_sender_and_ahead_of_need() -> None:
    places = _places("1f1b", 2, 1, 8, [(1, 1)] * 2)
    order = ReceiveOrder(places, 1)
    posted = order.begin()
    assert posted == [(1, microbatch, 0) for microbatch in range(4)]
    for microbatch in range(8):
        posted += order.before((1, microbatch, 0)) + order.after((1, microbatch, 0))
    assert posted == [(1, microbatch, 0) for microbatch in range(8)]
    assert order.begin() == posted[:4], "a second step begins anew"
