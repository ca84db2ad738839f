"""Kernels of co-designed steps on tiny workloads: tasks, loads, both ways to play a step, routes, as when this was written."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from meshwright._kernels.topoopt import fair_steps, flow_simulation, short_routes, step_tasks
from meshwright.core.cluster import Device
from meshwright.planners.topoopt import fabric as fabric_module
from meshwright.planners.topoopt import networks, windows
from meshwright.planners.topoopt.choices import OperatorSplit, Servers, SplitSpace
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, Step
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload
from recorded import Recorded

DEVICE = Device("made up", (("fp32", 1e12),), 4e9, 1e11, reserved_bytes=0.0)


@pytest.fixture(autouse=True)
def even_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share every group evenly among its rings, whatever a linear programme would say."""
    monkeypatch.setattr(fabric_module, "even_out", lambda busy, item, base=None: 1.0 / np.bincount(item)[item])


def question(seed: int, **more: object) -> tuple[Step, Placement, int]:
    """Return a tiny workload with drawn times and a drawn plan of it; parts of one operator may share a server."""
    dice = np.random.default_rng(seed)
    n = int(dice.choice([2, 3, 4]))
    operations: list[Operation] = []
    for i in range(int(dice.integers(3, 6))):
        inputs = tuple(sorted(dice.choice(i, size=min(i, int(dice.integers(1, 3))), replace=False).tolist())) if i else (DATA,)
        inputs = inputs if dice.random() < 0.75 else (DATA,)
        weights = tuple(int(w) for w in dice.choice([0, 7, 500, 1501], size=int(dice.integers(0, 3))))
        operations.append(Operation(f"op{i}", "linear", f"op{i}", inputs, (int(dice.choice([1, 50, 333])),), weights))
    splits = [(s, c, r) for s in (1, 2, 3, 4) for c in (1, 2) for r in (1, 2) if s * c * r in (1, n)]
    choices = tuple(
        tuple(OperatorSplit(*split, *(1e-6 * dice.integers(1, 9, 2)).tolist(), 1.0) for split in splits) for _ in operations
    )
    servers = Servers(n, int(dice.choice([1, 2])), DEVICE, 1e10, float(dice.choice([0.0, 1e-6])), bool(dice.random() < 0.5))
    step = Step(SplitSpace(Workload("tiny", 12, tuple(operations)), servers, choices), 1000, **more)  # type: ignore[arg-type]
    picked = [int(dice.integers(len(own))) for own in choices]
    places = tuple(tuple(dice.permutation(n)[: own[k].n_parts].tolist()) for own, k in zip(choices, picked, strict=True))
    leaves = [i for i, operation in enumerate(operations) if set(operation.inputs) == {DATA}]
    return step, Placement(tuple(picked), places, tuple(leaves[:1]) if len(leaves) > 1 else ()), n


def fabrics(step: Step, plan: Placement, n: int) -> Iterator[Fabric]:
    """Yield a switch, a ring with unlike links, and where there is room a full mesh with several routes a pair."""
    yield networks.build("switch", n, 1, 1e9, 1e-7, 0).fabric
    count = {(i, (i + way) % n): 1.0 + (i + way) % 2 for i in range(n) for way in (1, n - 1)}
    yield Fabric("ring", n, count, 1e9, 2e-7, cycles=[tuple(range(n))])
    if n > 2:
        sent = step.traffic(plan)
        yield networks.build("full-mesh", n, n - 1, 5e8, 1e-7, 0).fabric.refitted(sent.pair_bytes, sent.group_bytes, 2)


def crc(*arrays: np.ndarray) -> int:
    """Return a sum over whole numbers."""
    return zlib.crc32(str([np.asarray(one).tolist() for one in arrays]).encode())


SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_and_loads(seed: int, recorded: Recorded) -> None:
    step, plan, n = question(seed)
    for k, fabric in enumerate(fabrics(step, plan, n)):
        split, tasks = step.tasks(plan, fabric)
        told = [tasks.part_first, len(tasks.edge_bytes), int(tasks.edge_bytes.sum()), crc(*tasks), tasks.reduce_bytes]
        recorded([told, step_tasks.loads(tasks, split, fabric.network())], f"{k}")
        # a transfer is cut into the parts that its routes carry, none lost
        if k == 2:
            fabric.pair_share = np.tile([0.25, 1.0], n * n)
            _, shared = step.tasks(plan, fabric)
            assert shared.edge_bytes.sum() == tasks.edge_bytes.sum()
            recorded([crc(*shared), shared.edge_bytes[shared.edge_bytes > 0][:12]], "shared")


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_played(seed: int, recorded: Recorded) -> None:
    step, plan, n = question(seed)
    stay = fair_steps.Windows(np.zeros(1), 0.0)
    for k, fabric in enumerate(fabrics(step, plan, n)):
        split, tasks = step.tasks(plan, fabric)
        both = {
            "segments": flow_simulation.play(tasks, split, fabric.network(), 1000, False, step.inside(), np.inf),
            "queues": flow_simulation.play(tasks, split, fabric.network(), 1000, True, step.inside(), np.inf),
            "fair": fair_steps.play(tasks, split, fabric.network(), stay, step.inside(), np.inf),
        }
        for name, played in both.items():
            assert played.seconds == max(one.max(initial=0.0) for one in (played.end, played.edge_end, played.reduce_end))
            recorded(
                [played.seconds, *((float(one.sum()), float((one * np.arange(len(one))).sum())) for one in played[1:])],
                f"{k} {name}",
            )
        if k == 0:
            limited = [
                flow_simulation.play(
                    tasks, split, fabric.network(), 1000, False, step.inside(), share * both["segments"].seconds
                ).seconds
                for share in (0.2, 0.9, 1.0)
            ]
            limited += [
                fair_steps.play(tasks, split, fabric.network(), stay, step.inside(), share * both["fair"].seconds).seconds
                for share in (0.2, 0.9, 1.0)
            ]
            recorded(limited, "limited")


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_with_circuits_that_change(seed: int, recorded: Recorded) -> None:
    step, plan, n = question(seed)
    made = [fabric for fabric in fabrics(step, plan, n) if fabric.pair_ways.max() == 1 and fabric.n_nodes == n]
    count = {(i, (i + way) % n): 2.0 for i in range(n) for way in (1, n - 1)}
    made.append(Fabric("other", n, count, 1e9, 1e-7, cycles=[tuple(range(n))[::-1]]))
    whole = step.seconds(plan, made[0], traffic="fair")
    for k, (moments, dark) in enumerate(
        (((0.0, 0.4), 0.0), ((0.0, 0.2, 0.5), 0.05), ((0.0, 0.1, 0.2, 0.3), 0.02), ((0.0, 0.7, 0.8, 0.9), 0.01))
    ):
        turns = [made[i % 2] for i in range(len(moments))]
        _, played = windows.play(step, plan, turns, fair_steps.Windows(whole * np.array(moments), dark * whole))
        recorded([played.seconds, *(float(one.sum()) for one in played[1:])], f"{k}")


def links_of(seed: int, n: int, n_switches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return drawn links by source: a ring of the servers without switches, else every server on one or two of them."""
    dice = np.random.default_rng(seed)
    pairs = {(i, (i + 1) % n) for i in range(n)} if not n_switches else {(i, n + i % n_switches) for i in range(n)}
    if n_switches:
        pairs |= {(n + k, n + (k + 1) % n_switches) for k in range(n_switches) if n_switches > 1}
    pairs |= {(int(a), int(b)) for a, b in dice.integers(0, n, (n if seed == 6 else n // 2, 2)) if a != b and not n_switches}
    if seed == 7:  # every server on both switches
        pairs |= {(i, n + k) for i in range(n) for k in range(n_switches)}
    ends = sorted(pairs | {(b, a) for a, b in pairs})
    return np.array([a for a, _ in ends]), np.array([b for _, b in ends])


@pytest.mark.parametrize(
    ("seed", "n", "n_switches"), [(0, 5, 0), (1, 7, 0), (2, 6, 1), (3, 6, 3), (4, 3, 0), (6, 9, 0), (7, 4, 2)]
)
def test_hops_and_routes(seed: int, n: int, n_switches: int, recorded: Recorded) -> None:
    source, target = links_of(seed, n, n_switches)
    n_nodes, dice = n + n_switches, np.random.default_rng(seed)
    first = np.searchsorted(source, np.arange(n_nodes + 1)).astype(np.int64)
    back = np.argsort(target, kind="stable")
    into = np.searchsorted(target[back], np.arange(n_nodes + 1)).astype(np.int64)
    for forwards in (True, False):
        hops = short_routes.distances(into, np.ascontiguousarray(source[back]), n, forwards)
        recorded(hops, f"hops {forwards}")
        pairs = np.array([a * n + b for a in range(n) for b in range(n) if a != b and hops[b, a] >= 0])
        if not len(pairs):
            continue
        demand = dice.integers(1, 9, len(pairs)).astype(np.float64)
        seconds_per_byte = dice.integers(1, 4, len(target)) / 4
        if seed == 6:  # ties everywhere: the way with the least load in all comes first
            demand, seconds_per_byte = np.ones(len(pairs)), np.ones(len(target))
        for n_passes in (1, 3):
            load = np.zeros(len(target))
            links = np.full((len(pairs), hops.max()), -1)
            for _ in range(n_passes):
                short_routes.routes(first, target, seconds_per_byte, hops, pairs, demand, load, links, forwards)
            for row, pair in zip(links, pairs.tolist(), strict=True):
                way = row[row >= 0]
                assert source[way[0]] == pair // n and target[way[-1]] == pair % n and len(way) == hops[pair % n, pair // n]
            recorded([crc(links), load], f"{forwards} {n_passes}")
        for n_ways, n_longer in ((2, 0), (3, 2)):
            ways, n_found = short_routes.widen(first, source, target, hops, pairs, links, n_ways, n_longer, forwards)
            recorded([crc(ways), n_found], f"{forwards} {n_ways} ways")
