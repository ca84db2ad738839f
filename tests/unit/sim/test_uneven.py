"""Pipelines whose micro-batches take unlike time."""

import numpy as np
import pytest

from meshwright import schedules
from meshwright.schedules import Durations
from meshwright.sim import engine, tasks, transfers
from meshwright.sim.uneven import LinearSeconds, compute_ends


def _posed(schedule: str, n_ranks: int, n_chunks: int, n_microbatches: int, seed: int = 0):
    dice, n = np.random.default_rng(seed), n_ranks * n_chunks
    times = Durations(*(dice.uniform(1.0, 3.0, n) for _ in range(3)), dice.uniform(0.1, 0.5, n - 1))
    slots = schedules.ordered(schedule, n_ranks, n_chunks, n_microbatches, times)
    return times, slots, transfers.fixed(slots.rank_of_stage, times.transfer_seconds)


@pytest.mark.parametrize(
    ("schedule", "n_ranks", "n_chunks"),
    [("1f1b", 4, 1), ("gpipe", 3, 1), ("interleaved_1f1b", 2, 3), ("zb_h1", 4, 1), ("1f1b", 1, 1)],
)  # fmt: skip
def test_micro_batches_alike_end_as_the_simulator_says(schedule: str, n_ranks: int, n_chunks: int) -> None:
    times, slots, sends = _posed(schedule, n_ranks, n_chunks, 8)
    full = tasks.task_seconds(times)
    said = engine.step_seconds(
        schedule,
        n_ranks,
        n_chunks,
        8,
        times.forward_seconds,
        times.backward_input_seconds,
        times.backward_weight_seconds,
        times.transfer_seconds,
    )
    for share in (0.0, 0.3, 1.0):
        seconds = LinearSeconds((1.0 - share) * full, share * full)
        assert compute_ends(slots, seconds, sends, np.ones((3, 8)), np.ones((3, 8))) == pytest.approx([said] * 3, rel=1e-12)
    half = compute_ends(slots, LinearSeconds(full, 0.0 * full), sends, np.full((1, 8), 0.5), np.zeros((1, 8)))
    assert half == pytest.approx([said / 2], rel=1e-12)


def test_one_stage_takes_the_sum_of_its_micro_batches() -> None:
    dice = np.random.default_rng(2)
    times, slots, sends = _posed("1f1b", 1, 1, 5)
    full, tokens, pairs = tasks.task_seconds(times), dice.uniform(size=(7, 5)), dice.uniform(size=(7, 5))
    found = compute_ends(slots, LinearSeconds(full, 2.0 * full), sends, tokens, pairs)
    assert found == pytest.approx((full[0, 0] + full[3, 0]) * (tokens + 2.0 * pairs).sum(axis=1))


def test_forward_and_back_through_like_stages_is_the_flow_shop() -> None:
    """GPipe on like stages without transfers: forward is the proportionate flow shop, sum t + (p - 1) max t, and so is the way
    back, which begins where the forward pass of the last micro-batch ends.
    """
    dice = np.random.default_rng(3)
    n_ranks, n = 4, 6
    times = Durations(*(np.ones(n_ranks) for _ in range(2)), np.zeros(n_ranks), np.zeros(n_ranks - 1))
    slots = schedules.ordered("gpipe", n_ranks, 1, n, times)
    pairs = dice.uniform(0.5, 2.0, (20, n))
    zero = np.zeros((4, n_ranks))
    found = compute_ends(
        slots, LinearSeconds(zero, tasks.task_seconds(times)), transfers.fixed(slots.rank_of_stage, np.zeros(n_ranks - 1)),
        np.ones_like(pairs), pairs,
    )  # fmt: skip
    assert found == pytest.approx(2.0 * (pairs.sum(axis=1) + (n_ranks - 1) * pairs.max(axis=1)))


def test_a_longer_micro_batch_never_ends_sooner() -> None:
    dice = np.random.default_rng(4)
    times, slots, sends = _posed("1f1b", 4, 1, 6)
    seconds, pairs = LinearSeconds(tasks.task_seconds(times), tasks.task_seconds(times)), dice.uniform(size=(10, 6))
    longer = pairs.copy()
    longer[:, 2] += 0.5
    ones = np.ones_like(pairs)
    assert np.all(compute_ends(slots, seconds, sends, ones, longer) > compute_ends(slots, seconds, sends, ones, pairs))


def test_transfers_of_one_channel_wait_for_each_other() -> None:
    """Two ranks, GPipe, tasks of a second, transfers of three: the second sends one micro-batch every three seconds.

    Forward: micro-batch i is sent at 1 + 3 i and there at 4 + 3 i; n of them end on the second rank at 1 + 3 n + 1. Backward,
    in the reverse order: results leave a second after each other, and arrive three seconds after each other; the last is worked
    off a second later. In the second replica every micro-batch has half of the tokens, and takes half as long on the way.
    """
    n = 4
    slots = schedules.ordered("gpipe", 2, 1, n, None)
    full = np.zeros((4, 2))
    full[[schedules.FORWARD, schedules.BACKWARD]] = 1.0
    sends = transfers.fixed(slots.rank_of_stage, np.array([3.0]))
    tokens = np.array([[1.0] * n, [0.5] * n])
    found = compute_ends(slots, LinearSeconds(0.0 * full, full), sends, tokens, np.ones((2, n)))
    forward, half = 1.0 + 3.0 * n + 1.0, 1.0 + 1.5 * n + 1.0
    assert found.tolist() == [forward + 1.0 + 3.0 * n + 1.0, half + 1.0 + 1.5 * n + 1.0]
