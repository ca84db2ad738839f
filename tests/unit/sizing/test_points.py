"""The front against looking at every pair; shares of time; what can be said where a price is not known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshwright.sizing.goodput import Goodput
from meshwright.sizing.points import CAUSES, Outlay, SizePoint, dominates, excess_ratio, front, shares

GOOD = Goodput(0.9, (("restarts", 0.1),), 1e4, 100.0, 1e9, 1.0, 600.0)


def point(name: str, outlay: Outlay) -> SizePoint:
    return SizePoint(name, 8, outlay, 0.0, 0.0, 1.0, GOOD, (), "")


def test_the_front_is_what_nothing_is_better_than() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        figures = rng.integers(1, 8, (40, 3)).astype(float)
        points = [point(str(i), Outlay("k", *(row[0], row[1], row[1], row[2]))) for i, row in enumerate(figures)]
        better = [any((other <= row).all() and (other < row).any() for other in figures) for row in figures]
        found = {one.cluster for one in front(points)}
        assert found == {str(i) for i, worse in enumerate(better) if not worse}
    assert [one.outlay.seconds for one in front(points)] == sorted(one.outlay.seconds for one in front(points))


def test_unknown_prices_are_compared_within_a_kind_only() -> None:
    slow, quick = Outlay("k", 20.0, 9.0, None, 1.0), Outlay("k", 10.0, 8.0, None, 1.0)
    assert dominates(quick, slow) and not dominates(slow, quick) and not dominates(quick, quick)
    assert not dominates(Outlay("other", 1.0, 1.0, None, 0.1), slow)
    assert not dominates(Outlay("k", 1.0, 1.0, 1.0, 0.1), slow) and not dominates(quick, Outlay("k", 99.0, 99.0, 99.0, 99.0))


def test_unknown_energy_counts_as_more_than_any() -> None:
    known, unknown = Outlay("a", 10.0, 1.0, 5.0, 1.0), Outlay("b", 10.0, 1.0, 5.0, None)
    assert dominates(known, unknown) and not dominates(unknown, known)
    assert dominates(unknown, Outlay("c", 11.0, 1.0, 5.0, None)) and not dominates(unknown, Outlay("c", 11.0, 1.0, 5.0, 99.0))


def test_what_a_dominated_size_dominates_is_dominated() -> None:
    rng = np.random.default_rng(5)
    known = [None, 1.0, 2.0, 3.0]
    outlays = [
        Outlay(
            "ab"[i % 2], float(rng.integers(1, 4)), float(rng.integers(1, 4)), known[rng.integers(4)], known[rng.integers(4)]
        )
        for i in range(60)
    ]
    for one in outlays:
        for other in outlays:
            if dominates(one, other):
                assert not dominates(other, one)
                assert all(dominates(one, third) for third in outlays if dominates(other, third))


def test_shares_of_time_and_money_add_up() -> None:
    causes = (("compute", 5.0), ("optimizer", 1.0), ("recompute", 1.0), ("tensor", 1.0), ("gather", 0.5), ("bubble", 1.0),
              ("imbalance", 0.25), ("something new", 0.25))  # fmt: skip
    found = dict(shares(causes, 10.0, GOOD))
    assert tuple(found) == CAUSES and math.isclose(sum(found.values()), 1.0)
    assert found["compute"] == pytest.approx(0.54) and found["failures"] == pytest.approx(0.1)
    assert found["communication"] == pytest.approx(0.9 * 0.175) and found["bubble"] == pytest.approx(0.9 * 0.1)
    assert found["imbalance"] == pytest.approx(0.9 * 0.025)


def test_how_far_beyond_the_limits() -> None:
    outlay = Outlay("k", 10.0, 1.0, 50.0, 1.0)
    assert excess_ratio(outlay, 20.0, math.inf) == 0.5 and excess_ratio(outlay, 20.0, 25.0) == 2.0
    assert excess_ratio(Outlay("k", 10.0, 1.0, None, 1.0), math.inf, 25.0) == math.inf


def test_json_ready() -> None:
    import json

    entry = json.loads(json.dumps(point("k:8", Outlay("k", 86400.0, 192.0, None, None)).to_dict()))
    assert entry["days"] == 1.0 and entry["money"] is None and entry["days_interval"] is None and entry["kwh"] is None
    assert entry["goodput_ratio"] == 0.9 and entry["goodput"]["checkpoint_interval_seconds"] == 100.0
    never = Goodput(1.0, (), math.inf, math.inf, 1e9, 1.0, 600.0)
    bare = SizePoint("k:8", 8, Outlay("k", 1.0, 1.0, 1.0, 1.0), 1.0, 2.0, 1.0, never, (), "")
    assert bare.to_dict()["goodput"]["mtbf_seconds"] is None and "Infinity" not in json.dumps(bare.to_dict())
