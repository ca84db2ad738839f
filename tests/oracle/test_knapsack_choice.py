"""The inner choice kernels against every combination, and the greedy against its description."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from meshwright._kernels.pipeline import knapsack


def instance(seed: int, *, n_items: int, n_choices: int, whole: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    dice = random.Random(seed)
    number = (lambda high: float(dice.randint(0, high))) if whole else (lambda high: dice.uniform(0, high))
    sizes = [dice.randint(1, n_choices) for _ in range(n_items)]
    first = np.cumsum([0, *sizes]).astype(np.int64)
    cost = np.array([number(9) for _ in range(first[-1])])
    memory = np.array([number(9) for _ in range(first[-1])])
    return first, cost, memory, dice.uniform(0.2, 0.9) * float(memory.sum()) / n_choices


def combinations(first: np.ndarray, cost: np.ndarray, memory: np.ndarray, limit: float) -> float:
    """Return the least cost of all combinations that fit."""
    least = np.inf
    for picked in itertools.product(*(range(first[i], first[i + 1]) for i in range(len(first) - 1))):
        if sum(memory[c] for c in picked) <= limit:
            least = min(least, sum(cost[c] for c in picked))
    return least


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("n_choices", [2, 3, 4])
def test_the_exact_choice_is_the_best_combination(n_choices: int, whole: bool) -> None:
    for seed in range(40):
        first, cost, memory, limit = instance(seed, n_items=5, n_choices=n_choices, whole=whole)
        expected = combinations(first, cost, memory, limit)
        chosen = np.zeros(5, np.int64)
        lower, upper = knapsack.exact(first, cost, memory, limit, np.inf, chosen)
        assert upper == pytest.approx(expected, rel=1e-12)
        assert lower <= upper and lower == pytest.approx(expected, rel=1e-12)
        if np.isfinite(expected):
            assert memory[chosen].sum() <= limit + 1e-12
            assert cost[chosen].sum() == pytest.approx(expected, rel=1e-12)


def test_a_budget_is_decided_without_more_work_than_needed() -> None:
    for seed in range(60):
        first, cost, memory, limit = instance(seed, n_items=6, n_choices=3, whole=False)
        expected = combinations(first, cost, memory, limit)
        if not np.isfinite(expected):
            continue
        for budget in (expected * 0.999, expected * 1.001, expected * 0.5, expected * 2):
            chosen = np.zeros(6, np.int64)
            lower, upper = knapsack.exact(first, cost, memory, limit, budget, chosen)
            assert lower <= expected * (1 + 1e-12) and upper >= expected * (1 - 1e-12)
            assert (upper <= budget) == (expected <= budget)
            assert (lower > budget) == (expected > budget)


def test_many_items_alike_are_chosen_by_their_number() -> None:
    """200 equal items of cost 0 or 1 and memory 3 or 1: to fit 500 bytes, 50 must be small."""
    first = np.arange(0, 401, 2, dtype=np.int64)
    cost = np.tile([0.0, 1.0], 200)
    memory = np.tile([3.0, 1.0], 200)
    chosen = np.zeros(200, np.int64)
    assert knapsack.exact(first, cost, memory, 500.0, np.inf, chosen) == (50.0, 50.0)
    assert memory[chosen].sum() == 500.0


def test_bounds_hold_where_the_search_for_the_best_is_given_up() -> None:
    """Sums of 60 costs equal to their savings: the relaxation is met by hardly any combination."""
    dice = random.Random(5)
    saving = np.array([dice.uniform(1.0, 2.0) for _ in range(60)])
    first = np.arange(0, 121, 2, dtype=np.int64)
    cost = np.stack((np.zeros(60), saving), axis=1).ravel()
    memory = np.stack((saving + 1.0, np.ones(60)), axis=1).ravel()
    limit = float(memory[::2].sum() - 33.3)
    chosen = np.zeros(60, np.int64)
    lower, upper = knapsack.exact(first, cost, memory, limit, np.inf, chosen)
    assert 33.3 * (1 - 1e-9) <= lower <= upper <= 33.3 + 2.0
    assert memory[chosen].sum() <= limit + 1e-9
    assert cost[chosen].sum() == pytest.approx(upper, rel=1e-12)


def test_the_greedy_keeps_superfluous_swaps_and_breaks_ties_by_position() -> None:
    """Need 3: the first swap (ratio 1, saving 1) stays although the second (ratio 1, saving 3, later) alone would do."""
    first = np.array([0, 2, 4], np.int64)
    cost = np.array([0.0, 1.0, 0.0, 3.0])
    memory = np.array([2.0, 1.0, 4.0, 1.0])
    chosen = np.zeros(2, np.int64)
    assert knapsack.greedy(first, cost, memory, 3.0, False, chosen) == 4.0
    assert chosen.tolist() == [1, 3]
    assert knapsack.exact(first, cost, memory, 3.0, np.inf, chosen)[1] == 3.0


def test_the_greedy_ignores_savings_of_less_than_a_billionth_of_a_byte() -> None:
    first = np.array([0, 2, 4], np.int64)
    cost = np.array([0.0, 0.0, 0.0, 5.0])
    memory = np.array([1.0, 1.0 - 1e-10, 2.0, 1.0])
    chosen = np.zeros(2, np.int64)
    assert knapsack.greedy(first, cost, memory, 2.5, False, chosen) == 5.0
    assert chosen.tolist() == [0, 3]


def test_all_or_none_takes_the_smallest_of_every_item() -> None:
    first = np.array([0, 2, 4], np.int64)
    cost = np.array([0.0, 1.0, 0.0, 3.0])
    memory = np.array([4.0, 1.0, 4.0, 1.0])
    chosen = np.zeros(2, np.int64)
    assert knapsack.greedy(first, cost, memory, 6.0, True, chosen) == 4.0
    assert knapsack.greedy(first, cost, memory, 8.0, True, chosen) == 0.0
    assert knapsack.greedy(first, cost, memory, 1.0, True, chosen) == np.inf
