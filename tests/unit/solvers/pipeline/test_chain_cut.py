"""Cutting a chain: as good as every cut tried."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.solvers.pipeline.chain_cut import cut


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_parts", [1, 2, 3, 5])
def test_no_cut_has_a_lighter_heaviest_part(seed: int, n_parts: int) -> None:
    work = np.random.default_rng(seed).random(8)
    sizes = cut(work, n_parts)
    assert sum(sizes) == 8 and min(sizes) >= 1 and len(sizes) == n_parts

    def heaviest(ends: tuple[int, ...]) -> float:
        return max(work[a:b].sum() for a, b in itertools.pairwise((0, *ends, 8)))

    ends = tuple(itertools.accumulate(sizes))[:-1]
    every = [heaviest(tried) for tried in itertools.combinations(range(1, 8), n_parts - 1)]
    assert heaviest(ends) == pytest.approx(min(every))
