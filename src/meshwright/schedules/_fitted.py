"""Zero-bubble orders fitted to the durations at hand: weight gradients go where the ranks would really wait."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions, Durations

__all__ = ["shortest"]


def shortest(hand_made: Actions, times: Durations | None, limit: NDArray[np.int64]) -> Actions:
    """Return the order that ends first: the hand-made one, or one that differs in the place of the weight gradients only.

    `hand_made`: the published order for tasks of equal length.
    `times`: durations; None for the hand-made order.
    `limit`, shape (n_ranks,), int64: activations that each rank may hold.
    Returns: the first of the shortest.

    References
    ----------
    .. [1] Qi et al., Zero Bubble Pipeline Parallelism, 2023 (arXiv 2401.10241), section 3: schedules found automatically for
       measured durations.

    Notes
    -----
    The paper builds forward tasks and input gradients by rules as well, over a grid of their settings, and finishes with an
    integer program. Free list schedules of that kind were nearly always longer here than the hand-made order of forward tasks
    and input gradients with the weight gradients refitted (uneven stages, two stages per rank, transfers).
    """
    if times is None:
        return hand_made
    from meshwright._kernels.events import weight_gradients

    seconds = np.stack((times.forward_seconds, times.backward_input_seconds, times.backward_weight_seconds))
    kept = hand_made.phase != BACKWARD_WEIGHT
    skeleton = (3 * hand_made.stage + np.where(hand_made.phase == FORWARD, 0, 1))[kept].reshape(hand_made.n_ranks, -1)
    best, best_seconds = hand_made, _played(hand_made, times)
    for patience in (0.0, 0.5, 1.0):
        codes = weight_gradients.fill(
            _locked(skeleton),
            hand_made.rank_of_stage,
            _locked(seconds),
            _locked(times.transfer_seconds),
            _locked(limit),
            patience,
        )
        trial = _slots(codes, hand_made)
        trial_seconds = _played(trial, times)
        if trial_seconds < best_seconds * (1.0 - 1e-12):
            best, best_seconds = trial, trial_seconds
    return best


def _locked(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy: kernels are compiled for one kind of array."""
    array = np.array(array)
    array.setflags(write=False)
    return array


def _slots(codes: NDArray[np.int64], hand_made: Actions) -> Actions:
    """Return slots from coded tasks, each stage taking its micro-batches in order."""
    n_ranks, length = codes.shape
    code = codes.ravel()
    microbatch = np.empty(len(code), dtype=np.int64)
    # All tasks of one code lie on one rank, in the order in which they run.
    n_microbatches = hand_made.n_microbatches
    microbatch[np.argsort(code, kind="stable")] = np.tile(np.arange(n_microbatches), len(code) // n_microbatches)
    names = np.array([FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT])
    return Actions(np.arange(n_ranks + 1) * length, code // 3, microbatch, names[code % 3], hand_made.rank_of_stage)


def _played(slots: Actions, times: Durations) -> float:
    """Return when the last task ends, with transfers that queue on channels of their own."""
    from meshwright._kernels.events import order

    rank, n_stages = slots.rank_of_stage, slots.n_stages
    channel, send = np.full((2, n_stages), -1), np.zeros((2, n_stages))
    apart = np.flatnonzero(rank[1:] != rank[:-1])
    channel[0, apart], channel[1, apart + 1] = apart, n_stages + apart
    send[0, :-1], send[1, 1:] = times.transfer_seconds, times.transfer_seconds
    both = times.backward_input_seconds + times.backward_weight_seconds
    seconds = np.stack((times.forward_seconds, times.backward_input_seconds, times.backward_weight_seconds, both))
    orders = order.Orders(slots.first, slots.stage, slots.microbatch, slots.phase, channel)
    _, moments = order.play(orders, order.Seconds(seconds, send), slots.n_microbatches)
    return float(moments.end.max())
