"""Fields of a plan as JSON that say nothing where nothing was counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.core.result import Answer
from meshwright.writers import plan_json


@pytest.mark.parametrize(("n_iterations", "told"), [(-1, None), (0, 0), (7, 7)])
def test_iterations_are_told_where_they_were_counted_none_of_them_too(n_iterations: int, told: int | None) -> None:
    result = api.plan("gpt2", "flat:1", search="data_parallel", batch=Batch(1))
    assert isinstance(result.answer, Answer)
    result = replace(result, answer=replace(result.answer, n_iterations=n_iterations))
    assert plan_json.as_json(result)["iterations"] == told
