"""The three placement policies, by hand."""

from __future__ import annotations

from meshwright.planners.dapple.placement import append_first, fresh_first, next_cards, reachable, scatter_first


def test_fresh_takes_unused_machines_only() -> None:
    assert fresh_first((2, 0, 0), (4, 4, 4), 5) == (2, 4, 1)
    assert fresh_first((2, 0), (4, 4), 5) is None


def test_append_takes_machines_in_use_only() -> None:
    assert append_first((2, 1, 0), (4, 4, 4), 4) == (4, 3, 0)
    assert append_first((2, 0), (4, 4), 3) is None
    assert append_first((0, 0), (4, 4), 1) is None


def test_scatter_takes_one_of_each_in_turn() -> None:
    assert scatter_first((0, 0, 0), (4, 1, 4), 5) == (2, 1, 2)
    assert scatter_first((4, 0), (4, 4), 4) == (4, 4)
    assert scatter_first((4, 4), (4, 4), 1) is None


def test_equal_outcomes_count_once() -> None:
    assert next_cards((0, 0), (2, 2), 2) == ((2, 0), (1, 1))
    assert next_cards((0,), (4,), 2) == ((2,),)


def test_single_steps_reach_prefixes_on_flat_machines() -> None:
    assert reachable([(0, 0, 0)], (1, 1, 1), 2) == {(0, 0, 0): ((1, 1, 0),)}
    assert reachable([(0, 0)], (2, 2), 2) == {(0, 0): ((1, 1), (2, 0))}
