"""``--search stage_mapping``: partition and mapping together, repeated until the simulated step stops improving."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.base import options
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Alternative, Answer, Bound, Objective, Result
from meshwright.network.numbering import as_asked, numbered_alike, unlike_links
from meshwright.planners.parmesan.check import mapping as check_mapping
from meshwright.planners.parmesan.numbers import as_many, filled
from meshwright.planners.parmesan.on_unlike import by_memory, nearest_pipelines, nothing_fits, pipelines_on_unlike
from meshwright.planners.parmesan.operators import Question, costed, question
from meshwright.planners.parmesan.pipelines import (
    MOST_UNEQUAL,
    EvaluatedPlan,
    evaluate_plan,
    fitting,
    idle,
    memory_limits,
    one_batch,
    own_excess_bytes,
    own_limit,
    plan_of,
    shapes,
    stage_graph,
)  # fmt: skip
from meshwright.planners.parmesan.search import parmesan
from meshwright.planners.parmesan.sharded_pipelines import fitted, least_seconds_per_sample
from meshwright.planners.parmesan.unequal_pipelines import device_orders, slowness, swapped, unequal_plans
from meshwright.solvers.mapping.bounds import lower_bound
from meshwright.solvers.mapping.problem import Mapping, StageGraph
from meshwright.solvers.mapping.search import consecutive, evaluate, map_stages, pair_seconds, point_to_point, usual_moves
from meshwright.solvers.pairwise.certificate import Verdict
from meshwright.solvers.partition.convex import partition
from meshwright.solvers.partition.hypergraph import Units, contract

__all__ = ["CHECKED", "Params", "check_plan", "search"]

CHECKED = ("mappings",)

_QUICK = 10  # part of the usual moves that mappings between partitions get
_REFINED = 3  # shapes whose mapping gets all moves, and a proof where there are few devices
_TRIED = 8  # devices up to which the check tries all mappings below a bound; beyond, it computes the bound anew
_ROUNDING = 1e-9  # relative distance of sums that counts as none
_Groups = tuple[tuple[int, ...], ...]


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
    published : bool
        Whether the published flow's answer is a start, so that this search is never worse than it.
    unequal : bool
        Whether stages with unequally many replicas are tried (up to 64 devices).
    """

    n_stages: int = field(default=0, metadata={"minimum": 0})
    n_microbatches: int = field(default=4, metadata={"minimum": 1})
    rounds: int = field(default=4, metadata={"minimum": 1})
    moves: int = field(default=0, metadata={"minimum": 0})
    published: bool = True
    unequal: bool = True


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Partition with the bandwidth each stage will see, map, look at the links it got, and partition again.

    `problem` is a graph, profile or model, on a cluster; `seed` is of the annealing; `stop` is not used: rounds end when
    nothing improves. The objective is the simulated time per sample over all shapes; ``extra["mappings"]`` has for each shape
    the partition it maps, devices, rings, the largest cost of the mapping and the bound on it.
    Raises `InputError` when there is no cluster or it is too small.

    Notes
    -----
    The first partition assumes the bandwidth of neighbouring devices and equal devices. After a mapping, the transfers of each
    stage are charged at the slowest of the links that it got, relative to that bandwidth, its compute at its slowest device,
    and the exact partitioner with factors per stage cuts again. Whatever simulates best is kept; the simple mappings of each
    partition and the published flow's plans are among the candidates. Models with a cost model of their layers get tensors and
    state sharded and activations recomputed on top, and only plans that fit count. Each stage names the order of its gradient
    ring.

    The bound on the objective holds for every partition, mapping and number of replicas at the micro-batches tried: all devices
    together do the work of a sample in no less than its compute shared among them. With several kinds of device it is a dual
    solution of the linear program that shares layers out among them, so it holds whichever kind suits a layer.

    Where devices have unlike memory, stages are cut under that of each kind, mappings lay the stages that hold most on the
    devices with most free too, and partitions cut for unlike devices are among the candidates. That nothing fits is said to be
    proven only where the operators of no partition fit; plans that shard are not gone through.
    """
    one_batch(problem, params.n_microbatches, Params().n_microbatches)
    return numbered_alike(costed(problem), lambda asked: _answered(asked, params, seed), pair_seconds, _seconds)


def _seconds(problem: Problem, plan: Plan) -> float:
    """Return the objective of a plan."""
    return evaluate_plan(problem, plan, "").seconds_per_sample


def _answered(problem: Problem, params: Params, seed: int) -> Answer:
    """Return the answer in the numbering that devices have."""
    pairs = shapes(problem, params.n_stages)
    if problem.costs != "partition":  # a tensor degree may share replicas out that do not split the batch
        pairs = tuple(dict.fromkeys((*shapes(problem, params.n_stages, whole_batch=False), *pairs)))
    posed = question(problem)
    seconds_per_byte = pair_seconds(problem.required_cluster)
    limits = memory_limits(problem, posed)
    units = contract(posed.operators, weigh_memory=math.isfinite(limits[-1]))
    slower = slowness(problem, posed)
    laid = device_orders(problem.required_cluster)
    judged: list[EvaluatedPlan] = []
    mapped: list[_Mapped] = []
    for shape in pairs:
        found, best = _rounds(_Asked(problem, params, posed, units, seconds_per_byte, slower, laid, limits, shape, seed))
        judged += found
        mapped += [] if best is None else [best]
    order = sorted(range(len(mapped)), key=lambda i: (mapped[i].objective_seconds, i))
    for i in order[:_REFINED]:
        found, mapped[i] = _refined(mapped[i])
        judged += found
    if params.unequal and len(seconds_per_byte) <= MOST_UNEQUAL and not params.n_stages:
        plans = unequal_plans(problem, units, params.n_microbatches, laid, slower, limits)
        judged += [evaluate_plan(problem, plan, label) for label, plan in plans]
    alone = pipelines_on_unlike(problem, posed, pairs, params.n_microbatches, params.n_stages)
    judged += [evaluate_plan(problem, plan, label) for label, plan in alone]
    published = _published(problem, params, seed) if params.published else []
    judged += published
    if problem.costs == "partition" and len(seconds_per_byte) <= MOST_UNEQUAL:
        judged += swapped(problem, posed, judged)
    judged = as_many(problem, params.n_stages, judged)
    if problem.costs == "partition":
        ranked, missing_bytes = fitting(problem, posed, judged)
        if not ranked:
            near = nearest_pipelines(problem, posed, pairs, params.n_microbatches, params.n_stages)
            ranked, least_bytes = fitting(problem, posed, [evaluate_plan(problem, plan, label) for label, plan in near])
            missing_bytes = min(missing_bytes, least_bytes)
        nearest = "more devices, devices with more memory, or a smaller --micro-batch" + own_limit(problem, posed)
    else:
        ranked, missing_bytes = fitted(problem, sorted(judged, key=lambda one: one.seconds_per_sample), published)
        nearest = "more devices, or a smaller --micro-batch; --search best also shards in other ways"
    if not ranked:
        least_bytes, proven = nothing_fits(problem, posed, params.n_stages) if problem.costs == "partition" else (0.0, False)
        missing_bytes = missing_bytes if math.isfinite(missing_bytes) else least_bytes
        return Answer(None, missing_bytes=missing_bytes, nearest=nearest, infeasible_proven=proven, problem=problem)
    first = ranked[0]
    others = tuple(
        Alternative(one.plan, Objective("simulated_seconds_per_sample", one.seconds_per_sample), one.label)
        for one in ranked[1:6]
    )
    return Answer(
        first.plan, Objective("simulated_seconds_per_sample", first.seconds_per_sample), alternatives=others,
        bound=_bound(posed, problem), n_iterations=len(judged), notes=_notes(problem, posed, first), problem=problem,
        extra={"mappings": [_mapping_json(problem, one.groups, one.mapping) for one in mapped]},
    )  # fmt: skip


def check_plan(result: Result, entry: dict[str, Any], place: str) -> Verdict:
    """Check what a plan file of this search claims, without its solver: the simulated time, its bound, and each shape's
    mapping.

    `result`: the plan file taken up again; its plan was simulated anew.
    Returns: whether all of it holds.
    Raises `InputError` when a field is missing or of the wrong kind.
    """
    params = options.parse(Params, dict(result.settings), "search stage_mapping")
    asked = entry.get("batch", {})
    batch = replace(
        result.problem.batch, global_batch=asked.get("asked_global_batch", result.problem.batch.global_batch),
        micro_batch=asked.get("asked_micro_batch", result.problem.batch.micro_batch),
    )  # fmt: skip
    problem = costed(replace(result.problem, batch=batch))
    posed = question(as_asked(problem, pair_seconds))
    assert result.plan is not None
    if result.timeline is None:
        return Verdict(False, float("nan"), float("nan"), "the plan cannot be simulated")
    value = result.timeline.step_seconds / result.plan.global_batch
    bound = _bound(posed, problem)
    bound_value = 0.0 if bound is None else bound.value
    seconds_per_byte = check_mapping.pair_table(problem.required_cluster)
    number = {op.name: i for i, op in enumerate(problem.graph.ops)}
    try:
        claimed = float(entry["objective"]["value"]), float(entry["bound"]["value"]) if entry.get("bound") else 0.0
        shapes_ = [
            (tuple(tuple(number[name] for name in names) for names in one["stages"]),
             check_mapping.ClaimedMapping(tuple(map(tuple, one["devices"])), tuple(map(tuple, one["rings"])),
                                          float(one["seconds"]), float(one["bound_seconds"]),
                                          tuple(one[name] for name in ("n_stages", "n_replicas", "exact"))))
            for one in entry["mappings"]
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    lacking = sim.excess_bytes(result.problem, result.plan, result.timeline.peak_bytes)
    over = own_excess_bytes(posed, result.plan)
    if max(lacking, over) > 0.0:
        why = f"a device lacks {lacking!r} bytes, a stage exceeds the file's limit (maxSizePerFPGA) by {over!r}"
        return Verdict(False, value, bound_value, f"the plan does not fit: {why}")
    if not abs(value - claimed[0]) <= _ROUNDING * value:
        return Verdict(False, value, bound_value, f"the plan is simulated at {value!r} seconds per sample, not {claimed[0]!r}")
    if claimed[1] > bound_value * (1.0 + _ROUNDING):
        return Verdict(
            False, value, bound_value, f"the compute of all devices proves {bound_value!r} seconds, not {claimed[1]!r}"
        )
    both = 1.0 if posed.objective == "largest_load" else 2.0
    for groups, mapping in shapes_:
        if sorted(op for group in groups for op in group) != list(range(len(number))):
            return Verdict(False, value, bound_value, f"the mapping of {len(groups)} stages does not hold every operator once")
        graph = stage_graph(posed, groups, len(mapping.devices[0]), n_microbatches=params.n_microbatches, both=both)
        ring = 2.0 * (graph.n_replicas - 1) / graph.n_replicas
        stages = check_mapping.MappedStages(
            tuple(graph.compute_seconds.tolist()), {(a, b): volume for a, b, volume in graph.transfers},
            tuple((ring * graph.reduce_bytes).tolist()),
        )  # fmt: skip
        proven = lower_bound(graph, pair_seconds(problem.required_cluster)) if len(seconds_per_byte) > _TRIED else 0.0
        wrong = check_mapping.check(stages, seconds_per_byte, mapping, proven)
        if wrong:
            return Verdict(False, value, bound_value, f"mapping of {graph.n_stages} stages x {graph.n_replicas}: {wrong}")
    return Verdict(True, value, bound_value)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """One shape of the question: stages and replicas, with what all shapes share."""

    problem: Problem
    params: Params
    posed: Question
    units: Units
    seconds_per_byte: NDArray[np.float64]
    slower: NDArray[np.float64]
    laid: tuple[tuple[str, NDArray[np.int64]], ...]
    limits: tuple[float, ...]
    shape: tuple[int, int]
    seed: int

    def graph(self, groups: _Groups) -> StageGraph:
        """Return the stages of a partition as a graph to be mapped."""
        both = 1.0 if self.posed.objective == "largest_load" else 2.0
        return stage_graph(self.posed, groups, self.shape[1], n_microbatches=self.params.n_microbatches, both=both)

    def moves(self, part: int) -> int:
        """Return how many moves a mapping is annealed with: the number asked for, or one part of those that suit the size."""
        return self.params.moves or (usual_moves(*self.shape) // part)


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    """The best partition and mapping of one shape."""

    asked: _Asked
    groups: _Groups
    graph: StageGraph
    mapping: Mapping
    objective_seconds: float


def _published(problem: Problem, params: Params, seed: int) -> list[EvaluatedPlan]:
    """Return the published flow's plans."""
    theirs = parmesan.Params(n_stages=params.n_stages, n_microbatches=params.n_microbatches)
    judged, _, _ = parmesan.pipelines(problem, theirs, seed)
    return [replace(one, label=f"the published flow, {one.label}") for one in judged]


def _bound(posed: Question, problem: Problem) -> Bound | None:
    """Return the least time per sample of all devices together: compute alone, no pipeline ever empty."""
    if problem.costs == "partition":
        total = float(posed.operators.compute.sum()) * posed.unit_seconds / (problem.batch.micro_batch or 1)
        seconds = total / problem.required_cluster.n_devices
    else:
        seconds = least_seconds_per_sample(problem)
    return Bound(seconds, "compute") if seconds > 0.0 else None


def _notes(problem: Problem, posed: Question, first: EvaluatedPlan) -> tuple[str, ...]:
    """Say what a reader would otherwise wonder about."""
    links = unlike_links(problem.required_cluster, pair_seconds)
    notes = (*posed.notes, f"from {first.label}", *idle(problem, first.plan), *links)
    if problem.costs == "partition" and not problem.required_cluster.homogeneous:
        notes += ("the file's times are taken to hold on every kind of device of the cluster",)
    return notes


def _simple(asked: _Asked, groups: _Groups, graph: StageGraph) -> list[tuple[str, Mapping]]:
    """Return the simple mappings along every order of the devices, and that by memory where devices have unlike memory."""
    found = []
    for name, order in asked.laid:
        for how, lay in (("consecutive", consecutive), ("point to point", point_to_point)):
            found.append((f"{how}, {name}", evaluate(graph, asked.seconds_per_byte, lay(graph, order))))
    held = np.array([asked.posed.operators.memory[list(group)].sum() for group in groups])
    devices = by_memory(asked.problem, held, asked.shape[1])
    return found if devices is None else [*found, ("by memory", evaluate(graph, asked.seconds_per_byte, devices))]


def _scales(asked: _Asked, devices: NDArray[np.int64], typical: float) -> NDArray[np.float64]:
    """Return the factors on compute and transfers of each stage that follow from the devices it got."""
    n_stages = asked.shape[0]
    scales = np.ones((2, n_stages))
    for s in range(n_stages):
        scales[0, s] = float(asked.slower[devices[s]].max())
        neighbours = [t for t in (s - 1, s + 1) if 0 <= t < n_stages]
        worst = max((float(asked.seconds_per_byte[devices[s], devices[t]].max()) for t in neighbours), default=typical)
        scales[1, s] = max(worst / typical, 1e-6) if typical > 0.0 else 1.0
    return scales


def _mapping_json(problem: Problem, groups: _Groups, mapping: Mapping) -> dict[str, object]:
    """Return a mapping with what its check needs."""
    names = [[problem.graph.ops[op].name for op in group] for group in groups]
    return {
        "n_stages": len(groups), "n_replicas": mapping.devices.shape[1], "seconds": mapping.seconds,
        "bound_seconds": mapping.bound_seconds, "exact": mapping.exact, "stages": names, "devices": mapping.devices.tolist(),
        "rings": mapping.rings.tolist(),
    }  # fmt: skip


def _rounds(asked: _Asked) -> tuple[list[EvaluatedPlan], _Mapped | None]:
    """Alternate partition and mapping for one shape; return every plan simulated, and the best partition with its mapping."""
    seconds_per_byte = asked.seconds_per_byte
    n_stages, n_replicas = asked.shape
    steps = np.arange(len(seconds_per_byte) - 1)
    typical = float(np.median(seconds_per_byte[steps, steps + 1])) if len(seconds_per_byte) > 1 else 0.0
    unequal = bool((asked.slower != asked.slower[0]).any())
    # unequal devices: one start for each order in which stages may be laid along them
    lay = StageGraph(np.zeros(n_stages), (), np.zeros(n_stages), n_replicas)
    starts: list[NDArray[np.float64] | None] = [None]
    if unequal and n_stages > 1:
        starts += [_scales(asked, consecutive(lay, order), typical) for _, order in asked.laid]
    judged: list[EvaluatedPlan] = []
    best: _Mapped | None = None
    seen: set[_Groups] = set()
    for scales, limit in itertools.product(starts, asked.limits):
        factors = scales
        for turn in range(asked.params.rounds):
            cut = partition(asked.units, n_stages, memory_limit_bytes=limit, scales=factors, seed=asked.seed)
            held = filled(asked.units, cut.groups) if asked.params.n_stages else cut.groups
            if not cut.feasible or held in seen:
                break
            seen.add(held)
            groups = tuple(tuple(sorted(op for unit in group for op in asked.units.members[unit])) for group in held)
            graph = asked.graph(groups)
            quick = map_stages(graph, seconds_per_byte, seed=asked.seed + turn, n_moves=asked.moves(_QUICK), prove=False)
            tried, now = _judged(asked, groups, graph, [("annealed", quick), *_simple(asked, groups, graph)], f"round {turn}")
            judged += tried
            better = best is None or now.objective_seconds < best.objective_seconds * (1 - 1e-9)
            if best is None or now.objective_seconds < best.objective_seconds:
                best = now
            if not better or n_stages == 1 or typical == 0.0:
                break
            factors = _scales(asked, now.mapping.devices, typical)
    return judged, best


def _judged(
    asked: _Asked, groups: _Groups, graph: StageGraph, mappings: list[tuple[str, Mapping]], how: str
) -> tuple[list[EvaluatedPlan], _Mapped]:
    """Return the simulated plans of the mappings of a partition, and the best of them."""
    n_stages, n_replicas = asked.shape
    tried = [
        evaluate_plan(
            asked.problem, plan_of(asked.problem, groups, mapping, asked.params.n_microbatches),
            f"{n_stages} stages x {n_replicas}, {how}, {name}",
        )
        for name, mapping in mappings
    ]  # fmt: skip
    first = min(range(len(tried)), key=lambda k: (tried[k].seconds_per_sample, k))
    return tried, _Mapped(asked, groups, graph, mappings[first][1], tried[first].seconds_per_sample)


def _refined(mapped: _Mapped) -> tuple[list[EvaluatedPlan], _Mapped]:
    """Map the best partition of a shape once more, with all moves and a proof where there are few devices."""
    asked = mapped.asked
    mapping = map_stages(mapped.graph, asked.seconds_per_byte, seed=asked.seed, n_moves=asked.moves(1), n_nodes=50_000_000)
    tried, now = _judged(asked, mapped.groups, mapped.graph, [("annealed", mapping)], "refined")
    if now.objective_seconds > mapped.objective_seconds:
        bound = max(mapping.bound_seconds, mapped.mapping.bound_seconds)
        return tried, replace(mapped, mapping=replace(mapped.mapping, bound_seconds=min(bound, mapped.mapping.seconds)))
    return tried, now
