"""The stage mapper's parts on small problems as when this was written: starts, walks, bounds, proofs, bisections."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from meshwright import clusters
from meshwright.solvers.mapping import backtracking, bounds, proof, search
from meshwright.solvers.mapping.problem import StageGraph
from recorded import Recorded
from small_stages import stage_graph


def table_of(seed: int, n: int, *, grouped: bool = False) -> np.ndarray:
    """Return seconds per byte between devices; `grouped`: slow between threes."""
    dice = np.random.default_rng(seed)
    table = dice.integers(1, 12, (n, n)) / 4
    table = np.maximum(table, table.T)
    if grouped:
        group = np.arange(n) // 3
        table = np.where(group[:, None] == group, table / 4, 8.0 + table)
    np.fill_diagonal(table, 0.0)
    table.setflags(write=False)
    return table


SHAPES = [(2, 2, 5), (3, 1, 4), (1, 5, 6), (3, 2, 7), (4, 1, 4), (2, 4, 9), (1, 1, 1), (1, 1, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grouped", [False, True])
def test_starts_walks_and_bounds(shape: tuple[int, int, int], grouped: bool, recorded: Recorded) -> None:
    n_stages, n_replicas, n = shape
    graph, table = stage_graph(1, n_stages, n_replicas), table_of(2, n, grouped=grouped)
    packed = graph.arrays(table)
    recorded(packed if (shape, grouped) == (SHAPES[3], False) else len(packed.volume), "arrays")
    recorded(
        [[name, zlib.crc32(str(devices.tolist()).encode())] for name, devices in search._starts(graph, table, 3)], "starts"
    )
    recorded([search._walk(table, start) for start in range(min(n, 3))] + [search._path(table)], "walks")
    recorded(search.evaluate(graph, table, search.consecutive(graph, np.arange(n)[::-1])), "evaluated")
    recorded(
        [search.usual_moves(n_stages, n_replicas), search.usual_moves(n_stages, 40), search.usual_moves(900, 900)], "moves"
    )
    groups = bounds._groups(table)
    recorded([groups if n < 7 else groups[:2], bounds._groups(table, 2)], "groups")
    reach = bounds._ring_reach(groups, n_replicas)
    recorded([bounds.lower_bound(graph, table), reach, bounds._apart_bound(packed, groups, reach, n_replicas)], "bounds")


def test_rules_of_pieces(recorded: Recorded) -> None:
    found = {}
    for sizes, n_stages, n_replicas in itertools.product(((3, 3), (1, 2, 5), (8,), (4, 4, 4), (16, 16)), (1, 3, 7), (1, 2, 5)):
        found[f"{sizes} {n_stages} {n_replicas}"] = bounds._rules(np.array(sizes), n_stages, n_replicas)
    recorded(found)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grouped", [False, True])
def test_mappings_found_and_proven(shape: tuple[int, int, int], grouped: bool, recorded: Recorded) -> None:
    n_stages, n_replicas, n = shape
    graph, table = stage_graph(4, n_stages, n_replicas), table_of(5, n, grouped=grouped)
    for prove in (False, True):
        recorded(search.map_stages(graph, table, seed=1, n_moves=90, prove=prove), f"{prove}")
    recorded(search.map_stages(graph, table, seed=1, n_moves=6, n_nodes=20), "given up")
    packed = graph.arrays(table)
    asked = proof._asked(packed, n_replicas)
    told = [asked.order, asked.volume, asked.below, asked.least, asked.widest, asked.symmetries]
    recorded(told, "asked")
    begin = np.arange(n_stages * n_replicas).reshape(n_stages, n_replicas)
    seconds = proof._cost(packed, begin, asked.rings)
    for bound, n_nodes in ((0.0, 10**6), (0.6 * seconds, 10**6), (0.995 * seconds, 10**6), (0.0, 4)):
        recorded(
            proof.prove(packed, begin, seconds, bound, n_nodes=n_nodes), f"from {bound > 0} {bound > 0.9 * seconds} {n_nodes}"
        )


def test_annealing_from_several_starts(recorded: Recorded) -> None:
    """Too many devices to prove anything: what counts is how the walks are heated, seeded and begun."""
    for seed, (n_stages, n_replicas, n) in enumerate(((6, 2, 17), (4, 4, 18), (9, 1, 20), (3, 5, 17))):
        graph, table = stage_graph(seed, n_stages, n_replicas), table_of(seed, n, grouped=seed == 3)
        for moves in (60, 600, 6000):
            found = search.map_stages(graph, table, seed=seed, n_moves=moves)
            order = zlib.crc32(f"{found.devices.tolist()} {found.rings.tolist()}".encode())
            recorded([found.seconds, found.bound_seconds, found.exact, found.start, order], f"{seed} {moves}")


def test_devices_that_are_twins_and_symmetries(recorded: Recorded) -> None:
    for spec in ("parmesan-two-level:8", "parmesan-dgx1:8", "parmesan-mesh:2x3", "torus:2x4"):
        table = search.pair_seconds(clusters.cluster(spec))
        graph = stage_graph(3, 3, 2)
        packed = graph.arrays(table)
        asked = proof._asked(packed, 2)
        recorded([table[:2], proof._twins(table), proof._symmetries(table), asked.below, asked.least], spec)
        begin = np.arange(6).reshape(3, 2)
        seconds = proof._cost(packed, begin, asked.rings)
        found = [proof.prove(packed, begin, seconds, share * seconds, n_nodes=10**6) for share in (0.0, 0.5, 0.97, 0.985)]
        recorded([found, bounds.lower_bound(graph, table)], f"{spec} proven")


def test_a_stage_with_many_neighbours(recorded: Recorded) -> None:
    star = StageGraph(np.ones(5), tuple((0, s, float(s)) for s in range(1, 5)), np.zeros(5), 1)
    for seed in range(3):
        table = table_of(seed, 7)
        recorded([bounds.lower_bound(star, table), search.map_stages(star, table, n_moves=90)], f"{seed}")


@pytest.mark.parametrize("shape", [(2, 2, 5), (3, 1, 4), (3, 2, 7), (2, 4, 9)])
def test_bisections(shape: tuple[int, int, int], recorded: Recorded) -> None:
    n_stages, n_replicas, n = shape
    graph, table = stage_graph(6, n_stages, n_replicas), table_of(7, n)
    starts = [search.consecutive(graph, np.arange(n)), search.point_to_point(graph, np.arange(n)[::-1])]
    for more in (
        {},
        {"n_targets": 3},
        {"n_targets": 2, "n_same_target": 3},
        {"n_nodes": 6},
        {"n_rounds": 1},
        {"n_targets": 4, "n_nodes": 12},
    ):
        recorded(backtracking.backtrack(graph, table, starts, **more), str(sorted(more.items())))
    gone = backtracking.backtrack(graph, table, starts, timeout_seconds=0.0)
    assert not gone.finished and gone.n_searches == 0
    assert gone.seconds == min(search.evaluate(graph, table, one, fixed_rings=True).seconds for one in starts)


def test_a_clock_counts_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking.time, "monotonic", lambda: 12.0)
    clock = backtracking._Clock(10.0, 5.0)
    assert clock.placements(0) == 300_000 and clock.placements(40) == 60
    assert backtracking._Clock(10.0, 1.0).placements(40) == 0 and backtracking._Clock(0.0, np.inf).placements(1) == 1 << 62


def test_rings_of_many_replicas(recorded: Recorded) -> None:
    for n in (9, 10, 13):
        table = table_of(n, n)
        recorded([search._ring(table, np.arange(n)), search._ring(table, np.arange(n)[::-1].copy())], f"{n}")
    recorded(search._tiles(stage_graph(1, 3, 3), table_of(1, 10), search._walk(table_of(1, 10), 0)), "tiles")
