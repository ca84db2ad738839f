"""Piper by its definition, in plain Python: every plan of a small instance, its cost, and the published dynamic program."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance, PiperNode

INFEASIBLE = 1e30


class Rated(NamedTuple):
    """A plan's value, and what ties are broken by."""

    seconds: float
    n_stages: int
    n_devices: int
    peak_bytes: float


def random_instance(
    seed: int, *, n_nodes: int = 5, n_choices: int = 2, alike: bool = False, whole: bool = False
) -> PiperInstance:
    """Return a small random instance; `alike` choices share weights and sync terms, `whole` numbers make ties likely."""
    dice = random.Random(seed)

    def number(high: float) -> float:
        return float(dice.randint(0, int(high))) if whole else dice.uniform(0.0, high)

    order = list(range(n_nodes))
    dice.shuffle(order)
    pairs = [(order[i], order[j]) for i in range(n_nodes) for j in range(i + 1, n_nodes) if dice.random() < 0.45]
    pairs = pairs or [(order[0], order[1])]
    edges = tuple(PiperEdge(u, v, number(4)) for u, v in pairs)
    nodes = []
    for v in range(n_nodes):
        tails, heads = [u for u, x in pairs if x == v], [x for u, x in pairs if u == v]
        menu = []
        for degree in (1, 2):
            if degree == 2 and dice.random() < 0.3:
                continue
            shared = (number(5), tuple((u, number(2)) for u in tails), tuple((x, number(2)) for x in heads))
            entries = []
            for c in range(dice.randint(1, n_choices)):
                if not alike:
                    shared = (number(5), tuple((u, number(2)) for u in tails), tuple((x, number(2)) for x in heads))
                name = ("vanilla", "activation recomp", "selective", "offload")[c]
                entries.append(PiperChoice(name, (1 + number(5)) / degree, shared[0], number(4), number(6), *shared[1:]))
            menu.append((degree, tuple(entries)))
        nodes.append(PiperNode(10 + v, "layer", tuple(menu)))
    n_microbatches = dice.choice((2, 4, 6))
    return PiperInstance(tuple(nodes), edges, dice.randint(2, 4), n_microbatches, 4.0, dice.uniform(10.0, 45.0))


def downsets(instance: PiperInstance) -> list[frozenset[int]]:
    """Return all sets closed under successors, by size."""
    n = len(instance.nodes)
    found = []
    for size in range(n + 1):
        for some in itertools.combinations(range(n), size):
            inside = frozenset(some)
            if all(edge.target in inside for edge in instance.edges if edge.source in inside):
                found.append(inside)
    return found


def choice_cost(instance: PiperInstance, stage: frozenset[int], v: int, choice: PiperChoice, d: int) -> float:
    """Return what one layer adds to its stage's time."""
    moved = 0.0
    for edge in instance.edges:
        if edge.target == v and edge.source not in stage:
            moved += 2 * (edge.bytes + dict(choice.sync_forward)[edge.source])
        if edge.source == v and edge.target not in stage:
            moved += 2 * (edge.bytes + dict(choice.sync_backward)[edge.target])
    reduce = 4 * (d - 1) * choice.weight_bytes / d / instance.n_microbatches
    return (moved / d + reduce) / instance.bandwidth + choice.seconds / d


def plans(instance: PiperInstance) -> Iterator[list[tuple[frozenset[int], int, int]]]:
    """Yield every way to cut into stages with replicas and tensor degree, from the model's input on."""
    sets = downsets(instance)

    def extend(rest: frozenset[int], devices: int, replicas: int) -> Iterator[list[tuple[frozenset[int], int, int]]]:
        if not rest:
            yield []
            return
        for lower in sets:
            if not lower < rest:
                continue
            stage = rest - lower
            for t in instance.degrees:
                if any(not instance.nodes[v].at(t) for v in stage):
                    continue
                for d in range(1, replicas + 1):
                    if (instance.counting.any_replicas or instance.n_microbatches % d == 0) and d * t <= devices:
                        for others in extend(lower, devices - d * t, replicas - d):
                            yield [(stage, d, t), *others]

    most = min(instance.n_devices, instance.n_microbatches)
    yield from extend(frozenset(range(len(instance.nodes))), instance.n_devices, most)


def rated(instance: PiperInstance) -> list[Rated]:
    """Return the value and ties of every plan that fits, inner choices of every kind."""

    @cache
    def menu(stage: frozenset[int], d: int, t: int, y: int) -> tuple[tuple[float, float], ...]:
        """Return undominated (seconds, bytes) of one stage."""
        found = []
        for picked in itertools.product(*(instance.nodes[v].at(t) for v in sorted(stage))):
            held = sum(c.activation_bytes * y + c.static_bytes for c in picked)
            if held <= instance.memory_bytes:
                found.append(
                    (sum(choice_cost(instance, stage, v, c, d) for v, c in zip(sorted(stage), picked, strict=True)), held)
                )
        found.sort()
        front: list[tuple[float, float]] = []
        for seconds, held in found:
            if not front or held < front[-1][1]:
                front.append((seconds, held))
        return tuple(front)

    result = []
    for plan in plans(instance):
        suffix = sum(d for _, d, _ in plan)
        fronts = []
        for stage, d, t in plan:
            fronts.append(menu(stage, d, t, -(-suffix // d)))
            suffix -= d
        devices = sum(d * t for _, d, t in plan)
        for picked in itertools.product(*fronts):
            result.append(Rated(max(s for s, _ in picked), len(plan), devices, max(b for _, b in picked)))
    return result


def best(instance: PiperInstance) -> Rated | None:
    """Return the plan of least value, then (within rounding) of fewest stages, devices, and least memory; None for none."""
    every = rated(instance)
    if not every:
        return None
    least = min(plan.seconds for plan in every)
    return min((plan for plan in every if plan.seconds <= least * (1 + 1e-11)), key=lambda plan: plan[1:])


def counted(
    instance: PiperInstance, plan: list[tuple[frozenset[int], int, int]], picked: list[dict[int, PiperChoice]]
) -> float:
    """Return the time of a plan with everything counted that the instance asks for; infinite where memory is exceeded."""
    count, n = instance.counting, instance.n_microbatches
    node_of: list[int | None] = []
    at, spare = 0, instance.n_devices - sum(d * t for _, d, t in plan)
    for _, d, t in plan:
        if count.node_size and d * t <= count.node_size and at % count.node_size + d * t > count.node_size:
            skip = count.node_size - at % count.node_size
            if skip <= spare:
                at, spare = at + skip, spare - skip
        where = {device // count.node_size for device in range(at, at + d * t)} if count.node_size else set()
        node_of.append(where.pop() if len(where) == 1 else None)
        at += d * t
    stage_of = {v: i for i, (stage, _, _) in enumerate(plan) for v in stage}
    times, ways = [], []
    for i, (stage, d, t) in enumerate(plan):
        chosen = picked[i]
        y = -(-sum(other[1] for other in plan[i:]) // d)
        held = sum(c.activation_bytes * y + c.static_bytes for c in chosen.values())
        weight = sum(c.weight_bytes for c in chosen.values())
        if count.layer_buffers:
            plain = {v: {c.id: c for c in instance.nodes[v].at(t)}.get("vanilla") for v in stage}
            buffers = [
                max(0.0, min(plain[v].activation_bytes - c.activation_bytes, c.static_bytes - plain[v].static_bytes))
                if plain[v] is not None and c.id != "vanilla"
                else 0.0
                for v, c in chosen.items()
            ]
            held -= sum(buffers) - max(buffers)
        if count.shard_optimizer:
            held -= weight * (d - 1) / d
        if held > instance.memory_bytes * (1 + 1e-12):
            return float("inf")
        tensors: dict[tuple[str, int], list[float]] = {}
        for edge in instance.edges:
            u, v = stage_of[edge.source], stage_of[edge.target]
            near = node_of[u] is not None and node_of[u] == node_of[v]
            speed = count.node_bytes_per_second if near else instance.bandwidth
            if u != v and v == i:
                size = edge.bytes + dict(chosen[edge.target].sync_forward)[edge.source]
                tensors.setdefault(("in", edge.source), []).append(size / speed)
            if u != v and u == i:
                size = edge.bytes + dict(chosen[edge.source].sync_backward)[edge.target]
                tensors.setdefault(("out", edge.source), []).append(size / speed)
        moved = 2 * sum(max(some) if count.tensor_once else sum(some) for some in tensors.values())
        share = -(-n // d) / n
        speed = count.node_bytes_per_second if node_of[i] is not None else instance.bandwidth
        times.append((moved + sum(c.seconds for c in chosen.values())) * share + 4 * (d - 1) * weight / d / n / speed)
        ways.append(times[-1] * d)
    return max(times) + ((sum(ways) - max(ways)) / n if count.fill_drain else 0.0)


def best_counted(instance: PiperInstance) -> float:
    """Return the least time of all plans and inner choices by `counted`; infinite where nothing fits."""
    least = float("inf")
    for plan in plans(instance):
        menus = []
        for stage, _, t in plan:
            nodes = sorted(stage)
            menus.append([
                dict(zip(nodes, some, strict=True)) for some in itertools.product(*(instance.nodes[v].at(t) for v in nodes))
            ])  # fmt: skip
        for picked in itertools.product(*menus):
            least = min(least, counted(instance, plan, list(picked)))
    return least


def published(instance: PiperInstance) -> float:
    """Return the value of the published dynamic program with its greedy inner choice; 1e30 where nothing fits."""
    sets = downsets(instance)
    most = min(instance.n_devices, instance.n_microbatches)

    @cache
    def stage_time(stage: frozenset[int], t: int, d: int, y: int) -> float:
        if any(not instance.nodes[v].at(t) for v in stage):
            return INFEASIBLE
        nodes = sorted(stage)
        menus = [instance.nodes[v].at(t) for v in nodes]
        cost = [[choice_cost(instance, stage, v, c, d) for c in menu] for v, menu in zip(nodes, menus, strict=True)]
        held = [[c.activation_bytes * y + c.static_bytes for c in menu] for menu in menus]
        picked = [row.index(min(row)) for row in cost]
        need = sum(row[i] for row, i in zip(held, picked, strict=True)) - instance.memory_bytes
        if need > 0:
            if sum(min(row) for row in held) > instance.memory_bytes:
                return INFEASIBLE
            swaps = []
            for i, row in enumerate(held):
                for c in range(len(row)):
                    saving = row[picked[i]] - row[c]
                    if saving > 1e-9:
                        swaps.append(((cost[i][c] - cost[i][picked[i]]) / saving, i, c))
            for _, i, c in sorted(swaps):
                need -= held[i][picked[i]] - held[i][c]
                picked[i] = c
                if need < 1e-9:
                    break
        return sum(row[i] for row, i in zip(cost, picked, strict=True))

    @cache
    def value(inside: frozenset[int], k: int, s: int) -> float:
        if not inside:
            return 0.0
        least = INFEASIBLE
        if k > 0:
            least = min(least, value(inside, k - 1, s))
        if s > 0:
            least = min(least, value(inside, k, s - 1))
        for lower in sets:
            if lower < inside:
                for t in instance.degrees:
                    for d in range(1, s + 1):
                        if instance.n_microbatches % d == 0 and d * t <= k:
                            later = value(lower, k - d * t, s - d)
                            if later < least:
                                least = min(least, max(later, stage_time(inside - lower, t, d, -(-s // d))))
        return least

    return value(frozenset(range(len(instance.nodes))), instance.n_devices, most)


def nothing_below(instance: PiperInstance, seconds: float) -> bool:
    """Return whether no plan has all stages below a threshold: the whole of the checker of a bound.

    Independent of the solver: sets of nodes, sets of (devices, replicas), and for each stage the list of all its undominated
    inner choices.
    """
    sets = downsets(instance)

    def fits(stage: frozenset[int], d: int, t: int, y: int) -> bool:
        states = {(0.0, 0.0)}
        for v in stage:
            grown = set()
            for choice in instance.nodes[v].at(t):
                held = choice.activation_bytes * y + choice.static_bytes
                for x, b in states:
                    grown.add((x + choice_cost(instance, stage, v, choice, d), b + held))
            states = {(x, b) for x, b in grown if x < seconds and b <= instance.memory_bytes}
        return bool(states)

    most = min(instance.n_devices, instance.n_microbatches)
    reached: dict[frozenset[int], set[tuple[int, int]]] = {frozenset(): {(0, 0)}}
    for inside in sets[1:]:
        ways = set()
        for lower in sets:
            if lower < inside:
                for t in instance.degrees:
                    for d in range(1, most + 1):
                        for k, s in reached[lower]:
                            if k + d * t > instance.n_devices or s + d > most or instance.n_microbatches % d:
                                continue
                            if (k + d * t, s + d) not in ways and fits(inside - lower, d, t, -(-(s + d) // d)):
                                ways.add((k + d * t, s + d))
        reached[inside] = ways
    return not reached[frozenset(range(len(instance.nodes)))]
