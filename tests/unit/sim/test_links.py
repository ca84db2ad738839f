"""The busiest links are those that a full sort puts first."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.sim.links import busiest


@pytest.mark.parametrize("n_links", [0, 1, 3, 10, 50])
@pytest.mark.parametrize("seed", range(5))
def test_the_busiest_come_first_then_by_id_and_idle_ones_never(n_links: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    carried = random.choice([0.0, 1.0, 2.0, 3.0], 30) * random.choice([1.0, 1.0 + 1e-15], 30)
    rate = random.choice([1.0, 2.0], 30)
    ratio = carried / rate / 8.0
    wanted = sorted((link for link in range(30) if ratio[link] > 0), key=lambda link: (-round(ratio[link], 12), link))[:n_links]
    assert busiest(carried, rate, 8.0, n_links) == tuple((link, float(ratio[link])) for link in wanted)
