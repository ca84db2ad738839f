"""Keys by identity, arrays nobody can write to, and times as traces hold them."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.base import trace_events
from meshwright.base.identity import ById, distinct, locked, read_only


def test_equal_objects_are_different_keys_and_the_same_object_is_one() -> None:
    first, second = (1, 2, 3), tuple(range(1, 4))
    assert first == second and first is not second
    assert ById(first) == ById(first) and hash(ById(first)) == hash(ById(first))
    assert ById(first) != ById(second) and ById(first) != first
    assert len({ById(first), ById(first), ById(second)}) == 2


def test_the_callers_array_stays_its_own_and_the_result_cannot_change() -> None:
    mine = np.array([1.0, 2.0])
    kept = read_only(mine)
    mine[0] = 5.0
    assert kept.tolist() == [1.0, 2.0] and mine.flags.writeable
    with pytest.raises(ValueError):
        kept[0] = 1.0
    view = mine[:1].view()
    view.setflags(write=False)
    held = read_only(view)  # read-only itself, but the array below is not
    mine[0] = 7.0
    assert held.tolist() == [5.0]


def test_what_is_read_only_already_is_not_copied_and_types_and_order_are_as_asked() -> None:
    kept = read_only([1, 2])
    assert read_only(kept) is kept and read_only(kept[:1]).base is kept
    assert read_only([1, 2], float).dtype == np.float64 and read_only(kept, float).tolist() == [1.0, 2.0]
    assert read_only(np.arange(6).reshape(2, 3).T).flags.c_contiguous


def test_times_are_whole_nanoseconds_that_viewers_read_back_and_spans_that_follow_do_not_overlap() -> None:
    moments = np.cumsum(np.random.default_rng(0).uniform(0, 1e-3, 2000))
    start, length = trace_events.microseconds(moments[:-1]), trace_events.durations(moments[:-1], moments[1:])
    assert start == pytest.approx(moments[:-1] * 1e6, abs=5.1e-4) and length == pytest.approx(
        np.diff(moments) * 1e6, abs=1.1e-3
    )
    as_read = np.trunc(start * 1e3), np.trunc(length * 1e3)
    assert np.array_equal(as_read[0], np.rint(moments[:-1] * 1e9))
    assert np.array_equal(as_read[0][:-1] + as_read[1][:-1], as_read[0][1:])


def test_events_are_in_order_of_time_spans_before_what_hangs_on_them() -> None:
    events = [
        {"ts": 2.0, "ph": "X"},
        {"ts": 1.0, "ph": "f"},
        {"ts": 1.0, "ph": "s"},
        {"ts": 1.0, "ph": "C"},
        {"ts": 1.0, "ph": "X"},
    ]
    assert [(event["ts"], event["ph"]) for event in trace_events.in_order(events)] == [
        (1.0, "X"), (1.0, "C"), (1.0, "s"), (1.0, "f"), (2.0, "X"),
    ]  # fmt: skip
    named = trace_events.names(3, "ranks", {1: "b", 0: "a"})
    assert [(event["name"], event.get("tid"), event["args"]) for event in named] == [
        ("process_name", None, {"name": "ranks"}), ("process_sort_index", None, {"sort_index": 3}),
        ("thread_name", 0, {"name": "a"}), ("thread_sort_index", 0, {"sort_index": 0}),
        ("thread_name", 1, {"name": "b"}), ("thread_sort_index", 1, {"sort_index": 1}),
    ]  # fmt: skip
    assert {event["pid"] for event in named} == {3} and {event["ph"] for event in named} == {"M"}


def test_a_locked_array_is_the_callers_own_and_closed() -> None:
    mine = np.arange(6)
    assert locked(mine) is mine and not mine.flags.writeable
    turned = locked(np.arange(6).reshape(2, 3).T)
    assert turned.flags.c_contiguous and not turned.flags.writeable and turned.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("values", [[], [0], [3, 1, 3, 0, 1], [2**64 - 1, 0, 0, 2**63], [-(2**62), 5, -(2**62)], [7] * 4])
def test_different_values_are_those_that_numpy_finds(values: list[int]) -> None:
    given = np.array(values, dtype=np.uint64 if any(value >= 2**63 for value in values) else np.int64)
    found = distinct(given)
    assert found.dtype == given.dtype and found.tolist() == np.unique(given).tolist() == sorted(set(values))
