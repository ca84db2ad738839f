"""A table that layers at both ends share: said to be counted twice where one rank holds it once, and only there."""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.core.problem import Batch


@pytest.mark.parametrize(
    ("model", "settings", "is_said"),
    [
        ("gpt2", {"pipeline": "1"}, True),
        ("gpt2", {"pipeline": "2", "schedules": "1f1b"}, False),  # each rank holds its own
        ("gpt2", {"pipeline": "2", "schedules": "zb_v"}, True),  # the first rank has the last stage too
        ("gpt-neox-20b", {"pipeline": "1"}, False),  # two tables
    ],
)
def test_who_counts_a_shared_table_twice_says_so(model: str, settings: dict[str, str], is_said: bool) -> None:
    result = api.plan(model, "dgx-h100:8", batch=Batch(16), settings=settings)
    assert result.feasible
    assert any("share" in note and "count them for each" in note for note in result.answer.notes) == is_said
