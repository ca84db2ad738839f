"""Plans typed as DAPPLE's tables have them cost what the same plans cost that the search found, or that were made by hand."""

from __future__ import annotations

import pytest

from meshwright import api, published
from meshwright.api import plan_files
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import Strategy

VGG = published.path("dapple/vgg-19-pbs-32.txt")
SETTINGS = {"machines": "8,16", "global_batch": "1024", "optimizer_memory_scaling": "2"}


def step_by_hand(sizes: tuple[int, int], first: int, n: int, schedule: str) -> float:
    """Return the step of a plan of two stages, judged without the text."""
    problem = api.completed(api.make_problem(VGG), "dapple", SETTINGS)
    order = problem.graph.topological_order()
    devices = tuple(range(sizes[0])), tuple(range(sizes[0], sum(sizes)))
    stages = tuple(
        Stage(ops, ids, Strategy(data=len(ids)), ("none",) * len(ops))
        for ops, ids in zip((order[:first], order[first:]), devices, strict=True)
    )
    _, timeline = api.evaluate(problem, Plan(stages, n, 1024 // n // max(sizes), schedule, 1024))
    assert timeline is not None
    return timeline.step_seconds


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "early_backward_b"])
def test_a_plan_of_the_paper_is_played_as_typed(schedule: str) -> None:
    result = plan_files.given(VGG, f"14:2@16:9,n_microbatches=16,schedule={schedule}", settings=SETTINGS)
    assert result.step_seconds == step_by_hand((14, 2), 16, 16, schedule)
    assert result.objective is not None and result.objective.value == result.step_seconds
    assert result.bound is None
    assert any("stage 0: the fullest replica" in note for note in result.answer.notes)
    assert any("given, not searched for" in note for note in result.answer.notes)


def test_what_is_left_open_is_the_quickest_and_told() -> None:
    result = plan_files.given(VGG, "14:2@16:9", settings=SETTINGS)
    every = {(n, s): step_by_hand((14, 2), 16, n, s) for n in (1, 4, 16, 64) for s in ("1f1b", "early_backward_b")}
    assert result.step_seconds is not None and result.step_seconds <= min(every.values())
    notes = " ".join(result.answer.notes)
    assert f"{result.plan.n_microbatches} micro-batches" in notes and f"schedule {result.plan.schedule}" in notes


def test_the_layers_of_a_table_without_them_are_shared_out_and_told() -> None:
    result = plan_files.given(VGG, "8:8", settings=SETTINGS)
    split = ":".join(str(len(stage.ops)) for stage in result.plan.stages)
    assert any(f"split @{split}" in note for note in result.answer.notes)
    assert plan_files.given(VGG, f"8:8@{split}", settings=SETTINGS).step_seconds == result.step_seconds


def test_words_for_data_parallelism_and_for_one_device_each() -> None:
    assert plan_files.given(VGG, "dp", settings=SETTINGS).plan == plan_files.given(VGG, "16", settings=SETTINGS).plan
    straight = plan_files.given(VGG, "Straight", settings=SETTINGS).plan
    assert [stage.devices for stage in straight.stages] == [(i,) for i in range(16)]


def test_stages_that_do_not_fit_recompute_unless_told_not_to() -> None:
    bert = published.path("dapple/bert-48-pbs-2.txt")
    asked = {"machines": "8,16", "global_batch": "64", "peak_activation_per_sample": "40GB"}
    chosen = plan_files.given(bert, "8:8@20:33,n_microbatches=8,schedule=gpipe", settings=asked).plan
    never = plan_files.given(bert, "8:8@20:33,n_microbatches=8,schedule=gpipe", settings=asked | {"recompute": "never"}).plan
    assert {word for stage in chosen.stages for word in stage.recompute} >= {"full"}
    assert {word for stage in never.stages for word in stage.recompute} == {"none"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8:9", "takes 17 devices"),
        ("8:8,n_microbatches=3", "3 micro-batches do not divide"),
        ("8:8,n_microbatches=1024", "has too few for 1024 micro-batches"),
        ("8:8,schedule=zb_v", "'zb_v'"),
        ("a:8", "'a' must be the devices of a stage"),
    ],
)
def test_what_is_wrong_with_a_typed_plan_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_files.given(VGG, text, settings=SETTINGS)


def test_options_of_searching_and_models_without_tables_are_refused() -> None:
    with pytest.raises(InputError, match="--set max_stages: says how to search"):
        plan_files.given(VGG, "8:8", settings=SETTINGS | {"max_stages": "2"})
    with pytest.raises(InputError, match="gpt2 has no tables of a paper"):
        plan_files.given("gpt2", "8:8")
