"""Every search keeps the promises of its room, on every sample of every reader that it answers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import samples

from meshwright import api, clusters, sim
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core import plan_fields
from meshwright.core.problem import Batch, Problem, Stop
from meshwright.core.result import Result
from meshwright.writers import plan_json

NAMES = registry.names("search")
SPECS = [spec for name in registry.names("readers") for spec in samples.of_reader(name)]
SIMULATED = ("step_seconds", "simulated_seconds_per_sample")
ORDER_RATIO = 1e3
"""What an objective in seconds of a search's own cost model may be off the simulator's, per sample or per step."""
TIGHT_BYTES = (1.7e9, 1.645e9)
"""Of a device: about what the sample of a transformer needs whole, and split."""


@cache
def _question(spec: str, devices: int, memory_bytes: float) -> Problem:
    """Return a sample as it is (0 devices) or with a batch on as many devices, if need be with less memory."""
    if not devices:
        return api.make_problem(samples.read(spec))
    cluster = clusters.cluster(f"flat:{devices}")
    if memory_bytes:
        kinds = tuple(dataclasses.replace(kind, memory_bytes=memory_bytes) for kind in cluster.kinds)
        cluster = dataclasses.replace(cluster, kinds=kinds)
    return api.make_problem(samples.read(spec), cluster, batch=Batch(8 * devices), memory_risk=0.5)


def _solved(search: str, question: tuple[str, int, float], seed: int = 0) -> Result | str:
    try:
        return api.plan(_question(*question), search=search, seed=seed)
    except InputError as error:
        if "its answer is no plan" in str(error):
            raise  # no refusal of the question: the search answered what the judge cannot take
        return str(error)


@cache
def _first(search: str, question: tuple[str, int, float]) -> Result | str:
    return _solved(search, question)


def _asked() -> list[tuple[str, int, float]]:
    return [(spec, devices, 0.0) for spec in SPECS for devices in (0, 2)]


def _tight() -> list[tuple[str, int, float]]:
    return [(spec, 4, n_bytes) for spec in samples.of_reader("huggingface") for n_bytes in TIGHT_BYTES]


def _smallest() -> str:
    """Return the sample with the fewest layers of those that are costed from what they compute."""
    ours = [
        (len(result.problem.graph.ops), spec) for (spec, _, _), result in _answers("best") if result.problem.costs == "analytic"
    ]
    return min(ours)[1]


def _answers(search: str) -> list[tuple[tuple[str, int, float], Result]]:
    """Return what a search answers of all samples; what it refuses is left out."""
    found = []
    for question in _asked():
        try:
            answer = _first(search, question)
        except InputError:  # the question itself is none: no cluster, or nothing to plan
            continue
        if isinstance(answer, Result):
            found.append((question, answer))
    return found


def _plans(search: str) -> list[Result]:
    return [result for _, result in _answers(search) if result.feasible]


@pytest.mark.parametrize("name", NAMES)
def test_options_are_a_frozen_dataclass_with_defaults(name: str) -> None:
    params = registry.load("search", name, "search").Params()
    assert dataclasses.is_dataclass(params) and params == type(params)()
    hash(params)
    for option in dataclasses.fields(params):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(params, option.name, getattr(params, option.name))


@pytest.mark.parametrize("name", NAMES)
def test_a_search_answers_some_sample_and_refuses_others_in_one_line(name: str) -> None:
    assert _plans(name), "no sample of any reader is planned"
    for question in _asked():
        answer = _first(name, question)
        if isinstance(answer, str):
            assert "\n" not in answer and answer, question


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_is_in_exactly_one_stage_and_stages_share_all_devices_or_none(name: str) -> None:
    for result in _plans(name):
        layers = sorted(op for stage in result.plan.stages for op in stage.ops)
        assert layers == list(range(len(result.problem.graph.ops)))
        for one, other in itertools.combinations(result.plan.stages, 2):
            shared = set(one.devices) & set(other.devices)
            assert not shared or one.devices == other.devices
        for stage in result.plan.stages:
            assert len(set(stage.devices)) == len(stage.devices) > 0
            assert len(stage.recompute) in (0, len(stage.ops))
            cluster = result.problem.cluster
            assert cluster is None or set(stage.devices) <= set(range(cluster.n_devices))


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_an_answer_is_one_that_plan_files_have(name: str) -> None:
    for result in (one for _, one in _answers(name)):
        plan_fields.check(json.loads(json.dumps(plan_json.as_json(result))), name)  # a warning is an error here


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_answer(name: str) -> None:
    for question, result in _answers(name):
        again = _solved(name, question)
        assert isinstance(again, Result)
        for field in ("plan", "objective", "bound", "alternatives", "missing_bytes", "nearest", "n_iterations", "notes"):
            assert repr(getattr(again.answer, field)) == repr(getattr(result.answer, field)), (question, field)


def answers_json(questions: dict[str, tuple[str, int, float]]) -> dict[str, list[str]]:
    """Return what each search answers of its question, in words that say all of it."""
    told = {}
    for name, question in questions.items():
        result = _first(name, question)
        assert isinstance(result, Result)
        told[name] = [repr(getattr(result.answer, field)) for field in ("plan", "objective", "bound", "alternatives", "notes")]
    return told


def test_same_seed_same_answer_in_another_process_with_other_hashes() -> None:
    """Sets and dictionaries of strings have another order there; one process for all searches."""
    questions = {}
    for name in NAMES:
        answered = [(result.planning_seconds, question) for question, result in _answers(name) if result.feasible]
        questions[name] = min(answered)[1]
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    code = (
        "import json, sys, test_search\n"
        "questions = {name: tuple(question) for name, question in json.loads(sys.argv[1]).items()}\n"
        "print(json.dumps(test_search.answers_json(questions)))"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, json.dumps(questions)],
        env={**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    elsewhere = json.loads(found.stdout.splitlines()[-1])
    here = answers_json(questions)
    assert [name for name in NAMES if elsewhere[name] != here[name]] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_is_never_beyond_the_objective_and_a_simulated_objective_never_below_the_simulator(name: str) -> None:
    for result in _plans(name):
        objective, bound, timeline = result.answer.objective, result.answer.bound, result.timeline
        if objective is None:
            assert bound is None
            continue
        assert objective.value > 0.0
        if bound is not None:
            assert bound.gap_ratio(objective) >= -1e-12
        if "seconds" in objective.name.split("_") and timeline is not None:
            least, most = timeline.step_seconds / result.plan.global_batch / ORDER_RATIO, timeline.step_seconds * ORDER_RATIO
            assert least <= objective.value <= most, f"{objective.name} is in seconds of nothing that the plan does"
        if objective.name in SIMULATED:
            assert timeline is not None
            per = 1 if objective.name == "step_seconds" else result.plan.global_batch
            assert timeline.step_seconds <= objective.value * per * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_kept_by_the_simulators_count_or_the_result_says_that_it_is_not(name: str) -> None:
    tight = [*_tight(), (_smallest(), 4, 1e6)]
    results = [result for _, result in _answers(name)]
    results += [result for result in (_first(name, question) for question in tight) if isinstance(result, Result)]
    for result in results:
        if not result.feasible:
            assert result.answer.missing_bytes > 0.0 or result.answer.notes or result.answer.nearest
            continue
        cluster = result.problem.cluster
        if cluster is not None and result.timeline is not None:
            over = sim.excess_bytes(result.problem, result.plan, result.timeline.peak_bytes)
            assert over <= 0.0 or any("does not fit" in note for note in result.answer.notes), over
            objective = result.answer.objective  # what `api.plan` notes is for searches that count memory otherwise
            assert over <= 0.0 or objective is None or objective.name not in SIMULATED, "it simulates, and so knows"


@pytest.mark.parametrize("name", NAMES)
def test_a_search_that_can_stop_early_asks_whether_to_and_answers_with_what_it_has(name: str) -> None:
    if not getattr(registry.load("search", name, "search"), "STOPS_EARLY", False):
        return
    read: set[str] = set()

    class Watched(Stop):
        """Notes what of it is looked at."""

        def __getattribute__(self, word: str) -> Any:
            read.update({word} & {"n_iterations", "seconds", "asked", "is_asked"})
            return super().__getattribute__(word)

    for question, _ in _answers(name):
        stop = Watched(asked=lambda: True)
        read.clear()  # of what it looks at itself when it is made
        assert isinstance(api.plan(_question(*question), search=name, stop=stop), Result)
        if read:
            return
    pytest.fail("it never looks at stop")


@pytest.mark.parametrize("name", NAMES)
def test_a_search_that_knows_frozen_weights_or_optimizers_counts_with_them_what_the_simulator_does(name: str) -> None:
    module = registry.load("search", name, "search")
    asked = []
    for spec in samples.of_reader("huggingface"):
        if getattr(module, "FROZEN", False):
            frozen = api.read(spec, lora="r=4,targets=query")
            asked.append(api.make_problem(frozen, "flat:2", batch=Batch(16), memory_risk=0.5))
        if getattr(module, "STATES", False):
            states = {"optimizer": "sgd-momentum", "memory_risk": 0.5}
            asked.append(api.make_problem(samples.read(spec), "flat:2", batch=Batch(16), **states))
    answered = [api.plan(problem, search=name) for problem in asked]
    for result in answered:
        if result.feasible and result.timeline is not None:
            objective, step_seconds = result.answer.objective, result.timeline.step_seconds
            if objective is not None and objective.name == "step_seconds":
                assert step_seconds == pytest.approx(objective.value, rel=1e-9)
            assert sim.excess_bytes(result.problem, result.plan, result.timeline.peak_bytes) <= 0.0


@pytest.mark.parametrize("name", NAMES)
def test_a_search_leaves_its_question_as_it_was(name: str) -> None:
    """Other searches are asked the same one: the same samples and clusters are used again."""
    for (spec, devices, _), _ in sorted(_answers(name), key=lambda answer: answer[1].planning_seconds)[:3]:
        problem = _question.__wrapped__(spec, devices, 1e12 * (devices > 0))  # with devices that nobody was asked about
        before = pickle.dumps(problem)
        api.plan(problem, search=name)
        assert pickle.dumps(problem) == before, spec


@pytest.mark.parametrize("name", NAMES)
def test_a_search_is_not_slower_than_the_baselines_it_names(name: str) -> None:
    compared = 0
    baselines = getattr(registry.load("search", name, "search"), "BASELINES", ())
    for question, result in _answers(name):
        for baseline in baselines:
            other = _first(baseline, question)
            if isinstance(other, str) or not other.feasible or other.timeline is None:
                continue
            assert result.timeline is not None
            assert result.timeline.step_seconds <= other.timeline.step_seconds * (1 + 1e-9), (baseline, question)
            compared += 1
    assert compared or not baselines


def test_the_devices_of_the_tight_questions_are_tight() -> None:
    """Where they are not, the promise about memory is tested by nothing."""
    found = [_first("best", question) for question in (*_tight(), (_smallest(), 4, 1e6))]
    assert [isinstance(result, Result) and result.feasible for result in found] == [True, True, False]
    peaks = [max(result.timeline.peak_bytes) for result in found[:2] if isinstance(result, Result) and result.timeline]
    assert peaks[0] > 0.95 * TIGHT_BYTES[0] and peaks[1] > 0.95 * TIGHT_BYTES[1]


CLAIMS = (
    ("best", "huggingface", True), ("data_parallel", "huggingface", True), ("megatron_grid", "huggingface", True),
    ("parmesan", "huggingface", True), ("partition", "huggingface", True), ("pase", "huggingface", True),
    ("piper", "huggingface", False), ("stage_mapping", "huggingface", False), ("stage_mapping", "dnn_partitioning_json", True),
    ("dapple", "pipedream_txt", False), ("pipedream", "pipedream_txt", False), ("measured", "profile_json", False),
    ("best", "profile_json", False), ("best", "dnn_partitioning_json", True),
)  # fmt: skip
"""On devices that hold a megabyte: which searches have proved that nothing fits; the others only found nothing."""


@pytest.mark.parametrize(("name", "reader", "proven"), CLAIMS)
def test_nothing_fits_is_claimed_by_the_searches_that_prove_it(name: str, reader: str, proven: bool) -> None:
    for spec in samples.of_reader(reader):
        answer = api.plan(_question(spec, 4, 1e6), search=name).answer
        assert answer.plan is None and answer.missing_bytes > 0.0
        assert answer.infeasible_proven is proven


@pytest.mark.parametrize(("name", "proven"), [("piper", True), ("piper_equal_split", False)])
def test_nothing_fits_is_claimed_of_a_piper_file_by_the_exact_search_only(name: str, proven: bool) -> None:
    for spec in samples.of_reader("piper_json"):
        answer = api.plan(samples.read(spec), search=name, settings={"memory": "1", "max_devices": "2"}).answer
        assert answer.plan is None and answer.infeasible_proven is proven


def test_the_ensemble_claims_that_nothing_fits_where_each_of_its_searches_does() -> None:
    (spec,) = samples.of_reader("dnn_partitioning_json")
    for searches, proven in (("parmesan,partition", True), ("parmesan,stage_mapping", True)):
        answer = api.plan(_question(spec, 4, 1e6), search="ensemble", settings={"searches": searches}).answer
        assert answer.plan is None and answer.infeasible_proven is proven
    (spec,) = samples.of_reader("huggingface")
    answer = api.plan(_question(spec, 4, 1e6), search="ensemble", settings={"searches": "parmesan,stage_mapping"}).answer
    assert answer.plan is None and answer.infeasible_proven is False
