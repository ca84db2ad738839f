"""PaSE's cost model: FLOP equivalents of layers and of re-sharding between them; says nothing in seconds."""

from __future__ import annotations

from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost

__all__ = ["ROUNDS", "stage_costs"]

ROUNDS = True
"""The batch is shared out here; the samples of a micro-batch and replica in a plan are rounded."""


def stage_costs(problem: Problem, plan: Plan) -> tuple[StageCost, ...]:
    """Return nothing: the model has no time of its own that a simulator could play.

    Notes
    -----
    PaSE adds up work and words moved of all operators, in FLOP equivalents of one device, without latency, topology, memory
    or overlap; see `meshwright.planners.pase.layer_costs` for the costs and `meshwright.planners.pase.search.pase` for the
    search over them.
    """
    return ()
