"""``--search parmesan``: the published flow, partition by clustering and dynamic programming, then mapping by backtracking."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from meshwright.base.errors import InputError
from meshwright.base.units import format_bytes
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Alternative, Answer, Objective
from meshwright.network.numbering import numbered_alike, unlike_links
from meshwright.planners.parmesan.on_unlike import by_memory, nearest_pipelines, nothing_fits, pipelines_on_unlike
from meshwright.planners.parmesan.operators import Question, costed, question
from meshwright.planners.parmesan.pipelines import (
    EvaluatedPlan,
    evaluate_plan,
    fitting,
    idle,
    memory_limits,
    one_batch,
    own_limit,
    plan_of,
    shapes,
    stage_graph,
)
from meshwright.solvers.mapping.backtracking import FoundMapping, backtrack
from meshwright.solvers.mapping.problem import Mapping, StageGraph
from meshwright.solvers.mapping.search import consecutive, evaluate, pair_seconds, point_to_point
from meshwright.solvers.partition import coarsen, operator_stages
from meshwright.solvers.partition.hypergraph import Operators, Units, contract

__all__ = ["Params", "cut_published", "pipelines", "search"]


@dataclass(frozen=True, slots=True)
class Params:
    """Options, by the names of the published program.

    Parameters
    ----------
    k : int
        Clusters before the dynamic program; at least as many as stages.
    comm_coef : float
        Weight of saved communication against compute when clustering (the paper's alpha).
    new_flow : bool
        Clustering, dynamic program, refinement; otherwise clustering, refinement, dynamic program.
    search_k, search_comm_coef : bool
        Try several values (32, 48, 72, 96; 0.01, 1, 100) beside the given one and keep the best simulated.
    concurrent_copy_comp : bool
        Whether the simulator lets copies run beside compute.
    incl_allr, incl_p2p : bool or None
        Whether the mapping counts the gradient ring and the transfers; none for the paper's choice by the larger volume.
    parallel_degree : int
        Searches of one round of the bisection.
    parallel_same_t : int
        How many of them share a target, each beginning with other devices.
    n_stages : int
        0 to try every number that divides the devices. As published, a stage is left out where its cut would transfer more than
        it saves; ``stage_mapping`` keeps to the number.
    n_microbatches : int
        Micro-batches of a step and replica (4 in the paper), where no global batch is given.
    bandwidth : float
        That the partition assumes between stages, in bytes per second; 0 for the cluster's slowest neighbouring pair.
    nodes : int
        Placements one search may try before it gives up: a timeout in work, with which answers repeat.
    timeout : float
        Seconds after which the bisection for one mapping gives up; 0 for none.
    """

    k: int = field(default=32, metadata={"minimum": 1})
    comm_coef: float = field(default=1.0, metadata={"minimum": 0.0})
    new_flow: bool = True
    search_k: bool = False
    search_comm_coef: bool = False
    concurrent_copy_comp: bool = True
    incl_allr: bool | None = None
    incl_p2p: bool | None = None
    parallel_degree: int = field(default=4, metadata={"minimum": 1})
    parallel_same_t: int = field(default=1, metadata={"minimum": 1})
    n_stages: int = field(default=0, metadata={"minimum": 0})
    n_microbatches: int = field(default=4, metadata={"minimum": 1})
    bandwidth: float = field(default=0.0, metadata={"unit": "bytes_per_second"})
    nodes: int = field(default=300_000, metadata={"minimum": 1})
    timeout: float = field(default=0.0, metadata={"unit": "seconds", "minimum": 0.0})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Partition, map and simulate, for every number of stages and replicas; keep the best simulated throughput.

    `problem` is a graph or profile, on a cluster; `seed` is of the random starting mapping; `stop` is not used: work is bounded
    by ``nodes`` and ``timeout``. The objective is the simulated time per sample; no bound, as in the paper. Searches that were
    cut off are reported, and ``extra`` has the simulated time per sample of every candidate and how much the mapping searches
    tried. No plan where no shape keeps the memory limits.
    Raises `InputError` when there is no cluster, or the options contradict each other.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, sections III to VI.

    Notes
    -----
    Replicas take whole micro-batches (the paper splits each between them), so shapes are compared per sample. The load counts
    each tensor once per device, as everywhere here; the paper counts every edge. A search gives up after a number of
    placements, so that answers can be repeated, and after seconds only where they are asked for; the searches of a round run
    one after the other. Clusters and stages keep the memory of a device in sum, and the plan in the simulator (published is
    one memory for all devices). Where devices have unlike memory, stages are cut under that of each kind, the stages that hold
    most are laid on the devices with most free as well, and partitions cut for unlike devices, see
    `meshwright.solvers.partition.unlike`, are tried.
    """
    return numbered_alike(
        costed(problem), lambda asked: _answered(asked, params, seed), pair_seconds, partial(_seconds, params)
    )


def _seconds(params: Params, problem: Problem, plan: Plan) -> float:
    """Return the objective of a plan."""
    return evaluate_plan(problem, plan, "", copies_beside_compute=params.concurrent_copy_comp).seconds_per_sample


def _answered(problem: Problem, params: Params, seed: int) -> Answer:
    """Return the answer in the numbering that devices have."""
    judged, extra, posed = pipelines(problem, params, seed)
    ranked, missing_bytes = fitting(problem, posed, judged)
    if not ranked:
        near = nearest_pipelines(problem, posed, shapes(problem, params.n_stages), params.n_microbatches, params.n_stages)
        beside = params.concurrent_copy_comp
        ranked, least = fitting(
            problem, posed, [evaluate_plan(problem, plan, label, copies_beside_compute=beside) for label, plan in near]
        )
        missing_bytes = min(missing_bytes, least)
    if not ranked:
        least_bytes, proven = nothing_fits(problem, posed, params.n_stages)
        nearest = "more devices or stages, or a smaller --micro-batch; --search stage_mapping also shards and recomputes"
        nearest += own_limit(problem, posed)
        return Answer(
            None, missing_bytes=missing_bytes if math.isfinite(missing_bytes) else least_bytes, nearest=nearest,
            infeasible_proven=proven, notes=posed.notes, problem=problem, extra=extra,
        )  # fmt: skip
    return _answer(problem, ranked, posed, extra)


def pipelines(problem: Problem, params: Params, seed: int) -> tuple[list[EvaluatedPlan], dict[str, Any], Question]:
    """Return every pipeline of the published flow, simulated; what the searches tried and where they gave up; and the
    operators.

    `problem`: a graph or profile with its own cost model, see `costed`, and a cluster.
    Raises `InputError` when there is no cluster, or the options contradict each other.
    """
    if params.parallel_degree % params.parallel_same_t:
        raise InputError(
            f"--set parallel_degree={params.parallel_degree}: must be a multiple of parallel_same_t={params.parallel_same_t}"
        )
    one_batch(problem, params.n_microbatches, Params().n_microbatches)
    pairs = shapes(problem, params.n_stages)
    posed = question(problem, params.bandwidth)
    assert problem.cluster is not None
    seconds_per_byte = pair_seconds(problem.cluster)
    limits = tuple(limit for limit in memory_limits(problem, posed) if math.isfinite(limit)) or (math.inf,)
    units = contract(posed.operators, weigh_memory=math.isfinite(limits[-1]))
    judged: list[EvaluatedPlan] = []
    unfinished: list[str] = []
    work = [0, 0]
    both = 1.0 if posed.objective == "largest_load" else 2.0
    for n_stages, n_replicas in pairs:
        for groups, cut_label in _cuts(params, posed, units, n_stages, limits):
            graph = stage_graph(posed, groups, n_replicas, both=both)
            held = np.array([posed.operators.memory[list(group)].sum() for group in groups])
            sorted_devices = by_memory(problem, held, n_replicas)
            for mapping, map_label, found in _mappings(params, graph, seconds_per_byte, seed, sorted_devices):
                label = f"{n_stages} stages x {n_replicas}, {cut_label}, {map_label}"
                plan = plan_of(problem, groups, mapping, params.n_microbatches)
                judged.append(evaluate_plan(problem, plan, label, copies_beside_compute=params.concurrent_copy_comp))
                if found is not None:
                    work = [work[0] + found.n_searches, work[1] + found.n_placements]
                    if not found.finished:
                        unfinished.append(label)
    for label, plan in pipelines_on_unlike(problem, posed, pairs, params.n_microbatches, params.n_stages):
        judged.append(evaluate_plan(problem, plan, label, copies_beside_compute=params.concurrent_copy_comp))
    extra = {
        "candidates": {one.label: one.seconds_per_sample for one in judged}, "unfinished": unfinished,
        "mapping_searches": work[0], "placements": work[1],
    }  # fmt: skip
    return judged, extra, posed


def _answer(problem: Problem, ranked: Sequence[EvaluatedPlan], posed: Question, extra: dict[str, Any]) -> Answer:
    """Return the best simulated plan, the runners-up, and what was cut off."""
    best, unfinished = ranked[0], extra["unfinished"]
    notes = [*posed.notes, f"from {best.label}", *idle(problem, best.plan)]
    notes += unlike_links(problem.required_cluster, pair_seconds)
    if unfinished:
        notes.append(
            f"{len(unfinished)} of {len(extra['candidates'])} mapping searches stopped at their limit of placements or time, "
            "so a "
            f"better mapping may exist (raise --set nodes, or timeout where one is set); among them: {unfinished[0]}"
        )
    others = tuple(
        Alternative(one.plan, Objective("simulated_seconds_per_sample", one.seconds_per_sample), one.label)
        for one in ranked[1:]
    )
    return Answer(
        best.plan, Objective("simulated_seconds_per_sample", best.seconds_per_sample), alternatives=others, notes=tuple(notes),
        problem=problem, extra=extra,
    )  # fmt: skip


def cut_published(
    operators: Operators,
    units: Units,
    n_stages: int,
    *,
    k: int,
    comm_coef: float,
    new_flow: bool,
    memory_limit_bytes: float = math.inf,
) -> tuple[tuple[int, ...], ...]:
    """Return the published partition: the operators of each stage.

    `operators`, `units`: the graph, before and after contraction.
    `k`, `comm_coef`, `new_flow`: as in `Params`.
    `memory_limit_bytes`: of one device.
    Returns: operators of each stage; nothing where the clusters do not fit.
    """
    label = coarsen.cluster(units, max(k, n_stages), comm_coef, memory_limit_bytes)
    if not new_flow:
        n_clusters = max(label) + 1
        blocks = tuple(tuple(v for v in range(len(units)) if label[v] == c) for c in range(n_clusters))
        blocks = coarsen.refine(units, blocks, memory_limit_bytes=memory_limit_bytes, clusters=True)
        label = tuple(next(c for c, block in enumerate(blocks) if v in block) for v in range(len(units)))
    coarse = Operators(
        operators.compute, operators.host, operators.memory, operators.supported, operators.edges,
        tuple(label[v] for v in _unit_of(units, len(operators.compute))), operators.nets,
    )  # fmt: skip
    found = operator_stages.cut(coarse, n_stages, memory_limit_bytes=memory_limit_bytes)
    if not found.partition.feasible:
        return ()
    stage_of = {op: s for s, group in enumerate(found.groups) for op in group}
    groups = tuple(tuple(v for v in range(len(units)) if stage_of[units.members[v][0]] == s) for s in range(n_stages))
    if new_flow:
        groups = coarsen.refine(units, groups, memory_limit_bytes=memory_limit_bytes)
    return tuple(tuple(sorted(op for v in group for op in units.members[v])) for group in groups)


def _unit_of(units: Units, n_ops: int) -> list[int]:
    """Return the unit of each operator."""
    result = [0] * n_ops
    for v, members in enumerate(units.members):
        for op in members:
            result[op] = v
    return result


def _cuts(
    params: Params, posed: Question, units: Units, n_stages: int, limits: Sequence[float]
) -> Iterator[tuple[tuple[tuple[int, ...], ...], str]]:
    """Yield the partitions of all values of the parameters to be tried, each once;
    none where nothing keeps the memory limit.
    """
    seen: set[tuple[tuple[int, ...], ...]] = {()}
    for k in sorted({32, 48, 72, 96, params.k}) if params.search_k else (params.k,):
        for comm_coef in sorted({0.01, 1.0, 100.0, params.comm_coef}) if params.search_comm_coef else (params.comm_coef,):
            for limit in limits:
                groups = cut_published(
                    posed.operators,
                    units,
                    n_stages,
                    k=k,
                    comm_coef=comm_coef,
                    new_flow=params.new_flow,
                    memory_limit_bytes=limit,
                )
                if groups not in seen:
                    seen.add(groups)
                    within = "" if limit == limits[-1] else f" within {format_bytes(limit)}"
                    yield groups, f"k={max(k, n_stages)} comm_coef={comm_coef:g}{within}"


def _mappings(
    params: Params, graph: StageGraph, seconds_per_byte: np.ndarray, seed: int, sorted_devices: np.ndarray | None
) -> Iterator[tuple[Mapping, str, FoundMapping | None]]:
    """Yield the two heuristic mappings, that by memory where devices have unlike memory, and the one found by the bisection."""
    order = np.arange(len(seconds_per_byte))
    starts = (("consecutive", consecutive(graph, order)), ("point to point", point_to_point(graph, order)))
    for name, devices in starts:
        yield evaluate(graph, seconds_per_byte, devices, fixed_rings=True), name, None
    if sorted_devices is not None:
        yield evaluate(graph, seconds_per_byte, sorted_devices, fixed_rings=True), "by memory", None
    transfers, rings = params.incl_p2p, params.incl_allr
    moved = sum(volume for _, _, volume in graph.transfers)
    reduced = float(graph.reduce_bytes.sum())
    if transfers is None:
        transfers = reduced <= moved if rings is None else not rings
    if rings is None:
        rings = not transfers
    counted = StageGraph(
        graph.compute_seconds, graph.transfers if transfers else (), graph.reduce_bytes * float(rings), graph.n_replicas
    )
    random = np.random.default_rng(seed).permutation(len(seconds_per_byte))
    begun = [*(devices for _, devices in starts), consecutive(graph, random)]
    found: FoundMapping = backtrack(
        counted, seconds_per_byte, begun, params.parallel_degree // params.parallel_same_t, params.parallel_same_t,
        params.nodes, timeout_seconds=params.timeout or math.inf,
    )  # fmt: skip
    words = " and ".join(word for word, on in (("transfers", transfers), ("rings", rings)) if on) or "compute only"
    yield evaluate(graph, seconds_per_byte, found.devices, fixed_rings=True), f"backtracking on {words}", found
    if not math.isfinite(found.seconds):
        raise InputError("the stage graph has a time that is not finite; check the input")
