"""The judge: the value of a legal plan by its definition, and a reason for everything that is none."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.suite import BenchProblem, judging, planning, questions

ALL = {one.id: one for one in questions.load()}


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> BenchProblem:
    """Ten operators in layers on four accelerators."""
    return questions.generate(ALL["generated/layers-10"], str(tmp_path_factory.mktemp("graph")))


def plan(*stages: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """A plan file of those operators."""
    held = [
        {"ops": [f"op{i}" for i in ops], "devices": [i], "data": 1, "tensor": 1, "recompute": []}
        for i, ops in enumerate(stages)
    ]
    schedule = {"name": "1f1b", "n_microbatches": 1, "micro_batch": 1, "global_batch": 1}
    return {"format": "meshwright/plan/1", "feasible": True, "stages": held, "schedule": schedule} | more


def judged(question: BenchProblem, tmp_path: pathlib.Path, entry: Any) -> Any:
    path = tmp_path / "plan.json"
    path.write_text(entry if isinstance(entry, str) else json.dumps(entry))
    return judging.judge(question, str(path))


def load_by_hand(question: BenchProblem, stages: tuple[tuple[int, ...], ...]) -> float:
    """Compute of a stage, and every tensor with a reader or its writer beyond the border, once."""
    held = json.loads(pathlib.Path(question.spec).read_text())
    stage_of = {op: i for i, ops in enumerate(stages) for op in ops}
    loads = [sum(held["nodes"][op]["fpgaLatency"] for op in ops) for ops in stages]
    for writer in range(10):
        edges = [edge for edge in held["edges"] if edge["sourceId"] == writer]
        touched = {stage_of[writer], *(stage_of[edge["destId"]] for edge in edges)}
        if len(touched) > 1:
            for i in touched:
                loads[i] += edges[0]["cost"]
    return max(loads)


@pytest.mark.parametrize(
    "stages", [((0, 1, 2, 3, 4, 5, 6, 7, 8, 9),), ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9)), ((0, 2), (1, 3), (4, 5, 6), (7, 8, 9))]
)
def test_a_legal_plan_has_the_largest_load_of_its_stages(
    ten: BenchProblem, tmp_path: pathlib.Path, stages: tuple[tuple[int, ...], ...]
) -> None:
    found = judged(ten, tmp_path, plan(*stages))
    assert found.refusal == "" and found.value == pytest.approx(load_by_hand(ten, stages), rel=1e-12)


def test_no_plan_is_below_the_bound_of_our_search(ten: BenchProblem, tmp_path: pathlib.Path) -> None:
    asked = questions.problem_json(ten, 30.0)
    found = judged(ten, tmp_path, planning.answer("partition", asked))
    assert found.value == pytest.approx(found.bound_value, rel=1e-9)
    for cut in range(1, 10):
        other = judged(ten, tmp_path, plan(tuple(range(cut)), tuple(range(cut, 10))))
        assert other.value is not None and other.value >= found.bound_value * (1 - 1e-9)


WHOLE = tuple(range(10))


def _changed(**more: Any) -> dict[str, Any]:
    """A plan of one stage with fields of the stage changed."""
    entry = plan(WHOLE)
    entry["stages"][0] |= more
    return entry


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("{no json", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "a plan of ours"),
        ({"format": "other/1", "feasible": True}, "a plan of ours"),
        (plan(WHOLE, feasible="yes"), "feasible"),
        (plan(WHOLE, problem="pase/alexnet-8"), "the plan of problem 'pase/alexnet-8'"),
        (plan(WHOLE, model={"name": "gpt2"}), "a plan for model 'gpt2'"),
        (plan(WHOLE[:-1]), "op9|in no stage|layer"),
        (plan(WHOLE, WHOLE), "op0|two"),
        (plan(WHOLE[5:], WHOLE[:5]), "pipeline order"),
        (plan((0,), (1,), (2,), (3,), WHOLE[4:]), "at most 4 stages"),
        (_changed(devices=[0, 1], data=2), "make 2 samples"),
        (_changed(devices=[0, 1], tensor=2), "at most 4 stages of one device"),
        (_changed(devices=[4]), "those called 0 to 3"),
        (_changed(tensor=3), "degrees"),
        (_changed(devices=[True]), "devices"),
        (_changed(data=float("nan")), "data"),
        (_changed(ops=["op0", "op77"]), "no layer 'op77'"),
        (plan(WHOLE) | {"schedule": {"name": "1f1b"}}, "n_microbatches|missing"),
        (plan(WHOLE) | {"stages": []}, "no stages"),
        (plan(WHOLE) | {"stages": None}, "stages"),
    ],
)  # fmt: skip
def test_what_is_no_plan_of_this_problem_is_refused_with_the_reason(
    ten: BenchProblem, tmp_path: pathlib.Path, entry: Any, why: str
) -> None:
    found = judged(ten, tmp_path, entry)
    assert found.value is None and not found.nothing and str(tmp_path) not in found.refusal
    assert any(word in found.refusal for word in why.split("|")), found.refusal


def test_nothing_fits_is_an_answer(ten: BenchProblem, tmp_path: pathlib.Path) -> None:
    found = judged(ten, tmp_path, {"format": "meshwright/plan/1", "feasible": False, "schedule": None})
    assert found.nothing and found.value is None and found.refusal == ""


def test_a_value_that_a_file_claims_is_not_believed(ten: BenchProblem, tmp_path: pathlib.Path) -> None:
    claims = {"objective": {"name": "largest_load", "value": 1e-9}, "step_seconds": 1e-9}
    assert judged(ten, tmp_path, plan(WHOLE) | claims).value == judged(ten, tmp_path, plan(WHOLE)).value


@pytest.mark.parametrize(
    ("objective", "bound"), [(3, {"value": 1.0}), ({"name": "largest_load"}, "x"), ({"name": "other"}, {"value": 1.0})]
)
def test_a_bound_that_is_none_is_left_out(ten: BenchProblem, tmp_path: pathlib.Path, objective: Any, bound: Any) -> None:
    found = judged(ten, tmp_path, plan(WHOLE) | {"objective": objective, "bound": bound})
    assert found.bound_value is None


@pytest.mark.parametrize(
    ("name", "search"), [("piper/bert32-8x8gib", "piper"), ("pase/alexnet-8", "pase"), ("dapple/vgg-19", "dapple"),
                         ("partition/bert24-8", "partition"), ("models/llama-3.2-1b@dgx-h100:8", "best")]
)  # fmt: skip
def test_the_judge_agrees_with_our_searches_on_their_own_plans(name: str, search: str, tmp_path: pathlib.Path) -> None:
    question = ALL[name]
    answer = planning.answer(search, questions.problem_json(question, 60.0))
    found = judged(question, tmp_path, answer)
    assert found.refusal == "" and found.value == pytest.approx(answer["objective"]["value"], rel=1e-9)
    assert found.bound_value == answer["bound"]["value"] <= found.value * (1 + 1e-9)


def test_a_plan_of_piper_that_holds_too_much_is_refused(tmp_path: pathlib.Path) -> None:
    question = ALL["piper/bert32-8x8gib"]
    graph = api.read(question.spec).graph
    names = [graph.ops[op].name for op in graph.topological_order()]
    stage = {"ops": names, "devices": [0], "data": 1, "tensor": 1, "recompute": ["none"] * len(names)}
    schedule = {"name": "1f1b", "n_microbatches": 1920, "micro_batch": 1, "global_batch": 1920}
    found = judged(
        question, tmp_path, {"format": "meshwright/plan/1", "feasible": True, "stages": [stage], "schedule": schedule}
    )
    assert "does not fit" in found.refusal


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda parts: parts.pop("conv0"), "conv0 must have"),
        (lambda parts: parts.update(conv0=["2"] * 7), "conv0 must have"),
        (lambda parts: parts.update(conv0=[16, 1, 1, 1, 1, 1, 1]), "there are 8"),
        (lambda parts: parts.update(conv0=[1, 1, 2, 1, 1, 1, 1]), "may not be split"),
    ],
)
def test_splits_that_pase_does_not_know_are_refused(change: Any, why: str, tmp_path: pathlib.Path) -> None:
    question = ALL["pase/alexnet-8"]
    answer = planning.answer("pase", questions.problem_json(question, 60.0))
    change(answer["shardings"])
    assert why in judged(question, tmp_path, answer).refusal
