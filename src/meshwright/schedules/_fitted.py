"""Zero-bubble orders fitted to the durations at hand: weight gradients go where the ranks would really wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions, Durations, Room

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["shortest"]

_PATIENCE = (0.0, 0.5, 1.0)
_ROUNDING_RATIO = 1e-9  # by which sums of bytes, taken and given back in turn, may be off


def shortest(hand_made: Actions, times: Durations | None, limit: NDArray[np.int64]) -> Actions:
    """Return the order that ends first: the hand-made one, or one that differs in the place of the weight gradients only.

    `hand_made`: the published order for tasks of equal length.
    `times`: durations; None for the hand-made order.
    `limit`, shape (n_ranks,), int64: activations that each rank may hold.
    Returns: the first of the shortest. Where that takes more memory than there is (`Durations.room`), the first of the shortest
    that do not, with orders among them whose weight gradients run as early as memory asks; where all do, as if none were known.

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
    orders = [hand_made, *_refitted(hand_made, times, limit)]
    seconds = [_played(order, times) for order in orders]
    best = _first(orders, seconds)
    if times.room is None or _fits(best, times.room):
        return best
    tight = _refitted(hand_made, times, limit, times.room)
    orders, seconds = orders + tight, seconds + [_played(order, times) for order in tight]
    fitting = [(order, own) for order, own in zip(orders, seconds, strict=True) if _fits(order, times.room)]
    return _first([order for order, _ in fitting], [own for _, own in fitting]) if fitting else best


def _first(orders: list[Actions], seconds: list[float]) -> Actions:
    """Return the first of the shortest orders."""
    best, best_seconds = orders[0], seconds[0]
    for order, own in zip(orders, seconds, strict=True):
        if own < best_seconds * (1.0 - 1e-12):
            best, best_seconds = order, own
    return best


def _refitted(hand_made: Actions, times: Durations, limit: NDArray[np.int64], room: Room | None = None) -> list[Actions]:
    """Return the orders of some patience, of which a rank takes no more than its room where that is told.

    A rank whose forward tasks and input gradients take more than its room by themselves is given what they take.
    """
    from meshwright._kernels.events import weight_gradients

    none = np.zeros(len(hand_made.rank_of_stage))
    kept, working, most = none, none, np.zeros(hand_made.n_ranks)
    if room is not None:
        kept, working = room.kept_bytes, room.working_bytes
        most = np.maximum(room.rank_bytes, _peak_bytes(hand_made, kept, working, BACKWARD_INPUT)) * (1.0 + _ROUNDING_RATIO)
    seconds = np.stack((times.forward_seconds, times.backward_input_seconds, times.backward_weight_seconds))
    without = hand_made.phase != BACKWARD_WEIGHT
    skeleton = (3 * hand_made.stage + np.where(hand_made.phase == FORWARD, 0, 1))[without].reshape(hand_made.n_ranks, -1)
    found = []
    for patience in _PATIENCE:
        codes = weight_gradients.fill(
            _locked(skeleton), hand_made.rank_of_stage, _locked(seconds), _locked(times.transfer_seconds), _locked(limit),
            _locked(np.full(hand_made.n_ranks, patience)), _locked(kept), _locked(working), _locked(most),
        )  # fmt: skip
        found.append(_slots(codes, hand_made))
    return found


def _fits(order: Actions, room: Room) -> bool:
    """Return whether every rank has room for what an order holds."""
    return bool((_peak_bytes(order, room.kept_bytes, room.working_bytes, BACKWARD_WEIGHT) <= room.rank_bytes).all())


def _peak_bytes(order: Actions, kept: NDArray[np.float64], working: NDArray[np.float64], last: int) -> NDArray[np.float64]:
    """Return the most that activations and the task at work take on each rank, where activations go with phase `last`."""
    freed = order.phase == last
    change = np.where(order.phase == FORWARD, kept[order.stage], 0.0) - np.where(freed, kept[order.stage], 0.0)
    held = np.cumsum(change) + np.where(freed, kept[order.stage], 0.0)  # every rank ends with nothing held
    return np.maximum.reduceat(held + working[order.stage], order.first[:-1])


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
