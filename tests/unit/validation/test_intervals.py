"""Intervals from measured sets: sets count alike, a set that is left out counts nothing, peaks have their shares."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.core import peaks
from meshwright.core.interval.run_kind import ALL, Kind
from meshwright.validation import Point, _coverage, _intervals

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


def test_families_of_devices_count_alike_however_many_rows_and_sets_they_have() -> None:
    families = {"x": {"a": _points(*[1.0] * 50), "b": _points(0.9)}, "y": {"a": _points(1.5)}, "z": {"c": _points(0.7)}}
    found = _intervals.of_families(families)
    assert (found.low_ratio, found.high_ratio) == (pytest.approx(0.7), pytest.approx(1.5))  # three families: their range
    assert (found.n_runs, found.n_sets) == (53, 3)
    many = {str(i): {"a": _points(*[1.0 + i / 100] * (i + 1))} for i in range(19)}
    assert _intervals.of_families(many).high_ratio == pytest.approx(1.17)  # tails of (1 - 0.8 x 20 / 19) / 2 = 7.9 %


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
    few = _intervals.ends({"a": points[:8]})[near.near]
    assert not few.has_like(near) and (few.further_low_ratio, few.further_high_ratio) == pytest.approx((1.01, 1.08))
    nine, found = _intervals.ends({"a": points[:9]})[near.near], _intervals.ends({"a": points})[near.near]
    # 0.8 x 10 / 9 leaves tails of 1 / 18, less than a run; 0.8 x 20 / 19 leaves 3 / 38, the second from each end
    assert (nine.low_ratio, nine.high_ratio, nine.n_runs) == pytest.approx((1.01, 1.09, 9))
    assert (found.low_ratio, found.high_ratio, found.n_sets) == pytest.approx((1.02, 1.18, 1))
    # a further set is expected beyond all of one set's rows
    assert (found.further_low_ratio, found.further_high_ratio) == pytest.approx((1.01, 1.19))
    assert len(found.runs) == 1 and found.has_like(near) and nine.has_like(replace(near, n_tokens=2048 * 5 // 4))
    others = ({"framework": "some:other"}, {"precision": "fp8"}, {"offload": "optimizer"}, {"n_tokens": 2600})
    assert not any(found.has_like(replace(near, **changes)) for changes in others)


def test_rows_of_a_part_of_the_weights_or_of_pairs_say_nothing_of_others() -> None:
    part = tuple(replace(point, kind=replace(KIND, trains="a part of the weights")) for point in _points(3.0, 5.0))
    assert _intervals.ends({"a": (*_points(0.9, 1.1), *part)})[ALL].n_runs == 2
    assert KIND.no_interval == "" and replace(KIND, trains="pairs").no_interval == "no interval: no run of pairs was measured"
    assert _coverage.coverage(part, set()) is None
    both = _coverage.coverage((*_points(1.0), *part), set())
    assert both is not None and both["coverage_ratio"] == 1.0


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
    assert set(found) == {peaks.ALL} and found[peaks.ALL].n_runs == 2  # one run is too few to stand alone
    found = _intervals.peak_ratios({"a": (own,) * 100, "b": _points(1.0, held=1.0)})
    assert found["some"].below_ratio == (2.0,) * len(peaks.SHARES) and found["some"].n_runs == 100


def test_beyond_few_runs_of_a_framework_those_of_all_count_and_what_ran_bounds_them() -> None:
    def held(ratio: float, word: str, **fields: object) -> Point:
        return replace(_points(1.0, held=ratio)[0], framework=word, **fields)

    few = tuple(held(0.98 + 0.002 * i, "few") for i in range(19))  # up to 1.016
    others = tuple(held(1.0 + 0.01 * i, "others") for i in range(100))  # up to 1.99
    found = _intervals.peak_ratios({"a": few, "b": others})
    room, pooled = found["few"], found[peaks.ALL]
    assert (room.n_runs, room.n_ran, room.most_ratio(0.1)) == (19, 0, pytest.approx(1.014))
    # one new run in twenty lies above all 19: of those, all frameworks' runs say what all but a fifth hold, sets counting alike
    assert room.most_ratio(0.01) == pytest.approx(1.59) and room.below_ratio[-1] == pooled.below_ratio[-1] == pytest.approx(
        1.99
    )
    assert room.claim(0.01) == "room kept up to" and room.claim(0.06) == "94% below"
    assert room.words == "19 measured runs of few, 1 set, beyond them those of all frameworks"
    # of 40 runs that ran, one has but 1.1 times its peak, the others 1.3 times
    ran = tuple(held(0.0, "few", room_ratio=1.1 if i == 0 else 1.3) for i in range(40))
    told = _intervals.peak_ratios({"a": few, "b": others, "c": ran})["few"]
    assert told.n_ran == 59 and told.most_ratio(0.01) == pytest.approx(1.3)
    assert told.words == f"{room.words}; 97% of its 59 runs that ran pass with this room"
    untold = tuple(replace(point, recompute_told=False) for point in ran)
    assert _intervals.peak_ratios({"a": few, "b": others, "c": untold})["few"].n_ran == 0


def test_runs_that_ran_with_more_room_than_is_asked_for_bound_nothing() -> None:
    own = tuple(replace(_points(1.0, held=1.0 + 0.01 * i)[0], framework="some") for i in range(100))
    ran = tuple(replace(_points(1.0, held=0.0)[0], framework="some", room_ratio=5.0) for _ in range(40))
    found = _intervals.peak_ratios({"a": own, "b": ran})["some"]
    assert (found.n_runs, found.n_ran) == (100, 0)


def test_runs_that_no_other_set_had_near_are_those_beyond_their_reach() -> None:
    """Of set b two rows are 8 times as long as any of a, with residuals of 2; those of a have some of b near."""

    def point(n_tokens: int, measured: float) -> Point:
        kind = replace(KIND, n_tokens=n_tokens)
        return Point(1, measured, 1.0, planned_seconds=1.0, kind=kind)

    sets = {"a": [point(1000, 1.1), point(1000, 0.9)], "b": [point(8000, 2.0), point(8000, 2.0), point(1000, 5.0)]}
    found = _intervals.far(sets)
    assert found is not None and (found.n_runs, found.n_sets) == (2, 1)
    assert (found.low_ratio, found.high_ratio) == pytest.approx((2.0, 2.0)) and found.distance_ratio == pytest.approx(8.0)
    assert _intervals.far({"a": sets["a"], "b": sets["b"][2:]}) is None
    assert _intervals.ends(sets)[KIND.work].n_tokens == (1000, 8000)
