"""The one judge: play a plan task by task and see how long it takes and what it holds.

`simulate` plays a plan on the links of its cluster and returns the whole `Timeline`. `estimate` returns the seconds of the same
step alone, and `step_seconds` those of a pipeline without its end of step, for searches that ask many times.
"""

from __future__ import annotations

from meshwright.sim.engine import estimate, simulate, step_seconds
from meshwright.sim.tasks import check_plan

__all__ = ["check_plan", "estimate", "simulate", "step_seconds"]
