"""The best time for every number of devices, or of replicas, from as many searches as the curve has steps."""

from __future__ import annotations

import math

import numpy as np

from meshwright.base.errors import InputError
from meshwright.base.identity import distinct
from meshwright.solvers.pipeline import downsets
from meshwright.solvers.pipeline.floor import least_time
from meshwright.solvers.pipeline.menu import StageMenu
from meshwright.solvers.pipeline.prepared import CLOSE_RATIO, prepare
from meshwright.solvers.pipeline.search import MOST_DOWNSETS, MOST_STEPS, PAIR_BYTES, relaxation
from meshwright.solvers.pipeline.threshold import check, minimise

__all__ = ["steps"]


def steps(menu: StageMenu, over: str) -> list[tuple[int, float]]:
    """Return where the best time changes as devices, or replicas in all, are taken away.

    Parameters
    ----------
    menu : StageMenu
        The instance at its largest.
    over : str
        ``devices`` or ``replicas``.

    Returns
    -------
    list of (int, float)
        Ascending: from this number up to the next one, the best time is this many seconds.

    Raises
    ------
    InputError
        When the graph has too many stages to choose from.

    Notes
    -----
    At the best time of a limit, the labels of the whole model tell the least number that reaches it; the next search begins one
    below, and its lower bound is the time just proven.
    """
    family = downsets.all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, MOST_DOWNSETS)
    n_pairs = PAIR_BYTES // (4 + 8 * len(distinct(menu.degrees)))
    prepared = None if family is None else prepare(menu, family, n_pairs=n_pairs, n_steps=MOST_STEPS)
    if prepared is None:
        raise InputError("the graph has too many downsets for a whole curve; ask for single numbers of devices instead")
    by_devices = over == "devices"
    limit = menu.n_devices if by_devices else menu.n_replicas
    lower = relaxation(menu) or least_time(menu)
    points: list[tuple[int, float]] = []
    while limit >= 1 and math.isfinite(lower):
        n_devices, n_replicas = (limit, 0) if by_devices else (0, limit)
        best, lower = minimise(prepared, lower, n_devices=n_devices, n_replicas=n_replicas)
        if best is None:
            break
        reached = check(prepared, best.seconds * (1.0 + CLOSE_RATIO), n_devices=n_devices, n_replicas=n_replicas)
        counts = reached.labels.devices if by_devices else reached.labels.replicas
        limit = int(np.min(counts[reached.answers.start : reached.answers.stop]))
        points.append((limit, best.seconds))
        limit -= 1
    return points[::-1]
