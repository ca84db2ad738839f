"""Piper's search on a model described layer by layer: stages of equal replicas, priced by our own cost model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from meshwright import sim
from meshwright.base import registry, units
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.result import Answer, Bound, Objective
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import RECOMPUTE, Strategy
from meshwright.costs import analytic, offers, sharded
from meshwright.network import Network
from meshwright.network.numbering import links_alike, numbered_alike, unlike_links
from meshwright.solvers.mapping.search import pair_seconds
from meshwright.solvers.pipeline import search
from meshwright.solvers.pipeline.menu import StageMenu
from meshwright.solvers.pipeline.threshold import FoundPipeline

__all__ = ["ModelOptions", "answer"]

SLACK_RATIOS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""How much slower than the best a slowest stage may be where a shorter pipeline fills faster."""

MICRO_BATCHES = (1, 2, 4, 8)
"""Micro-batches tried where the user gives none."""

ASKED = 12
"""Instances, smallest micro-batches first, that are asked how much memory is missing where nothing fits."""

DEFAULT_TOKENS = 4 * 2**20
"""Tokens of a step where the user gives no batch."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What plans may use: see `meshwright.planners.piper.search.piper.Params`."""

    exact: bool
    data_parallel: bool
    tensor_parallel: bool
    recompute: str
    shard_optimizer: bool
    fill_drain: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One micro-batch and number of replicas with its instance; by tensor degree what layers do,
    and the link to a near neighbour.
    """

    micro_batch: int
    data: int
    n_microbatches: int
    strategies: tuple[Strategy, ...]
    menu: StageMenu
    stage_costs: tuple[Mapping[tuple[int, str], StageCost], ...]
    links: tuple[tuple[float, float], ...]


def answer(problem: Problem, options: ModelOptions) -> Answer:
    """Return the best plan with the same replicas in every stage.

    `problem`: a model with operators, on a cluster, under the cost model ``analytic`` or ``sharded``.
    Returns: with the seconds of a step in this search's own terms: the slowest stage's time for every micro-batch, and
    filling and draining the pipeline.
    Raises `InputError` when the model has no operators, or there is no cluster.
    """
    problem, notes = _posed(problem)
    found = numbered_alike(problem, lambda asked: _answered(asked, options), pair_seconds, _played_seconds)
    notes += unlike_links(problem.required_cluster, pair_seconds)
    return replace(found, notes=notes + found.notes, problem=problem)


def _answered(problem: Problem, options: ModelOptions) -> Answer:
    """Return the answer in the numbering that devices have."""
    alike, notes = links_alike(problem.required_cluster, pair_seconds), tuple[str, ...]()
    best: tuple[float, Plan, _Case] | None = None
    lower = math.inf
    tight: list[StageMenu] = []
    for case in _cases(problem, options):
        n_total = case.n_microbatches * case.data
        bound = search.relaxation(case.menu) * n_total
        if alike and best is not None and bound >= best[0]:
            lower = min(lower, bound)
            continue
        if not math.isfinite(bound):
            continue
        solved = search.solve(case.menu, slack_ratio=max(SLACK_RATIOS))
        if solved.found is None:
            tight.append(case.menu)
            continue
        lower = min(lower, solved.lower_seconds * n_total)
        for found in _candidates(solved, options):
            if alike:
                seconds = _step_seconds(_stage_seconds(problem, found, case), case, options)
            else:
                seconds = _played_seconds(problem, _plan(problem, found, case))
            if best is None or seconds < best[0] * (1.0 - 1e-12):
                best = (seconds, _plan(problem, found, case), case)
    if best is None:
        needs = [search.least_memory(menu) - menu.memory_bytes for menu in tight[:ASKED]]
        missing = max(min((need for need in needs if math.isfinite(need)), default=0.0), 0.0)
        nearest = f"devices with {units.format_bytes(missing)} more memory" if missing else ""
        return Answer(None, missing_bytes=missing, nearest=nearest, notes=notes, problem=problem)
    notes = (
        *notes,
        "every stage has the same number of replicas, as our runtime and schedules need; the file formats with their own costs "
        "allow different ones",
        "proven is the slowest stage's time for all micro-batches with neighbouring stages in one node: neither filling and "
        "draining nor links between nodes are in the bound"
        if alike
        else "devices or links are unlike: plans are made as if every stage were on the first devices, and compared by their "
        "simulated steps; proven is only that all devices together need so long for the compute",
    )
    extra: dict[str, object] = {}
    if problem.costs == "sharded":
        notes, extra = (*notes, sharded.described(problem, best[1])), {"splits": sharded.splits(problem, best[1])}
    lower = lower if alike else _compute_seconds(problem)
    proven = Bound(min(lower, best[0]), "relaxation" if alike else "compute") if lower > 0.0 else None
    return Answer(best[1], Objective("step_seconds", best[0]), proven, notes=notes, extra=extra, problem=problem)


def _played_seconds(problem: Problem, plan: Plan) -> float:
    """Return the simulated step of a plan, every stage priced on its own devices."""
    module = registry.load("costs", problem.costs, "cost model")
    return sim.simulate(problem, plan, module.stage_costs(problem, plan)).step_seconds


def _compute_seconds(problem: Problem) -> float:
    """Return what all devices together need for the compute of a step at least; 0 where the cost model does not say.

    Notes
    -----
    If layer l takes ``c[l, k]`` device-seconds on kind k at the degree that suits it best, layers shared out among ``n[k]``
    devices take at least ``sum over l of min over k of y[k] c[l, k]``, divided by the sum of ``n[k] y[k]``, for every
    ``y >= 0`` (a dual solution of the linear program); taken is the inverse of what all layers take on a kind.
    """
    cluster = problem.required_cluster
    if not offers(problem.costs, ("illegal", "compute_seconds")):
        return 0.0
    module, rows = registry.load("costs", problem.costs, "cost model"), analytic.rows(problem)
    widths = [2**i for i in range(cluster.n_devices.bit_length()) if 2**i <= cluster.n_devices]
    micro = (problem.batch.micro_batch,) if problem.batch.micro_batch else MICRO_BATCHES
    seconds = np.full((len(cluster.kinds), len(rows)), np.inf)
    for tensor, size in itertools.product(widths, micro):
        strategy = Strategy(tensor=tensor, sequence_parallel=tensor > 1)
        if analytic.illegal(problem, strategy, size):
            continue
        for kind, device in enumerate(cluster.kinds):
            of_row = module.compute_seconds(problem, strategy, size, device)
            seconds[kind] = np.minimum(seconds[kind], np.array([of_row[row] for row in rows]) * tensor / size)
    if not np.isfinite(seconds).all():
        return 0.0
    weight = 1.0 / seconds.sum(axis=1)
    shared = float(np.bincount(cluster.kind_of_device, minlength=len(weight)) @ weight)
    return problem.batch.global_batch * float((seconds * weight[:, np.newaxis]).min(axis=0).sum()) / shared


def _posed(problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """Return the problem with its batch decided, and what was assumed."""
    cluster = problem.required_cluster
    if not any(op.body for op in problem.graph.ops):
        raise InputError(
            f"search piper: model {problem.model_spec.name} has neither measured choices (a piper_json file) nor operators to "
            "price"
        )
    batch = problem.batch
    if batch.global_batch:
        return problem, ()
    wanted = max(DEFAULT_TOKENS / problem.graph.n_tokens, cluster.n_devices / 8, 1)
    size = int(2 ** round(math.log2(wanted)))
    note = f"no --global-batch given: {size} samples of {problem.graph.n_tokens} tokens a step are assumed"
    return replace(problem, batch=replace(batch, global_batch=size)), (note,)


def _cases(problem: Problem, options: ModelOptions) -> Iterator[_Case]:
    """Yield the instances for every micro-batch and number of replicas."""
    n_devices, total = problem.required_cluster.n_devices, problem.batch.global_batch
    micro = (problem.batch.micro_batch,) if problem.batch.micro_batch else MICRO_BATCHES
    for micro_batch in micro:
        for data in range(1, n_devices + 1) if options.data_parallel else (1,):
            if total % (micro_batch * data) == 0 and (n_devices % data == 0):
                case = _case(problem, options, micro_batch, data)
                if case is not None:
                    yield case


def _case(problem: Problem, options: ModelOptions, micro_batch: int, data: int) -> _Case | None:
    """Return one instance, or None where no degree is legal."""
    n_devices = problem.required_cluster.n_devices
    shard = 1 if options.shard_optimizer and data > 1 else 0
    widths = [2**i for i in range(n_devices.bit_length()) if data * 2**i <= n_devices]
    strategies = [
        Strategy(data=data, tensor=t, sequence_parallel=t > 1, shard=shard)
        for t in widths
        if t <= int(np.bincount(problem.required_cluster.node_of_device).max()) and (t == 1 or options.tensor_parallel)
    ]
    strategies = [strategy for strategy in strategies if not analytic.illegal(problem, strategy, micro_batch)]
    if not strategies:
        return None
    words = {"never": ("none",), "always": ("full",), "choose": RECOMPUTE}[options.recompute]
    model = registry.load("costs", problem.costs, "cost model")
    stage_costs = [model.row_costs(problem, strategy, range(strategy.n_devices), micro_batch) for strategy in strategies]
    n_microbatches = problem.batch.global_batch // (micro_batch * data)
    links = [_link(problem, strategy) for strategy in strategies]
    menu = _menu(problem, options, strategies, stage_costs, links, words, n_microbatches)
    return _Case(
        micro_batch, data, n_microbatches, tuple(strategies), menu, tuple(map(MappingProxyType, stage_costs)), tuple(links)
    )


def _menu(
    problem: Problem,
    options: ModelOptions,
    strategies: list[Strategy],
    stage_costs: list[dict[tuple[int, str], StageCost]],
    links: list[tuple[float, float]],
    words: tuple[str, ...],
    n_microbatches: int,
) -> StageMenu:
    """Return the instance as arrays: what a layer does once a step is spread over the micro-batches of its replica."""
    graph, rows = problem.graph, analytic.rows(problem)
    memory = sim.free_bytes(problem.required_cluster.kinds, problem.memory_ratio)
    repeated = {row for row in rows if rows.count(row) > 1} or set(rows)
    working = max(
        load.working_bytes for table in stage_costs for (row, word), load in table.items() if row in repeated and word in words
    )
    incoming = [[e for e in range(len(graph.edges)) if graph.edges[e].target == v] for v in range(len(graph.ops))]
    outgoing = [[e for e in range(len(graph.edges)) if graph.edges[e].source == v] for v in range(len(graph.ops))]
    data = strategies[0].data
    columns, names, first, into, out_of = [], [], [0], [0], [0]
    sync_in: list[float] = []
    sync_out: list[float] = []
    for v, row in enumerate(rows):
        for t, table in enumerate(stage_costs):
            latency, per_byte = links[t]
            for word in words:
                load = table[row, word]
                once = load.reduce_seconds * (1.0 - load.overlap_ratio) + load.gather_seconds + load.optimizer_seconds
                seconds = load.forward_total_seconds + load.backward_total_seconds + once / n_microbatches
                fixed = load.static_bytes + max(0.0, load.working_bytes - working)
                columns.append((seconds, 0.0, load.activation_bytes, fixed))
                names.append(word)
                sync_in += [
                    2.0 * (latency + table[rows[graph.edges[e].source], word].output_bytes * per_byte) for e in incoming[v]
                ]
                sync_out += [2.0 * (latency + load.output_bytes * per_byte) for _ in outgoing[v]]
                into.append(len(sync_in))
                out_of.append(len(sync_out))
            first.append(len(columns))
    seconds, weight, activation, fixed = np.array(columns).T.copy()
    n_edges = len(graph.edges)
    return StageMenu(
        len(rows),
        np.array([edge.source for edge in graph.edges], np.int64),
        np.array([edge.target for edge in graph.edges], np.int64),
        np.zeros(n_edges),
        np.array([strategy.tensor for strategy in strategies], np.int64),
        np.array(first, np.int64),
        seconds, weight, activation, fixed,
        np.array(into, np.int64), np.array(sync_in), np.array(out_of, np.int64), np.array(sync_out),
        np.array([data], np.int64), np.array([1.0 / data]), np.zeros((len(strategies), 1)),
        problem.required_cluster.n_devices, problem.required_cluster.n_devices, memory - working,
        exact=options.exact, names=tuple(names),
    )  # fmt: skip


def _link(problem: Problem, strategy: Strategy) -> tuple[float, float]:
    """Return latency and seconds per byte between two neighbouring stages of these degrees where no node begins between
    them.
    """
    n = strategy.n_devices
    if 2 * n > problem.required_cluster.n_devices:
        return 0.0, 0.0
    return Network.of(problem.required_cluster).transfer([(i, i + n) for i in range(n)])


def _candidates(solved: search.Solved, options: ModelOptions) -> Iterator[FoundPipeline]:
    """Yield pipelines worth comparing: the fewest devices for every number of stages at several thresholds."""
    assert solved.found is not None
    if not options.fill_drain:
        yield search.fewest(solved.prepared, solved.found)
        return
    for ratio in SLACK_RATIOS:
        yield from search.by_stages(solved.prepared, solved.found, ratio)


def _stage_seconds(problem: Problem, found: FoundPipeline, case: _Case) -> list[float]:
    """Return each stage's time with tensors over the links on which the stages' own devices lie, in one node or between two."""
    rows, seconds = analytic.rows(problem), [stage.seconds for stage in found.stages]
    word = {v: case.menu.names[c] for stage in found.stages for v, c in zip(stage.nodes, stage.choices, strict=True)}
    at = {v: i for i, stage in enumerate(found.stages) for v in stage.nodes}
    sizes = [case.strategies[stage.degree].n_devices for stage in found.stages]
    first = np.cumsum([0, *sizes]).tolist()
    for edge in problem.graph.edges:
        i, j = at[edge.source], at[edge.target]
        if i == j:
            continue
        pairs = [(first[i] + a % sizes[i], first[j] + a % sizes[j]) for a in range(max(sizes[i], sizes[j]))]
        latency, per_byte = Network.of(problem.required_cluster).transfer(pairs)
        for end, v in ((i, edge.source), (j, edge.target)):
            degree = found.stages[end].degree
            n_bytes = case.stage_costs[degree][rows[edge.source], word[v]].output_bytes
            near_latency, near_per_byte = case.links[degree]
            seconds[end] += 2.0 * (latency - near_latency + n_bytes * (per_byte - near_per_byte)) / case.data
    return seconds


def _step_seconds(stages: list[float], case: _Case, options: ModelOptions) -> float:
    """Return the time of a step: the slowest stage for all micro-batches, and the way of one through the others."""
    slowest = max(stages)
    seconds = slowest * case.n_microbatches * case.data
    if options.fill_drain:
        seconds += (sum(stages) - slowest) * case.data
    return seconds


def _plan(problem: Problem, found: FoundPipeline, case: _Case) -> Plan:
    """Return a found pipeline as a plan on consecutive devices."""
    stages = []
    device = 0
    for stage in found.stages:
        strategy = case.strategies[stage.degree]
        devices = tuple(range(device, device + strategy.n_devices))
        device += strategy.n_devices
        stages.append(Stage(stage.nodes, devices, strategy, tuple(case.menu.names[c] for c in stage.choices)))
    return Plan(tuple(stages), case.n_microbatches, case.micro_batch, "1f1b", problem.batch.global_batch)
