"""Which links are busiest with transfers between stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.events import Moments
from meshwright.schedules import BACKWARD_WEIGHT, FORWARD, Slots
from meshwright.sim.transfers import Transfers

__all__ = ["busiest"]


def busiest(
    slots: Slots, moments: Moments, sends: Transfers, step_seconds: float, n_links: int = 10
) -> tuple[tuple[int, float], ...]:
    """Return the busiest links and the share of the step during which transfers between stages are on them.

    Parameters
    ----------
    slots : Slots
        The order of work.
    moments : Moments
        When transfers run, in seconds.
    sends : Transfers
        Which links they use.
    step_seconds : float
        Length of the step.
    n_links : int
        How many to return at most.

    Returns
    -------
    tuple of (int, float)
        Link and share, busiest first, then by id.

    Notes
    -----
    Collectives are not counted: the simulator knows how long they take, not where they run.
    """
    link, kind, n_bytes = sends.alike()
    if not len(link) or step_seconds <= 0.0:
        return ()
    way = np.where(slots.phase == FORWARD, 0, 1)
    flow_of_task = np.where(slots.phase == BACKWARD_WEIGHT, -1, way * slots.n_stages + slots.stage)
    ratio = np.zeros(len(n_bytes))
    for i, carried in enumerate(n_bytes):
        on_link = np.isin(flow_of_task, np.flatnonzero(carried))
        ratio[i] = _covered(moments.send_start[on_link], moments.send_end[on_link]) / step_seconds
    first = np.lexsort((link, -ratio[kind]))[:n_links]
    return tuple((int(link[i]), float(ratio[kind[i]])) for i in first)


def _covered(start: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Return the length of the union of intervals."""
    by_start = np.argsort(start, kind="stable")
    start, end = start[by_start], np.maximum.accumulate(end[by_start])
    reached = np.concatenate(([0.0], end[:-1]))
    return float(np.maximum(end - np.maximum(start, reached), 0.0).sum())
