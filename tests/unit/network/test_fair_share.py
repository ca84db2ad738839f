"""Max-min fair rates against hand-solved cases and the exact twin."""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.network import fair_share


def _csr(routes: list[list[int]]) -> tuple[list[int], list[int]]:
    return [0, *itertools.accumulate(len(route) for route in routes)], [link for route in routes for link in route]


def test_the_textbook_case_of_one_long_and_two_short_flows() -> None:
    first, links = _csr([[0, 1], [0], [1]])
    np.testing.assert_allclose(fair_share.rates(first, links, [1.0, 2.0]), [0.5, 0.5, 1.5])


def test_a_flow_without_links_has_no_limit() -> None:
    assert fair_share.rates([0, 0], [], [1.0])[0] == np.inf


def test_a_split_flow_takes_only_its_share_of_each_link() -> None:
    np.testing.assert_allclose(fair_share.rates([0, 2], [0, 1], [1.0, 1.0], [0.5, 0.5]), [2.0])


def test_the_rest_goes_faster_when_a_short_flow_has_ended() -> None:
    first, links = _csr([[0], [0]])
    np.testing.assert_allclose(fair_share.finish_seconds(first, links, [2.0], [1.0, 3.0]), [1.0, 2.0])
    np.testing.assert_allclose(fair_share.finish_seconds(first, links, [2.0], [4.0, 1.0], [0.0, 1.0]), [2.5, 2.0])


@st.composite
def _networks(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int], list[int]]:
    n_links = draw(st.integers(1, 6))
    route = st.lists(st.integers(0, n_links - 1), min_size=1, max_size=n_links, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=7))
    n = len(routes)
    return (
        routes,
        draw(st.lists(st.integers(1, 9), min_size=n_links, max_size=n_links)),
        draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)),
        draw(st.lists(st.integers(1, 20), min_size=n, max_size=n)),
    )


@settings(max_examples=60, deadline=None)
@given(network=_networks())
def test_rates_and_ends_equal_the_exact_twin(
    fair_share_oracle: ModuleType, network: tuple[list[list[int]], list[int], list[int], list[int]]
) -> None:
    routes, capacity, start, n_bytes = network
    first, links = _csr(routes)
    found = fair_share.rates(first, links, capacity)
    np.testing.assert_allclose(found, [float(r) for r in fair_share_oracle.rates(routes, capacity)], rtol=1e-9)
    ends = fair_share.finish_seconds(first, links, capacity, n_bytes, start)
    np.testing.assert_allclose(ends, [float(e) for e in fair_share_oracle.finish(routes, capacity, start, n_bytes)], rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_every_flow_meets_a_full_link_on_which_it_is_among_the_fastest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    routes = [rng.choice(40, size=rng.integers(1, 6), replace=False).tolist() for _ in range(200)]
    capacity = rng.uniform(1, 10, 40)
    first, links = _csr(routes)
    rate = fair_share.rates(first, links, capacity)
    load = np.zeros(40)
    for f, route in enumerate(routes):
        load[route] += rate[f]
    assert (load <= capacity * (1 + 1e-9)).all()
    for f, route in enumerate(routes):
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and rate[f] >= max(rate[g] for g, other in enumerate(routes) if link in other) * (1 - 1e-9)
            for link in route
        )
