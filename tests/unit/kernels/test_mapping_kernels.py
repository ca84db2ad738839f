"""Kernels of the stage mapper on small problems, as when this was written; values that have a definition also by it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright._kernels.mapping import bounds, cost, frontier, search
from meshwright.solvers.mapping import proof
from recorded import Recorded
from small_stages import stage_graph


def table_of(seed: int, n: int) -> np.ndarray:
    """Return seconds per byte between devices, round numbers, read-only."""
    dice = np.random.default_rng(seed)
    table = dice.integers(1, 12, (n, n)) / 4
    table = np.maximum(table, table.T)
    np.fill_diagonal(table, 0.0)
    table.setflags(write=False)
    return table


SHAPES = [(2, 2, 5), (3, 1, 4), (1, 5, 6), (3, 2, 7), (4, 1, 4), (2, 4, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_costs_of_slots_by_definition(shape: tuple[int, int, int]) -> None:
    n_stages, n_replicas, n = shape
    graph, table = stage_graph(1, n_stages, n_replicas), table_of(2, n)
    dice = np.random.default_rng(3)
    place = dice.permutation(n)[: n_stages * n_replicas]
    rings = np.stack([dice.permutation(n_replicas) for _ in range(n_stages)])
    found = cost.all_costs(graph.arrays(table), place, rings)
    devices = place.reshape(n_stages, n_replicas)
    for s, r in itertools.product(range(n_stages), range(n_replicas)):
        order = devices[s][rings[s]]
        slowest = max(table[order, np.roll(order, 1)]) if n_replicas > 1 else 0.0
        seconds = graph.compute_seconds[s] + 2 * (n_replicas - 1) / n_replicas * graph.reduce_bytes[s] * slowest
        for a, b, volume in graph.transfers:
            seconds += volume * table[devices[a, r], devices[b, r]] * (s in (a, b))
        assert found[s * n_replicas + r] == pytest.approx(seconds)


@pytest.mark.parametrize("shape", SHAPES)
def test_annealing_of_mappings(shape: tuple[int, int, int], recorded: Recorded) -> None:
    n_stages, n_replicas, n = shape
    table = table_of(4, n)
    near = np.ascontiguousarray(np.argsort(table + np.diag(np.full(n, np.inf)), axis=1, kind="stable")[:, : min(12, n - 1)])
    for seed, heat, squarings, n_moves in (
        (0, 1.0, 3, 250),
        (1, 0.3, 6, 250),
        (2, 1.0, 3, 1),
        (3, 1.0, 1, 0),
        (4, 3.0, 2, 250),
    ):
        packed = stage_graph(seed, n_stages, n_replicas).arrays(table)
        rings = np.tile(np.arange(n_replicas), (n_stages, 1))
        random = np.random.default_rng(seed)
        place, order, seconds = cost.anneal(
            packed, np.arange(n_stages * n_replicas), rings, near, n_moves, heat, squarings, random
        )
        assert cost.all_costs(packed, place, order).max() == pytest.approx(seconds)
        recorded([place, order, float(seconds), int(random.integers(10**6))], f"{seed}")


def test_rates_of_pairs_over_routes(recorded: Recorded) -> None:
    """Four devices in a ring with a chord, and behind two switches: the fewest links, of these the widest."""
    pairs = [
        (0, 1, 8.0),
        (1, 2, 4.0),
        (2, 3, 2.0),
        (3, 0, 6.0),
        (0, 4, 5.0),
        (1, 4, 3.0),
        (4, 5, 7.0),
        (5, 2, 1.0),
        (5, 3, 9.0),
    ]
    links = sorted([(a, b, rate) for a, b, rate in pairs] + [(b, a, 1.5 * rate) for a, b, rate in pairs])
    source, target = np.array([a for a, _, _ in links]), np.array([b for _, b, _ in links])
    rate = np.array([one for _, _, one in links])
    first = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=7))]).astype(np.int64)
    for forwards in (True, False):
        recorded([cost.pair_rates(first, target, rate, n, forwards) for n in (4, 6, 7)], f"{forwards}")


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_rings(n: int, recorded: Recorded) -> None:
    table = table_of(n, n + 1)
    devices = np.arange(1, n + 1)
    order = search.best_ring(table, devices)
    slowest = [
        max((table[devices[a], devices[b]] for a, b in zip(some, np.roll(some, 1), strict=True)), default=0.0)
        for some in (order, *map(list, itertools.permutations(range(n))))
    ]
    assert slowest[0] == min(slowest)
    recorded([order, search.shorter_ring(table, np.arange(n)), search.shorter_ring(table, np.arange(n)[::-1].copy())])
    sets = frontier.ring_table(table, n)
    assert sets[2 ** (n + 1) - 2] == pytest.approx(slowest[0])
    for size in (1, 2, 3):
        recorded(frontier.ring_table(table[:5, :5].copy(), size), f"sets of {size}")


def test_longer_rings(recorded: Recorded) -> None:
    for n in (9, 12):
        table = table_of(n, n)
        recorded([search.shorter_ring(table, np.random.default_rng(seed).permutation(n)) for seed in range(3)], f"{n}")
    line = np.abs(np.subtract.outer(np.arange(8.0), np.arange(8.0)))
    line.setflags(write=False)
    recorded(search.shorter_ring(line, np.array([0, 4, 1, 5, 2, 6, 3, 7])), "line")
    flat = np.zeros((5, 5))
    flat.setflags(write=False)
    assert search.shorter_ring(flat, np.array([2, 0, 1, 4, 3])).tolist() == [2, 0, 1, 4, 3]


@pytest.mark.parametrize("shape", SHAPES)
def test_depth_first_search(shape: tuple[int, int, int], recorded: Recorded) -> None:
    n_stages, n_replicas, n = shape
    packed = stage_graph(5, n_stages, n_replicas).arrays(table_of(6, n))
    order = np.arange(n_stages * n_replicas).reshape(n_stages, n_replicas).T.ravel().copy()
    first = float(cost.all_costs(packed, np.arange(len(order)), np.tile(np.arange(n_replicas), (n_stages, 1))).max())
    for most in (3, 400):
        for share in (0.3, 0.6, 0.8, 1.0, 1.5):
            place, value, n_nodes = search.branch(packed, order, n_replicas, most, share * first)
            assert not np.isfinite(value) or value < share * first
            recorded([place, float(value), int(n_nodes)], f"{most} {share}")


@pytest.mark.parametrize("seed", range(4))
def test_chains_in_pieces_against_every_way_to_cut(seed: int, recorded: Recorded) -> None:
    """Every set of cuts and of whole rings, by definition."""
    dice = np.random.default_rng(seed)
    n = 4
    base, whole = dice.integers(1, 9, n) / 2, dice.integers(0, 5, n) / 2
    extra, split = dice.integers(0, 9, n - 1) / 2, whole + dice.integers(0, 9, n) / 2
    found = []
    for longest, short, n_short, most_whole in itertools.product((1, 2, 4), (1, 2), (0, 1, 2, 4), (0, 1, 3, 4, 9)):
        least = np.inf
        for cuts in itertools.product((False, True), repeat=n - 1):
            ends = [0, *(s + 1 for s in range(n - 1) if cuts[s]), n]
            pieces = list(itertools.pairwise(ends))
            if max(b - a for a, b in pieces) > longest:
                continue
            for kept in itertools.product((False, True), repeat=n):
                if sum(kept) > most_whole:
                    continue
                early = [s for s in range(n) if kept[s]][:n_short]
                if any(b - a > short and any(a <= s < b for s in early) for a, b in pieces):
                    continue
                paid = np.array(
                    [
                        (extra[s - 1] if s and cuts[s - 1] else 0.0) + (extra[s] if s < n - 1 and cuts[s] else 0.0)
                        for s in range(n)
                    ]
                )
                least = min(least, float((base + paid + np.where(kept, whole, split)).max()))
        value = float(bounds.chain_in_pieces(base, extra, whole, split, longest, short, n_short, most_whole))
        assert value == pytest.approx(least)
        found.append(value)
    recorded(found)


@pytest.mark.parametrize("shape", [(2, 2, 5), (3, 1, 4), (1, 3, 5), (3, 2, 6), (4, 1, 5), (5, 1, 7)])
def test_layers_of_partial_mappings(shape: tuple[int, int, int], recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the proof keeps after every stage, at several limits."""
    n_stages, n_replicas, n = shape
    packed = stage_graph(7, n_stages, n_replicas).arrays(table_of(8, n))
    seen: list[object] = []
    real = frontier.expand

    def note(*args: object) -> object:
        layer, n_nodes = real(*args)
        codes = sorted(
            (int(used), devices.tolist(), np.round(costs, 9).tolist())
            for used, devices, costs in zip(layer.used, layer.devices, layer.cost, strict=True)
        )
        seen.append([len(layer.used), int(n_nodes), codes[:3], layer.placed[:2], layer.order[:2], layer.parent[:3]])
        return layer, n_nodes

    monkeypatch.setattr(proof.kernel, "expand", note)
    asked = proof._asked(packed, n_replicas)
    first = np.arange(n_stages * n_replicas).reshape(n_stages, n_replicas)
    top = proof._cost(packed, first, asked.rings)
    for share in (0.5, 0.7, 0.85, 1.0):
        found, finished = proof._search(packed, asked, n_replicas, share * top, 10**6)
        recorded([found, finished], f"{share}")
        if found is not None:
            assert proof._cost(packed, found, asked.rings) <= share * top * (1 + 1e-12)
    recorded(proof._search(packed, asked, n_replicas, top, 5), "given up")
    recorded(seen, "layers")
