"""Weights that layers share: said to be counted twice only where that is so, which built-in models do nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api
from meshwright.core.problem import Batch


@pytest.mark.parametrize(
    "settings", [{"pipeline": "1"}, {"pipeline": "2", "schedules": "1f1b"}, {"pipeline": "2", "schedules": "zb_v"}]
)
@pytest.mark.parametrize("located", [True, False])
def test_who_counts_a_shared_table_twice_says_so(settings: dict[str, str], located: bool) -> None:
    problem = api.make_problem("gpt2", "dgx-h100:8", batch=Batch(16))
    if not located:  # as a captured model, of which only the number of shared weights is known
        graph = replace(problem.graph, shared=())
        problem = replace(problem, model_spec=replace(problem.model_spec, graph=graph))
    result = api.plan(problem, settings=settings)
    assert result.feasible
    on_one_rank = settings.get("schedules") != "1f1b"
    said = any("layers share 38.6 M weights" in note and "count them for each" in note for note in result.answer.notes)
    assert said == (on_one_rank and not located)
