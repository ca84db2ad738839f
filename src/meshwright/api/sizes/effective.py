"""A plan under failures: which share of its time trains, beside what its step takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.result import Result
from meshwright.sizing.goodput import Goodput, checkpoint_bytes
from meshwright.sizing.points import goodput_json
from meshwright.sizing.told import upkeep

__all__ = ["goodput_of", "with_goodput"]


def goodput_of(result: Result, mtbf: str = "", recovery: Mapping[str, str] | None = None) -> Goodput:
    """Return what failures make of the time of a plan.

    Parameters
    ----------
    result : Result
        A plan on a cluster; its devices fail, idle ones do not matter.
    mtbf : str
        As of `meshwright.sizing.failures.rates`; empty for those of a published run.
    recovery : mapping of str to str or None
        As of `meshwright.sizing.told.upkeep`.

    Raises
    ------
    InputError
        When something told is wrong, or the plan is of a published instance, whose weights and seconds are not known.
    """
    found, cluster = upkeep(mtbf, recovery), result.problem.cluster
    if cluster is None or result.problem.model_spec.instance is not None or result.timeline is None:
        raise InputError(
            f"--mtbf: costs {result.problem.costs} do not say what a checkpoint holds and what a step takes; leave it out"
        )
    per_node = int(np.bincount(cluster.node_of_device).max())
    return found.of(checkpoint_bytes(result.problem), result.plan.n_devices, per_node)


def with_goodput(result: Result, mtbf: str) -> Result:
    """Return a result whose answer holds ``goodput`` and ``effective_step_seconds``; one without a plan as
    it is.

    Parameters
    ----------
    result : Result
        A plan on a cluster.
    mtbf : str
        As of `goodput_of`.

    Raises
    ------
    InputError
        As `goodput_of`; when next to no time is left to train.
    """
    if not result.feasible:
        return result
    good = goodput_of(result, mtbf)
    if good.effective_ratio <= 0.0:
        raise InputError(
            f"--mtbf {mtbf}: failures this frequent leave less than 1% of the time to train; check the unit (50000h)"
        )
    assert result.timeline is not None
    step = result.timeline.step_seconds
    effective = step / good.effective_ratio
    extra = {**result.answer.extra, "goodput": goodput_json(good), "effective_step_seconds": effective}
    return replace(result, answer=replace(result.answer, extra=extra))
