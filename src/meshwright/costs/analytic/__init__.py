"""Our own cost model: what a plan's stages do and hold, from the model's dimensions and the cluster's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from meshwright.base.errors import InputError
from meshwright.base.identity import ById
from meshwright.core.cluster import Cluster, Device
from meshwright.core.graph import Graph, Operator
from meshwright.core.optimizers import optimizer
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Framework, MixedPrecision, Problem
from meshwright.core.stage_cost import Collective, StageCost
from meshwright.core.strategy import OFFLOAD, RECOMPUTE, Strategy
from meshwright.costs.analytic import joined_loads, recomputation, traffic
from meshwright.costs.analytic import legal as _legal
from meshwright.costs.analytic import stage as _stage
from meshwright.costs.analytic.device_mesh import Mesh, mesh
from meshwright.costs.analytic.layer import LayerWork, layer_work
from meshwright.costs.analytic.offload import no_host, unknown_host
from meshwright.costs.analytic.reference_pass import with_reference, with_reference_load
from meshwright.costs.analytic.roofline import Shape
from meshwright.costs.analytic.shared_weights import body_without, spare_of_stages, spare_rows, state_of, with_state_of
from meshwright.costs.analytic.update import unknown_shape

__all__ = [
    "FRAMEWORKS",
    "FROZEN",
    "STATES",
    "RowLoads",
    "axis_times",
    "combine",
    "compute_seconds",
    "distinct_rows",
    "distinct_settings",
    "illegal",
    "in_pipeline",
    "no_host",
    "row_costs",
    "rows",
    "spare_rows",
    "stage_costs",
    "unknown_host",
    "unknown_state",
    "words",
]

FRAMEWORKS = True
"""How a framework works is part of every second and byte."""

FROZEN = True
"""Gradients, their communication and optimizer state are those of trained weights only."""

STATES = True
"""State, traffic and arithmetic of the update are those of the optimizer that is told."""

RowLoads = dict[tuple[int, str], StageCost]
"""``(row, recompute) -> StageCost`` of one layer."""


def combine(stage_costs: Sequence[tuple[StageCost, int]], framework: Framework, shard: int) -> StageCost:
    """Return the load of a stage from loads of its layers and how often each occurs; see
    `meshwright.costs.analytic.joined_loads.combine`.

    `shard`: what its data axis shards, as `Strategy.shard`.
    """
    overlaps = framework.overlaps_reduce and (shard > 0 or framework.overlaps_whole_reduce)
    overlaps = overlaps and not (framework.reduces_once and shard in (1, 2))
    return joined_loads.combine(stage_costs, overlaps=overlaps)


def illegal(problem: Problem, strategy: Strategy, micro_batch: int = 1) -> str:
    """Return why a strategy cannot run the model, in one sentence; empty when it can.

    `micro_batch`: samples of one micro-batch and replica.
    """
    reason = _legal.illegal(problem.graph, strategy, micro_batch)
    return reason or ("" if strategy.offload == "none" else unknown_host(problem))


def unknown_state(problem: Problem) -> str:
    """Return why the state that an optimizer keeps of a model is not known, in one sentence; empty when it is."""
    return unknown_shape(problem.graph, problem.training)


def rows(problem: Problem) -> tuple[int, ...]:
    """Return the row of every layer: the id of the first layer with the same body."""
    return tuple(op.like if 0 <= op.like < i else i for i, op in enumerate(problem.graph.ops))


def distinct_rows(graph: Graph) -> tuple[int, ...]:
    """Return the rows that there are, rising."""
    return tuple(sorted({op.like if 0 <= op.like < i else i for i, op in enumerate(graph.ops)}))


def row_costs(
    problem: Problem,
    strategy: Strategy,
    devices: Sequence[int],
    micro_batch: int,
    *,
    inside_only: bool = False,
    spare: frozenset[int] = frozenset(),
) -> RowLoads:
    """Return the load of every distinct layer under one strategy, with each way to recompute.

    `strategy`: degrees; must be legal.
    `devices`: the stage's devices in mesh order; a `range` is fastest.
    `micro_batch`: samples of one micro-batch and replica.
    `inside_only`: whether to leave out what happens between replicas (reduction, gathering) and their contention: a quick
    lower bound.
    `spare`: layers whose shared weights another layer on the devices holds; see `spare_rows`.
    Returns: ``(row, recompute) -> StageCost`` of that one layer. `combine` adds them up.
    Raises `InputError` when there is no cluster, or the devices are not as many as the strategy needs.
    """
    cluster = problem.required_cluster
    if len(devices) != strategy.n_devices:
        raise InputError(f"a stage names {len(devices)} devices; its strategy needs {strategy.n_devices}")
    shape = _shape(problem, strategy, micro_batch)
    axes = mesh(cluster, devices, strategy, inside_only=inside_only, head_ranks=shape.head_ranks)
    kinds = _kinds(cluster, devices)
    works = [(cluster.kinds[kind], _works(problem, shape, cluster.kinds[kind])) for kind in kinds]
    found: RowLoads = {}
    for row, first in works[0][1].items():
        same = {word: first.same_as(word) for word in words(problem.framework)}
        distinct = tuple(dict.fromkeys(same.values()))
        of_kinds = [_layer_loads(problem, own[row], distinct, axes, strategy, device) for device, own in works]
        if row in spare:
            lasting = [(device, _lasting(problem, shape, device, row)) for device, _ in works]
            less = [_layer_loads(problem, own, distinct, axes, strategy, device) for device, own in lasting]
            of_kinds = [list(map(with_state_of, *both)) for both in zip(of_kinds, less, strict=True)]
        slowest = dict(zip(distinct, map(joined_loads.slowest, zip(*of_kinds, strict=True)), strict=True))
        for word, alike in same.items():
            found[row, alike] = found[row, word] = slowest[alike]
    return found


def distinct_settings(graph: Graph, settings: tuple[str, ...]) -> tuple[str, ...]:
    """Return those settings of recomputation that repeat something else than the ones before them, in some layer."""
    bodies = [graph.ops[row].body for row in distinct_rows(graph)]
    found: dict[object, str] = {}
    for word in settings:
        if word in ("none", "full"):
            repeated: object = word
        elif word == "selective":
            repeated = word if any(operator.selective for body in bodies for operator in body) else "none"
        else:
            parts = tuple(recomputation.repeated_parts(body, word) for body in bodies)
            changed = any(part != recomputation.Repeated() for own in parts for part in own)
            repeated = parts if changed else "none"
        found.setdefault(repeated, word)
    return tuple(found.values())


def words(framework: Framework) -> tuple[str, ...]:
    """Return the settings of recomputation that are priced: those of every framework, then a framework's own."""
    return (*RECOMPUTE, *(word for word in framework.limits.recompute if word not in RECOMPUTE))


def with_offload(problem: Problem) -> Problem:
    """Return the problem with layers priced whose activations are on the host too, which takes as long as another setting."""
    limits = problem.framework.limits
    limits = replace(limits, recompute=(*limits.recompute, OFFLOAD))
    return replace(problem, framework=replace(problem.framework, limits=limits))


def in_pipeline(problem: Problem, n_ranks: int) -> Problem:
    """Return the problem as stages of a pipeline of so many ranks are priced; see `Framework.in_pipeline`."""
    framework = problem.framework.in_pipeline(n_ranks)
    return problem if framework is problem.framework else replace(problem, framework=framework)


def axis_times(
    problem: Problem, strategy: Strategy, devices: Sequence[int], *, inside_only: bool = False
) -> tuple[object, ...]:
    """Return all that the place of a stage's devices decides in `row_costs`: equal for places of equal loads, whatever is
    trained.

    Parameters
    ----------
    problem, strategy, devices, inside_only
        As in `row_costs`.

    Returns
    -------
    tuple
        The times of the collectives that run along every axis, to be compared.
    """
    assert problem.cluster is not None
    n_heads = strategy.head_ranks(problem.graph)
    axes = mesh(problem.cluster, devices, strategy, inside_only=inside_only, head_ranks=n_heads)
    parts = ("all_gather", "reduce_scatter")
    around = ("all_to_all",) if strategy.context_exchange == "all_to_all" else parts
    between = parts if strategy.shard else ("all_reduce",)
    if optimizer(problem.training.optimizer).form == "matrices" and strategy.shard:
        between = (*between, "all_to_all")
    kinds = (
        (axes.tensor, (*parts, "all_reduce")), (axes.context, around), (axes.expert, ("all_to_all",)), (axes.shard, between),
        (axes.replicate, ("all_reduce",)), (axes.expert_data, between), (axes.context_heads, ("all_to_all",)),
        (axes.context_ring, parts),
    )  # fmt: skip
    times = tuple(axis.lines(kind) for axis, own in kinds if axis is not None for kind in own)
    return (axes.n_expert_targets, *times)


def _kinds(cluster: Cluster, devices: Sequence[int]) -> list[int]:
    """Return the kinds of device of a stage."""
    return [0] if len(cluster.kinds) == 1 else sorted(set(cluster.kind_of_device[list(devices)].tolist()))


def _shape(problem: Problem, strategy: Strategy, micro_batch: int) -> Shape:
    """Return the share of a layer that one device computes."""
    return Shape(
        micro_batch, strategy.tensor, strategy.sequence_parallel, strategy.context, strategy.expert, strategy.folded,
        strategy.context_exchange, strategy.head_ranks(problem.graph),
    )  # fmt: skip


def _layer_loads(
    problem: Problem, work: LayerWork, settings: Sequence[str], axes: Mesh, strategy: Strategy, device: Device
) -> list[StageCost]:
    """Return the loads of one layer on one kind of device, one for each setting of recomputation."""
    asked = axes, strategy, device, problem.training, problem.framework
    loads = _stage.layer_loads(work, settings, *asked)
    if work.reference is None:
        return loads
    other = _stage.layer_load(work.reference, "none", *asked)
    return [with_reference_load(load, other, borrowed=work.reference.borrowed) for load in loads]


class _LayerWorks:
    """What every distinct layer of a graph does on one device, once for each shape, since many strategies share a shape."""

    def __init__(self, graph: Graph, device: Device, training: MixedPrecision, framework: Framework) -> None:
        self._graph, self._asked = graph, (device, training, framework)
        self._n_in, self._n_out = [0] * len(graph.ops), [0] * len(graph.ops)
        for edge in graph.edges:
            self._n_in[edge.target] += edge.n_elements
            self._n_out[edge.source] = max(self._n_out[edge.source], edge.n_elements)
        self._rows = distinct_rows(graph)
        self._found: dict[Shape, dict[int, LayerWork]] = {}
        self._spare: dict[tuple[Shape, int], LayerWork] = {}

    def of(self, shape: Shape) -> dict[int, LayerWork]:
        """Return the work of the layers under one shape, by row."""
        found = self._found.get(shape)
        if found is None:
            found = self._found[shape] = {row: self._work(self._graph.ops[row].body, shape, row) for row in self._rows}
        return found

    def spare(self, shape: Shape, row: int) -> LayerWork:
        """Return the work of a layer whose shared weights another layer holds."""
        if (shape, row) not in self._spare:
            less = self._work(body_without(self._graph, row), shape, row)
            self._spare[shape, row] = state_of(self.of(shape)[row], less)
        return self._spare[shape, row]

    def _work(self, body: tuple[Operator, ...], shape: Shape, row: int) -> LayerWork:
        """Return the work of a layer made of some operators."""

        def work_of(part: tuple[Operator, ...]) -> LayerWork:
            return layer_work(part, shape, *self._asked, input_elements=self._n_in[row], output_elements=self._n_out[row])

        return with_reference(body, work_of)


@lru_cache(maxsize=32)
def _layer_works(graph: ById[Graph], device: Device, training: MixedPrecision, framework: Framework) -> _LayerWorks:
    """Return the works of a graph, told apart by identity: it never changes, so they cannot be stale."""
    return _LayerWorks(graph.of, device, training, framework)


def _works(problem: Problem, shape: Shape, device: Device) -> dict[int, LayerWork]:
    """Return what every distinct layer does on one device."""
    return _layer_works(ById(problem.graph), device, problem.training, problem.framework).of(shape)


def _lasting(problem: Problem, shape: Shape, device: Device, row: int) -> LayerWork:
    """Return what a layer does on one device whose shared weights another layer there holds."""
    return _layer_works(ById(problem.graph), device, problem.training, problem.framework).spare(shape, row)


def stage_costs(
    problem: Problem, plan: Plan, price: Callable[..., RowLoads] = row_costs, *, ledger: bool = True
) -> tuple[StageCost, ...]:
    """Return what each stage of a plan does and holds.

    `price`: what prices layers: `row_costs`, or another of its signature.
    `ledger`: whether to say what each collective puts on links; not needed where no link is shared.
    Returns: one per stage; empty where the layers hold no operators.
    Raises `InputError` when a stage's strategy is illegal for the model, or its devices do not match it.
    """
    if problem.cluster is None or not any(op.body for op in problem.graph.ops):
        return ()
    problem = in_pipeline(_with_settings(problem, plan), len(plan.ranks()))
    if plan.n_offloaded and (reason := no_host(problem)):
        raise InputError(f"activations on the host: {reason}")
    known = words(problem.framework)
    for i, stage in enumerate(plan.stages):
        other = next((word for word in stage.recompute if word not in known), "")
        if other:
            name = problem.framework.name or "the framework assumed"
            raise InputError(
                f"stage {i}: recomputation '{other}' is none of {name}, which has {', '.join(known)}; say which framework runs "
                "the plan: --for"
            )
    priced: dict[tuple[Strategy, tuple[int, ...], frozenset[int]], RowLoads] = {}
    samples, spare_of = plan.samples_of_replicas(), spare_of_stages(problem.graph, plan)
    for i, (stage, micro_batch, spare) in enumerate(zip(plan.stages, samples, spare_of, strict=True)):
        reason = illegal(problem, stage.strategy, micro_batch)
        if reason:
            raise InputError(f"stage {i}: {reason}")
        key = (stage.strategy, stage.ring_devices, spare)  # stages of one strategy take equally many samples
        if key not in priced:
            held = {"spare": spare} if spare else {}
            priced[key] = price(problem, stage.strategy, stage.ring_devices, micro_batch, **held)
    row_of_op = rows(problem)
    found = []
    alike: dict[tuple[object, ...], StageCost] = {}  # virtual stages of a rank often hold the same layers
    for stage, micro_batch, spare in zip(plan.stages, samples, spare_of, strict=True):
        counts = _counts(stage, row_of_op)
        place = (stage.strategy, stage.ring_devices, tuple(counts.items()), spare)
        if place not in alike:
            layers = priced[stage.strategy, stage.ring_devices, spare]
            load = combine([(layers[key], count) for key, count in counts.items()], problem.framework, stage.strategy.shard)
            if ledger:
                load = replace(load, collectives=_collectives(problem, stage, micro_batch, counts, spare))
            alike[place] = load
        found.append(alike[place])
    return tuple(found)


def _with_settings(problem: Problem, plan: Plan) -> Problem:
    """Return the problem with the plan's own combinations of the modules of its framework, so that they are priced."""
    limits = problem.framework.limits
    modules = {module for word in limits.recompute for module in word.split("+")} - set(RECOMPUTE)
    used = dict.fromkeys(word for stage in plan.stages for word in stage.recompute if word not in words(problem.framework))
    away = {OFFLOAD} if "activations" in limits.offloads else set()
    more = tuple(word for word in used if set(word.split("+")) <= modules | away)
    if not more:
        return problem
    limits = replace(limits, recompute=(*limits.recompute, *more))
    return replace(problem, framework=replace(problem.framework, limits=limits))


def _counts(stage: Stage, row_of_op: tuple[int, ...]) -> dict[tuple[int, str], int]:
    """Return how often each layer with each way to recompute occurs in a stage; the last layer's comes last."""
    recompute = stage.recompute or ("none",) * len(stage.ops)
    counts: dict[tuple[int, str], int] = {}
    for op, how in zip(stage.ops, recompute, strict=True):
        key = (row_of_op[op], how)
        counts[key] = counts.pop(key, 0) + 1
    return counts


def _collectives(
    problem: Problem, stage: Stage, micro_batch: int, counts: dict[tuple[int, str], int], spare: frozenset[int]
) -> tuple[Collective, ...]:
    """Return the collectives of a stage; where devices differ, beside the compute of the kind that every layer waits for."""
    cluster, strategy = problem.required_cluster, stage.strategy
    shape = _shape(problem, strategy, micro_batch)
    axes = mesh(cluster, stage.ring_devices, strategy, head_ranks=shape.head_ranks)
    devices = [cluster.kinds[kind] for kind in _kinds(cluster, stage.ring_devices)]
    works = [_works(problem, shape, device) for device in devices]

    def waited_for(row: int, recompute: str) -> LayerWork:
        if len(devices) == 1:
            return works[0][row]
        priced = [
            _layer_loads(problem, work[row], (recompute,), axes, strategy, device)[0]
            for work, device in zip(works, devices, strict=True)
        ]
        return works[priced.index(joined_loads.slowest_kind(priced))][row]

    once = {row: _lasting(problem, shape, devices[0], row) for row in spare}  # the same weights on every kind of device
    return traffic.collectives(
        counts, {key: waited_for(*key) for key in counts}, axes, strategy, problem.training, problem.framework, once
    )


def compute_seconds(problem: Problem, strategy: Strategy, micro_batch: int, device: Device) -> dict[int, float]:
    """Return what every distinct layer computes at least, whatever the devices' place: forward and backward, no communication.

    `strategy`: degrees; the data degree does not matter.
    `micro_batch`: samples of one micro-batch and replica.
    Returns: seconds of one micro-batch by row.
    """
    works = _works(problem, _shape(problem, strategy, micro_batch), device)
    return {
        row: sum(
            part.forward_seconds + part.backward_input_seconds + part.backward_weight_seconds
            for part in (work, work.reference)
            if part is not None
        )
        for row, work in works.items()
    }
