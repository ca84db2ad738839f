"""Where no server has memory for its part of every operator: what plans start from, and networks for parts by columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from meshwright.planners.topoopt import alternate, finder, grids, moves
from meshwright.planners.topoopt.choices import SplitSpace
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.rings import mean_hops
from meshwright.planners.topoopt.scarce import columns
from meshwright.planners.topoopt.step import Placement, PlacementTraffic, Step, data_parallel

HEAVY = "topoopt:candle,batch=256,tower=4096x3,top=4096x6-1"


def test_where_no_shape_fits_stretches_lie_on_blocks_of_servers(small: Callable[..., Step]) -> None:
    """Servers with memory for three quarters of all operators: halves of them hold about a half each."""
    step = small("topoopt:candle,batch=16,tower=256x3,top=256x3-1", n=4, shard=False)
    whole = max(step.memory_bytes(data_parallel(step.space)))
    plans = list(columns.packed(step.space, lambda plan: bool(step.memory_bytes(plan).max() <= 0.75 * whole)))
    assert [len(plan.servers[0]) for plan in plans] == [2, 1]
    assert step.memory_bytes(plans[0]).max() <= 0.75 * whole
    assert {plans[0].servers[i] for i in range(3)} == {(0, 1)}  # the first tower stays together


def test_blocks_without_memory_for_whole_matrices_hold_them_in_as_few_parts_by_columns_as_fit(
    small: Callable[..., Step],
) -> None:
    step = small("topoopt:candle,batch=16,tower=256x3,top=256x3-1", n=8, shard=True)

    def held(plan: Placement) -> float:
        return float(step.memory_bytes(plan).max())

    whole, *_ = columns.packed(step.space, lambda plan: True)
    less, *_ = columns.packed(step.space, lambda plan: held(plan) < held(whole))
    split = [[step.space.choices[i][plan.choice[i]].columns for i in range(3)] for plan in (whole, less)]
    assert split == [[1] * 3, [2] * 3]
    assert whole.servers == less.servers and held(less) < held(whole)


def candidates(plan: Placement, *, n: int, step: Step) -> list[Fabric]:
    """Return the rings of best jumps, routes and rings for a plan."""
    traffic = step.traffic(plan)
    return [next(finder.fabrics(traffic, n, 4, 12.5e9, 1e-6, finder.hamiltonian(n, 2)))]


def split_by(space: SplitSpace, plan: Placement) -> list[int]:
    return [space.choices[i][k].columns for i, k in enumerate(plan.choice)]


@pytest.mark.parametrize("share", [0.95, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.3])
def test_a_shape_is_split_by_no_more_columns_than_any_that_fits(small: Callable[..., Step], share: float) -> None:
    """All ways to split three towers' first matrices and the last ones by columns, on the servers of the shape."""
    step = small("topoopt:candle,batch=64,tower=256x1,top=512x1-1", n=4, shard=True)
    shape = list(moves.starts(step.space, "contiguous"))[-1]
    capacity = share * float(step.memory_bytes(shape).max())
    options = [
        [k for k, c in enumerate(choices) if c.rows == 1 and c.n_parts == len(servers)]
        for choices, servers in zip(step.space.choices, shape.servers, strict=True)
    ]
    plans = [replace(shape, choice=chosen) for chosen in itertools.product(*options)]
    least = min((max(split_by(step.space, plan)) for plan in plans if step.memory_bytes(plan).max() <= capacity), default=0)
    found = columns.narrowed(step.space, shape, capacity)
    if not least:
        assert found is None
        return
    assert found is not None and found.servers == shape.servers
    assert step.memory_bytes(found).max() <= capacity and max(split_by(step.space, found)) == least


def test_what_saves_most_memory_for_what_is_gathered_is_split_first(small: Callable[..., Step]) -> None:
    """A wide matrix on all servers beside narrow ones: one byte too little splits one matrix, and none without need."""
    step = small("topoopt:candle,batch=64,tower=64x1,top=1024x2-1", n=4, shard=True)
    shape = data_parallel(step.space)
    held = float(step.memory_bytes(shape).max())
    found = columns.narrowed(step.space, shape, held - 1.0)
    assert found is not None
    (one,) = [i for i, n in enumerate(split_by(step.space, found)) if n > 1]
    operations = step.space.workload.operations

    def worth(i: int) -> float:
        """Return the memory saved for each byte of inputs that two servers then give each other."""
        whole, half = (next(c for c in step.space.choices[i] if (c.samples, c.columns) == split) for split in ((4, 1), (2, 2)))
        width = sum(operations[p].n_elements for p in operations[i].inputs if p >= 0)
        return (whole.memory_bytes - half.memory_bytes) / max(4 * width * 64 / 2 * 0.5, 1.0)

    can = [i for i, choices in enumerate(step.space.choices) if any(c.columns == 2 for c in choices) and worth(i) > 0]
    assert worth(one) == max(worth(i) for i in can) and len(can) > 2


def test_the_search_starts_from_shapes_with_columns_where_none_fits(small: Callable[..., Step]) -> None:
    step = small(HEAVY, n=8, shard=True)
    shapes = list(moves.starts(step.space, "either"))
    capacity = 0.8 * min(float(step.memory_bytes(shape).max()) for shape in shapes)
    servers = step.space.servers
    less = (servers.memory_bytes - capacity) / servers.n_gpus
    servers = replace(servers, gpu=replace(servers.gpu, memory_bytes=servers.gpu.memory_bytes - less))
    step = Step(replace(step.space, servers=servers))
    networks_of = partial(candidates, n=8, step=step)
    fits = step.space.servers.memory_bytes
    first, *rest = alternate._where_scarce(step, networks_of, "either")
    narrow = {
        plan: step.seconds(plan, networks_of(plan)[0])
        for shape in shapes
        if (plan := columns.narrowed(step.space, shape, fits))
    }
    assert len(narrow) > 2 and narrow[first] == min(narrow.values()) and max(split_by(step.space, first)) > 1
    assert rest == list(columns.packed(step.space, lambda plan: bool(step.memory_bytes(plan).max() <= fits)))
    found = alternate.alternate(step, networks_of, np.random.default_rng(0), 4, "either")
    assert found.start_seconds <= narrow[first] and found.seconds <= found.start_seconds
    assert step.memory_bytes(found.placement).max() <= fits


def exchanged(n: int, pairs: dict[tuple[int, int], float], groups: Sequence[tuple[int, ...]] = ()) -> PlacementTraffic:
    sent = np.zeros((n, n))
    for pair, n_bytes in pairs.items():
        sent[pair] = n_bytes
    return PlacementTraffic(sent, tuple((members, 1e6) for members in groups))


def interfaces(n: int, rings: Sequence[tuple[int, ...]]) -> list[int]:
    used = [0] * n
    for ring in rings:
        for server in ring:
            used[server] += 2 if len(ring) > 2 else 1
    return used


@pytest.mark.parametrize(
    ("n", "size", "degree"), [(8, 2, 4), (32, 4, 4), (64, 4, 4), (64, 8, 4), (12, 3, 6), (8, 4, 4), (32, 2, 8)]
)
def test_grids_use_every_interface_and_lie_along_groups_and_places(n: int, size: int, degree: int) -> None:
    blocks = [tuple(range(first, first + size)) for first in range(0, n, size)]
    pairs = {(a, b): 1e9 for block in blocks for a, b in itertools.permutations(block, 2)}
    pairs[0, n - 1] = 1e7  # what is a hundredth of it does not make groups one
    found = list(grids.grids(exchanged(n, pairs), n, degree))
    assert found
    for rings in found:
        assert interfaces(n, rings) == [degree] * n
        assert mean_hops(n, rings) < np.inf
        for ring in rings:
            assert ring in blocks or sorted(ring) == list(range(min(ring), n, size)) or sorted(ring) in map(list, blocks)


def test_the_steps_of_a_half_of_the_places_leave_the_fewest_hops() -> None:
    """16 groups of four, of which two places take other steps than the others: 3, 5 or 7."""
    pairs = {(a, b): 1e9 for first in range(0, 64, 4) for a, b in itertools.permutations(range(first, first + 4), 2)}
    uniform, *found = grids.grids(exchanged(64, pairs), 64, 4)
    inside = [ring for ring in uniform if len(ring) == 4]
    for rings in found:
        half = [place for place in range(4) if (*range(place, 64, 4),) not in rings]
        assert len(half) == 2
        others = [
            [*inside, *(tuple((i * (step if place in half else 1) % 16) * 4 + place for i in range(16)) for place in range(4))]
            for step in (3, 5, 7)
        ]
        hops = [mean_hops(64, other) for other in others]
        assert rings in others and mean_hops(64, rings) == min(hops) < max(hops)
    assert len({tuple(rings) for rings in found}) == 3


def test_who_exchanges_most_lies_side_by_side_on_the_ring_of_a_group() -> None:
    pairs = {(a, b): 1e8 for first in (0, 4) for a, b in itertools.permutations(range(first, first + 4), 2)}
    pairs |= {(0, 2): 4e8, (1, 3): 4e8, (4, 6): 4e8, (5, 7): 4e8}
    rings = next(grids.grids(exchanged(8, pairs), 8, 4))
    assert rings[0] in ((0, 1, 3, 2), (0, 2, 1, 3), (0, 2, 3, 1))
    reducing = next(grids.grids(exchanged(8, pairs, [(0, 1), (2, 3)]), 8, 4))
    assert reducing[0] in ((0, 1, 3, 2), (0, 2, 3, 1))  # and those that all-reduce together


@pytest.mark.parametrize(
    ("pairs", "degree"),
    [
        ({}, 4),
        (dict.fromkeys(itertools.permutations(range(8), 2), 1.0), 4),
        ({(0, 1): 1.0, (2, 3): 1.0, (4, 5): 1.0}, 4),
        ({(0, 1): 1.0, (2, 3): 1.0, (4, 5): 1.0, (6, 7): 1.0}, 3),
    ],
)
def test_there_are_no_grids_where_servers_form_no_groups_of_one_size(pairs: dict[tuple[int, int], float], degree: int) -> None:
    assert list(grids.grids(exchanged(8, pairs), 8, degree)) == []
