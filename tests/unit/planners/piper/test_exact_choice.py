"""The check's own choice of every node of a stage: the least time within bytes and a limit, against every combination."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright._kernels.pipeline import knapsack
from meshwright.planners.piper.check import stage

ROWS = (((1.0, 6.0), (2.0, 3.0), (4.0, 1.0)), ((2.0, 5.0), (3.0, 2.0)), ((1.0, 4.0),))


def least(rows: stage.Rows, space: float) -> float:
    ways = (tuple(zip(*way, strict=True)) for way in itertools.product(*rows))
    return min((sum(times) for times, n_bytes in ways if sum(n_bytes) <= space), default=math.inf)


@pytest.mark.parametrize("space", [6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 15.0, 99.0])
def test_the_least_time_within_the_bytes_is_found_up_to_the_limit_itself(space: float) -> None:
    expected = least(ROWS, space)
    for most in (expected, expected + 1.0, 100.0):
        assert stage._exact(ROWS, space, min(most, 100.0), 20.0) == expected
    assert stage._exact(ROWS, space, min(expected, 100.0) - 0.5, 20.0) == math.inf


def test_one_way_that_just_fits_is_enough_and_one_that_does_not_is_none() -> None:
    alone = (((1.0, 6.0),), ((2.0, 5.0),))
    assert stage._exact(alone, 11.0, 3.0, 20.0) == 3.0
    assert stage._exact(alone, 10.9, 3.0, 20.0) == math.inf and stage._exact(alone, 11.0, 2.9, 20.0) == math.inf


@pytest.mark.parametrize("seed", range(6))
def test_random_rows_have_the_least_time_of_all_combinations(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rows = [[tuple(dice.uniform(0.5, 4.0, 2)) for _ in range(dice.integers(1, 4))] for _ in range(5)]
    smallest, largest = (sum(pick(n_bytes for _, n_bytes in row) for row in rows) for pick in (min, max))
    for space in np.linspace(smallest * 0.9, largest * 1.01, 6):
        assert stage._exact(rows, space, 1e9, 20.0) == pytest.approx(least(rows, space))


@pytest.mark.parametrize("seed", range(8))
def test_the_greedy_choice_is_that_of_the_search(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rows = [[tuple(dice.uniform(0.5, 4.0, 2)) for _ in range(dice.integers(1, 3 + seed % 2))] for _ in range(5)]
    first = np.cumsum([0] + [len(row) for row in rows])
    times, n_bytes = (np.array([way[k] for row in rows for way in row]) for k in (0, 1))
    smallest, largest = (sum(pick(held for _, held in row) for row in rows) for pick in (min, max))
    for space, all_or_none in itertools.product(np.linspace(smallest * 0.9, largest, 6), (False, True)):
        expected = knapsack.greedy(first, times, n_bytes, space, all_or_none, np.zeros(5, np.int64))
        assert stage._greedy(rows, space, all_or_none) == pytest.approx(expected)
