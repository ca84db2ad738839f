"""Fitted weight gradients against every place they could have, on tiny pipelines."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright import schedules
from meshwright.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Durations, _fitted


def merged(row: list[tuple[int, int, int]], limit: int) -> list[list[tuple[int, int, int]]]:
    """Return every way to put the weight gradients into the rest of a row, in the order of the input gradients,
    within the memory.
    """
    skeleton = [task for task in row if task[2] != BACKWARD_WEIGHT]
    found = []
    for places in itertools.combinations(range(len(row)), len(row) - len(skeleton)):
        rest, inputs, out, held = iter(skeleton), [], [], 0
        for place in range(len(row)):
            if place in places:
                if not inputs:
                    break
                stage, i = inputs.pop(0)
                out.append((stage, i, BACKWARD_WEIGHT))
                held -= 1
            else:
                task = next(rest)
                held += task[2] == FORWARD
                if task[2] == BACKWARD_INPUT:
                    inputs.append(task[:2])
                out.append(task)
                if held > limit:
                    break
        else:
            found.append(out)
    return found


@pytest.mark.parametrize(
    ("word", "chunks", "ranks", "count"), [("zb_h1", 1, 2, 3), ("zb_h1", 1, 3, 2), ("zb_h2", 1, 2, 3), ("zb_v", 2, 2, 2)]
)
@pytest.mark.parametrize("seed", range(5))
def test_fitted_orders_lie_between_the_best_of_all_and_the_hand_made(
    word: str, chunks: int, ranks: int, count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n_stages = ranks * chunks
    times = Durations(*(0.25 + rng.random((3, n_stages))), 0.3 * rng.random(n_stages - 1))
    module = schedules.load(word)
    hand_made, limit = module.order(ranks, chunks, count, None), module.in_flight(ranks, chunks, count)
    flat = list(zip(hand_made.stage.tolist(), hand_made.microbatch.tolist(), hand_made.phase.tolist(), strict=True))
    rows = [flat[a:b] for a, b in zip(hand_made.first[:-1], hand_made.first[1:], strict=True)]
    choices = [merged(row, int(most)) for row, most in zip(rows, limit, strict=True)]
    best = min(
        _fitted._played(schedules.slots(list(combined), hand_made.rank_of_stage), times)
        for combined in itertools.product(*choices)
    )
    fitted = _fitted._played(module.order(ranks, chunks, count, times), times)
    assert best <= fitted * (1 + 1e-12)
    assert fitted <= _fitted._played(hand_made, times) * (1 + 1e-12)
    assert fitted <= 1.15 * best


@pytest.mark.parametrize(("word", "chunks"), [("zb_h1", 1), ("zb_h2", 1), ("zb_v", 2)])
def test_an_uneven_last_stage_costs_a_fitted_order_less(word: str, chunks: int) -> None:
    """Half as much work again on the last stage: the hand-made ZB-V waits 5.5 forward tasks of it,
    the fitted one does not wait.
    """
    ranks, count = 8, 32
    n_stages = ranks * chunks
    forward = np.ones(n_stages)
    forward[-1] = 1.5
    times = Durations(forward, forward, forward, np.zeros(n_stages - 1))
    module = schedules.load(word)
    hand_made, fitted = (_fitted._played(module.order(ranks, chunks, count, which), times) for which in (None, times))
    work = count * 3 * (forward[-1] + chunks - 1)
    assert work <= fitted <= hand_made
    if word == "zb_v":
        assert (hand_made - work, fitted - work) == (5.5, 0.0)
