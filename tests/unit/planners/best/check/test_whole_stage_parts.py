"""Parts of the check's bounds, each alone and by hand."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest

from meshwright.planners.best.check import whole_stages
from meshwright.planners.best.check.rank_memory import least_extra
from meshwright.planners.best.check.space import even_counts
from meshwright.planners.best.check.whole_stages import Sums


@pytest.mark.parametrize(("most", "kept"), [(9, [0, 1, 2, 3, 4]), (5, [0, 1, 2, 3, 4]), (3, [0, 2, 4]), (2, [0, 4])])
def test_prices_of_a_byte_are_those_of_every_way_or_evenly_chosen(
    monkeypatch: pytest.MonkeyPatch, most: int, kept: list[int]
) -> None:
    """Five layers give up 16, 8, ... 1 bytes for a second each."""
    monkeypatch.setattr(whole_stages, "_MOST_PRICES", most)
    saved = [[16.0], [8.0], [4.0], [2.0], [1.0]]
    own = SimpleNamespace(saved=saved, extra=[[1.0]] * 5)
    every = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]
    found = Sums.worth.func(own)  # type: ignore[attr-defined]
    assert [price for price, _ in found] == [every[i] for i in kept]
    for price, worth in found:
        earned = [max(0.0, price * one[0] - 1.0) for one in saved]
        assert list(worth) == pytest.approx([0.0, *itertools.accumulate(earned)])


def test_two_ways_of_a_layer_have_a_price_each_and_one_between_them() -> None:
    found = Sums.worth.func(SimpleNamespace(saved=[[2.0, 6.0]], extra=[[1.0, 5.0]]))  # type: ignore[attr-defined]
    assert [price for price, _ in found] == pytest.approx([1 / 2, 5 / 6, 1.0])
    assert [list(worth) for _, worth in found] == [[0.0, 0.0], pytest.approx([0.0, 2 / 3]), [0.0, 1.0]]


@pytest.mark.parametrize("n_bytes", [0.0, 1.0, 2.0, 3.5, 6.0, 9.0, 14.0, 18.0, 18.5])
def test_the_least_seconds_that_free_enough_are_those_of_all_choices(n_bytes: float) -> None:
    ways = [(w + 5 * s, 2 * w + 6 * s) for s in range(4) for w in range(4 - s)]
    expected = min((seconds for seconds, freed in ways if freed >= n_bytes), default=math.inf)
    assert least_extra(n_bytes, 3, (2.0, 6.0), (1.0, 5.0)) == expected
    assert least_extra(n_bytes, 3, (6.0,), (5.0,)) == (5.0 * math.ceil(n_bytes / 6) if n_bytes <= 18 else math.inf)
    assert least_extra(1.0, 3, (), ()) == math.inf and least_extra(7.0, 3, (0.0, 6.0), (1.0, 5.0)) == 10.0


def test_layers_are_spread_evenly_the_middle_first() -> None:
    assert [even_counts(n, 4) for n in (4, 5, 6, 7, 8)] == [[1] * 4, [1, 2, 1, 1], [1, 2, 2, 1], [2, 2, 2, 1], [2] * 4]
