"""The heap in arrays against Python's own, ties included."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from numba import njit

from meshwright._kernels import heap


@njit
def push(keys, items, n, key, item):
    """Call a part of kernels."""
    return heap.push(keys, items, n, key, item)


@njit
def pop(keys, items, n):
    """Call a part of kernels."""
    return heap.pop(keys, items, n)


@pytest.mark.parametrize("seed", range(8))
def test_pushes_and_pops_in_any_order_give_the_smallest_each_time(seed: int) -> None:
    """Few different keys, so that items decide often; from empty to forty and back."""
    random = np.random.default_rng(seed)
    keys, items, n = np.zeros(40), np.zeros(40, dtype=np.int64), 0
    twin: list[tuple[float, int]] = []
    for item in random.permutation(200).tolist():
        if n == 40 or (n > 0 and random.random() < 0.45):
            assert (keys[0], items[0]) == heapq.heappop(twin)
            n = pop(keys, items, n)
        else:
            key = float(random.integers(0, 5))
            n = push(keys, items, n, key, item)
            heapq.heappush(twin, (key, item))
        assert n == len(twin)
    while n:
        assert (keys[0], items[0]) == heapq.heappop(twin)
        n = pop(keys, items, n)
    assert not twin


def test_the_heap_is_the_one_that_is_known() -> None:
    """Which of equal entries lies where is part of what other kernels rely on to be the same on every run."""
    keys, items, n = np.zeros(5), np.zeros(5, dtype=np.int64), 0
    for key, item in ((3.0, 0), (1.0, 1), (2.0, 2), (1.0, 0)):
        n = push(keys, items, n, key, item)
    assert (keys[:n].tolist(), items[:n].tolist()) == ([1.0, 1.0, 2.0, 3.0], [0, 1, 2, 0])
    n = pop(keys, items, n)
    assert (keys[:n].tolist(), items[:n].tolist()) == ([1.0, 3.0, 2.0], [1, 0, 2])
