"""A lower bound where filling and draining the pipeline counts: the slowest stage and the sum over the others, weighed up."""

from __future__ import annotations

import math

import numpy as np

from meshwright._kernels.pipeline import filling as kernel
from meshwright.solvers.pipeline.prepared import Prepared
from meshwright.solvers.pipeline.threshold import check

__all__ = ["lower_bound"]

N_PARTS, FEW_PARTS, MANY_PAIRS = 60, 20, 1_000_000
"""Thresholds tried; where there are many stages to choose from."""

PRICE_RATIOS = (0.0, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Prices of a device, or of a replica, tried; as shares of the threshold."""

FINE_RATIO = 1.0005
"""Distance of two thresholds that is not divided further."""


def lower_bound(prepared: Prepared, lower_seconds: float, upper_seconds: float, n_microbatches: int) -> float:
    """Return a bound on the slowest stage's time plus what the other stages take for one micro-batch, over the micro-batches.

    Parameters
    ----------
    prepared : Prepared
        The instance over all downsets, with all stages of pipelines whose slowest stage takes up to `upper_seconds`.
    lower_seconds : float
        A bound on the slowest stage alone.
    upper_seconds : float
        What is asked for is not above this.
    n_microbatches : int
        Micro-batches of a batch.

    Returns
    -------
    float
        At least `lower_seconds`, at most `upper_seconds`.

    Notes
    -----
    A pipeline whose slowest stage takes between two thresholds takes at least the lower one, and its other stages at least what
    they take when none may be slower than the upper one. The pair of neighbouring thresholds that bounds least is divided,
    again and again.
    """
    parts = [(_between(prepared, lower_seconds, upper_seconds, n_microbatches), lower_seconds, upper_seconds)]
    for _ in range(FEW_PARTS if len(prepared.pairs.lower) > MANY_PAIRS else N_PARTS):
        least, low, high = min(parts)
        if high <= low * FINE_RATIO:
            break
        parts.remove((least, low, high))
        middle = math.sqrt(low * high)
        for a, b in ((low, middle), (middle, high)):
            parts.append((max(least, _between(prepared, a, b, n_microbatches)), a, b))
    return min(upper_seconds, min(parts)[0])


def _between(prepared: Prepared, low: float, high: float, n_microbatches: int) -> float:
    """Return what pipelines take at least whose slowest stage takes between two times."""
    return low + _others(prepared, high) / n_microbatches


def _others(prepared: Prepared, seconds: float) -> float:
    """Return what all stages but the longest take at least when none may take longer than a threshold."""
    labels = check(prepared, seconds, optimistic=True).labels
    menu, n_sets = prepared.menu, len(prepared.space.words)
    least_replicas, least_devices = np.full((2, n_sets), -1, np.int64)
    reached = np.flatnonzero(np.diff(labels.first))
    if len(reached):
        end = int(labels.first[-1])
        least_replicas[reached] = np.minimum.reduceat(labels.replicas[:end], labels.first[reached])
        least_devices[reached] = np.minimum.reduceat(labels.devices[:end], labels.first[reached])
    least_replicas.setflags(write=False)
    least_devices.setflags(write=False)
    limits = np.array([seconds, menu.memory_bytes, menu.n_devices, menu.n_replicas])
    prices = seconds * np.array([pair for price in PRICE_RATIOS for pair in ((price, 0.0), (0.0, price))])
    seconds_of_others: float = kernel.least_others(
        prepared.space, prepared.pairs, prepared.kernel_menu, prepared.rules, prepared.memo, least_replicas, least_devices,
        limits, prices,
    )  # fmt: skip
    return seconds_of_others
