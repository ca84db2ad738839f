"""Plan and topology in turn: as published, and ours, which starts from good shapes and takes back every rejected move."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.core.problem import Stop
from meshwright.planners.topoopt import finder, moves, networks, published
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.networks import PlanOnNetwork
from meshwright.planners.topoopt.scarce import columns
from meshwright.planners.topoopt.step import MOST_SEGMENTS, SEGMENT_BYTES, Placement, Step, data_parallel
from meshwright.planners.topoopt.windows import NEVER

__all__ = ["NetworkParts", "PlanOnNetwork", "alternate", "fixed", "improved", "released"]

SIMULATED_STARTS, SCREENED_STARTS = 4, 2
MOST_WAYS = 8
MOST_STATES, NEAR_RATIO = 4, 1.2
"""So many of the starting plans are annealed, if they are not slower than the best by more than this."""
N_ROUNDS = 4
"""The budget is used in so many rounds; after each the slower half of the plans is given up."""
COARSE_SERVERS, COARSE_SEGMENTS = 64, 4
"""From so many servers on plans are compared with segments so much larger, and so many times fewer of them at most; the best is
then played as published."""

WARM_RATIO, COLD_RATIO = 3e-3, 1e-5


@dataclass(frozen=True, slots=True)
class NetworkParts:
    """What the network is built of.

    Parameters
    ----------
    n_servers, degree : int
        Servers, and interfaces of each.
    bytes_per_second, latency_seconds : float
        Of one link.
    """

    n_servers: int
    degree: int
    bytes_per_second: float
    latency_seconds: float


def released(
    step: Step,
    wires: NetworkParts,
    rng: np.random.Generator,
    budget: int,
    *,
    propagation: bool,
    placement: str,
    alpha_ratio: float,
    stop: Stop = NEVER,
) -> PlanOnNetwork:
    """Return what the released search finds: proposals one at a time, topology by its own annealing.

    `budget`: proposals, fewer where `stop` asks for an end.
    `propagation`, `placement`: see `moves.published_proposal`.
    `alpha_ratio`: a plan slower by x milliseconds is accepted with probability ``exp(-alpha x)``.

    Notes
    -----
    As in the released program a topology that was built for a rejected plan stays; the topology depends on the sums of
    all-reduced bytes by group size alone. Unlike there, plans that exceed memory are rejected, and draws are seeded.
    """
    known: dict[published.Rings, Fabric] = {}

    def wire(plan: Placement) -> Fabric:
        totals = step.traffic(plan).by_group_size() or {wires.n_servers: 1.0}
        rings = published.find(wires.n_servers, wires.degree, totals)
        if rings not in known:
            known[rings] = published.fabric(rings, wires.bytes_per_second, wires.latency_seconds)
        return known[rings]

    if step.given is not None:
        return networks.networks_only(step, step.given, lambda plan: [wire(plan)], stop)
    capacity = step.space.servers.memory_bytes
    current = best = data_parallel(step.space)
    fabric = best_fabric = wire(current)
    now_ms = best_ms = first_ms = 1e3 * step.seconds(current, fabric)
    topology_ms, n_unchanged, last_reset = best_ms, 0, 0
    span, iteration = min(max(budget // 100, 1), 1000), -1
    for iteration in range(budget):
        if stop.is_asked():
            break
        if iteration - last_reset >= span:
            current, now_ms, fabric, last_reset = best, best_ms, best_fabric, iteration
        proposal = moves.published_proposal(step.space, current, rng, propagation=propagation, placement=placement)
        if proposal is current or step.memory_bytes(proposal).max() > capacity:
            continue
        threshold, draw = now_ms - math.log(max(rng.random(), 1e-300)) / alpha_ratio, rng.random()
        topology_draw = topology_ms - math.log(max(draw, 1e-300)) / 0.5
        new_ms = 1e3 * step.seconds(proposal, fabric, 1e-3 * max(threshold, topology_draw))
        if new_ms < best_ms:
            best, best_ms, best_fabric = proposal, new_ms, fabric
        accepted = new_ms < threshold
        if accepted:
            current, now_ms = proposal, new_ms
        n_unchanged += 1
        if accepted or (new_ms != topology_ms and new_ms < topology_draw) or n_unchanged >= 50:
            if math.isfinite(new_ms):
                topology_ms = new_ms
            fabric, n_unchanged = wire(proposal), 0
    n_proposals = iteration if stop.is_asked() else budget
    return PlanOnNetwork(best, best_fabric, best_ms * 1e-3, first_ms * 1e-3, n_proposals)


def improved(
    step: Step, wires: NetworkParts, rng: np.random.Generator, budget: int, *, placement: str, stop: Stop = NEVER
) -> PlanOnNetwork:
    """Return the best plan and topology our search finds within a number of simulated plans.

    `step`, `wires`, `rng`, `budget`, `placement`, `stop`: see `released`; `placement` may also be ``either``.

    Notes
    -----
    Shapes from `moves.starts` are tried on all topologies of `finder.fabrics`; then annealing of the plan on the best topology
    and the choice of a topology for the best plan take turns until neither improves or the budget is used up.
    """

    args = (wires.n_servers, wires.degree, wires.bytes_per_second, wires.latency_seconds)
    drawn = finder.random_cycles(wires.n_servers, wires.degree // 2, rng, stop.is_asked)

    def candidates(plan: Placement) -> Iterator[Fabric]:
        traffic = step.traffic(plan)
        yield from finder.fabrics(traffic, *args, drawn, stop.is_asked)
        rings = published.find(*args[:2], traffic.by_group_size() or {wires.n_servers: 1.0})
        if (
            sum(count for (source, _), count in published.links(rings).items() if source == 0) <= wires.degree
        ):  # all servers are alike
            yield published.fabric(rings, *args[2:])

    return alternate(step, candidates, rng, budget, placement, stop)


def fixed(
    step: Step, fabric: Fabric, rng: np.random.Generator, budget: int, *, placement: str, stop: Stop = NEVER
) -> PlanOnNetwork:
    """Return the best plan our search finds on a given topology; routes and rings follow the plan.

    `step`, `rng`, `budget`, `placement`, `stop`: see `improved`.
    """

    def candidates(plan: Placement) -> Iterator[Fabric]:
        yield fabric
        traffic = step.traffic(plan)
        yield fabric.refitted(traffic.pair_bytes, traffic.group_bytes)
        if fabric.n_servers <= finder.LONGEST_MATCHING and traffic.pair_bytes.max() >= finder.WIDE_BYTES:
            most = max(int((fabric.source == i).sum()) for i in range(fabric.n_servers))
            yield fabric.refitted(traffic.pair_bytes, traffic.group_bytes, min(most, MOST_WAYS))

    return alternate(step, candidates, rng, budget, placement, stop)


def alternate(
    step: Step, candidates: Callable[[Placement], Iterable[Fabric]], rng: np.random.Generator, budget: int, placement: str,
    stop: Stop = NEVER,
) -> PlanOnNetwork:  # fmt: skip
    """Take turns until neither plan nor topology improves.

    `step`, `rng`, `budget`, `placement`, `stop`: see `improved`.
    `candidates`: from a plan to the topologies worth trying for it.
    """
    if step.given is not None:
        return networks.networks_only(step, step.given, candidates, stop)
    capacity = step.space.servers.memory_bytes
    found: list[tuple[float, int, Placement, Fabric]] = []
    first_seconds, n_used = math.inf, 0
    shapes = [plan for plan in moves.starts(step.space, placement) if step.memory_bytes(plan).max() <= capacity]
    shapes = shapes or _where_scarce(step, candidates, placement, stop)
    shapes = shapes or [_fitting(step, rng, placement, stop)]
    shapes = [shapes[0], *sorted(shapes[1:], key=step.compute_seconds)][: max(SIMULATED_STARTS, budget // 100)]
    halves = [plan for plan in moves.beside(step.space, placement) if step.memory_bytes(plan).max() <= capacity]
    few = [plan for plan in moves.fewer(step.space) if step.memory_bytes(plan).max() <= capacity]
    for plan in itertools.chain(shapes, few, _screened(step, candidates, halves, budget // 10, stop)):
        if found and stop.is_asked():
            break
        limit = min((entry[0] for entry in found), default=math.inf)
        if found and plan in few and not _faster(step, plan, found):
            continue
        for fabric in networks.until(stop, candidates(plan)):
            for shape in dict.fromkeys((plan, moves.silent_last(step.space, plan))):
                found.append((step.seconds(shape, fabric, NEAR_RATIO * limit, hurry=bool(found)), n_used, shape, fabric))
                limit = min(limit, found[-1][0])
                n_used += 1
        best_seconds = min(entry[0] for entry in found)
        if not math.isfinite(first_seconds):
            first_seconds = best_seconds
        # what is not near the best cannot become a state: its network, tens of MB for 512 servers, is let go
        found = [entry for entry in found if entry[0] <= NEAR_RATIO * best_seconds]
    states, n_idle, n_done = _distinct(found), 0, 0
    coarse = step.space.servers.n_servers >= COARSE_SERVERS and step.model_of_traffic in ("queues", "segments")
    larger = (COARSE_SEGMENTS * SEGMENT_BYTES, step.model_of_traffic, MOST_SEGMENTS // COARSE_SEGMENTS)
    walked = Step(step.space, *larger) if coarse else step
    walked.ends_at_seconds = step.ends_at_seconds
    while n_done < budget and n_idle < 3 and not stop.is_asked():
        part = max(min(budget // N_ROUNDS, budget - n_done) // len(states), 1)
        before = states[0][0]
        states = [_round(step, walked, candidates, state, rng, part, placement, stop, descend=n_done == 0) for state in states]
        n_done += part * len(states)
        kept = {plan: (seconds, plan, fabric) for seconds, plan, fabric in sorted(states, key=lambda entry: -entry[0])}
        states = sorted(kept.values(), key=lambda entry: entry[0])[: 2 if n_done < budget // 2 else 1]
        n_idle = n_idle + 1 if len(states) == 1 and states[0][0] >= before * (1 - 1e-6) else 0
    seconds, plan, fabric = states[0]
    return PlanOnNetwork(plan, fabric, seconds, first_seconds, n_used + n_done)


def _where_scarce(
    step: Step, candidates: Callable[[Placement], Iterable[Fabric]], placement: str, stop: Stop = NEVER
) -> list[Placement]:
    """Return plans to start from where no server has memory for its part of every operator: of the shapes with matrices split
    by columns the fastest, each on its first network, then stretches of operators on blocks of servers.
    """
    capacity = step.space.servers.memory_bytes
    found: list[tuple[float, int, Placement]] = []
    for shape in moves.starts(step.space, placement):
        if found and stop.is_asked():
            break
        if plan := columns.narrowed(step.space, shape, capacity):
            found.append((step.seconds(plan, next(iter(candidates(plan))), hurry=bool(found)), len(found), plan))
    packed = list(columns.packed(step.space, lambda plan: step.memory_bytes(plan).max() <= capacity))
    return [plan for _, _, plan in sorted(found, key=lambda entry: entry[:2])[:1]] + packed


def _faster(step: Step, plan: Placement, found: list[tuple[float, int, Placement, Fabric]]) -> bool:
    """Return whether a plan is faster than the best so far on that one's network, with routes and rings of its own."""
    limit, _, _, fabric = min(found, key=lambda entry: entry[:2])
    if step.compute_seconds(plan) >= limit:
        return False
    traffic = step.traffic(plan)
    return step.seconds(plan, fabric.refitted(traffic.pair_bytes, traffic.group_bytes), limit, hurry=True) < limit


State = tuple[float, Placement, Fabric]
"""Seconds of a plan on a network."""


def _screened(
    step: Step, candidates: Callable[[Placement], Iterable[Fabric]], shapes: list[Placement], budget: int, stop: Stop = NEVER
) -> Iterator[Placement]:
    """Yield the best shapes, after a descent, on the network of the first fitted to each.

    Best are those of which half of the way from their step to their compute alone would be shortest.
    """
    if not shapes or stop.is_asked():
        return
    probe = min(networks.until(stop, candidates(shapes[0])), key=lambda fabric: step.seconds(shapes[0], fabric, hurry=True))
    order: list[tuple[float, int, Fabric]] = []
    for k, plan in enumerate(shapes):
        if stop.is_asked():
            break
        traffic = step.traffic(plan)
        wide = MOST_WAYS if traffic.pair_bytes.max() >= finder.WIDE_BYTES else 1
        fitted = probe.refitted(traffic.pair_bytes, traffic.group_bytes, wide)
        order.append((step.seconds(plan, fitted, hurry=True) + step.compute_seconds(plan), k, fitted))
    order.sort(key=lambda entry: entry[:2])
    lower = [_descend(step, shapes[k], fitted, budget, stop) for _, k, fitted in order[: 3 * SCREENED_STARTS]]
    ordered = sorted(lower, key=lambda entry: entry[1])
    yield from list(dict.fromkeys(plan for plan, _, _ in ordered))[:SCREENED_STARTS]


def _distinct(found: list[tuple[float, int, Placement, Fabric]]) -> list[State]:
    """Return the best network, and the best last operators, of each of the best plans,
    of those not much slower than the best.
    """
    best: dict[Placement, State] = {}
    for seconds, _, plan, fabric in sorted(found, key=lambda entry: entry[:2]):
        best.setdefault(replace(plan, last=()), (seconds, plan, fabric))
    ordered = sorted(best.values(), key=lambda entry: entry[0])
    return [state for state in ordered[:MOST_STATES] if state[0] <= NEAR_RATIO * ordered[0][0]]


def _round(
    step: Step, walked: Step, candidates: Callable[[Placement], Iterable[Fabric]], state: State, rng: np.random.Generator,
    budget: int, placement: str, stop: Stop = NEVER, *, descend: bool,
) -> State:  # fmt: skip
    """Anneal the plan of a state on its network, choose the network for it, then who is last; never worse than the state."""
    seconds, plan, fabric = state
    start, _, n_played = _descend(walked, plan, fabric, budget, stop) if descend else (plan, 0.0, 0)
    tried, tried_seconds = _anneal(walked, start, fabric, rng, max(budget - n_played, 1), placement, stop)
    if walked is not step:
        tried_seconds = step.seconds(tried, fabric, hurry=True)
    if tried_seconds < seconds:
        plan, seconds = tried, tried_seconds
    elif not descend:
        return state  # the network was chosen for this plan before
    if stop.is_asked():
        return seconds, plan, fabric
    for other in networks.until(stop, candidates(plan)):
        other_seconds = step.seconds(plan, other, seconds, hurry=True)
        if other_seconds < seconds:
            fabric, seconds = other, other_seconds
    seconds, fabric = networks.spread(step, plan, fabric, seconds, stop)
    for late in list(moves.last(step.space, plan)):
        if stop.is_asked():
            break
        late_seconds = step.seconds(late, fabric, seconds, hurry=True)
        if late_seconds < seconds:
            plan, seconds = late, late_seconds
    return seconds, plan, fabric


def _descend(step: Step, plan: Placement, fabric: Fabric, budget: int, stop: Stop = NEVER) -> tuple[Placement, float, int]:
    """Let operators copy the servers of those they exchange tensors with while that helps;
    return also seconds and plans played.
    """
    now, n_played, last_change, i = step.seconds(plan, fabric, hurry=True), 1, 0, 0
    n_ops, capacity = len(plan.choice), step.space.servers.memory_bytes
    while math.isfinite(now) and i - last_change < n_ops and n_played < budget and not stop.is_asked():
        for k, servers in moves.near(step.space, plan, i % n_ops):
            proposal = plan.with_op(i % n_ops, k, servers)
            if step.compute_seconds(proposal) > now or step.memory_bytes(proposal).max() > capacity:
                continue
            if stop.is_asked():
                break
            n_played += 1
            tried = step.seconds(proposal, fabric, now, hurry=True)
            if tried < now * (1 - 1e-6):
                now, plan, last_change = tried, proposal, i
        i += 1
    return plan, now, n_played


def _fitting(step: Step, rng: np.random.Generator, placement: str, stop: Stop = NEVER) -> Placement:
    """Return a plan with as little memory on the fullest server as a descent finds."""
    plan = data_parallel(step.space)
    groups = moves.chains(step.space.workload)
    least = float(step.memory_bytes(plan).max())
    for _ in range(2000):
        if least <= step.space.servers.memory_bytes or stop.is_asked():
            break
        proposal = moves.propose(step.space, groups, plan, rng, placement)
        held = float(step.memory_bytes(proposal).max())
        if held <= least:
            plan, least = proposal, held
    return plan


def _anneal(
    step: Step, plan: Placement, fabric: Fabric, rng: np.random.Generator, budget: int, placement: str, stop: Stop = NEVER
) -> tuple[Placement, float]:
    """Return the best plan of a walk that accepts slower ones less and less;
    the limit of a proposal is drawn before it is played.
    """
    space = step.space
    capacity, groups = space.servers.memory_bytes, moves.chains(space.workload)
    current = best = plan
    now = least = step.seconds(plan, fabric, hurry=True)
    if not math.isfinite(now):
        return plan, now
    for iteration in range(budget):
        if stop.is_asked():
            break
        proposal = moves.propose(space, groups, current, rng, placement)
        temperature = least * WARM_RATIO * (COLD_RATIO / WARM_RATIO) ** (iteration / budget)
        threshold = now - temperature * math.log(max(rng.random(), 1e-300))
        if proposal == current or step.memory_bytes(proposal).max() > capacity or step.compute_seconds(proposal) > threshold:
            continue
        tried = step.seconds(proposal, fabric, threshold, hurry=True)
        if tried <= threshold:
            current, now = proposal, tried
            if tried < least:
                best, least = proposal, tried
    return best, least
