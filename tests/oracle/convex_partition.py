"""Every convex partition of a few operators, straight from the definition:
the twin of `meshwright.solvers.partition.convex`.
"""

from __future__ import annotations

import itertools
import math

from meshwright.solvers.partition.hypergraph import Operators


def best(operators: Operators, n_stages: int, *, n_hosts: int = 0, memory_limit_bytes: float = math.inf) -> float:
    """Return the least largest load over all assignments of operators to a chain of devices, infinity when none is allowed."""
    n = len(operators.compute)
    result = math.inf
    kinds = set(itertools.permutations([False] * n_stages + [True] * n_hosts))
    for stage in itertools.product(range(n_stages + n_hosts), repeat=n):
        if any(stage[u] > stage[v] for u, v in operators.edges):
            continue
        if any(a == b and stage[u] != stage[v] for (u, a), (v, b) in itertools.combinations(enumerate(operators.colocated), 2)):
            continue
        for hosts in kinds:
            result = min(result, _largest(operators, stage, hosts, memory_limit_bytes))
    return result


def _largest(operators: Operators, stage: tuple[int, ...], hosts: tuple[bool, ...], memory_limit_bytes: float) -> float:
    """Return the largest load of one assignment."""
    loads = []
    for device, host in enumerate(hosts):
        mine = {v for v, s in enumerate(stage) if s == device}
        if host:
            loads.append(sum(operators.host[v] for v in mine))
            continue
        if not all(operators.supported[v] for v in mine) or sum(operators.memory[v] for v in mine) > memory_limit_bytes:
            return math.inf
        load = sum(operators.compute[v] for v in mine)
        for cost, pins in operators.nets:
            if mine & set(pins) and set(pins) - mine:
                load += cost
        loads.append(load)
    return max(loads)
