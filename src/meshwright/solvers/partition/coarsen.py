"""Clustering of a graph by merging neighbours, and refinement of a partition by moving operators across its cuts."""

from __future__ import annotations

import heapq

import numpy as np

from meshwright.solvers.partition.hypergraph import Units, loads_of

__all__ = ["cluster", "refine"]


def cluster(
    units: Units, n_clusters: int, communication_ratio: float, memory_limit_bytes: float = float("inf")
) -> tuple[int, ...]:
    """Merge neighbours until few clusters are left; return the cluster of each unit, numbered topologically.

    Parameters
    ----------
    units : Units
        The graph.
    n_clusters : int
        Where to stop.
    communication_ratio : float
        Weight of saved communication against the compute of the merged pair (``alpha`` of the paper).
    memory_limit_bytes : float
        No cluster grows beyond this.

    Returns
    -------
    tuple of int
        Labels; more than `n_clusters` different ones where no further merge keeps the graph acyclic and within memory.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, equation (4).
    """
    a, n = units.arrays, len(units)
    succ = [set(map(int, a.succ[a.succ_first[v] : a.succ_first[v + 1]])) for v in range(n)]
    pred = [set(map(int, a.pred[a.pred_first[v] : a.pred_first[v + 1]])) for v in range(n)]
    compute, memory = a.compute.tolist(), a.memory.tolist()
    shared = _shared(units)
    version = [0] * n
    owner = list(range(n))
    heap: list[tuple[float, int, int, int, int]] = []

    def push(u: int, v: int) -> None:
        cost = compute[u] + compute[v] - communication_ratio * shared[u].get(v, 0.0)
        heapq.heappush(heap, (cost, u, v, version[u], version[v]))

    for u in range(n):
        for v in succ[u]:
            push(u, v)
    alive = n
    while alive > n_clusters and heap:
        _, u, v, version_u, version_v = heapq.heappop(heap)
        if version_u != version[u] or version_v != version[v] or version[u] < 0 or version[v] < 0:
            continue
        if memory[u] + memory[v] > memory_limit_bytes or _other_path(succ, u, v):
            continue
        _merge(succ, pred, shared, u, v)
        compute[u] += compute[v]
        memory[u] += memory[v]
        version[u] += 1
        version[v] = -1
        owner[v] = u
        alive -= 1
        for w in succ[u]:
            push(u, w)
        for w in pred[u]:
            push(w, u)
    return _numbered(owner, succ)


def _shared(units: Units) -> list[dict[int, float]]:
    """Return for each unit what it shares with others: the cost of the nets that have pins in both."""
    a = units.arrays
    shared: list[dict[int, float]] = [{} for _ in range(len(units))]
    for net in range(len(a.net_cost)):
        pins = [int(pin) for pin in a.net_pins[a.net_first[net] : a.net_first[net + 1]]]
        for u in pins:
            for v in pins:
                if u != v:
                    shared[u][v] = shared[u].get(v, 0.0) + float(a.net_cost[net])
    return shared


def _other_path(succ: list[set[int]], u: int, v: int) -> bool:
    """Whether v can be reached from u other than by the direct edge: merging them would close a cycle."""
    seen: set[int] = set()
    todo = [w for w in succ[u] if w != v]
    while todo:
        w = todo.pop()
        if w == v:
            return True
        if w not in seen:
            seen.add(w)
            todo.extend(succ[w])
    return False


def _merge(succ: list[set[int]], pred: list[set[int]], shared: list[dict[int, float]], u: int, v: int) -> None:
    """Fold v into u."""
    for w in succ[v]:
        pred[w].discard(v)
        pred[w].add(u)
    for w in pred[v]:
        succ[w].discard(v)
        if w != u:
            succ[w].add(u)
    succ[u] = (succ[u] | succ[v]) - {u, v}
    pred[u] = (pred[u] | pred[v]) - {u, v}
    for w, cost in shared[v].items():
        shared[w].pop(v, None)
        if w != u:
            shared[u][w] = shared[u].get(w, 0.0) + cost
            shared[w][u] = shared[u][w]
    shared[u].pop(v, None)
    succ[v], pred[v], shared[v] = set(), set(), {}


def _numbered(owner: list[int], succ: list[set[int]]) -> tuple[int, ...]:
    """Return the cluster of each unit, clusters in a topological order."""
    roots = []
    for v in range(len(owner)):
        root = v
        while owner[root] != root:
            root = owner[root]
        roots.append(root)
    clusters = sorted(set(roots))
    degree = dict.fromkeys(clusters, 0)
    for u in clusters:
        for v in succ[u]:
            degree[v] += 1
    ready = [u for u in clusters if degree[u] == 0]
    heapq.heapify(ready)
    number: dict[int, int] = {}
    while ready:
        u = heapq.heappop(ready)
        number[u] = len(number)
        for v in succ[u]:
            degree[v] -= 1
            if degree[v] == 0:
                heapq.heappush(ready, v)
    return tuple(number[root] for root in roots)


def refine(
    units: Units,
    groups: tuple[tuple[int, ...], ...],
    n_moves: int = 100,
    memory_limit_bytes: float = float("inf"),
    *,
    clusters: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Move units across the cuts of a partition; return the best partition seen.

    Parameters
    ----------
    units : Units
        The graph.
    groups : tuple of tuple of int
        Units of each stage, in order.
    n_moves : int
        Most moves.
    memory_limit_bytes : float
        No stage grows beyond this.
    clusters : bool
        Whether the groups are clusters that are yet to be made stages of: then all moves count, not only those up to the
        least largest load.

    Returns
    -------
    tuple of tuple of int
        Stages: never with a larger largest load than `groups`.

    Notes
    -----
    A move takes a unit at a cut to the next or previous stage. Gains are compared in the paper's order: towards the nearest
    unit with several neighbours on one side (where branches part or meet), then less communication, then a smaller largest
    compute. The paper stops there; here no stage grows beyond the largest or becomes empty, and the partition with the least
    largest load along the way is kept, in favour of the published flow.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section IV-C.
    """
    a, n = units.arrays, len(units)
    stage = np.zeros(n, dtype=np.int64)
    for s, group in enumerate(groups):
        stage[list(group)] = s
    distance = _reconverging(units)
    best, value = groups, max(loads_of(units, groups, (False,) * len(groups)))
    moved: set[tuple[int, int]] = set()
    for _ in range(n_moves):
        compute = np.bincount(stage, weights=a.compute, minlength=len(groups))
        memory = np.bincount(stage, weights=a.memory, minlength=len(groups))
        choice: tuple[tuple[float, float, float], int, int] | None = None
        for v, target in _candidates(units, stage, len(groups)):
            if (v, target) in moved or memory[target] + a.memory[v] > memory_limit_bytes:
                continue
            gain = _gain(units, stage, compute, distance, v, target)
            if gain > (0.0, 0.0, 0.0) and (choice is None or gain > choice[0]):
                choice = (gain, v, target)
        if choice is None:
            break
        _, v, target = choice
        moved.add((v, int(stage[v])))  # never back
        stage[v] = target
        now = tuple(tuple(int(u) for u in np.flatnonzero(stage == s)) for s in range(len(groups)))
        new = max(loads_of(units, now, (False,) * len(groups)))
        if clusters or new < value:
            best, value = now, new
    return best


def _reconverging(units: Units) -> np.ndarray:
    """Return the number of edges from each unit to the nearest one with several predecessors or successors."""
    a, n = units.arrays, len(units)
    several = (np.diff(a.pred_first) > 1) | (np.diff(a.succ_first) > 1)
    distance = np.where(several, 0, n).astype(np.float64)
    queue = [int(v) for v in np.flatnonzero(several)]
    for v in queue:
        near = [*a.succ[a.succ_first[v] : a.succ_first[v + 1]], *a.pred[a.pred_first[v] : a.pred_first[v + 1]]]
        for w in map(int, near):
            if distance[w] > distance[v] + 1:
                distance[w] = distance[v] + 1
                queue.append(w)
    return distance


def _candidates(units: Units, stage: np.ndarray, n_stages: int) -> list[tuple[int, int]]:
    """Return units that may change to the next or previous stage while every edge still points forward."""
    a = units.arrays
    found: list[tuple[int, int]] = []
    for v in range(len(units)):
        s = int(stage[v])
        after = stage[a.succ[a.succ_first[v] : a.succ_first[v + 1]]]
        before = stage[a.pred[a.pred_first[v] : a.pred_first[v + 1]]]
        if s + 1 < n_stages and len(after) and after.min() > s:
            found.append((v, s + 1))
        if s > 0 and len(before) and before.max() < s:
            found.append((v, s - 1))
    return found


def _gain(
    units: Units, stage: np.ndarray, compute: np.ndarray, distance: np.ndarray, v: int, target: int
) -> tuple[float, float, float]:
    """Return the three gains of one move, in the order in which they count."""
    a, s = units.arrays, int(stage[v])
    if compute[target] + a.compute[v] > compute.max() or int((stage == s).sum()) == 1:
        return 0.0, 0.0, 0.0  # no stage grows beyond the largest, and none becomes empty
    saved = 0.0
    for net in a.unit_nets[a.unit_first[v] : a.unit_first[v + 1]]:
        pins = a.net_pins[a.net_first[net] : a.net_first[net + 1]]
        others = [int(stage[pin]) for pin in pins if pin != v]
        before, after = len({s, *others}), len({target, *others})
        saved += float(a.net_cost[net]) * ((before if before > 1 else 0) - (after if after > 1 else 0))
    near = [*a.succ[a.succ_first[v] : a.succ_first[v + 1]], *a.pred[a.pred_first[v] : a.pred_first[v + 1]]]
    # after the move the cut runs on the other side of v: beside its neighbours in its old stage
    inner = [distance[w] for w in map(int, near) if stage[w] == s]
    nearer = float(distance[v] - min(inner)) if inner else 0.0
    peak = float(max(compute[s], compute[target]))
    new_peak = float(max(compute[s] - a.compute[v], compute[target] + a.compute[v]))
    return max(nearer, 0.0), saved, peak - new_peak
