"""Partitions onto unlike devices by trying everything: every order of some of the devices, every assignment of operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from meshwright.solvers.partition.hypergraph import Operators
from meshwright.solvers.partition.unlike import DeviceKind


def least_load(operators: Operators, kinds: Sequence[DeviceKind], n_stages: int) -> float:
    """Return the least largest load over all partitions onto all orders of the devices; infinite where nothing fits."""
    n, best = len(operators.memory), math.inf
    devices = [k for k, kind in enumerate(kinds) for _ in range(kind.n_devices)]
    for used in range(1, min(n_stages, len(devices), n) + 1):
        for chain in sorted(set(itertools.permutations(devices, used))):
            for stage in itertools.product(range(used), repeat=n):
                best = min(best, _largest(operators, [kinds[k] for k in chain], stage))
    return best


def _largest(operators: Operators, chain: Sequence[DeviceKind], stage: tuple[int, ...]) -> float:
    """Return the largest load of one assignment; infinite where an edge points back, classes part or a device is too small."""
    if any(stage[u] > stage[v] for u, v in operators.edges):
        return math.inf
    if any(stage[i] != stage[operators.colocated.index(c)] for i, c in enumerate(operators.colocated)):
        return math.inf
    loads = []
    for s, kind in enumerate(chain):
        mine = {i for i, at in enumerate(stage) if at == s}
        if sum(float(operators.memory[i]) for i in mine) > kind.free_bytes:
            return math.inf
        cut = sum(cost for cost, pins in operators.nets if mine & set(pins) and set(pins) - mine)
        loads.append(sum(float(kind.compute[i]) for i in mine) + cut)
    return max(loads)
