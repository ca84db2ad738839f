"""``--search stage_mapping``: partition and mapping together, repeated until the simulated step stops improving."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright.costs._operators import Question, costed, question
from meshwright.problem import Problem, Stop
from meshwright.result import Alternative, Answer, Objective
from meshwright.search._pipelines import Judged, judge, plan_of, shapes, stage_graph
from meshwright.solvers.convex_partition import partition
from meshwright.solvers.mapping import Mapping, consecutive, evaluate, map_stages, pair_seconds, point_to_point
from meshwright.solvers.units import Units, contract

__all__ = ["Params", "search"]


@dataclass(frozen=True, slots=True)
class Params:
    """Options.

    Parameters
    ----------
    n_stages : int
        0 to try every number that divides the devices.
    n_microbatches : int
        Micro-batches of a step and replica, where no global batch is given.
    rounds : int
        Most rounds of partition and mapping for one number of stages.
    moves : int
        Moves of annealing of one mapping; 0 for a number that suits the size.
    """

    n_stages: int = field(default=0, metadata={"minimum": 0})
    n_microbatches: int = field(default=4, metadata={"minimum": 1})
    rounds: int = field(default=4, metadata={"minimum": 1})
    moves: int = field(default=0, metadata={"minimum": 0})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Partition with the bandwidth each stage will see, map, look at the links it got, and partition again.

    Parameters
    ----------
    problem : Problem
        A graph, profile or model, and a cluster.
    params : Params
        Options.
    seed : int
        Of the annealing.
    stop : Stop
        Not used: rounds end when nothing improves.

    Returns
    -------
    Answer
        The objective is the simulated time per sample over all shapes; ``extra["mappings"]`` has for each shape the largest
        cost of its mapping and the bound on it, for the partition it maps.

    Raises
    ------
    InputError
        When there is no cluster or it is too small.

    Notes
    -----
    The first partition assumes the bandwidth of neighbouring devices. After a mapping, the transfers of each stage are charged
    at the slowest of the links that it got, relative to that bandwidth, and the exact partitioner with factors per stage cuts
    again. Whatever simulates best is kept, the simple mappings of each partition among the candidates.
    """
    problem = costed(problem)
    pairs = shapes(problem, params.n_stages)
    posed = question(problem)
    assert problem.cluster is not None
    slow = pair_seconds(problem.cluster)
    units = contract(posed.operators)
    judged: list[Judged] = []
    mappings: list[dict[str, object]] = []
    for n_stages, n_replicas in pairs:
        found, best = _rounds(problem, params, posed, units, slow, (n_stages, n_replicas), seed)
        judged += found
        mappings.append(
            {
                "n_stages": n_stages, "n_replicas": n_replicas, "seconds": best.seconds, "bound_seconds": best.bound_seconds,
                "exact": best.exact, "rings": best.rings.tolist(),
            }
        )  # fmt: skip
    ranked = sorted(judged, key=lambda one: one.seconds_per_sample)
    first = ranked[0]
    others = tuple(
        Alternative(one.plan, Objective("simulated_seconds_per_sample", one.seconds_per_sample), one.label)
        for one in ranked[1:6]
    )
    return Answer(
        first.plan, Objective("simulated_seconds_per_sample", first.seconds_per_sample), alternatives=others,
        n_iterations=len(judged), notes=(*posed.notes, f"from {first.label}"), problem=problem, extra={"mappings": mappings},
    )  # fmt: skip


def _rounds(
    problem: Problem,
    params: Params,
    posed: Question,
    units: Units,
    slow: NDArray[np.float64],
    shape: tuple[int, int],
    seed: int,
) -> tuple[list[Judged], Mapping]:
    """Alternate partition and mapping for one shape; return every plan simulated and the mapping of the best."""
    n_stages, n_replicas = shape
    judged: list[Judged] = []
    both = 1.0 if posed.objective == "largest_load" else 2.0
    typical = float(np.median(slow[np.arange(len(slow) - 1), np.arange(1, len(slow))])) if len(slow) > 1 else 0.0
    scales: NDArray[np.float64] | None = None
    best_mapping: Mapping | None = None
    best = float("inf")
    for turn in range(params.rounds):
        cut = partition(units, n_stages, scales=scales, seed=seed)
        groups = tuple(tuple(sorted(op for unit in group for op in units.members[unit])) for group in cut.groups)
        graph = stage_graph(posed, groups, n_replicas, n_microbatches=params.n_microbatches, both=both)
        mapping = map_stages(graph, slow, seed=seed + turn, n_moves=params.moves, n_nodes=2_000_000)
        order = np.arange(len(slow))
        simple = (("consecutive", consecutive(graph, order)), ("point to point", point_to_point(graph, order)))
        candidates = [("annealed", mapping), *((name, evaluate(graph, slow, devices)) for name, devices in simple)]
        before = best
        for name, candidate in candidates:
            plan = plan_of(problem, groups, candidate, params.n_microbatches)
            one = judge(problem, plan, f"{n_stages} stages x {n_replicas}, round {turn}, {name}")
            judged.append(one)
            if one.seconds_per_sample < best:
                best, best_mapping = one.seconds_per_sample, candidate
        if best >= before * (1 - 1e-9) or n_stages == 1 or typical == 0.0:
            break
        assert best_mapping is not None
        scales = np.ones((2, n_stages))
        for s in range(n_stages):
            neighbours = [t for t in (s - 1, s + 1) if 0 <= t < n_stages]
            worst = max(float(slow[best_mapping.devices[s], best_mapping.devices[t]].max()) for t in neighbours)
            scales[1, s] = max(worst / typical, 1e-6)
    assert best_mapping is not None
    return judged, best_mapping
