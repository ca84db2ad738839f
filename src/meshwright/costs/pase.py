"""PaSE's cost model: FLOP equivalents of layers and of re-sharding between them; says nothing in seconds."""

from __future__ import annotations

from meshwright.plan import Plan
from meshwright.problem import Problem
from meshwright.table import StageLoad

__all__ = ["loads"]


def loads(problem: Problem, plan: Plan) -> tuple[StageLoad, ...]:
    """Return nothing: the model has no time of its own that a simulator could play.

    Parameters
    ----------
    problem : Problem
        A PaSE graph.
    plan : Plan
        One stage with every operator on all processors.

    Returns
    -------
    tuple of StageLoad
        Always empty.

    Notes
    -----
    PaSE adds up work and words moved of all operators, in FLOP equivalents of one device, without latency, topology, memory
    or overlap; see `meshwright.costs._pase_layers` for the costs and `meshwright.search.pase` for the search over them.
    """
    return ()
