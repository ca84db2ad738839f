"""Every part of the partitioner on small graphs as when this was written: orders, pools, programs, bounds, whole partitions."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace

import numpy as np
import pytest

from meshwright.solvers.partition import (
    annealing,
    coarsen,
    convex,
    cut_programs,
    hypergraph,
    ideal_pool,
    operator_stages,
    orders,
    reach_bound,
    recutting,
    unlike,
)
from meshwright.solvers.partition.hypergraph import Operators, Units, contract, loads_of
from recorded import Recorded


def operators_of(seed: int, n: int = 9, *, free: bool = True, together: bool = False) -> Operators:
    """Return a drawn graph with times in quarters; some operators cost nothing, some stay together, one net is inside one."""
    dice = np.random.default_rng(seed)
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if dice.random() < 0.3] or [(0, 1)]
    readers = [tuple(v for a, v in edges if a == u) for u in range(n)]
    nets = [(float(dice.integers(0, 9)) / 4, (u, *readers[u])) for u in range(n) if readers[u]]
    compute, host, memory = (dice.integers(1, 12, n) / 4 for _ in range(3))
    if free:
        compute[::4], host[::4], memory[::8] = 0.0, 0.0, 0.0
    colours = tuple(0 if together and i in (1, 2) else i + 1 for i in range(n))
    return Operators(compute, host, memory, np.ones(n, dtype=bool), tuple(edges), colours, (*nets, (0.25, (n - 1, 0))))


def units_of(seed: int, n: int = 9) -> Units:
    return contract(operators_of(seed, n, free=False), weigh_memory=True)


def halves_of(units: Units, n_stages: int) -> tuple[tuple[int, ...], ...]:
    """Return units in order, so many in each stage."""
    ends = [k * len(units) // n_stages for k in range(n_stages + 1)]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(ends))


def crc(value: object) -> int:
    return zlib.crc32(repr(value).encode())


@pytest.mark.parametrize("seed", range(2))
def test_what_is_joined_and_numbered(seed: int, recorded: Recorded) -> None:
    for together in (False, True):
        made = operators_of(seed, together=together)
        for weigh in (False, True):
            units = contract(made, weigh_memory=weigh)
            a = units.arrays
            recorded(
                [
                    units.members,
                    a.compute,
                    a.host,
                    a.memory,
                    a.succ_first,
                    a.succ,
                    a.pred,
                    a.net_pins,
                    a.net_cost,
                    a.unit_nets,
                    units.before,
                    units.after,
                ],
                f"{together} {weigh}",
            )
    barred = replace(made, supported=np.arange(9) != 4)
    recorded([contract(barred).members, contract(barred).arrays.supported], "barred")
    back = replace(made, edges=(*made.edges, (8, 3)))
    recorded(contract(back).members, "with a cycle")


@pytest.mark.parametrize("seed", range(2))
def test_orders_and_clusters(seed: int, recorded: Recorded) -> None:
    units = units_of(seed, 10)
    recorded(list(orders.orders(units, 13, 5)), "orders")
    found = [
        coarsen.cluster(units, k, ratio, limit) for k in (1, 3, 5) for ratio in (0.0, 1.0, 20.0) for limit in (np.inf, 4.0)
    ]
    recorded(found, "clusters")
    recorded(coarsen._reconverging(units), "distances")
    for n_stages in (2, 3, 4):
        groups = halves_of(units, n_stages)
        refined = [
            coarsen.refine(units, groups, moves, limit, clusters=clusters)
            for moves in (1, 3, 50)
            for limit in (np.inf, 8.0)
            for clusters in (False, True)
        ]
        stage = np.array([s for s, group in enumerate(groups) for _ in group])
        distance, compute = coarsen._reconverging(units), np.bincount(stage, weights=units.arrays.compute)
        candidates = coarsen._candidates(units, stage, n_stages)
        gains = [coarsen._gain(units, stage, compute, distance, v, target) for v, target in candidates]
        recorded([refined, candidates, gains], f"refined {n_stages}")


@pytest.mark.parametrize("seed", range(3))
def test_pools_of_ideals(seed: int, recorded: Recorded) -> None:
    units = units_of(seed)
    scales = np.array([[1.0, 0.5, 2.0], [1.0, 3.0, 0.25]])
    scales.setflags(write=False)
    even = np.ones((2, 3))
    even.setflags(write=False)
    for name, task in (
        ("even", ideal_pool.Task(units, 3, 0, np.inf, even, 2000, 10**6)),
        ("scaled", ideal_pool.Task(units, 3, 0, np.inf, scales, 2000, 10**6)),
        ("hosts", ideal_pool.Task(units, 2, 1, 5.0, even[:, :2], 2000, 10**6)),
        ("few", ideal_pool.Task(units, 3, 0, np.inf, even, 18, 10**6)),
        ("only hosts", ideal_pool.Task(units, 0, 2, np.inf, even[:, :0], 2000, 10**6)),
    ):
        recorded([task.ceiling, task.floor()], f"{name} limits")
        for share in (0.3, 0.45, 0.7):
            limit = share * (units.total + float(units.arrays.net_cost.sum()))
            for chains, partial in (((), False), ((halves_of(units, 3),), False), ((), True)):
                pool = ideal_pool.build_pool(task, limit, chains=chains, partial=partial)
                told = (
                    None
                    if pool is None
                    else [
                        pool.arrays.compute,
                        pool.arrays.cut_cost,
                        pool.arrays.bits[:, 0].tolist()[:20],
                        pool.arrays.cut_net.sum(),
                        pool.arrays.n_unsupported.sum(),
                        pool.windows.sum(axis=0),
                        pool.complete,
                    ]
                )
                if pool is not None:
                    assert [sorted(task.members(pool.arrays, i)) for i in (0, len(pool.arrays.compute) - 1)] == [
                        [],
                        list(range(len(units))),
                    ]
                recorded(
                    told if share == 0.45 and not chains and seed == 0 else crc(str([str(one) for one in told or []])),
                    f"{name} {share} {len(chains)} {partial}",
                )
    recorded([ideal_pool._merge([(3.0, 4.0), (0.0, 1.0), (1.0, 2.0), (3.5, 3.75), (2.5, 2.75)])], "merged")
    assert ideal_pool._pieces([(0.0, 9.0)], 2.0, 512) == [(0.0, 9.0)]
    recorded(
        [ideal_pool._pieces([(0.0, 9.0), (10.0, 10.5)], 2.0, 513), ideal_pool._prefixes((((0, 1), (2,), (3,)),), 4)], "pieces"
    )
    words = [
        ideal_pool._word_of(members, 200)
        for members in (set(), {0, 1}, set(range(64)), set(range(70)) | {150}, set(range(200)))
    ]
    recorded([[bits.astype(np.float64), begin] for bits, begin in words], "words")
    table = np.concatenate([np.pad(bits, ((0, 0), (0, 4 - bits.shape[1]))) for bits, begin in words if begin == 0])
    recorded([ideal_pool._listed(word, table, 0) for word in words] + [ideal_pool._listed(words[3], table, 1)], "listed")
    trimmed, begin = ideal_pool._trim(
        np.array([[2**64 - 1, 5, 0], [2**64 - 1, 2**64 - 1, 7], [3, 0, 0], [2**64 - 1] * 3, [0, 0, 0]], dtype=np.uint64), 2
    )
    recorded([trimmed.astype(np.float64), begin], "trimmed")


@pytest.mark.parametrize("seed", range(3))
def test_the_walk_around_a_dynamic_program(seed: int, recorded: Recorded) -> None:
    units = units_of(seed)
    for name, n_stages, n_hosts, memory in (
        ("three", 3, 0, np.inf),
        ("tight", 3, 0, 9.0),
        ("hosts", 2, 1, np.inf),
        ("all hosts", 0, 2, np.inf),
    ):
        scales = np.ones((2, n_stages))
        scales.setflags(write=False)
        task = ideal_pool.Task(units, n_stages, n_hosts, memory, scales, 3000, 10**6)
        start = convex._start(task, 1)
        recorded([start, convex._value(task, start)], f"{name} start")
        groups = halves_of(units, n_stages) if n_stages else ()
        even = convex._even(task, 0.7 * (units.total + float(units.arrays.net_cost.sum())), groups)
        recorded(even, f"{name} even")
        recorded(convex._improve(task, start, 1, False), f"{name} improved")
    few = replace(task, n_ideals=40)
    recorded(
        [
            pool is not None and len(pool.arrays.compute)
            for pool, _ in [
                convex._pool(few, 9.0, first=first, sparing=sparing) for first in (True, False) for sparing in (True, False)
            ]
        ],
        "pool",
    )


@pytest.mark.parametrize("seed", range(2))
def test_whole_partitions(seed: int, recorded: Recorded) -> None:
    units = units_of(seed, 11)
    for k, more in enumerate(
        (
            {},
            {"n_hosts": 1},
            {"memory_limit_bytes": 8.0},
            {"scales": np.array([[1.0, 0.5, 2.0], [1.0, 3.0, 0.25]])},
            {"n_ideals": 24},
            {"n_ideals": 24, "programs": False},
            {"n_pairs": 30},
            {"memory_limit_bytes": 1.0},
            {"n_ideals": 60, "n_pairs": 100, "memory_limit_bytes": 9.0},
        )
    ):
        found = convex.partition(units, 3, seed=seed, **more)  # type: ignore[arg-type]
        if found.feasible and "scales" not in more:
            assert found.loads == pytest.approx(loads_of(units, found.groups, found.hosts))
        if {
            "n_ideals",
            "n_pairs",
        } & more.keys() and "programs" not in more:  # integer programs: of equal cuts the solver chooses one
            recorded([f"{found.value:.6g}", f"{found.bound_value:.2g}", found.feasible, len(found.groups)], f"{k}")
            continue
        bound = found.bound_value
        recorded([found.groups, found.hosts, found.loads, bound, found.exact, found.n_ideals, found.feasible], f"{k}")
    for n_stages in (1, 2, 6):
        found = convex.partition(units, n_stages)
        recorded([found.groups, found.loads, found.exact], f"{n_stages} stages")


@pytest.mark.parametrize("seed", range(3))
def test_operators_in_stages(seed: int, recorded: Recorded) -> None:
    made = operators_of(seed, together=True)
    for n_stages, n_hosts, limit in ((2, 0, np.inf), (3, 0, 6.0), (2, 1, 5.0), (3, 0, 0.5)):
        found = operator_stages.cut(made, n_stages, n_hosts=n_hosts, memory_limit_bytes=limit, seed=seed)
        part = found.partition
        recorded(
            [found.groups, part.loads, part.bound_value, part.exact, part.feasible, len(found.units)],
            f"{n_stages} {n_hosts} {limit}",
        )
    recorded([operator_stages.least_memory(made, n) for n in (1, 2, 4)], "least memory")


@pytest.mark.parametrize("seed", range(3))
def test_cuts_by_programs(seed: int, recorded: Recorded) -> None:
    """Of programs only what has one best answer is kept: values to some digits, and units that are forced to a side."""
    units = units_of(seed)
    a, members = units.arrays, np.arange(1, 8)
    scales = np.array([[1.0, 1.5], [1.0, 0.5]])
    for limit in (4.0, 6.0, 9.0, 30.0):
        recorded(cut_programs._forced(units, members, scales[0], limit), f"forced {limit:g}")
        for memory in (np.inf, 7.0):
            chosen, bound = cut_programs.halve(units, members, scales, limit, memory, 200)
            value = None
            if chosen is not None:
                groups = (tuple(members[chosen].tolist()), tuple(members[~chosen].tolist()))
                value = max(loads_of(units, groups, (False, False), scales))
                assert all(float(a.memory[list(group)].sum()) <= memory for group in groups)
                assert bound <= value * (1 + 1e-6)
            recorded([None if value is None else round(value, 5), f"{bound:.4g}"], f"halve {limit:g} {memory:g}")
    loads = cut_programs._Loads(scales)
    loads.compute(np.array([1.0, 2.0]), 3.0, 4.0)
    for some_in in (False, True):
        for some_out in (False, True):
            for beyond in (False, True):
                for ends in ((2, 3), (0, 0), (-1, -1)):
                    loads.net(1.5, (some_in, ends[0]), (some_out, ends[1]), beyond)
    recorded([loads.terms, loads.fixed], "loads")
    rows, cost = cut_programs._Rows(), [0.0, 0.0, 1.0]
    ends = [cut_programs._ends(rows, cost, [1]), cut_programs._ends(rows, cost, [0, 1])]
    column = np.full(len(units), -1)
    column[members] = np.arange(len(members))
    cut_programs._precede(units, members, column, rows)
    recorded([ends, cost, rows.row, rows.column, rows.factor, rows.low, [str(high) for high in rows.high]], "rows")
    begin = halves_of(units, 3)
    for memory in (np.inf, 9.0):
        for n_programs in (0, 1, 30):
            found = recutting.recut(units, begin, memory_limit_bytes=memory, n_programs=n_programs)
            recorded(round(max(loads_of(units, found, (False,) * 3)), 5), f"recut {memory:g} {n_programs}")


@pytest.mark.parametrize("seed", range(2))
def test_bounds_by_reach(seed: int, recorded: Recorded) -> None:
    """Optimal values of linear programs to six digits; which units are certain; the frame of the graph."""
    units = units_of(seed, 10)
    frame = reach_bound._Frame.of(units)
    recorded([frame.source, frame.target, frame.net, frame.anchor, frame.pin], "frame")
    scale = np.array([1.25, 0.75])
    total = units.total
    found = []
    for begin, at_least, at_most in ((0.0, 0.2, 0.4), (0.2, 0.4, 0.6), (0.3, 0.7, 1.0)):
        for value in (0.3, 0.6):
            window = (begin * total, at_least * total, at_most * total)
            found.append(f"{reach_bound._window(frame, scale, window, value * total):.6g}")
    recorded(found, "windows")
    found = [
        f"{reach_bound._farthest(frame, scale, begin * total, value * total):.6g}"
        for begin in (0.0, 0.3)
        for value in (0.2, 0.4)
    ]
    found += [f"{reach_bound.reach_bound(units, np.ones((2, n)), low, total):.4g}" for n in (2, 3) for low in (0.45 * total,)]
    recorded([found, [reach_bound._covers(frame, np.ones((2, 3)), share * total) for share in (0.3, 0.4, 0.6)]], "far")
    first = reach_bound._Side.between(units.before < 0.1 * total, units.before > 0.5 * total)
    second = reach_bound._Side.between(units.before < 0.3 * total, units.before > 0.8 * total)
    assert first is not None and second is not None and reach_bound._Side.between(units.before > 0, units.before > 0) is None
    program = reach_bound._Program.of(frame, scale, first, second)
    assert program is not None
    recorded([first, second, program], "program")
    solved = [program.least_load(limit * total, asked * total) for limit in (0.05, 0.2) for asked in (0.0, 0.1, 0.2)]
    recorded([None if one is None else f"{one[0]:.6g}" for one in solved], "solved")


@pytest.mark.parametrize("seed", range(3))
def test_partitions_onto_unlike_devices(seed: int, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    made = operators_of(seed, together=seed == 1)
    kinds = [
        unlike.DeviceKind(made.compute, 6.0, 2),
        unlike.DeviceKind(2.0 * made.compute, 12.0, 1),
        unlike.DeviceKind(0.5 * made.compute + 0.25, 4.0, 1),
    ]
    units = contract(replace(made, compute=np.sum([kind.compute for kind in kinds], axis=0)), weigh_memory=True)
    recorded(unlike._of_orders(units, seed).sum(axis=0), "ideals of orders")
    for limits in ("all", "few ideals", "few states"):
        if limits == "few ideals":
            monkeypatch.setattr(unlike, "_IDEALS", 6)
            monkeypatch.setattr(unlike, "_OF_ORDERS", 20)
        if limits == "few states":
            monkeypatch.setattr(unlike, "_STATES", 7)
        for n_stages in (1, 2, 4):
            found = unlike.cut_unlike(made, kinds, n_stages, seed=seed)
            recorded(
                [found.groups, found.kinds, found.loads, found.bound_value, found.exact, found.n_ideals, found.n_units],
                f"{limits} {n_stages}",
            )
            recorded(unlike.least_excess(made, kinds, n_stages), f"{limits} {n_stages} excess")
        task = unlike._Task.of(units, kinds, 3)
        recorded([task.sizes, task.capped, task.width, task._digits()], f"{limits} task")
        tight = [replace(kind, free_bytes=0.5) for kind in kinds]
        none = unlike.cut_unlike(made, tight, 4)
        recorded(
            [none.groups, none.exact, none.bound_value, none.n_ideals, unlike.least_excess(made, tight, 4)], f"{limits} tight"
        )
    barred = unlike.cut_unlike(replace(made, supported=np.arange(9) > 0), kinds, 2)
    assert (barred.groups, barred.exact, barred.bound_value, barred.value) == ((), True, np.inf, np.inf)


@pytest.mark.parametrize("seed", range(2))
def test_annealed_partitions(seed: int, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annealing, "_MOVES_PER_UNIT", 40)
    units = units_of(seed, 12)
    for name, scales in (("even", np.ones((2, 4))), ("scaled", np.array([[1.0, 0.5, 2.0, 1.0], [1.0, 3.0, 0.25, 1.0]]))):
        scales.setflags(write=False)
        begin = halves_of(units, 4)
        found = [annealing.annealed(units, begin, scales=scales, memory_limit_bytes=memory, seed=7) for memory in (np.inf, 7.0)]
        recorded(found, name)
        monkeypatch.setattr(annealing, "_MOST_MOVES", 100)
    assert hypergraph._rows(3, [(2, 5), (0, 1), (2, 4)])[0].tolist() == [0, 1, 1, 3]
