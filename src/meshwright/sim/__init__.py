"""The one judge: play a plan task by task and see how long it takes and what it holds.

`simulate` plays a plan on the links of its cluster and returns the whole `Timeline`; `device_causes` says where the time of
all devices goes. For searches that ask many times, `least_seconds` returns the seconds of the same step if collectives had
links of their own, `estimate` those with given transfers, `order` the order of its tasks, and `step_seconds` the seconds of a
pipeline without its end of step. Whether a plan fits is decided in `meshwright.sim.fits` only.
"""

from __future__ import annotations

from meshwright.sim.engine import device_causes, estimate, least_seconds, order, simulate, step_seconds
from meshwright.sim.fits import excess_bytes, free_bytes, rank_excess_bytes, tightest
from meshwright.sim.tasks import MOST_TASKS, check_plan

__all__ = [
    "MOST_TASKS",
    "check_plan",
    "device_causes",
    "estimate",
    "excess_bytes",
    "free_bytes",
    "least_seconds",
    "order",
    "rank_excess_bytes",
    "simulate",
    "step_seconds",
    "tightest",
]
