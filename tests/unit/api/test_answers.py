"""What a search answers is taken over only where it answers the question that was asked, and claims what can be true."""

from __future__ import annotations

import math
import pathlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import api, clusters
from meshwright.base import registry
from meshwright.base.errors import InputError, MeshwrightError, PluginError
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Bound, Objective

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
TINY = str(DATA / "tiny_llama.json")


@pytest.fixture(scope="module")
def asked() -> Problem:
    return api.make_problem(TINY, "flat:4", batch=Batch(16))


def answered(monkeypatch: pytest.MonkeyPatch, asked: Problem, **changed: Any) -> Any:
    """Return what `plan` makes of a right answer that is changed."""
    load = registry.load
    own = load("search", "data_parallel", "search")

    def search(problem: Problem, params: Any, *, seed: int, stop: Any) -> Answer:
        return replace(own.search(problem, params, seed=seed, stop=stop), **changed)

    module = SimpleNamespace(Params=own.Params, search=search)
    monkeypatch.setattr(registry, "load", lambda room, name, kind: module if name == "planted" else load(room, name, kind))
    return api.plan(asked, search="planted")


def faster(problem: Problem) -> Problem:
    cluster = problem.required_cluster
    kinds = tuple(replace(kind, flops_per_second=(("bf16", 1e17),)) for kind in cluster.kinds)
    return replace(problem, cluster=replace(cluster, kinds=kinds))


OTHERS = {
    "cluster": faster,
    "model": lambda problem: api.make_problem("gpt2", problem.cluster, batch=problem.batch),
    "global_batch (4 instead of 16)": lambda problem: replace(problem, batch=Batch(4)),
    "training": lambda problem: replace(problem, training=api.training("fp8")),
    "memory_risk": lambda problem: replace(problem, memory_risk=0.4),
    "framework": lambda problem: replace(problem, framework=replace(problem.framework, compute_ratio=0.1)),
}


@pytest.mark.parametrize("word", OTHERS)
def test_another_question_is_not_answered(word: str, asked: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError) as error:
        answered(monkeypatch, asked, problem=OTHERS[word](asked))
    assert str(error.value) == (
        f"search planted answered another question: it changed {word}; it may only fill in what is left open"
    )


def test_links_are_part_of_the_question(asked: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = asked.required_cluster
    quick = replace(cluster, links=replace(cluster.links, bytes_per_second=cluster.links.bytes_per_second * 2))
    with pytest.raises(PluginError, match="it changed cluster"):
        answered(monkeypatch, asked, problem=replace(asked, cluster=quick))


def test_what_is_left_open_may_be_filled_in(asked: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    same = replace(asked, cluster=clusters.cluster("flat:4"))  # made anew, but the same
    assert answered(monkeypatch, asked, problem=same).problem is same
    gap = replace(asked, batch=Batch())
    assumed = api.plan(gap, search="data_parallel").plan.global_batch
    assert answered(monkeypatch, gap, problem=replace(gap, batch=Batch(assumed))).asked is gap


def test_a_further_field_is_none_that_every_answer_has(asked: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match=r"^search planted gives extra the field 'step_seconds', which every answer has"):
        answered(monkeypatch, asked, extra={"own": 1, "step_seconds": 1e-9})
    assert answered(monkeypatch, asked, extra={"own": 1}).answer.extra["own"] == 1


def test_a_plan_has_the_batch_that_was_asked_for(asked: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    smaller = api.plan(replace(asked, batch=Batch(4)), search="data_parallel").plan
    with pytest.raises(PluginError, match=r"^search planted answered with a plan of global_batch 4; 16 was asked for$"):
        answered(monkeypatch, asked, plan=smaller, objective=None, bound=None)


CLAIMS: list[tuple[Any, Any, str]] = [
    (Objective("step_seconds", 1e-6), Bound(1e-6, "exact"), "claims step_seconds = 1e-06, but the simulator says"),
    (Objective("simulated_seconds_per_sample", 1e-6), None, "claims simulated_seconds_per_sample = 1e-06, but the simulator"),
    (
        Objective("step_seconds", 100.0),
        Bound(200.0, "exact"),
        r"claims the bound 200.0 on step_seconds = 100.0; .* never beyond",
    ),
    (Objective("speedup", 2.0), Bound(1.0, "exact"), "claims the bound 1.0 on speedup"),
    (Objective("step_seconds", math.nan), None, "claims the objective step_seconds = nan; it must be finite"),
    (Objective("max_table", -1.0), None, "claims the objective max_table = -1.0"),
    (Objective("step_seconds", 100.0), Bound(math.nan, "exact"), "claims the bound nan"),
    (Objective("speedup", 100.0), Bound(math.inf, "exact"), "claims the bound inf"),
    (None, Bound(1.0, "exact"), "claims the bound 1.0 without an objective"),
]


@pytest.mark.parametrize(("objective", "bound", "told"), CLAIMS)
def test_claims_that_cannot_be_true_are_refused(
    objective: Any, bound: Any, told: str, asked: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MeshwrightError, match=f"^search planted {told}") as error:
        answered(monkeypatch, asked, objective=objective, bound=bound)
    assert isinstance(error.value, PluginError) and "\n" not in str(error.value)


def test_claims_that_can_be_true_are_taken_over(asked: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    for objective, bound in (("step_seconds", 90.0), ("step_seconds", 100.0), ("max_table", 0.0)):
        result = answered(monkeypatch, asked, objective=Objective(objective, 100.0), bound=Bound(bound, "exact"))
        assert result.gap_ratio == pytest.approx(100.0 / bound - 1.0 if bound else 0.0)
    speedup = answered(monkeypatch, asked, objective=Objective("speedup", 2.0), bound=Bound(4.0, "relaxation"))
    assert speedup.gap_ratio == 1.0


def test_a_question_posed_has_the_length_of_samples_that_its_model_has(asked: Problem) -> None:
    with pytest.raises(InputError, match=r"Batch.sequence_length 64: model .* was read at \d+ tokens a sample"):
        replace(asked, batch=Batch(16, 0, 64))
    assert replace(asked, batch=Batch(16, 0, asked.graph.sequence_length)).graph is asked.graph
