"""The PaSE searches: options, errors, what the answer says, certificates and their tampering."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from meshwright import api
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.planners.pase.check import check_certificate
from meshwright.planners.pase.layer_costs import configurations
from meshwright.planners.pase.readers.pase_graph import build
from meshwright.planners.pase.search import pase_naive
from meshwright.solvers.pairwise.problem import Pairwise, total_cost


def _value(graph: str = "alexnet", search: str = "pase", **settings: str) -> float:
    objective = api.plan(f"pase:{graph}", search=search, settings=settings).answer.objective
    assert objective is not None and objective.name == "flops_equivalent"
    return objective.value


def test_eight_processors_and_a_batch_of_128_are_the_defaults() -> None:
    assert _value() == _value(n_processors="8", batch="128", model="128", flops="10 TFLOP/s", bandwidth="16 GB/s")


def test_only_the_balance_of_compute_and_network_matters() -> None:
    assert _value(flops="20 TFLOP/s", bandwidth="32 GB/s") == _value()
    assert _value(flops="20 TFLOP/s") > _value()


def test_bare_small_numbers_are_in_the_units_of_the_published_program_and_that_is_noted() -> None:
    result = api.plan("pase:alexnet", settings={"flops": "20", "bandwidth": "16"})
    assert result.answer.objective is not None
    assert result.answer.objective.value == _value(flops="20 TFLOP/s")
    assert any("TFLOP/s" in note for note in result.answer.notes)


def test_the_batch_and_the_width_scale_the_cost() -> None:
    assert _value(batch="256") > _value()
    assert _value(model="256") > 2 * _value()
    result = api.plan("pase:alexnet", settings={"model": "64"})
    assert any("64/128" in note for note in result.answer.notes)


def test_one_processor_leaves_the_plain_work() -> None:
    result = api.plan("pase:rnnlm", settings={"n_processors": "1"})
    assert all(set(split) == {1} for split in result.answer.extra["shardings"].values())
    assert result.answer.objective is not None
    assert result.answer.objective.value == result.answer.extra["baselines"]["data_parallel"]


def test_the_rows_of_the_answer_add_up_to_the_objective() -> None:
    result = api.plan("pase:inception3", settings={"n_processors": "16"})
    rows = result.answer.extra["operators"]
    assert result.answer.objective is not None
    assert sum(row["layer"] + row["resharding"] for row in rows) == pytest.approx(result.answer.objective.value, rel=1e-12)
    assert len(result.plan.stages) == 1 and len(result.plan.stages[0].devices) == 16
    assert result.timeline is None and result.stage_costs == ()


@pytest.mark.parametrize("graph", ["alexnet", "rnnlm", "resnet101"])
def test_no_baseline_inside_the_space_beats_the_optimum_and_the_naive_algorithm_agrees(graph: str) -> None:
    assert _value(graph, "pase_naive") == _value(graph)
    assert _value(graph, "data_parallel") >= _value(graph)


def test_where_branches_are_narrow_the_naive_algorithm_costs_as_many_combinations_as_the_page_says() -> None:
    answer = api.plan("pase:resnet101", search="pase_naive", settings={"n_processors": "16"}).answer
    assert answer.extra["joint_combinations_costed"] == 5_518_604  # 5.5 million
    assert answer.objective is not None and answer.objective.value == _value("resnet101", n_processors="16")


@pytest.mark.parametrize("seed", range(12))
def test_the_naive_algorithm_counts_every_operator_once_where_branches_meet(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_labels = rng.integers(1, 4, 6)
    pairs = [(u, v) for u in range(6) for v in range(u + 1, 6) if rng.random() < 0.5]
    ends = [pair if rng.random() < 0.7 else pair[::-1] for pair in pairs]
    problem = Pairwise(
        np.concatenate([[0], np.cumsum(n_labels)]).astype(np.int64), rng.random(n_labels.sum()),
        np.array([u for u, _ in ends], dtype=np.int64), np.array([v for _, v in ends], dtype=np.int64),
        tuple(np.arange(n_labels[u]) for u, _ in ends), tuple(np.arange(n_labels[v]) for _, v in ends),
        np.arange(len(ends)), tuple(rng.random((n_labels[u], n_labels[v])) for u, v in ends),
    )  # fmt: skip
    labels, _, _ = pase_naive._in_order(problem, "graph")
    every = (np.array(one) for one in itertools.product(*(range(n) for n in n_labels)))
    assert total_cost(problem, labels) == pytest.approx(min(total_cost(problem, one) for one in every), rel=1e-12)


def test_a_search_leaves_nothing_behind_for_the_next() -> None:
    first = _value("resnet101", n_processors="4")
    _value("transformer", n_processors="16")
    assert _value("resnet101", n_processors="4") == first


@pytest.mark.parametrize(
    ("model", "search", "settings", "words"),
    [
        ("pase:alexnot", "pase", {}, "did you mean 'alexnet'"),
        ("pase:alexnet", "pase", {"n_processors": "0"}, "at least 1"),
        ("pase:alexnet", "pase", {"batch": "-3"}, "at least 1"),
        ("pase:alexnet", "pase", {"bandwidth": "0 GB/s"}, "must be > 0"),
        ("pase:alexnet", "pase", {"flops": "10 GB/s"}, "flops_per_second is needed"),
        ("pase:alexnet", "pase", {"procs": "8"}, "n_processors"),
        ("pase:inception3", "pase_naive", {"n_processors": "32"}, "operators open at operator"),
        ("pase:alexnet", "pase", {"certificate": "/nowhere/at/all.json"}, "does not exist"),
    ],
)
def test_wrong_input_is_answered_in_one_message(model: str, search: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=words.replace("/", "/")):
        api.plan(model, search=search, settings=settings)


def test_under_a_memory_limit_the_plan_fits_and_its_cost_rises() -> None:
    free = api.plan("pase:rnnlm", settings={"n_processors": "16"}).answer
    limit = free.extra["held_bytes"] * 0.9
    tight = api.plan("pase:rnnlm", settings={"n_processors": "16", "memory": str(limit)}).answer
    assert tight.objective is not None and tight.bound is not None and free.objective is not None
    assert tight.extra["held_bytes"] <= limit
    assert tight.objective.value > free.objective.value
    assert tight.bound.gap_ratio(tight.objective) < 1e-9


def test_where_nothing_fits_the_answer_says_what_is_missing_and_what_would_do() -> None:
    answer = api.plan("pase:rnnlm", settings={"n_processors": "4", "memory": "2 GB"}).answer
    assert answer.plan is None
    assert answer.missing_bytes > 0
    assert "processors" in answer.nearest


def test_configurations_are_the_divisors_that_leave_enough_and_fit_the_processors() -> None:
    convolution = build("alexnet").operators[0]
    rows = configurations(convolution, 8)
    assert (np.prod(rows, axis=1) <= 8).all()
    assert {tuple(row[2:4]) for row in rows.tolist()} == {(1, 1)}
    assert {row[1] for row in rows.tolist()} == {1}  # three channels cannot be cut into parts of at least four
    assert {row[6] for row in rows.tolist()} == {1, 2, 3, 4, 6, 8}
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)


def test_a_flattening_keeps_its_parts_contiguous() -> None:
    ravel = next(operator for operator in build("alexnet", batch=8).operators if operator.kind == "Ravel")
    for b, c, h, w in configurations(ravel, 64).tolist():
        assert h == w == 1
        assert c == 1 or b == 8


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("proof") / "certificate.json"
    api.plan("pase:rnnlm", settings={"n_processors": "8", "certificate": str(path)})
    return json.loads(path.read_text())


def test_the_checker_accepts_what_the_search_wrote(certificate: dict) -> None:
    verdict = check_certificate(certificate, "c")
    assert verdict.valid, verdict.reason


def _tampered(certificate: dict, change: str) -> dict:
    entry = json.loads(json.dumps(certificate))
    if change == "cheaper":
        entry["value"] *= 0.99
        entry["bound"] *= 0.99
    elif change == "higher bound":
        entry["bound"] = entry["value"] * 1.01
    elif change == "another split":
        entry["shardings"][1] = [1] * len(entry["shardings"][1])
    elif change == "another question":
        entry["question"]["n_processors"] = 16
    elif change == "another network":
        entry["question"]["flop_per_word"] *= 0.5
    elif change == "impossible split":
        entry["shardings"][0][0] = 7
    elif change == "shorter message":
        entry["to_source"][0] = entry["to_source"][0][:-1]
    elif change == "infinite message":
        entry["to_target"][0][0] = float("inf")
    elif change == "priced memory without a limit":
        entry["multiplier"] = 3.0
    return entry


@pytest.mark.parametrize(
    "change",
    ["cheaper", "higher bound", "another split", "another question", "another network", "impossible split",
     "shorter message", "infinite message", "priced memory without a limit"],
)  # fmt: skip
def test_the_checker_refuses_a_tampered_certificate(certificate: dict, change: str) -> None:
    verdict = check_certificate(_tampered(certificate, change), "c")
    assert not verdict.valid and verdict.reason


def test_the_checker_refuses_a_worse_plan_that_claims_to_be_the_best(certificate: dict) -> None:
    """All ones is a plan of the space; it claims its own cost as its bound, with the honest messages."""
    entry = json.loads(json.dumps(certificate))
    entry["shardings"] = [[1] * len(split) for split in entry["shardings"]]
    question = api.plan("pase:rnnlm", settings={"n_processors": "1"}).answer.objective
    assert question is not None
    entry["value"] = entry["bound"] = question.value
    verdict = check_certificate(entry, "c")
    assert not verdict.valid
    assert "below the bound" in verdict.reason


@pytest.mark.parametrize("field", ["question", "value", "bound", "multiplier", "to_source", "shardings"])
def test_a_certificate_without_a_field_is_wrong_input(certificate: dict, field: str) -> None:
    entry = {name: value for name, value in certificate.items() if name != field}
    with pytest.raises(InputError, match="missing"):
        check_certificate(entry, "c")


def test_a_certificate_under_a_memory_limit_is_checked_with_the_price_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    answer = api.plan("pase:rnnlm", settings={"n_processors": "16", "memory": "2.86 GB", "certificate": str(path)}).answer
    entry = json.loads(path.read_text())
    assert answer.objective is not None
    assert entry["bound"] <= entry["value"] == answer.objective.value
    assert check_certificate(entry, "c").valid
    entry["question"]["memory_bytes"] = 2.7e9
    assert not check_certificate(entry, "c").valid


def test_the_graph_is_drawn_as_dot_and_as_a_picture(tmp_path: Path) -> None:
    dot, svg = tmp_path / "g.dot", tmp_path / "g.svg"
    api.plan("pase:alexnet", settings={"dump": str(dot)})
    api.plan("pase:alexnet", settings={"dump": str(svg)})
    text = dot.read_text()
    assert text.startswith("digraph") and text.count("->") == 13 and "conv0" in text
    drawn = xml.etree.ElementTree.fromstring(svg.read_text())
    assert len(drawn.findall("{http://www.w3.org/2000/svg}rect")) == 14


@pytest.mark.parametrize("name", ["batch", "model", "n_processors"])
@pytest.mark.parametrize("value", [0, -2, 1.5, True, "8", None])
def test_a_question_of_a_certificate_counts_in_whole_numbers_from_one_on(certificate: dict, name: str, value: object) -> None:
    entry = {**certificate, "question": {**certificate["question"], name: value}}
    with pytest.raises(InputError, match=f"{name} is .*; it must be a whole number of at least 1"):
        check_certificate(entry, "c")


@pytest.mark.parametrize("name", ["value", "bound", "multiplier"])
@pytest.mark.parametrize("value", [True, "8", float("inf"), float("nan")])
def test_what_a_certificate_claims_is_finite(certificate: dict, name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{name} is .*; it must be a finite number"):
        check_certificate({**certificate, name: value}, "c")


def test_the_search_is_timed_and_profiled_where_asked(tmp_path: Path) -> None:
    profile = tmp_path / "profile.txt"
    problem = api.make_problem("pase:alexnet", None)
    settings = {"n_processors": "4", "measure": "true", "profile": str(profile)}
    answer = api.plan(problem, search="pase", settings=settings).answer
    measured = answer.extra["measured"]
    assert measured["warm_ups"] == 2 and len(measured["run_seconds"]) == 5  # type: ignore[index]
    assert min(measured["run_seconds"]) <= measured["mean_seconds"] <= max(measured["run_seconds"])  # type: ignore[index]
    assert any("mean of 5 runs after 2 warm-ups" in note for note in answer.notes)
    assert "cumulative" in profile.read_text() and "pase.py" in profile.read_text()
