"""Plans of which a part is given: completed, in the shape asked for, compared with the best of all, refused with the reason."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.api import fixing
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.result import Result

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")
PLACE = "flat:4"


def planned(fix: Any, **more: Any) -> Result:
    return api.plan(TINY, PLACE, global_batch=16, fix=fix, **more)


def _counts(result: Result) -> list[int]:
    """Return how many layers each stage has, the ends of the model left out."""
    ops = result.problem.graph.ops
    return [sum(ops[op].kind not in ("embedding", "head") for op in stage.ops) for stage in result.plan.stages]


@pytest.fixture(scope="module")
def free() -> Result:
    return api.plan(TINY, PLACE, global_batch=16)


def test_degrees_that_are_given_are_those_of_the_answer_and_the_best_is_beside_it(free: Result) -> None:
    found = planned({"tensor": 2, "pipeline": 2, "schedule": "1f1b", "micro_batch": 2})
    plan = found.plan
    assert {stage.strategy.tensor for stage in plan.stages} == {2} and len(plan.ranks()) == 2
    assert plan.schedule == "1f1b" and plan.micro_batch == 2
    entry: Any = found.answer.extra["fixed"]
    assert entry["values"] == {"tensor": "2", "pipeline": "2", "schedule": "1f1b", "micro_batch": "2"}
    best = entry["free_optimum"]
    assert best["step_seconds"] == free.step_seconds
    assert found.step_seconds is not None
    assert best["slower_ratio"] == pytest.approx(found.step_seconds / best["step_seconds"] - 1.0) and best["slower_ratio"] > 0.0
    assert sum(row["difference_seconds"] for row in best["causes"]) == pytest.approx(found.step_seconds - best["step_seconds"])
    settings = {"tensor": "2", "pipeline": "2", "schedules": "1f1b", "micro_batch": "2"}
    exact = api.plan(TINY, PLACE, global_batch=16, settings=settings)
    assert found.step_seconds == exact.step_seconds and found.bound == exact.bound


def test_text_and_mapping_say_the_same() -> None:
    problem = api.make_problem(TINY, PLACE)
    said = fixing.parse("pipeline=2,split=3,1,recompute=none,full,optimizer=sharded", problem)
    assert said == fixing.parse(
        {"pipeline": 2, "split": [3, 1], "recompute": ("none", "full"), "optimizer": "sharded"}, problem
    )
    assert said.split == (3, 1) and said.virtual == 1 and dict(said.settings)["shard"] == "1,2,3"
    assert dict(said.settings)["recompute"] == "none,full"


def test_virtual_stages_and_splits_are_as_given() -> None:
    split = planned("pipeline=2,split=3,1")
    assert _counts(split) == [3, 1] and split.bound is None
    assert any("no bound is proven" in note for note in split.answer.notes)
    virtual = planned({"pipeline": 2, "virtual": 2})
    assert len(virtual.plan.stages) == 4 and len(virtual.plan.ranks()) == 2
    assert virtual.plan.schedule in ("interleaved_1f1b", "zb_v")
    even = planned({"pipeline": 2, "virtual": 1})
    assert len(even.plan.stages) == 2 and even.bound is not None  # a limit of the search: its bound holds


def test_a_split_as_the_search_makes_it_costs_as_much() -> None:
    own = planned({"pipeline": 2, "virtual": 1, "tensor": 1, "schedule": "1f1b"})
    counts = _counts(own)
    again = planned({"pipeline": 2, "tensor": 1, "schedule": "1f1b", "split": counts})
    assert again.step_seconds == own.step_seconds and again.plan == own.plan


@pytest.mark.parametrize(
    ("fix", "told"),
    [
        ("tensor=3", r"does not divide the 8 attention heads"),
        ("expert=2", r"has no experts to split; only expert=1 is possible"),
        ("tensor=4,pipeline=2", r"tensor 4 x pipeline 2: takes 8 devices; flat:4 has 4"),
        ("pipeline=4,virtual=2", r"8 stages \(pipeline x virtual\) need as many layers; .* has 4"),
        ("pipeline=2,split=3,3", r"split=3,3: places 6 layers; .* has 4"),
        ("pipeline=3,split=3,1", r"split=3,1: names 2 stages, which are not those of 3 pipeline ranks"),
        ("pipeline=1,virtual=2", r"virtual stages need a pipeline of at least 2 ranks"),
        ("virtual=2,schedule=1f1b", r"1f1b has one stage for each rank"),
        ("data=4,micro_batch=8", r"32 samples \(data 4 x micro_batch 8\) do not divide the global batch of 16"),
        ("pipeline=3,split=2,0,2", "every stage but the first and the last"),
        ("optimizer=whole,gradients=sharded", "contradict"),
        ("context_exchange=ring,context=1", "with a context degree of 1 nothing is exchanged"),
        ("optimizer=half", "must be sharded or whole"), ("shard=4", "must be 0"),
        ("tensor=0", "whole number of at least 1"), ("tensor=two", "whole number"), ("tensor", "write KEY=VALUE"),
        ("tensor=2,tensor=2", "given twice"), ("", "is empty"), ({}, "is empty"), (8, "must be a mapping"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_reason(fix: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        planned(fix)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fix", ["tensr=2", "schedule=2f2b", "recompute=some"])
def test_unknown_words_are_answered_with_those_there_are(fix: str) -> None:
    with pytest.raises(UnknownNameError, match="there are: "):
        planned(fix)


def test_the_same_is_not_said_twice_and_other_searches_complete_nothing() -> None:
    with pytest.raises(InputError, match="--fix tensor and --set tensor=4: say it once"):
        planned("tensor=2", settings={"tensor": "4"})
    with pytest.raises(InputError, match="only search best"):
        planned("tensor=2", search="data_parallel")


def test_calls_of_the_wrong_kind_name_the_right_one() -> None:
    for words, told in (
        ((TINY, 8), r"cluster 8: .*plan\('gpt2', 'dgx-h100:8'\)"), ((3, PLACE), "model 3: must be a name"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=told):
            api.plan(*words)  # type: ignore[arg-type]
    for named, told in (
        ({"settings": {"tensor": 2}}, r"fix=\{'tensor': 2\}"), ({"settings": 3}, "must be a mapping"),
        ({"search": 1}, "search='best'"), ({"global_batch": 2.5}, "global_batch=64"),
        ({"global_batch": "many"}, "not a whole number"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=told):
            api.plan(TINY, PLACE, **named)


def test_quantities_may_be_typed_as_people_do() -> None:
    found = api.plan(TINY, PLACE, global_batch="16", sequence_length="1k", fix="data=4,tensor=1")
    assert found.plan.global_batch == 16 and found.problem.graph.sequence_length == 1024


@pytest.mark.parametrize("fix", ["pipeline=2,virtual=2", "split=1,3"])
def test_a_plan_without_a_bound_is_checked_as_a_plan_and_a_changed_one_refused(fix: str, tmp_path: pathlib.Path) -> None:
    from meshwright.commands import check as command
    from meshwright.writers import plan_json

    found = planned(fix)
    assert found.bound is None
    path = tmp_path / "plan.json"
    plan_json.write(found, str(path))
    entry = json.loads(path.read_text())
    assert command._verdict(entry, str(path), "").valid
    entry["step_seconds"] *= 0.99
    path.write_text(json.dumps(entry))
    changed = command._verdict(entry, str(path), "")
    assert not changed.valid and "step_seconds is" in changed.reason
