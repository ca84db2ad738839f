"""The graph of antichains: chains, diamonds, determinism, the sizes known for the real profiles, limits."""

from __future__ import annotations

import pytest

import reference
from meshwright import api
from meshwright.planners.dapple import states as _dapple_states
from meshwright.solvers.graph.antichains import antichain_graph, bit_matrix, members


def test_a_chain_has_one_state_per_node_in_order() -> None:
    found = antichain_graph(4, [(0, 1), (1, 2), (2, 3)], ["d", "c", "b", "a"])
    assert found is not None
    assert found.down_set == (0b1, 0b11, 0b111, 0b1111)
    assert found.frontier == (0b1, 0b10, 0b100, 0b1000)
    assert found.predecessors == (0, 0b1, 0b11, 0b111)


def test_a_diamond_has_a_state_for_every_way_to_be_half_done() -> None:
    """0 feeds 1 and 2, both feed 3: done are {0}, {0,1}, {0,2}, {0,1,2} or all."""
    found = antichain_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)], ["a", "b", "c", "d"])
    assert found is not None
    assert set(found.down_set) == {0b1, 0b11, 0b101, 0b111, 0b1111}
    assert found.down_set[0] == 0b1 and found.down_set[-1] == 0b1111
    for i, bits in enumerate(found.predecessors):
        assert all(j < i and found.down_set[j] & ~found.down_set[i] == 0 for j in members(bits))


def test_a_tensor_that_skips_ahead_crosses_every_cut_until_it_is_used() -> None:
    found = antichain_graph(3, [(0, 1), (1, 2), (0, 2)], ["a", "b", "c"])
    assert found is not None
    assert found.frontier[1] == 0b11


def test_every_down_set_is_closed_and_repeats_do_not_matter() -> None:
    edges = [(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (2, 3)]
    found = antichain_graph(6, edges, list("abcdef"))
    assert found is not None
    for bits in found.down_set:
        assert all(bits >> a & 1 for a, b in edges if bits >> b & 1)
    assert found == antichain_graph(6, edges, list("abcdef"))


def test_too_many_states_are_given_up() -> None:
    wide = [(0, i) for i in range(1, 13)] + [(i, 13) for i in range(1, 13)]
    assert antichain_graph(14, wide, ["x"] * 14, max_states=100) is None


def test_bits_and_matrices_agree() -> None:
    sets = [0b1011, 0, 1 << 20]
    matrix = bit_matrix(sets, 21)
    assert [[j for j in range(21) if row[j]] for row in matrix] == [members(bits) for bits in sets]


@pytest.mark.parametrize(
    ("name", "n_states"),
    [
        ("vgg-19-pbs-32", 25),
        ("bert-48-pbs-2", 55),
        ("xlnet-36-pbs-1", 41),
        ("gnmt-32-pbs-64-simplified", 62),
        ("gnmt-16-pbs-64", 1495),
    ],
)
def test_the_real_profiles_have_as_many_states_as_the_published_code_finds(name: str, n_states: int) -> None:
    path = reference.path(f"dapple/{name}.txt")
    states = _dapple_states.states_of(api.read(str(path)), fold=False)
    assert states.n_states == n_states and not states.n_folded


def test_a_profile_with_too_many_antichains_folds_what_computes_nothing() -> None:
    path = reference.path("dapple/gnmt-32-pbs-64.txt")
    states = _dapple_states.states_of(api.read(str(path)), fold=False)
    assert states.n_states < 200 and states.n_folded > 0
    assert bool(states.inside[-1].all())


def test_a_profile_of_wide_cells_is_cut_along_one_order() -> None:
    path = reference.path("partitioning/pipedream/nasnetalarge.txt")
    states = _dapple_states.states_of(api.read(str(path)))
    assert states.is_prefix
    assert len(states.before) == states.n_states * (states.n_states - 1) // 2  # every state leads to all later ones
