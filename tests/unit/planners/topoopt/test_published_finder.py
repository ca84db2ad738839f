"""TopologyFinder as released, on eight servers, by hand."""

from __future__ import annotations

import pytest

from meshwright.planners.topoopt import published
from meshwright.solvers.graph.circulants import geometric


def test_the_largest_groups_share_takes_all_interfaces_and_its_jumps_grow_by_a_ratio() -> None:
    """Total 150, of which the whole ring has 100: 150 x 4 / 100 = 6 links each way, and there are 4. Jumps 1, then 7 ** (1 / 2) or more: 3."""  # noqa: E501
    found = published.find(8, 4, {8: 100.0, 4: 50.0})
    assert found.jumps == ((8, (1, 3)),)
    paths = dict(found.paths)
    assert paths[8] == ((1,), (7,), (3,), (5,))
    assert {group: sum(way[0]) % 8 for group, way in paths.items()} == {8: 1, 2: 4, 4: 2}  # a hop to the next member
    assert [len(way) for way in paths[4]] == [2, 2] and sum(paths[4][1]) % 8 == 6
    assert len(paths[2][0]) == 2


def test_the_ring_of_all_takes_interfaces_from_the_group_that_has_them() -> None:
    """A group of four would take all; the ring over all servers, without traffic, needs a link each way."""
    found = published.find(8, 4, {4: 100.0})
    assert found.jumps == ((4, (2,)), (8, (1,)))
    assert dict(found.paths)[4] == ((2,), (6,)) and dict(found.paths)[8] == ((1,), (7,))
    only = published.find(8, 2, {4: 100.0})
    assert only.jumps == ((8, (1,)),)  # nothing is left for the group itself
    assert [len(way) for way in dict(only.paths)[4]] == [2, 2]


def test_one_way_links_are_laid_one_way_and_a_group_without_traffic_takes_none() -> None:
    found = published.find(8, 2, {8: 60.0, 4: 40.0, 2: 0.0}, bidirectional=False)
    assert found.jumps == ((8, (1, 7)),)  # 60 of 100: 100 x 2 / 60 = 3 links, of which there are 2; from 1 to 7
    assert dict(found.paths)[8] == ((1,), (7,))
    assert set(published.links(found).values()) == {1.0} and len(published.links(found)) == 16


def test_links_lie_side_by_side_where_a_jump_is_its_own_way_back() -> None:
    rings = published.Rings(4, ((4, (1,)), (2, (2,))), (), True)
    count = published.links(rings)
    assert [count[0, other] for other in (1, 2, 3)] == [1.0, 2.0, 1.0]
    fabric = published.fabric(published.find(8, 4, {8: 1.0}), 1e9, 1e-6)
    assert (fabric.name, fabric.n_servers, fabric.n_nodes) == ("topoopt", 8, 8)


@pytest.mark.parametrize(
    ("n_jumps", "both", "jumps"),
    [(1, True, (1,)), (2, True, (1, 5)), (2, False, (1, 11)), (3, True, (1, 5, 7)), (9, False, (1, 5, 7, 11))],
)
def test_jumps_follow_a_geometric_sequence(n_jumps: int, both: bool, jumps: tuple[int, ...]) -> None:
    """From 1 to 11: 1 and 3.3 take 1 and 5; one way the last is 11 itself; 1, 2.2, 4.9 take 1, 5, 7."""
    assert geometric((1, 5, 7, 11), n_jumps, bidirectional=both) == jumps
