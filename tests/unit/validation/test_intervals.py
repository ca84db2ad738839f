"""Intervals from measured sets: sets count alike, a set that is left out counts nothing, peaks have their shares."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.core import peaks
from meshwright.core.interval import ALL, Kind
from meshwright.validation import Point, _intervals

KIND = Kind(("A",), mixture=False, shard=1, n_tokens=2048, layer_seconds=5e-3)


def _points(*ratios: float, held: float = 0.0) -> tuple[Point, ...]:
    """Return rows that took so many times what was planned."""
    return tuple(
        Point(i, ratio, 7.0, held, 9.0, planned_seconds=1.0, planned_bytes=1.0, kind=KIND) for i, ratio in enumerate(ratios, 1)
    )


def test_up_to_four_sets_the_interval_is_the_range_of_their_rows() -> None:
    found = _intervals.ends({"a": _points(0.5, 1.0), "b": _points(1.1), "c": _points(1.2), "d": _points(2.0)})
    assert set(found) == set(KIND.classes)
    assert all((ends.low_ratio, ends.high_ratio) == (pytest.approx(0.5), pytest.approx(2.0)) for ends in found.values())
    assert (found[ALL].n_runs, found[ALL].n_sets) == (5, 4)


def test_sets_count_alike_however_many_rows_they_have() -> None:
    sets = {str(i): _points(1.0 + i / 100) for i in range(19)}
    small, large = _intervals.ends(sets | {"x": _points(5.0)}), _intervals.ends(sets | {"x": _points(*[5.0] * 1000)})
    assert small[ALL].high_ratio == large[ALL].high_ratio == pytest.approx(1.18)
    # 20 sets: tails of (1 - 0.8 x 21 / 20) / 2 = 8 %, which is the second of twenty from each end
    assert small[ALL].low_ratio == pytest.approx(1.01)


def test_rows_that_failed_or_predict_no_plan_do_not_count() -> None:
    failed = Point(9, math.inf, 7.0, ran=False, planned_seconds=1.0, kind=KIND)
    collective = Point(10, 50.0, 7.0)
    assert _intervals.ends({"a": (*_points(0.9, 1.1), failed, collective)})[ALL].n_runs == 2


def test_a_set_is_judged_by_the_others_alone() -> None:
    sets = {"a": _points(0.9, 1.1), "b": _points(1.0, 3.0, 1.05)}
    assert _intervals.left_out(sets) == {"a": (1, 2), "b": (2, 3)}


def test_nine_runs_of_a_framework_on_a_kind_of_cluster_are_a_class_with_a_tenth_on_each_side() -> None:
    near = replace(KIND, framework="some", cluster="c")
    points = tuple(replace(point, kind=near) for point in _points(*(1.0 + i / 100 for i in range(1, 20))))
    assert near.near not in _intervals.ends({"a": points[:8]})
    nine, found = _intervals.ends({"a": points[:9]})[near.near], _intervals.ends({"a": points})[near.near]
    # 0.8 x 10 / 9 leaves tails of 1 / 18, less than a run; 0.8 x 20 / 19 leaves 3 / 38, the second from each end
    assert (nine.low_ratio, nine.high_ratio, nine.n_runs) == pytest.approx((1.01, 1.09, 9))
    assert (found.low_ratio, found.high_ratio, found.n_sets) == pytest.approx((1.02, 1.18, 1))


def test_rows_that_are_kept_back_count_nothing() -> None:
    near = replace(KIND, framework="some", cluster="c")
    points = [replace(point, kind=near) for point in _points(*[1.0] * 45, *[3.0] * 5)]
    # the five last rows are one of every fifth: each is judged by forty rows of which the four others are a tenth
    assert _intervals.kept_back({"a": points}) == {"a": (50, 50)}
    assert _intervals.kept_back({"a": [*points[:45], *points[45:46]]}) == {"a": (45, 46)}
    assert _intervals.left_out({"a": points, "b": points}) == {"a": (50, 50), "b": (50, 50)}


def test_peaks_lie_below_their_shares_with_sets_counting_alike() -> None:
    many = tuple(Point(i, 1.0, 1.0, 1.0 + i / 100, 9.0, planned_bytes=1.0, kind=KIND) for i in range(100))
    one = _points(1.0, held=3.0)
    found = _intervals.peak_ratios({"a": many, "b": one, "c": _points(1.0)})[peaks.ALL]
    assert (found.n_runs, found.n_sets) == (101, 2)
    assert found.low_ratio == pytest.approx(1.19) and found.most_ratio(0.2) == found.most_ratio(0.01) == found.high_ratio == 3.0
    alone = _intervals.peak_ratios({"a": many})[peaks.ALL]
    assert (alone.most_ratio(0.2), alone.most_ratio(0.01)) == (pytest.approx(1.79), pytest.approx(1.98))


def test_peaks_of_a_framework_are_told_apart_and_count_among_all() -> None:
    own = replace(_points(1.0, held=2.0)[0], framework="some")
    found = _intervals.peak_ratios({"a": (own,), "b": _points(1.0, held=1.0)})
    assert set(found) == {"some", peaks.ALL}
    assert found["some"].below_ratio == (2.0,) * len(peaks.SHARES) and found[peaks.ALL].n_runs == 2
