"""A pipeline typed as a paper's table has it: its parts, what is wrong with it, and layers that are left to be shared out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.core.plan_forms import typed


def test_words_layers_and_options_are_told_apart() -> None:
    told = typed.parse(" 8 : 4x2r @ 13:6 , n=16", 19, ("n",))
    assert (told.words, told.counts, told.options) == (("8", "4x2r"), (13, 6), (("n", "16"),))
    assert typed.parse("8:8", 19).counts == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8:", "a stage is empty"),
        ("8:8@13", "has layers for 1 stages, but there are 2 stages"),
        ("8:8@13:7", "places 20 layers; the model has 19"),
        ("8:8@0:19", "'0' must be the layers of a stage"),
        ("8:8@-1:20", "'-1' must be"),
        (":".join(["1"] * 20), "20 stages need as many layers"),
        ("8:8,m=2", "nothing may follow"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        typed.parse(text, 19)


def test_an_option_is_known_and_given_once() -> None:
    with pytest.raises(InputError, match="'m'"):
        typed.parse("8:8,m=2", 19, ("n",))
    with pytest.raises(InputError, match="twice"):
        typed.parse("8:8,n=2,n=2", 19, ("n",))


@pytest.mark.parametrize("seed", range(40))
def test_layers_are_shared_out_as_well_as_by_trying_all_ways(seed: int) -> None:
    random = np.random.default_rng(seed)
    n_stages, n_layers = int(random.integers(1, 5)), int(random.integers(5, 10))
    seconds = random.integers(0, 6, (n_stages, n_layers)).astype(float) * random.choice([1.0, 1e-6, 0.3])

    def slowest(counts: tuple[int, ...]) -> float:
        ends = np.cumsum((0, *counts))
        return max(float(seconds[i, a:b].sum()) for i, (a, b) in enumerate(itertools.pairwise(ends)))

    ways = itertools.product(range(1, n_layers + 1), repeat=n_stages)
    least = min(slowest(way) for way in ways if sum(way) == n_layers)
    found = typed.balanced(seconds)
    assert sum(found) == n_layers and min(found) >= 1
    assert slowest(found) <= least * (1.0 + 1e-9) + 1e-15
