"""Parts of Piper's room, each alone: menus, the check's stages, equal splits; against trying all, and as recorded."""

from __future__ import annotations

import itertools
import math
import pathlib
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.planners.piper import menu, problem, solve
from meshwright.planners.piper.check import places, stage
from meshwright.planners.piper.costs.piper import PiperStage
from meshwright.planners.piper.problem import Counting, PiperChoice, PiperEdge, PiperInstance, PiperNode
from meshwright.planners.piper.search import piper_equal_split as split
from recorded import Recorded
from returned import Returned

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "oracle"))

import piper_by_definition as oracle

ROOM = "planners/piper/"


def drawn(seed: int, **counting: Any) -> PiperInstance:
    instance = oracle.random_instance(seed, n_nodes=4, n_choices=3, alike=True)
    return replace(instance, counting=Counting(**counting))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"shard_optimizer": True, "any_replicas": True},
        {"layer_buffers": True, "tensor_once": True},
        {"node_size": 2, "node_bytes_per_second": 16.0},
    ],
    ids=["plain", "shared", "buffers", "nodes"],
)
def test_the_least_time_of_a_stage_is_the_best_of_all_choices(change: dict[str, Any], recorded: Recorded) -> None:
    found = []
    with Returned(ROOM + "check/") as said:
        for room, seed, data, in_flight, inside in itertools.product(
            (1.0, 0.4), range(3), (1, 2, 3), (1, 3), (False, True) if "node_size" in change else (False,)
        ):
            instance = drawn(seed, **change)
            instance = replace(instance, memory_bytes=room * instance.memory_bytes)
            for options in (
                menu.Options(),
                menu.Options(exact=False),
                menu.Options(exact=False, all_or_none=True),
                menu.Options(recompute="never"),
            ):
                checked = stage.CheckedStage.of(stage.NodeMenus(instance, options), 0b0110, 1, 1e6, frozenset((0,)))
                if checked is None:
                    found.append(None)
                    continue
                found.append(checked.least(data, in_flight, 1e6, inside))
                if not options.exact:
                    continue
                best = math.inf
                rate = min(stage.reduce_seconds(instance, data, here) for here in ((False, True) if inside else (False,)))
                for some in itertools.product(*(one.menu for one in checked.menus)):
                    held = sum(
                        stage.held_bytes(instance, choice, data, in_flight) - buffer for _, _, choice, buffer in some
                    ) + max(row[3] for row in some)
                    seconds = sum(
                        (own + moved) * stage.share_ratio(instance, data) + choice.weight_bytes * rate
                        for own, moved, choice, _ in some
                    )
                    if held <= instance.memory_bytes:
                        best = min(best, seconds + checked.once_seconds * stage.share_ratio(instance, data))
                assert found[-1] == pytest.approx(best)
    recorded([found[::7], said.lines()])


def test_choices_of_rows_are_the_best_of_all_and_the_greedy_ones_as_recorded(recorded: Recorded) -> None:
    dice, found = np.random.default_rng(4), []
    for n, n_choices in ((1, 1), (2, 2), (3, 2), (3, 3), (4, 3)):
        rows = [[(float(a), float(b)) for a, b in dice.integers(1, 9, (n_choices, 2))] for _ in range(n)]
        for space, most in itertools.product((n * 1.5, n * 3.0, n * 5.0, n * 9.0), (n * 3.0, 1e9)):
            every = [
                sum(x for x, _ in some)
                for some in itertools.product(*rows)
                if sum(y for _, y in some) <= space and sum(x for x, _ in some) <= most
            ]
            assert stage._exact(rows, space, most, 100.0) == min(every, default=math.inf)
            found.append([stage._greedy(rows, space, all_or_none) for all_or_none in (False, True)])
            picked = [min(range(len(row)), key=lambda i, row=row: row[i][0]) for row in rows]
            found.append(stage._swapped(rows, picked, space / 3))
    assert stage._swapped([[(1.0, 5.0), (2.0, 1.0)]], [0], 0.0) == [0]
    recorded(found)


def test_places_within_nodes_are_as_recorded(recorded: Recorded) -> None:
    found = {}
    for node_size in (0, 2, 4):
        instance = drawn(1, node_size=node_size, node_bytes_per_second=16.0)
        instance = replace(instance, n_devices=8)
        neighbours = places.Neighbours(instance, menu.Options(), 3.0, 0b1111)
        for upper in (0b0111, 0b1111):
            kind = places.StageKind(neighbours, upper, 0b0001, 1)
            found[f"{node_size} {upper}"] = [
                [tuple(place) for place in kind.places(used, filled, size)]
                for used, size in itertools.product(range(5), range(1, 6))
                for filled in ((0, used % 4) if node_size else (0,))
            ]
        found[f"{node_size} within"] = [
            sorted(neighbours.within(some, n, before))
            for some in (0b0011, 0b1110, 0b1111)
            for n in (0, 1, 3)
            for before in (False, True)
        ]
        found[f"{node_size} work"] = [
            places.work_seconds(instance, options, range(4))
            for options in (menu.Options(), menu.Options(tensor_parallel=False), menu.Options(recompute="always"))
        ]
    recorded(found)


def many_buffers(n: int, **limits: Any) -> PiperInstance:
    """A row of layers whose recomputation keeps buffers of as many sizes as there are layers."""
    nodes = []
    for v in range(n):
        before, after = (((v - 1, 0.0),) if v else ()), (((v + 1, 0.0),) if v < n - 1 else ())
        ways = (
            PiperChoice("vanilla", 2.0, 1.0, 6.0 + v, 2.0, before, after),
            PiperChoice("activation recomp", 3.0, 1.0, 1.0, 3.0 + 0.7 * v, before, after),
        )
        nodes.append(PiperNode(v, "", ((1, ways),)))
    given = {
        "n_devices": 2,
        "n_microbatches": 2,
        "bandwidth": 100.0,
        "memory_bytes": 30.0,
        "counting": Counting(layer_buffers=True),
        **limits,
    }
    return PiperInstance(tuple(nodes), tuple(PiperEdge(v, v + 1, 1.0) for v in range(n - 1)), **given)


def test_buffers_of_many_sizes_are_told_apart_as_recorded(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(menu, "MOST_LEVELS", 3)
    instance = many_buffers(6)
    with Returned(ROOM + "menu", ROOM + "solve") as said:
        for distinct in ({}, {1: frozenset(menu.rooms(instance, 1)[2:3])}):
            for careful in (False, True):
                made = menu.menu_of(instance, menu.Options(), distinct_levels=distinct, careful=careful)
                found.append([made.degrees, len(made.names), made.names[-1]])
        found.append([menu._levels(many_buffers(n), 1, {}) for n in (1, 2, 3, 4, 5, 9)])
        for memory, refined in ((26.0, 12), (34.0, 12), (22.0, 1), (30.0, 1), (9.0, 12)):
            monkeypatch.setattr(solve, "N_REFINED", refined)
            solution = solve.solve(replace(instance, memory_bytes=memory), menu.Options(), nearly_ratio=0.1)
            found.append(
                [
                    solution.lower_seconds,
                    solution.method,
                    solution.notes,
                    [[it.nodes, it.data, it.choices] for it in solution.stages],
                    len(solution.nearly),
                ]
            )
        finer = [
            solve._finer(
                replace(instance, memory_bytes=memory), (PiperStage(tuple(range(6)), 1, 1, ("activation recomp",) * 6),), {}
            )
            for memory in (10.0, 20.0, 500.0)
        ]
        found.append([sorted((key, sorted(sizes)) for key, sizes in one.items()) for one in finer])
    recorded([found, said.lines()])


def test_notes_on_large_graphs_are_as_recorded(recorded: Recorded) -> None:
    def solved(**fields: Any) -> Any:
        return SimpleNamespace(
            **{
                "ties_near": False,
                "along_orders": False,
                "found": SimpleNamespace(seconds=1.1),
                "lower_seconds": 1.0,
                "n_downsets": 12,
                **fields,
            }
        )

    cases = [
        solved(),
        solved(ties_near=True),
        solved(along_orders=True),
        solved(along_orders=True, n_downsets=-7),
        solved(found=None, along_orders=True),
        solved(lower_seconds=0.0),
    ]
    recorded([[solve._ties(case), solve._why_relaxed(case)] for case in cases])


def test_equal_splits_are_listed_as_recorded(recorded: Recorded) -> None:
    found = []
    names = ["in", "mask", *[problem.TRANSFORMER] * 5, "norm", "head"]
    edges = [(0, 2), (1, 2), (1, 3), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    nodes = []
    for v, name in enumerate(names):
        into, out = tuple((a, 0.5) for a, b in edges if b == v), tuple((b, 0.25) for a, b in edges if a == v)
        ways = tuple(
            (
                t,
                tuple(
                    PiperChoice(c, (2.0 + v % 3) / t, 1.0 + v, 3.0, 2.0, into, out)
                    for c in (menu.VANILLA, menu.RECOMPUTES)[: 1 + (t == 1)]
                ),
            )
            for t in (1, 2)
        )
        nodes.append(PiperNode(10 + v, name, ways))
    instance = PiperInstance(tuple(nodes), tuple(PiperEdge(a, b, 1.0 + a) for a, b in edges), 6, 4, 5.0, 90.0)
    with Returned(ROOM + "search/piper_equal_split") as said:
        for devices, fields in (
            (6, {}),
            (3, {}),
            (9, {}),
            (6, {"separate": False}),
            (6, {"layers": True}),
            (12, {"layers": True}),
            (6, {"stages": 3}),
            (6, {"stages": 2, "tensor": 2}),
            (6, {"recompute": "always"}),
            (4, {"tensor_parallel": False, "recompute": "never", "data": 2}),
        ):
            some, params = replace(instance, n_devices=devices), split.Params(**fields)
            made = list(split._splits(some, params))
            found.append(
                [
                    len(made),
                    [[len(group) for group in one.groups] for one in made[:2]],
                    [list(split._replicas(some, params, one)) for one in made[:3]],
                ]
            )
    found.append(
        [
            split._order(instance),
            split._ends(instance),
            [split._equal(list(range(n)), k) for n, k in ((5, 1), (5, 2), (5, 3), (5, 5), (6, 4))],
        ]
    )
    recorded([found, said.lines()])


@pytest.mark.parametrize("change", [{}, {"shard_optimizer": True}, {"layer_buffers": True}])
def test_menus_kept_for_all_stages_say_what_fresh_ones_say(change: dict[str, Any]) -> None:
    told = set()
    for room, seed in itertools.product((1.0, 0.4, 0.2), range(3)):
        instance = drawn(seed, **change)
        instance, options = replace(instance, memory_bytes=room * instance.memory_bytes), menu.Options()
        kept = stage.NodeMenus(instance, options)
        for some, data, in_flight in itertools.product((0b0110, 0b0111, 0b1110), (1, 3, 2), (6, 1, 3)):
            least = []
            for known in (kept, stage.NodeMenus(instance, options)):
                checked = stage.CheckedStage.of(known, some, 1, 1e6)
                least.append(checked and checked.least(data, in_flight, 1e6, inside=False))
            assert least[0] == least[1]
            told.add(least[0])
    assert len(told) > 10 and math.inf in told
