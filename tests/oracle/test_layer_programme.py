"""How many layers fit a rank within seconds and bytes: the kernel's pairs of variants against a linear programme."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from scipy.optimize import linprog

from meshwright._kernels.pipeline import layer_split
from meshwright._kernels.pipeline.rank_memory import least_extra


@njit
def most(work, size, seconds, n_bytes, extra):
    """Call a part of kernels."""
    return layer_split._most(work, 1.0, 0.0, size, seconds, n_bytes, extra)


@pytest.mark.parametrize("seed", range(30))
def test_a_mixture_of_variants_is_the_best_of_the_linear_programme(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 4))
    work, size = random.integers(1, 9, n).astype(float), random.integers(0, 9, n).astype(float)
    extra = float(random.integers(0, 4)) if seed % 2 else 0.0
    seconds, n_bytes = (float(value) for value in random.integers(0, 40, 2))
    best = linprog(-np.ones(n), A_ub=np.stack([work - extra, size]), b_ub=[seconds, n_bytes], bounds=(0, None))
    found = most(work, size, seconds, n_bytes, extra)
    if best.status == 3:  # unbounded: nothing that is short counts
        assert found == np.inf
    else:
        assert found == pytest.approx(-best.fun, abs=1e-7)


def test_nothing_fits_into_less_than_nothing() -> None:
    one = np.ones(1)
    assert most(one, one, -1.0, 1.0, 0.0) == most(one, one, 1.0, -1.0, 0.0) == -1.0
    assert most(one, one, 0.0, 1.0, 0.0) == 0.0


@pytest.mark.parametrize("seed", range(30))
def test_the_least_recomputation_that_frees_enough_is_that_of_all_choices(seed: int) -> None:
    random = np.random.default_rng(seed)
    saved, extra = np.sort(random.integers(0, 6, 2)).astype(float), np.sort(random.integers(1, 6, 2)).astype(float)
    n, excess = int(random.integers(0, 6)), float(random.integers(0, 20))
    ways = [(w * extra[0] + s * extra[1], w * saved[0] + s * saved[1]) for s in range(n + 1) for w in range(n + 1 - s)]
    assert least_extra(excess, n, saved, extra) == min((cost for cost, freed in ways if freed >= excess), default=np.inf)
