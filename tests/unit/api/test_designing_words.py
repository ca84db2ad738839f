"""What a question of the co-design refuses before anything is searched."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.api import designing
from meshwright.base.errors import InputError

ASKED: dict[str, Any] = {
    "servers": 4, "degree": 2, "link_bandwidth": "10GB/s", "link_latency": "1us", "budget": 2, "topologies": ("topoopt",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"degree": 0}, "say how many interfaces a server has: --degree 4"),
        ({"settings": {"node_degree": "3"}}, "--degree 2 and --set node_degree=3: are the same option; give one"),
        ({"budget": 0}, "--budget 0: must be between 1 and 10000000"),
        ({"budget": 10**7 + 1}, "--budget 10000001: must be between"),
        ({"seed": -1}, "--seed -1: must be at least 0"), ({"seed": 2**63}, "must be at least 0"),
        ({"topologies": ()}, "--topology: name at least one"), ({"link_bandwidth": "0GB/s"}, "--link-bandwidth"),
        ({"link_latency": "-1us"}, "--link-latency"),
    ],
)  # fmt: skip
def test_wrong_figures_are_refused_with_the_option(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        designing.codesign("topoopt:moe,batch=8", **(ASKED | changed))


def test_the_smallest_figures_and_a_degree_said_twice_alike_are_taken() -> None:
    found = designing.codesign("topoopt:moe,batch=8", **(ASKED | {"budget": 1, "seed": 0, "settings": {"node_degree": "2"}}))
    assert found.best is not None
