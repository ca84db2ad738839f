"""Where a search on the threshold begins when the simple bound is 0: half the least time that any stage takes at all."""

from __future__ import annotations

import math

import numpy as np

from meshwright.solvers.pipeline.menu import StageMenu

__all__ = ["least_time"]


def least_time(menu: StageMenu) -> float:
    """Return half the least positive time of a stage: a pipeline that takes less takes no time at all.

    Parameters
    ----------
    menu : StageMenu
        The instance.

    Returns
    -------
    float
        Seconds per micro-batch; infinite where nothing takes any time.
    """
    terms = np.concatenate([menu.seconds, menu.edge_seconds, menu.sync_in_seconds, menu.sync_out_seconds])
    taken = _least(terms) * float(menu.share.min())
    reduced = _least(menu.weight_bytes) * _least(menu.reduce_seconds)
    return min(taken, reduced) / 2.0


def _least(values: np.ndarray) -> float:
    """Return the least positive value; infinite where there is none."""
    return float(np.min(values, where=values > 0.0, initial=math.inf))
