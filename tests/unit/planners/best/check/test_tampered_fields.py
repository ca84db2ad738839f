"""Every number of an answer's claims and of its certificate is read: changed alone, it is refused with its name."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from typing import Any

import pytest

from meshwright import api
from meshwright.base import options
from meshwright.base.errors import InputError
from meshwright.planners.best.check import answers
from meshwright.planners.best.search.best import Params
from meshwright.writers import plan_json
from small_questions import question

SETTINGS = {"context": "1", "micro_batch": "1", "tensor": "1,2", "pipeline": "1,2"}
Asked = tuple[Any, dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def asked() -> Asked:
    """An answer with sets of several kinds, its file, and its options."""
    result = api.plan(question("like", "nodes", gigabytes=0.6), search="best", settings=SETTINGS)
    entry = json.loads(json.dumps(plan_json.as_json(result)))
    assert {one["by"] for one in entry["certificate"]["sets"]} >= {"configurations", "compute"}
    return result, entry, dataclasses.asdict(options.parse(Params, SETTINGS, "search best"))


def one_of_each(entry: dict[str, Any]) -> list[int]:
    """Return the last set of each kind, and the first one: every change of one is a check of all."""
    return sorted({0, *{one["by"]: i for i, one in enumerate(entry["certificate"]["sets"])}.values()})


def reason(asked: Asked, *path: Any, value: Any) -> str:
    """Return why the file is refused with another value at a path; a function is asked for it."""
    result, entry, limits = asked
    entry = copy.deepcopy(entry)
    place: Any = entry
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value(place[path[-1]]) if callable(value) else value
    verdict = answers.check_plan(result, entry, "a.json", limits)
    assert verdict.valid == (not verdict.reason)
    return verdict.reason


def test_as_it_is_it_is_confirmed(asked: Asked) -> None:
    assert reason(asked, "step_seconds", value=lambda seconds: seconds) == ""


def test_a_certificate_without_sets_proves_nothing(asked: Asked) -> None:
    assert reason(asked, "certificate", value=lambda held: {name: held[name] for name in held if name != "sets"}) == (
        "certificate.sets: there are none; plan again"
    )


@pytest.mark.parametrize(("part", "name", "value"), [
    ("model", "name", "llama-3.1-405b"), ("model", "n_parameters", 1), ("model", "n_trained_parameters", 1),
    ("cluster", "name", "other"), ("cluster", "n_devices", 7),
])  # fmt: skip
def test_what_the_file_says_of_model_and_cluster_is_read(asked: Asked, part: str, name: str, value: object) -> None:
    assert reason(asked, part, name, value=value).startswith(f"{part}.{name} is {value!r}; the certificate is of a question")


def test_the_framework_that_the_file_names_is_read(asked: Asked) -> None:
    assert reason(asked, "framework", value="megatron").startswith("framework is 'megatron'; the certificate is of a question")


@pytest.mark.parametrize("name", ["tensor", "context", "expert", "micro_batch", "pool"])
def test_the_degrees_of_every_set_are_read(asked: Asked, name: str) -> None:
    for i in one_of_each(asked[1]):
        assert re.match(rf"certificate\.sets\[{i}\]: no mesh is closed so here: |certificate\.sets\[\d+\]: .* twice$",
                        reason(asked, "certificate", "sets", i, name, value=lambda degree: degree + 17))  # fmt: skip


def test_counts_bounds_and_kinds_of_every_set_are_read(asked: Asked) -> None:
    for i in one_of_each(asked[1]):
        one, here = asked[1]["certificate"]["sets"][i], ("certificate", "sets", i)
        for change in (1, -1):
            said = reason(asked, *here, "n_meshes", value=one["n_meshes"] + change)
            assert re.search(r" \d+ meshes of \d+ configurations, not ", said)
        counted = one.get("n_configurations", 0)
        assert re.search(
            rf" meshes of {counted + 1} configurations, not \d+ of {counted}$",
            reason(asked, *here, "n_configurations", value=counted + 1),
        )
        if "seconds" in one:
            for factor in (1 + 1e-8, 1 - 1e-8, 0.0, -1.0, math.inf, math.nan):
                assert ": the least is " in reason(asked, *here, "seconds", value=one["seconds"] * factor), factor
            assert reason(asked, *here, "seconds", value=one["seconds"] * (1 + 5e-10)) == ""
        else:
            assert ": the least is inf seconds, not 1.0" in reason(asked, *here, "seconds", value=1.0)
        other = "peak" if one["by"] != "peak" else "compute"
        assert re.search("no mesh is closed so|twice|configurations, not", reason(asked, *here, "by", value=other))


@pytest.mark.parametrize(("path", "value", "why"), [
    (("objective", "value"), lambda s: s * (1 + 2e-9), "objective: the plan takes "),
    (("objective", "value"), math.nan, "objective: "),
    (("step_seconds",), lambda s: s * (1 - 2e-9), "step_seconds: the plan takes "), (("step_seconds",), None, "step_seconds: "),
    (("bound", "value"), lambda s: s * (1 + 1e-15 * 4), "bound.value is "), (("bound", "value"), 0.0, "bound.value is 0.0, "),
    (("bound", "value"), math.inf, "bound.value is inf"), (("certificate", "bound_seconds"), math.nan, "bound.value is "),
    (("bound", "gap_ratio"), lambda r: r + 2e-9, "bound.gap_ratio is "),
    (("bound", "gap_ratio"), lambda r: r - 2e-9, "bound.gap_ratio is "),
    (("certificate", "format"), None, "certificate.format is None"),
    (("certificate", "question", "limits"), None, "certificate.question.limits: "),
    (("certificate", "question", "micro_batch"), 1, "batch.asked_micro_batch is 0; "),
    (("certificate", "question", "sequence_length"), 0, "batch.sequence_length is 2048; "),
    (("certificate", "question", "global_batch"), 4, "schedule.global_batch is 8; "),
    (("certificate", "question", "limits", "splits"), 1, "certificate.question.limits.splits is 1, by the settings it is 400"),
    (("certificate", "question", "limits", "memory_ratio"), 0.9, "certificate.question.limits.memory_ratio is 0.9, "),
    (("certificate", "question", "limits", "other"), 1, "certificate.question.limits.other is 1, by the settings it is None"),
    (("certificate", "question", "limits", "uniform"), True, "certificate.question.limits.uniform is True, "),
])  # fmt: skip
def test_claims_and_question_are_read(asked: Asked, path: tuple[Any, ...], value: Any, why: str) -> None:
    assert reason(asked, *path, value=value).startswith(why)


@pytest.mark.parametrize("name", ["within_ratio", "alternatives"])
def test_options_that_only_show_plans_are_not_compared(asked: Asked, name: str) -> None:
    assert reason(asked, "certificate", "question", "limits", name, value=0.25) == ""


@pytest.mark.parametrize(("path", "value", "why"), [
    (("bound", "value"), None, r"a field is missing or of the wrong kind: "),
    (("objective", "value"), "x", r"a field is missing or of the wrong kind: "),
    (("certificate", "bound_seconds"), None, r"a field is missing or of the wrong kind: "),
    (("certificate", "question", "training"), {"x": 1}, r"certificate\.question: a field is missing or of the wrong kind: "),
    (("certificate", "question", "global_batch"), "x", r"certificate\.question: a field is missing or of the wrong kind: "),
    (("certificate", "sets", 0, "tensor"), math.inf, r"certificate\.sets: a field is missing or of the wrong kind: "),
    (("certificate", "sets"), 3, r"certificate\.sets: a field is missing or of the wrong kind: "),
])  # fmt: skip
def test_fields_of_another_kind_are_an_error_with_the_file(asked: Asked, path: tuple[Any, ...], value: Any, why: str) -> None:
    with pytest.raises(InputError, match=rf"^a\.json: {why}"):
        reason(asked, *path, value=value)


def test_a_plan_that_does_not_fit_or_is_said_to_be_quicker_than_its_bound_is_refused(asked: Asked) -> None:
    result, entry, limits = asked
    n_bytes = max(result.timeline.peak_bytes)
    kinds = tuple(dataclasses.replace(kind, memory_bytes=n_bytes - 1000.0) for kind in result.problem.cluster.kinds)
    cluster = dataclasses.replace(result.problem.cluster, kinds=kinds)
    small = dataclasses.replace(result, problem=dataclasses.replace(result.problem, cluster=cluster))
    verdict = answers.check_plan(small, entry, "a.json", limits)
    assert verdict.reason == "the plan does not fit: its fullest device lacks 1000 bytes" and not verdict.valid
    changed, raised = copy.deepcopy(entry), entry["step_seconds"] * 1.001
    changed["bound"] = {**entry["bound"], "value": raised, "gap_ratio": entry["step_seconds"] / raised - 1.0}
    changed["certificate"]["bound_seconds"] = raised
    said = answers.check_plan(result, changed, "a.json", limits).reason
    assert re.fullmatch(r"bound\.value, [\d.]+, is above the [\d.]+ seconds that the plan takes", said)
    nothing = answers.check_plan(dataclasses.replace(result, timeline=None), entry, "a.json", limits)
    assert (nothing.valid, nothing.reason) == (False, "the plan cannot be simulated") and math.isnan(nothing.value)
