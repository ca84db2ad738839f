"""Our own search: the joint space of degrees, micro-batch, sharding, recomputation, schedule and layout, with a proven bound."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer
from meshwright.planners.best import answer as joint
from meshwright.planners.best.limits import Limits as Params
from meshwright.planners.best.question import COSTS, with_batch

__all__ = ["Params", "search"]


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the plan with the shortest simulated step of the joint space, and a proven bound on every other.

    Parameters
    ----------
    problem : Problem
        A model of ours on a cluster. A measured profile is planned by search measured, with the same options. A published instance with costs of its own is passed on to the search that reads it.
    params : Params
        What may be fixed or limited.
    seed : int
        Passed on; the joint search itself is deterministic.
    stop : Stop
        `n_iterations` replaces ``params.evaluations``; `seconds` ends the search early, with the gap reached.

    Returns
    -------
    Answer
        ``objective`` is the simulated step in seconds; ``bound`` holds for every plan of the space.

    Raises
    ------
    InputError
        When the batch or a degree given is impossible.

    Notes
    -----
    Best-first branch and bound over meshes, then configurations: a bound comes from `solvers.pipeline_split`, the objective
    from the simulator. The space: all ranks of a pipeline have the same degrees; 1F1B and ZB-H1 with any split of the layers,
    virtual stages with layers spread evenly. Where memory asks, layers recompute their cheap activations or everything: in any
    mixture under 1F1B, by one rule (the least work that fits each rank) under ZB-H1 and over virtual stages; a plan under ZB-H1 must
    fit with as many micro-batches as the schedule allows. Ranks are blocks of neighbouring devices (`layout`), of a torus also of its
    boxes; meshes that leave the last devices idle are part of it. `docs/explanation/best.md` has all of it.
    """
    model_spec = problem.model_spec
    if problem.costs == "profiled":
        measured: Answer = registry.load("search", "measured", "search").search(problem, params, seed=seed, stop=stop)
        return measured
    if model_spec.search != "best" and problem.costs not in COSTS:
        other = registry.load("search", model_spec.search, "search")
        answer: Answer = other.search(problem, other.Params(), seed=seed, stop=stop)
        note = f"{model_spec.format} brings its own costs: search best passes it on to search {model_spec.search}, with its default options"
        return replace(answer, notes=(note, *answer.notes))
    notes: list[str] = []
    found = joint.answer(with_batch(problem, "best", notes), params, stop, tuple(notes))
    if found.plan is None and not found.missing_bytes:  # a whole model on one device is always legal: the options exclude it
        raise InputError(f"search best, with these options: {found.notes[-1]}")
    return found
