"""The contract tests of searches catch: each of these breaks one promise, and a test says so; the right one passes all."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import test_search as contract

from meshwright import api
from meshwright.base import registry
from meshwright.base.errors import InputError, PluginError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.result import Answer, Bound, Objective

CONTRACT = [
    test
    for name, test in vars(contract).items()
    if name.startswith("test_") and [*inspect.signature(test).parameters] == ["name"]
]


@dataclass(frozen=True)
class Params:
    """No options."""

    wide: int = 1


@dataclass
class Writable:
    """Options that can be changed."""

    wide: int = 1


def right(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
    """Everything on the first device, one sample at a time; only where seconds and memory are known."""
    if problem.costs != "analytic" or problem.cluster is None or not any(op.body for op in problem.graph.ops):
        raise InputError("search planted: answers models that are costed from what they compute")
    n = len(problem.graph.ops)
    batch = problem.batch.global_batch
    plan = Plan((Stage(tuple(range(n)), (0,), recompute=("full",) * n),), batch, 1, "1f1b", batch)
    timeline = api.simulate(problem, plan)
    missing = timeline.peak_bytes[0] - problem.cluster.kinds[0].memory_bytes
    if missing > 0.0:
        return Answer(None, missing_bytes=missing)
    return Answer(plan, Objective("step_seconds", timeline.step_seconds), Bound(timeline.step_seconds / 2, "relaxation"))


def changed(change: Callable[[Answer], Answer]) -> Callable[..., Answer]:
    """Return a search that spoils the right answer."""

    def search(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
        answer = right(problem, params, seed=seed, stop=stop)
        return answer if answer.plan is None else change(answer)

    return search


def with_stages(answer: Answer, *stages: Stage) -> Answer:
    assert answer.plan is not None
    return replace(answer, plan=replace(answer.plan, stages=stages))


def without_a_layer(answer: Answer) -> Answer:
    (stage,) = answer.plan.stages  # type: ignore[union-attr]
    return with_stages(answer, replace(stage, ops=stage.ops[:-1], recompute=stage.recompute[:-1]))


def on_shared_devices(answer: Answer) -> Answer:
    (stage,) = answer.plan.stages  # type: ignore[union-attr]
    first = replace(stage, ops=stage.ops[:1], recompute=stage.recompute[:1])
    wide = replace(stage.strategy, data=2)
    return with_stages(
        answer, first, replace(stage, ops=stage.ops[1:], recompute=stage.recompute[1:], devices=(0, 1), strategy=wide)
    )


def at(ratio: float) -> Callable[[Answer], Answer]:
    """Return what claims another objective."""
    return lambda answer: replace(answer, objective=Objective("step_seconds", answer.objective.value * ratio))  # type: ignore[union-attr]


def whatever_the_memory(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
    """The right plan on devices with all the memory in the world."""
    right(problem, params, seed=seed, stop=stop)
    assert problem.cluster is not None
    kinds = tuple(replace(kind, memory_bytes=1e15) for kind in problem.cluster.kinds)
    return right(replace(problem, cluster=replace(problem.cluster, kinds=kinds)), params, seed=seed, stop=stop)


def in_two_lines(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
    try:
        return right(problem, params, seed=seed, stop=stop)
    except InputError as error:
        raise InputError(f"{error}\nand so on") from None


def silent(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
    answer = right(problem, params, seed=seed, stop=stop)
    return Answer(None) if answer.plan is None else answer


def twice_as_slow(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
    """Recomputes everything, where a search that it names need not."""
    return right(problem, params, seed=seed, stop=stop)


def no_plan_for_some(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
    """The right plan, but a layer short where there are four devices."""
    answer = right(problem, params, seed=seed, stop=stop)
    tight = problem.cluster is not None and problem.cluster.n_devices == 4
    return without_a_layer(answer) if tight and answer.plan is not None else answer


def writes_into_the_question(problem: Problem, params: Params, *, seed: int, stop: object) -> Answer:
    answer = right(problem, params, seed=seed, stop=stop)
    assert problem.cluster is not None
    object.__setattr__(problem.cluster.kinds[0], "memory_bytes", 7e14)
    return answer


CALLS = itertools.count()
WRONG: dict[str, tuple[Any, str]] = {
    "another answer at the same seed": (
        changed(lambda answer: replace(answer, notes=(f"call {next(CALLS)}",))), "test_same_seed_same_answer",
    ),
    "a layer left out": (changed(without_a_layer), "test_a_search_answers_some_sample_and_refuses_others_in_one_line"),
    "devices of two stages overlap": (
        changed(on_shared_devices), "test_a_search_answers_some_sample_and_refuses_others_in_one_line",
    ),
    "memory exceeded without a word": (
        whatever_the_memory, "test_memory_is_kept_by_the_simulators_count_or_the_result_says_that_it_is_not",
    ),
    "nothing fits without a word": (
        silent, "test_memory_is_kept_by_the_simulators_count_or_the_result_says_that_it_is_not",
    ),
    "an objective below the simulator's": (
        changed(at(0.75)), "test_a_bound_is_never_beyond_the_objective_and_a_simulated_objective_never_below_the_simulator",
    ),
    "a bound beyond the objective": (
        changed(lambda answer: replace(answer, bound=Bound(1e9, "exact"))),
        "test_a_bound_is_never_beyond_the_objective_and_a_simulated_objective_never_below_the_simulator",
    ),
    "refusals of two lines": (in_two_lines, "test_a_search_answers_some_sample_and_refuses_others_in_one_line"),
    "slower than what it names": (twice_as_slow, "test_a_search_is_not_slower_than_the_baselines_it_names"),
    "a field that is another in plan files": (
        changed(lambda answer: replace(answer, extra={"stages": 1})),
        "test_every_field_of_an_answer_is_one_that_plan_files_have",
    ),
    "no plan for some questions": (
        no_plan_for_some, "test_memory_is_kept_by_the_simulators_count_or_the_result_says_that_it_is_not",
    ),
    "an objective in seconds of nothing": (
        changed(lambda answer: replace(answer, objective=Objective("seconds", 1e-9), bound=None)),
        "test_a_bound_is_never_beyond_the_objective_and_a_simulated_objective_never_below_the_simulator",
    ),
    "a question that is another afterwards": (writes_into_the_question, "test_a_search_leaves_its_question_as_it_was"),
    "stops early without looking": (
        SimpleNamespace(Params=Params, search=right, STOPS_EARLY=True),
        "test_a_search_that_can_stop_early_asks_whether_to_and_answers_with_what_it_has",
    ),
    "options that can be changed": (
        SimpleNamespace(Params=Writable, search=right), "test_options_are_a_frozen_dataclass_with_defaults"),
}  # fmt: skip


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Put a search beside the others, for the length of one test."""
    load = registry.load

    def planted(name: str, search: Any) -> None:
        module = search if isinstance(search, SimpleNamespace) else SimpleNamespace(Params=Params, search=search)
        if search is twice_as_slow:
            module.BASELINES = ("data_parallel",)
        monkeypatch.setattr(
            registry,
            "load",
            lambda room, wanted, kind: module if (room, wanted) == ("search", name) else load(room, wanted, kind),
        )

    return planted


def test_the_right_search_passes_all(plant: Callable[[str, Any], None]) -> None:
    plant("planted_right", right)
    assert len(CONTRACT) >= 8
    for test in CONTRACT:
        test("planted_right")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_search_fails_the_test_of_the_promise_that_it_breaks(wrong: str, plant: Callable[[str, Any], None]) -> None:
    search, caught_by = WRONG[wrong]
    name = f"planted_{wrong.replace(' ', '_')}"
    plant(name, search)
    with pytest.raises((AssertionError, pytest.fail.Exception, InputError, PluginError, TypeError)):
        getattr(contract, caught_by)(name)
