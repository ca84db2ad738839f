"""Parmesan (TCAD 2024): mappings against its two heuristics, the mapper's seconds, and partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, ModuleType

import numpy as np

from meshwright import clusters, published
from meshwright.core.problem import Problem
from meshwright.planners.parmesan.operators import question
from meshwright.planners.parmesan.search.parmesan import cut_published
from meshwright.published.claims import Case, Claim
from meshwright.solvers.mapping.backtracking import backtrack
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import consecutive, evaluate, map_stages, pair_seconds, point_to_point
from meshwright.solvers.partition.hypergraph import contract, loads_of

__all__ = ["CASES"]

_PLACEMENTS = 100_000
_SHAPE = (8, 8)
_CLUSTERED = (32, 48)
"""What the published flow clusters to: 48 from 500 operators on."""


def chain(n_stages: int, n_replicas: int) -> StageGraph:
    """Return a chain of stages of about 1 ms that exchange 20 MB and reduce 5 to 30 MB of gradients, drawn with seed 0."""
    random = np.random.default_rng(0)
    transfers = tuple((s, s + 1, 20e6) for s in range(n_stages - 1))
    return StageGraph(random.uniform(0.8e-3, 1e-3, n_stages), transfers, random.uniform(5e6, 3e7, n_stages), n_replicas)


def _mapped(spec: str) -> tuple[float, float, float, float, float]:
    """Return the largest costs of CS, p2p, the published search and ours, and the bound on ours."""
    graph, seconds_per_byte = chain(*_SHAPE), pair_seconds(clusters.cluster(spec))
    ours = map_stages(graph, seconds_per_byte, seed=0)
    order = np.arange(len(seconds_per_byte))
    starts = [consecutive(graph, order), point_to_point(graph, order)]
    simple = [evaluate(graph, seconds_per_byte, devices, fixed_rings=True).seconds for devices in starts]
    halves = (
        StageGraph(graph.compute_seconds, graph.transfers, 0 * graph.reduce_bytes, graph.n_replicas),
        StageGraph(graph.compute_seconds, (), graph.reduce_bytes, graph.n_replicas),
    )
    found = [backtrack(half, seconds_per_byte, starts, 4, 1, _PLACEMENTS).devices for half in halves]
    theirs = min(*simple, *(evaluate(graph, seconds_per_byte, one, fixed_rings=True).seconds for one in found))
    return simple[0], simple[1], theirs, ours.seconds, ours.bound_seconds


def mappings(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the gain over the heuristic of table III, or over the better one of table VI."""
    for spec, claimed in claim.values.items():
        stages, replicas, theirs, ours, bound = _mapped(spec)
        base = stages if claim.id == "table-3" else min(stages, replicas)
        yield Case(spec, claimed, base / theirs, base / ours, None, base / bound)


def mapper_seconds(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the CPU seconds of a mapping."""
    for name, claimed in claim.values.items():
        spec, _, shape = name.rpartition(", ")
        n_stages, n_replicas = (int(part) for part in shape.split(" x "))
        seconds_per_byte = pair_seconds(clusters.cluster(spec))
        started = time.process_time()
        found = map_stages(chain(n_stages, n_replicas), seconds_per_byte, seed=0)
        note = f"ends {found.seconds / found.bound_seconds - 1.0:.0%} above its bound"
        yield Case(name, claimed, None, time.process_time() - started, note=note)


def partitions(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the largest load of the published flow and of ours."""
    for row in published.rows("partitioning/partitioning_stages.csv"):
        path = published.path(f"partitioning/{row['graph']}.json")
        n_stages, spec = int(row["n_stages"]), api.read(path)
        operators = question(Problem(spec)).operators
        units = contract(operators)
        unit_of = {op: v for v, members in enumerate(units.members) for op in members}
        k, loads = _CLUSTERED[len(operators.compute) >= 500], []
        for comm_coef in (0.01, 1.0, 100.0):
            groups = cut_published(operators, units, n_stages, k=k, comm_coef=comm_coef, new_flow=True)
            mine = tuple(tuple(sorted({unit_of[op] for op in group})) for group in groups)
            loads.append(max(loads_of(units, mine, (False,) * n_stages)))
        settings = {"n_stages": row["n_stages"], "memory_limit": "none"}
        answer = api.plan(spec, search="partition", settings=settings).answer
        yield Case(
            f"{row['graph'].rpartition('/')[2]}, {n_stages} stages", float(row["parmesan_reimplemented"]), min(loads),
            None if answer.objective is None else answer.objective.value, None,
            None if answer.bound is None else answer.bound.value,
        )  # fmt: skip


CASES: Mapping[str, Callable[[Claim, ModuleType], Iterator[Case]]] = MappingProxyType(
    {"table-3": mappings, "table-6": mappings, "table-10": mapper_seconds, "partitions": partitions}
)
"""What computes each claim."""
