"""How a placement may change: the published proposals, and ours, which move whole chains and deal out tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshwright.planners.topoopt.choices import SplitSpace
from meshwright.planners.topoopt.step import Placement, data_parallel
from meshwright.planners.topoopt.workloads.workload import DATA, Workload

__all__ = [
    "beside",
    "chains",
    "fewer",
    "last",
    "near",
    "propose",
    "published_proposal",
    "servers_for",
    "silent_last",
    "starts",
    "streams",
]

PROPAGATE_RATIO = 0.25
CONTINUE_RATIO = 0.75

MOST_LEAVES = 16
"""Up to so many operators that read only data are each tried last; of more only those of one kind together."""

N_CUTS = 4
"""In so many parts a stream is thought of when it is put on a half of the servers up to a cut."""


def servers_for(n: int, n_parts: int, rng: np.random.Generator, placement: str) -> tuple[int, ...]:
    """Return servers for the parts of an operator, ascending: side by side, or evenly spaced.

    `n`: servers in all.
    `rng`: draws the first.
    `placement`: ``contiguous``, ``strided``, or ``either``.
    """
    if placement == "either":
        placement = "strided" if rng.random() < 0.5 else "contiguous"
    if placement == "strided" and n % n_parts == 0:
        stride = n // n_parts
        first = int(rng.integers(stride))
        return tuple(range(first, n, stride))
    first = int(rng.integers(n))
    return tuple(sorted((first + i) % n for i in range(n_parts)))


def published_proposal(
    space: SplitSpace, current: Placement, rng: np.random.Generator, *, propagation: bool, placement: str
) -> Placement:
    """Return a neighbour of a placement as FlexFlow proposes it.

    `propagation`: whether a quarter of the proposals copy an operator's split to its neighbours.
    `placement`: ``contiguous`` or ``strided``.
    Returns: the neighbour; sometimes `current` itself.

    References
    ----------
    .. [1] Jia et al., "Beyond data and model parallelism for deep neural networks", MLSys 2019, section 6.2.
    """
    n_ops = len(current.choice)
    if propagation and rng.random() < PROPAGATE_RATIO:
        return _propagated(space, current, rng)
    i = int(rng.integers(n_ops))
    if i == n_ops - 1:
        return current
    k = int(rng.integers(len(space.choices[i])))
    servers = servers_for(space.servers.n_servers, space.choices[i][k].n_parts, rng, placement)
    return current.with_op(i, k, servers)


def _propagated(space: SplitSpace, current: Placement, rng: np.random.Generator) -> Placement:
    """Copy a data-parallel split from operator to operator, along tensors drawn by their size."""
    operations = space.workload.operations
    consumers = space.workload.consumers()
    at = int(rng.integers(max(len(operations) - 1, 1)))
    seen = {at}
    while True:
        near = [j for j in (*operations[at].inputs, *consumers[at]) if j != DATA and j not in seen]
        near = [j for j in dict.fromkeys(near) if operations[j].kind != "embedding"]
        if not near:
            return current
        volume = np.array([float(operations[min(at, j)].n_elements) for j in near])
        to = near[int(rng.choice(len(near), p=volume / volume.sum()))]
        seen.add(to)
        chosen = space.choices[at][current.choice[at]]
        servers = current.servers[at]
        if servers == tuple(range(len(servers))) and chosen.columns == chosen.rows == 1:
            same = [k for k, c in enumerate(space.choices[to]) if (c.samples, c.columns, c.rows) == (chosen.samples, 1, 1)]
            if same:
                current = current.with_op(to, same[0], servers)
        at = to
        if rng.random() >= CONTINUE_RATIO:
            return current


def chains(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Return operators in chains: each but the first reads only the one before it, which nobody else reads."""
    consumers = workload.consumers()
    found: list[list[int]] = []
    chain_of: dict[int, int] = {}
    for i, operation in enumerate(workload.operations):
        producers = set(operation.inputs) - {DATA}
        only = producers.pop() if len(producers) == 1 else DATA
        if only != DATA and len(consumers[only]) == 1:
            chain_of[i] = chain_of[only]
            found[chain_of[i]].append(i)
        else:
            chain_of[i] = len(found)
            found.append([i])
    return tuple(tuple(chain) for chain in found)


def streams(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Return operators in streams: each goes on with the first of its producers that no other operator went on with."""
    found: list[list[int]] = []
    last: dict[int, int] = {}
    for i, operation in enumerate(workload.operations):
        ends = [p for p in operation.inputs if p in last]
        at = last.pop(ends[0]) if ends else len(found)
        if at == len(found):
            found.append([])
        found[at].append(i)
        last[i] = at
    return tuple(tuple(stream) for stream in found)


def propose(
    space: SplitSpace, groups: tuple[tuple[int, ...], ...], current: Placement, rng: np.random.Generator, placement: str
) -> Placement:
    """Return a neighbour: an operator anew, a stretch of a chain together, like chains side by side, a swap, a neighbour
    copied.

    `groups`: from `chains`.
    `placement`: ``contiguous``, ``strided`` or ``either``.
    """
    n, draw = space.servers.n_servers, rng.random()
    if draw < 0.1:
        return _beside(space, groups, current, rng, placement)
    if draw < 0.4:
        chain = groups[int(rng.integers(len(groups)))]
        low, high = sorted(rng.integers(len(chain) + 1, size=2).tolist()) if rng.random() < 0.5 else (0, len(chain))
        return _together(space, current, chain[low : max(high, low + 1)] or chain, rng, placement)
    i = int(rng.integers(len(current.choice)))
    if draw < 0.6:
        others = [j for j in range(len(current.choice)) if j != i and space.choices[j] == space.choices[i]]
        if others:
            j = others[int(rng.integers(len(others)))]
            a, b = (current.choice[i], current.servers[i]), (current.choice[j], current.servers[j])
            return current.with_op(i, *b).with_op(j, *a)
    if draw < 0.75:
        near = [j for j in (*space.workload.operations[i].inputs, *space.workload.consumers()[i]) if j != DATA]
        if near:
            j = near[int(rng.integers(len(near)))]
            like = space.choices[j][current.choice[j]]
            same = [
                k
                for k, c in enumerate(space.choices[i])
                if (c.samples, c.columns, c.rows) == (like.samples, like.columns, like.rows)
            ]
            if same:
                return current.with_op(i, same[0], current.servers[j])
    k = int(rng.integers(len(space.choices[i])))
    return current.with_op(i, k, servers_for(n, space.choices[i][k].n_parts, rng, placement))


def _beside(
    space: SplitSpace, groups: tuple[tuple[int, ...], ...], current: Placement, rng: np.random.Generator, placement: str
) -> Placement:
    """Put two chains that look alike, or their first operators, on different halves of the servers, to run at once."""
    n = space.servers.n_servers
    one = groups[int(rng.integers(len(groups)))]
    alike = [chain for chain in groups if chain != one and space.choices[chain[0]] == space.choices[one[0]]]
    if not alike or n % 2:
        return current
    other = alike[int(rng.integers(len(alike)))]
    length = min(len(one), len(other)) if rng.random() < 0.5 else 1
    way = placement if placement != "either" else ("strided" if rng.random() < 0.5 else "contiguous")
    for chain, servers in zip((one, other), _two_halves(n, way), strict=True):
        current = _split_alike(space, current, chain[:length], servers)
    return current


def _together(
    space: SplitSpace, current: Placement, ops: tuple[int, ...], rng: np.random.Generator, placement: str
) -> Placement:
    """Put some operators on the same servers with the same split, where each has that split."""
    first = space.choices[ops[0]]
    like = first[int(rng.integers(len(first)))]
    servers = servers_for(space.servers.n_servers, like.n_parts, rng, placement)
    for i in ops:
        same = [
            k
            for k, c in enumerate(space.choices[i])
            if (c.samples, c.columns, c.rows) == (like.samples, like.columns, like.rows)
        ]
        if same:
            current = current.with_op(i, same[0], servers)
    return current


def near(space: SplitSpace, plan: Placement, i: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return what operator `i` may copy from the operators it exchanges tensors with: choices and servers, its own left out."""
    operations, consumers = space.workload.operations, space.workload.consumers()
    found: dict[tuple[int, tuple[int, ...]], None] = {}
    for j in (*operations[i].inputs, *consumers[i]):
        if j == DATA:
            continue
        like = space.choices[j][plan.choice[j]]
        for k, c in enumerate(space.choices[i]):
            if (c.samples, c.columns, c.rows) == (like.samples, like.columns, like.rows):
                found[k, plan.servers[j]] = None
    return [option for option in found if option != (plan.choice[i], plan.servers[i])]


def beside(space: SplitSpace, placement: str) -> Iterator[Placement]:
    """Yield the two heaviest streams on different halves of the servers up to a cut in each, the rest data parallel.

    `placement`: ``contiguous``, ``strided`` or ``either``: how halves lie.
    Yields: the whole streams first; nothing where the second stream has little to do.
    """
    n, base = space.servers.n_servers, data_parallel(space)

    def work(stream: tuple[int, ...]) -> float:
        return sum(space.choices[i][base.choice[i]].forward_seconds for i in stream)

    first, *others = sorted(streams(space.workload), key=lambda stream: (-work(stream), stream))
    if n % 2 or not others or work(others[0]) < 0.2 * work(first):
        return
    cuts = [sorted({round(k * len(stream) / N_CUTS) for k in range(N_CUTS + 1)}, reverse=True) for stream in (first, others[0])]
    for way in ("contiguous", "strided") if placement == "either" else (placement,):
        halves = _two_halves(n, way)
        for ends in itertools.product(*cuts):
            made = base
            for stream, end, servers in zip((first, others[0]), ends, halves, strict=True):
                made = _split_alike(space, made, stream[:end], servers)
            if made != base:
                yield made


def _two_halves(n: int, way: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the servers in two halves: every other one, or side by side."""
    if way == "strided":
        return tuple(range(0, n, 2)), tuple(range(1, n, 2))
    return tuple(range(n // 2)), tuple(range(n // 2, n))


def _split_alike(space: SplitSpace, made: Placement, ops: Sequence[int], servers: tuple[int, ...]) -> Placement:
    """Split operators along samples over some servers, those that can be."""
    choice, place = list(made.choice), list(made.servers)
    for i in ops:
        same = [k for k, c in enumerate(space.choices[i]) if (c.samples, c.columns, c.rows) == (len(servers), 1, 1)]
        if same:
            choice[i], place[i] = same[0], servers
    return replace(made, choice=tuple(choice), servers=tuple(place))


def silent_last(space: SplitSpace, plan: Placement) -> Placement:
    """Return a plan with the operators last that read only data and all-reduce nothing;
    the plan itself where that is none or all.
    """
    operations, leaves = space.workload.operations, _leaves(space)
    found = [i for i in leaves if not operations[i].weights or space.choices[i][plan.choice[i]].samples == 1]
    return replace(plan, last=tuple(found)) if 0 < len(found) < len(leaves) else plan


def _leaves(space: SplitSpace) -> list[int]:
    """Return the operators that read only data; none where plans may not say who is last."""
    operations = space.workload.operations if space.control_edges else ()
    return [i for i, operation in enumerate(operations) if set(operation.inputs) <= {DATA}]


def last(space: SplitSpace, plan: Placement) -> Iterator[Placement]:
    """Yield a plan with other operators last in the backward pass: those that all-reduce nothing, then one kind changed, then
    one.

    Notes
    -----
    Nothing waits for the backward pass of an operator that reads only data, but its own all-reduce. Behind the others it hides
    theirs.
    """
    leaves = _leaves(space)
    kinds: dict[str, list[int]] = {}
    for i in leaves:
        kinds.setdefault(space.workload.operations[i].key, []).append(i)
    changed = [set(plan.last) ^ set(kind) for kind in kinds.values()]
    changed += [set(plan.last) ^ {i} for i in leaves if len(leaves) <= MOST_LEAVES]
    for found in dict.fromkeys((silent_last(space, plan).last, *(tuple(sorted(some)) for some in changed))):
        if found != plan.last and len(found) < len(leaves):
            yield replace(plan, last=found)


def fewer(space: SplitSpace) -> Iterator[Placement]:
    """Yield the data-parallel placement on fewer and fewer servers, down to one: the others stay idle."""
    n = space.servers.n_servers
    for k in (k for k in range(n - 1, 0, -1) if n % k == 0 or k in space.parts):
        yield data_parallel(space, k)


def starts(space: SplitSpace, placement: str) -> Iterator[Placement]:
    """Yield placements to start from: data parallel, then with tables split by columns, then the heaviest chains that read only
    data on blocks of servers of their own.

    `placement`: ``contiguous``, ``strided`` or ``either``: how blocks lie.
    """
    base = data_parallel(space)
    yield base
    yield from _dealt(space, base)
    operations, n = space.workload.operations, space.servers.n_servers
    towers = [
        chain
        for chain in chains(space.workload)
        if set(operations[chain[0]].inputs) == {DATA} and operations[chain[0]].kind != "embedding"
    ]
    work = {chain: sum(space.choices[i][base.choice[i]].forward_seconds for i in chain) for chain in towers}
    towers.sort(key=lambda chain: (-work[chain], chain))
    if len(towers) < 2:
        return
    for size in (k for k in range(n // 2, 0, -1) if n % k == 0):
        for n_apart in range(n // size, len(towers) + 1, n // size):
            for way in ("contiguous", "strided") if placement == "either" else (placement,):
                made = base
                for t, chain in enumerate(towers[:n_apart]):
                    block = t % (n // size)
                    servers = (
                        tuple(range(block * size, block * size + size))
                        if way == "contiguous"
                        else tuple(range(block, n, n // size))
                    )
                    made = _split_alike(space, made, chain, servers)
                yield made


def _dealt(space: SplitSpace, base: Placement) -> Iterator[Placement]:
    """Yield a placement with every table in so many parts by columns that servers hold as many, dealt out in turn, then in
    twice and four times as many.
    """
    tables, n = (
        [i for i, operation in enumerate(space.workload.operations) if operation.kind == "embedding"],
        space.servers.n_servers,
    )
    least = n // math.gcd(len(tables), n)
    for columns in dict.fromkeys((least, 2 * least, 4 * least)) if tables else ():
        made, at = base, 0
        for i in tables:
            options = [k for k, choice in enumerate(space.choices[i]) if choice.rows == 1 and choice.columns == columns > 1]
            if not options:
                break
            made = made.with_op(i, options[0], tuple(sorted((at + j) % n for j in range(columns))))
            at += columns
        else:
            yield made
