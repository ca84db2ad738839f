"""Steps that the check refutes for virtual stages, against the plain sums that its lemma names; what layers may recompute."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.core.graph import Graph, Op, Operator
from meshwright.core.problem import Batch, ModelSpec, Problem
from meshwright.planners.best import limits
from meshwright.planners.best.check import space
from meshwright.planners.best.check.prices import LayerPrices, _place
from meshwright.planners.best.check.virtual_stages import VirtualStages, _Stage

FIELDS = ("forward", "backward", "weight", "work", "reduce", "update", "largest_reduce")


def drawn(dice: random.Random, n_ranks: int, n_chunks: int) -> list[list[_Stage]]:
    """Return stages with random seconds; work holds more than both passes where something is recomputed."""
    found = []
    for _ in range(n_ranks):
        own = []
        for _ in range(n_chunks):
            forward, backward = dice.uniform(0.1, 2.0), dice.uniform(0.1, 3.0)
            weight, reduce = backward * dice.random(), dice.choice((0.0, 0.5, 30.0)) * dice.random()
            work, update = forward + backward, dice.choice((0.0, 1.0, 20.0)) * dice.random()
            own.append(_Stage(0, 1, forward, backward, weight, work, 0.0, 0.0, 0.0, reduce, update, reduce * dice.random()))
        found.append(own)
    return found


def least(stages: list[list[_Stage]], again: list[float], m: int, *, is_split: bool) -> tuple[float, int]:
    """Return the longest of the three parts of every rank, and which part that is."""
    ends = [sum(stage.update for stage in own) + min(stage.largest_reduce for stage in own) for own in stages]
    ways = []
    for rank, own in enumerate(stages):
        there, back = (sum(getattr(before[0], name) for before in stages[:rank]) for name in ("forward", "backward"))
        work = m * (sum(stage.work for stage in own) + again[rank])
        done = []
        for i, stage in enumerate(own):
            later = sum(one.backward - (one.weight if is_split else 0.0) for one in own[i:])
            done.append(m * later + (m - 1) * stage.weight if is_split else m * later - stage.backward)
        reduced = m * sum(stage.forward for stage in own) + min(done) + sum(stage.reduce for stage in own)
        ways += [(there + work + ends[rank], 0), (there + reduced + sum(stage.update for stage in own), 1)]
        ways += [] if is_split else [(there + work + back + ends[0], 2)]
    return max(ways)


@pytest.mark.parametrize("is_split", [False, True])
def test_the_longest_part_of_any_rank_is_refuted_and_no_longer_step(is_split: bool) -> None:
    parts = set()
    for seed in range(120):
        dice = random.Random(seed)
        n_ranks, n_chunks, m = dice.randint(1, 4), dice.randint(2, 3), dice.randint(1, 9)
        stages, again = drawn(dice, n_ranks, n_chunks), [dice.choice((0.0, dice.random())) for _ in range(n_ranks)]
        own = SimpleNamespace(
            stages=stages, m=m, form=SimpleNamespace(is_split=is_split, is_mixed=False), repeated=again.__getitem__
        )
        own._reduced = lambda of, own=own: VirtualStages._reduced(own, of)
        seconds, part = least(stages, again, m, is_split=is_split)
        parts.add(part)
        assert VirtualStages.refuted(own, seconds * (1 - 1e-12)) and not VirtualStages.refuted(own, seconds * (1 + 1e-12)), seed
    assert parts == ({0, 1} if is_split else {0, 1, 2})


def test_a_rank_that_never_fits_refutes_any_step() -> None:
    stages = drawn(random.Random(1), 2, 2)
    form = SimpleNamespace(is_split=False, is_mixed=False)
    own = SimpleNamespace(stages=stages, m=1, form=form, repeated=[0.0, float("inf")].__getitem__)
    own._reduced = lambda of: VirtualStages._reduced(own, of)
    assert VirtualStages.refuted(own, 1e30)


def words(
    allowed: tuple[str, ...], kept: dict[tuple[int, str], float], rows: tuple[int, ...] = (1, 1, 1, 4)
) -> tuple[str, ...]:
    own = SimpleNamespace(recompute=SimpleNamespace(words=allowed), chain=SimpleNamespace(main_row=1, rows=rows))
    return LayerPrices.words(own, {key: SimpleNamespace(kept_bytes=n) for key, n in kept.items()})  # type: ignore[arg-type]


def test_cheap_activations_are_a_way_where_any_layer_has_some() -> None:
    every = ("none", "selective", "full")
    kept = {(row, word): 5.0 - i for row in (1, 4) for i, word in enumerate(every)}
    frozen = {**kept, **{(1, word): 0.0 for word in every}}
    assert words(every, kept) == words(every, frozen) == words(("full", "selective", "none"), kept) == every
    assert words(every, frozen, (1, 1, 1)) == ("none", "full") and words(("selective",), frozen) == ("selective",)
    assert words(("none", "full"), kept) == ("none", "full")
    assert words(every, {key: n for key, n in kept.items() if key[1] != "selective"}) == ("none", "full")
    assert words(every, {**kept, (9, "selective"): 0.0, (9, "none"): 1.0, (1, "selective"): 5.0, (4, "selective"): 5.0}) == (
        "none",
        "full",
    )


@pytest.mark.parametrize(("one", "other", "alike"), [
    ([0, 2], [4, 6], True), ([0, 2], [8, 10], True), ([0, 2], [1, 3], False), ([1, 5], [9, 13], True), ([1, 5], [5, 9], False),
    ([1, 9], [5, 13], True), ([1, 9], [1, 17], True), ([1, 5, 9], [9, 13, 17], True), ([1, 5, 9], [1, 9, 13], False),
    ([1, 5, 9, 13], [17, 21, 25, 29], True), ([0, 1, 2, 3], [4, 5, 6, 7], True), ([2, 3, 4, 5], [6, 7, 8, 9], False),
    ([2, 3], [10, 11], True), ([3, 4], [2, 3], False), ([0, 2, 1, 3], [0, 1, 2, 3], False),
])  # fmt: skip
def test_places_that_are_wired_alike_have_one_price(one: list[int], other: list[int], alike: bool) -> None:
    """Nodes of 4 devices, pods of 2 nodes."""
    places = [_place(np.array(devices, np.int64), (4, 8)) for devices in (one, other)]
    assert (places[0] == places[1]) is alike


def test_neighbours_are_told_by_their_place_in_node_and_pod() -> None:
    def place(*devices: int) -> tuple[object, ...]:
        return _place(np.array(devices, np.int64), (4, 8))

    assert place(9, 10) == (2, 1, 0) and place(4, 5, 6, 7) == (4, 0, 0) and place(14, 15, 16) == (3, 2, 2)
    assert place(6, 7) == (2, 2, 0) and place(7, 8) == (2, 3, 1) and place(11) == (1,)
    assert _place(np.array([3]), ()) == (1,) and _place(np.array([0, 1]), ()) != _place(np.array([2, 3]), ())


@pytest.mark.parametrize(("n_devices", "n_heads", "n_experts", "sequence", "batch"), [
    (128, 128, 0, 4096, 24), (256, 192, 0, 131072, 16), (64, 96, 64, 65536, 7), (8, 12, 6, 1000, 9), (4096, 1, 1, 2**22, 1),
])  # fmt: skip
def test_the_check_lists_every_degree_that_the_search_may_take(
    n_devices: int, n_heads: int, n_experts: int, sequence: int, batch: int
) -> None:
    """What the check left out would be proven about nothing: its own list has all of the search's and no other."""
    body = [Operator("core", "attention", (("heads", n_heads),))]
    body += [Operator("experts", "grouped_matmul", (("experts", n_experts),), expert=True)] if n_experts else []
    graph = Graph("g", (Op("one", "layer", tuple(body)),), sequence_length=sequence)
    problem = Problem(ModelSpec("g", "test", "g", graph), batch=Batch(batch))
    every = limits.allowed_degrees(problem, limits.Limits(), n_devices)
    pool: Any = SimpleNamespace(n_devices=n_devices, devices=[range(n_devices)], n_ranks=lambda size: n_devices // size)
    own = dict.fromkeys(("tensor", "context", "expert", "micro_batch", "pipeline", "data"), ())
    found = list(space.meshes(problem, pool, 1, own))
    assert {mesh.tensor for mesh in found} == set(every["tensor"]) and {mesh.context for mesh in found} == set(every["context"])
    sizes = {mesh.micro_batch for mesh in found}
    assert sizes == set(every["micro_batch"]) and {mesh.expert for mesh in found} <= set(every["expert"])
    assert max(sizes) == {24: 12, 16: 8, 7: 7, 9: 9, 1: 1}[batch]
