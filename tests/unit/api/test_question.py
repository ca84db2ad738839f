"""What is asked twice, or of a question that is posed already, is refused: nothing that was said is left out without a word."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


@pytest.mark.parametrize(
    "said",
    [{"cluster": "flat:2"}, {"costs": "analytic"}, {"batch": Batch(8)}, {"framework": "megatron"}, {"memory_risk": 0.5}],
    ids=lambda said: next(iter(said)),
)
def test_a_posed_problem_has_its_own(said: dict[str, Any]) -> None:
    problem = api.make_problem(TINY, "flat:4", batch=Batch(16))
    with pytest.raises(InputError, match=f"{next(iter(said))}: a Problem that is posed already has its own"):
        api.plan(problem, search="data_parallel", **said)


def test_a_model_that_was_read_keeps_its_sequence_length() -> None:
    model = api.read(TINY, sequence_length=64)
    with pytest.raises(InputError, match=r"sequence length 32: model .* was read at 64 tokens"):
        api.make_problem(model, "flat:4", batch=Batch(sequence_length=32))
    assert api.make_problem(model, "flat:4", batch=Batch(sequence_length=64)).graph.sequence_length == 64


def test_a_simpler_answer_is_refused_by_searches_that_look_for_the_quickest_only() -> None:
    problem = api.make_problem(TINY, "flat:4", batch=Batch(16))
    with pytest.raises(InputError, match="search data_parallel looks for the quickest plan only"):
        api.plan(problem, search="data_parallel", within=0.01)


def test_room_for_errors_of_memory_is_kept_only_where_they_were_measured() -> None:
    profile = str(pathlib.Path(__file__).resolve().parents[2] / "reference" / "dapple" / "bert-48-pbs-2.txt")
    assert api.make_problem(profile, "dgx-v100:16", batch=Batch(64)).memory_risk == 0.5
    assert api.make_problem(profile, "dgx-v100:16", batch=Batch(64), memory_risk="50%").memory_risk == 0.5
    with pytest.raises(InputError, match="--memory-risk 5%: how far peaks of dapple costs may be off was not measured"):
        api.make_problem(profile, "dgx-v100:16", batch=Batch(64), memory_risk="5%")
