"""What a call in Python asks besides the plan: other degrees, and failures, as the command line does."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.base.errors import InputError


def test_other_degrees_and_failures_stand_in_the_answer() -> None:
    found = mw.plan("gpt2", "dgx-h100:2", global_batch=16, why_not={"tensor": 2}, mtbf="50000h").to_dict()
    assert found["why_not"]["fixed"] == {"tensor": "2"} and found["why_not"]["slower_ratio"] > 0.0
    assert found["goodput"]["mtbf_seconds"] == 50000 * 3600 / 2
    plain = mw.plan("gpt2", "dgx-h100:2", global_batch=16).to_dict()
    assert "goodput" not in plain and plain["step_seconds"] == found["step_seconds"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"why_not": "tensor=2"}, r"why_not 'tensor=2': must be a mapping, as in why_not=\{'tensor': 8\}"),
        ({"why_not": {"evaluations": 3}}, "--why-not evaluations: says how the search goes"),
        ({"mtbf": 50000}, "mtbf 50000: must be a text, as in mtbf='50000h'"),
        ({"mtbf": "50000"}, "--mtbf 50000"),
    ],
)
def test_wrong_ones_are_told(given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        mw.plan("gpt2", "dgx-h100:2", global_batch=16, **given)  # type: ignore[arg-type]
