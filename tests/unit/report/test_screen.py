"""The answer on one screen: 24 lines of 100 characters for any question, and nothing that ``-v`` says is lost."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest

from meshwright import api
from meshwright.api.sensitivity import Change
from meshwright.core.flops import model_flops
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, ModelSpec, Problem
from meshwright.core.result import Answer, Bound, Result
from meshwright.core.strategy import Strategy
from meshwright.planners.best.incumbents import STOPPED
from meshwright.report import screen, text

QUESTIONS = {
    "dense": ("llama-3.1-8b", "dgx-h100:16", Batch(64), {}),
    "virtual stages": ("gpt3-13b", "dgx-a100:32", Batch(256), {"pipeline": "4"}),
    "many stages": ("gpt2-xl", "flat:48", Batch(96), {"pipeline": "16"}),
    "mixture": ("mixtral-8x7b", "dgx-h100:32", Batch(128), {"tensor": "1"}),
    "long context": ("llama-3.2-1b", "dgx-h100:16", Batch(16, 0, 131072), {}),
    "nothing fits": ("llama-3.1-405b", "dgx-h100:8", Batch(64), {}),
    "one device": ("gpt2", "dgx-h100:1", Batch(64), {}),
    "16k devices": ("llama-3.1-405b", "dgx-h100:16384", Batch(2048), {"pipeline": "16", "tensor": "8", "context": "2"}),
}


@pytest.fixture(scope="module", params=QUESTIONS)
def answered(request: pytest.FixtureRequest) -> Result:
    """An answer, with more and longer notes than there is room for."""
    model, cluster, batch, settings = QUESTIONS[request.param]
    result = api.plan(model, cluster, batch=batch, settings=settings)
    notes = tuple(f"note {i} of many words: {'words ' * 60}" for i in range(8))
    return replace(result, answer=replace(result.answer, notes=(*result.answer.notes, *notes)))


def changes_of(result: Result) -> list[Change]:
    names = ("twice the memory", "the slowest links (45 GB/s) twice as fast", "twice the batch", "devices twice as fast")
    return [Change(name, result, 1.25) for name in names] if result.feasible else []


def test_an_answer_is_a_screen(answered: Result) -> None:
    lines = text.explain(answered, changes_of(answered), verbose=False).splitlines()
    assert len(lines) <= screen.LINES == 24 and max(map(len, lines)) <= screen.COLUMNS == 100, "\n".join(lines)
    assert lines[0].startswith(f"{answered.problem.model_spec.name} on ")
    if answered.feasible:
        for beginning in ("plan: ", "step: ", "time: ", "memory: ", "samples/s at least, with: ", "search best"):
            assert any(line.startswith(beginning) for line in lines), beginning


def test_notes_that_are_not_shown_are_counted(answered: Result) -> None:
    lines = text.explain(answered, changes_of(answered), verbose=False).splitlines()
    shown = sum(line.startswith("note: ") for line in lines)
    left = len(answered.answer.notes) - shown
    more = f" and {left} more note{'s' * (left > 1)}" if left else ""
    assert lines[-1].endswith(f"-v shows all{more}")


def test_that_a_search_was_stopped_is_always_said_in_full(answered: Result) -> None:
    notes = ("one " * 30, "two", "three", "four", STOPPED)
    stopped = replace(answered, answer=replace(answered.answer, notes=notes))
    lines = text.explain(stopped, changes_of(stopped), verbose=False).splitlines()
    assert f"note: {STOPPED}" in " ".join(line.strip() for line in lines) and len(lines) <= screen.LINES + 1


def test_all_is_said_with_verbose(answered: Result) -> None:
    whole = " ".join(text.explain(answered, changes_of(answered)).split())
    assert all(" ".join(note.split()) in whole for note in answered.answer.notes)
    if answered.feasible:
        assert whole.count("objective step_seconds") == 1 and "where the time of a step goes" in whole


def test_runners_up_have_a_line_each_in_their_order(answered: Result) -> None:
    lines = text.explain(answered, verbose=False).splitlines()
    base = answered.answer.objective
    for other in answered.answer.alternatives:
        assert base is not None
        assert sum(line.lstrip().startswith(f"{other.objective.value / base.value - 1:+.2%}  ") for line in lines) >= 1


def test_degrees_have_a_column_only_where_stages_differ_and_long_names_give_way() -> None:
    graph = Graph("odd", tuple(Op("a_name_of_a_layer_that_is_long_" * 3 + str(i), "mlp") for i in range(2)))
    problem = Problem(ModelSpec("odd", "m", "m", graph), None)
    uneven = Plan((Stage((0, 1), (0,)),), 1, 1, "1f1b", 1)
    lines = text.explain(Result(problem, "by hand", 0, Answer(uneven)), verbose=False).splitlines()
    assert max(map(len, lines)) <= 100 and not any(" tensor" in line for line in lines)
    apart = Plan((Stage((0,), (0, 1), Strategy(data=2)), Stage((1,), (2, 3), Strategy(tensor=2))), 1, 1, "1f1b", 2)
    lines = text.explain(Result(problem, "by hand", 0, Answer(apart)), verbose=False).splitlines()
    (header,) = (line for line in lines if line.startswith("stage"))
    assert "data  tensor" in header


def test_what_was_asked_besides_is_shown_in_full(answered: Result) -> None:
    if not answered.feasible:
        return
    entry = {"fixed": {"tensor": 2}, "feasible": False, "reason": "no such degrees"}
    asked = replace(answered, answer=replace(answered.answer, extra={**answered.answer.extra, "why_not": entry}))
    assert "why not tensor=2: no such degrees" in text.explain(asked, verbose=False)


def test_both_utilizations_are_given_and_differ_by_the_masked_half_of_attention() -> None:
    result = api.plan("llama-3.2-1b", "dgx-h100:8", batch=Batch(8, 0, 65536))
    entry, graph, cluster = result.to_dict(), result.problem.graph, result.problem.cluster
    assert cluster is not None and result.step_seconds is not None
    peak = 8 * cluster.device(0).peak(result.problem.training.precision)
    for name, halved in (("", False), ("causal_", True)):
        expected = model_flops(graph, halve_causal=halved) * 8 / result.step_seconds / peak
        assert entry[f"model_flops_utilization_{name}ratio"] == pytest.approx(expected, rel=1e-6)
    assert entry["model_flops_utilization_causal_ratio"] < 0.7 * entry["model_flops_utilization_ratio"]
    assert "the full square of causal attention" in text.explain(result)
    encoder = api.plan("bert-base", "dgx-h100:1", batch=Batch(64))
    assert encoder.to_dict()["model_flops_utilization_causal_ratio"] == encoder.to_dict()["model_flops_utilization_ratio"]
    assert "full square" not in text.explain(encoder)


def test_where_all_lines_are_taken_notes_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    result = api.plan("gpt2", "dgx-h100:1", batch=Batch(64))
    result = replace(result, answer=replace(result.answer, notes=("one", "two", "three")))
    monkeypatch.setattr(screen, "LINES", 10)  # fewer than the answer itself takes
    lines = text.explain(result, changes_of(result), verbose=False).splitlines()
    assert not any(line.startswith("note: ") for line in lines) and lines[-1].endswith("-v shows all and 3 more notes")


def test_one_rule_says_which_device_is_the_fullest(tmp_path: pathlib.Path) -> None:
    """A large device with little left by share, beside a small one with fewer bytes left."""
    two = tmp_path / "two.yaml"
    two.write_text(
        "format: meshwright/cluster/1\nkinds:\n"
        "  large: {flops: {bf16: 30 TFLOP/s}, memory: 40 GiB, memory_bandwidth: 800 GB/s}\n"
        "  small: {flops: {bf16: 10 TFLOP/s}, memory: 4 GiB, memory_bandwidth: 800 GB/s}\n"
        "nodes: [{name: n, devices: [large, small]}]\nlinks: [{from: n/0, to: n/1, bandwidth: 10 GB/s}]\n"
    )
    found = api.plan("gpt2", str(two), batch=Batch(8), settings={"pipeline": "2"})
    assert found.timeline is not None
    for peaks, memory in (((30 * 2**30, 2**31), "30 GiB of 40 GiB"), ((10 * 2**30, 3.5 * 2**30), "3.5 GiB of 4 GiB")):
        ranks = [found.problem.required_cluster.device(devices[0]).name for devices in found.plan.ranks()]
        held = dict(zip(("large", "small"), map(float, peaks), strict=True))
        timeline = replace(found.timeline, peak_bytes=tuple(held[name] for name in ranks))
        full = replace(found, timeline=timeline)
        said = " ".join(text.explain(full, verbose=False).split())
        share = max(held["large"] / 40, held["small"] / 4) / 2**30
        assert f"the fullest device is {share:.1%} full" in said and f"memory: {memory}" in said


def test_no_runner_up_is_announced_where_none_is_shown() -> None:
    result = api.plan("gpt2", "dgx-h100:1", batch=Batch(64))
    assert result.step_seconds is not None
    entry = {"others_at_least_seconds": result.step_seconds / 2, "n_left_out": 0, "proven": False}
    alone = replace(result.answer, alternatives=(), extra={**result.answer.extra, "runners_up": entry})
    lines = text.explain(replace(result, answer=alone), verbose=False).splitlines()
    assert "no runners-up are shown (proven: others may be up to 100.00% quicker)" in lines


def test_a_quicker_plan_that_would_read_as_nothing_is_not_told() -> None:
    result = api.plan("gpt2", "dgx-h100:1", batch=Batch(64))
    for ratio, told in ((2e-5, False), (6e-5, True)):
        objective = result.answer.objective
        assert objective is not None
        fastest = {"step_seconds": 1.0, "quicker_ratio": ratio, "gap_ratio": 0.0, "plan": "x", "why": ""}
        bound = Bound(objective.value * (1.0 - ratio), "test")
        answer = replace(result.answer, bound=bound, extra={**result.answer.extra, "fastest": fastest})
        said = " ".join(text.explain(replace(result, answer=answer), verbose=False).split())
        assert "no plan searched is more than 0.01% quicker" in said and ("--within 0 finds" in said) == told


def test_the_screen_says_where_no_run_on_the_kind_of_device_was_measured() -> None:
    old, new = (api.plan("gpt2", cluster, batch=Batch(8, 0, 256)) for cluster in ("g4dn-t4:4", "dgx-a100:4"))
    (said,) = [line for line in text.explain(old, verbose=False).splitlines() if line.startswith("step: ")]
    assert "; no run on T4-16GB was measured)" in said
    assert "; no run like this was measured)" in text.explain(new, verbose=False)  # layers of so little work
    near = api.plan("llama-3.1-8b", "dgx-h100:8", framework="megatron", batch=Batch(64, 0, 4096))
    assert "was measured" not in text.explain(near, verbose=False).partition("time: ")[0]


def test_idle_devices_are_said_of_the_answer_and_of_those_beside_it() -> None:
    result = api.plan("gpt2", "flat:7", batch=Batch(60), settings={"pipeline": "1", "tensor": "1", "context": "1"})
    assert result.plan.n_devices == 6
    for verbose in (False, True):
        said = " ".join(text.explain(result, verbose=verbose).split())
        assert "model FLOPs utilization of the 6 devices used (1 of 7 idle)" in said
        assert "5 of 7 devices" in said
    busy = api.plan("gpt2", "flat:6", batch=Batch(60), settings={"pipeline": "1", "tensor": "1", "context": "1"})
    said = text.explain(busy, verbose=False)
    assert " idle" not in said and "6 of 6" not in said and "5 of 6 devices" in said


def test_what_a_framework_cannot_be_told_is_said_with_what_the_plan_is_then() -> None:
    result = api.plan("phi-3-mini", "flat:8", batch=Batch(16), framework="torchtitan", settings={"alternatives": "1"})
    said = " ".join(text.explain(result, verbose=False).split())
    assert "phi-3-mini is not in its registry" in said
    assert "the plan is what torchtitan would run if it could be told it" in said


def test_numbers_of_devices_that_are_not_searched_are_said() -> None:
    result = api.plan("gpt2", "dgx-h100:12", batch=Batch(12), framework="fsdp2", settings={"alternatives": "1"})
    (note,) = (note for note in result.answer.notes if "every host" in note)
    assert note.startswith("fsdp2 starts equally many devices of every host: the first 8, 7, 6 or fewer are searched")
    none = api.plan("llama-3.1-405b", "dgx-h100:12", batch=Batch(12), framework="fsdp2")
    assert none.answer.notes[0] == note
    assert "proven of the plans that take equally many devices of every host" in text.explain(none, verbose=False)
