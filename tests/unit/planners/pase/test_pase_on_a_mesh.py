"""`--search pase` on models of ours: the answer, its memory limit, its certificate, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.commands.check import posed_again
from meshwright.core.problem import Batch, Problem
from meshwright.planners.pase.check import check_certificate
from meshwright.report import text as report


def _answer(model: str = "gpt2", place: str = "dgx-h100:16", batch: int = 32, **settings: str):
    return api.plan(model, place, search="pase", batch=Batch(global_batch=batch), settings=settings)


@pytest.fixture(scope="module")
def result():
    return _answer("llama-3.1-8b", batch=16)


def test_the_seconds_of_all_operators_add_up_to_the_objective_and_nothing_is_quicker(result) -> None:
    answer = result.answer
    seconds = [row[name] for row in answer.extra["operators"] for name in row if name.endswith("_seconds")]
    assert answer.objective.name == "seconds_per_step"
    assert sum(seconds) == pytest.approx(answer.objective.value, rel=1e-9)
    assert -1e-9 < answer.bound.gap_ratio(answer.objective) < 1e-9


def test_every_operator_has_a_placement_per_mesh_axis(result) -> None:
    extra = result.answer.extra
    assert extra["device_mesh"] == [2, 8]
    assert set(extra["placements"]) == set(extra["shardings"]) == {row["operator"] for row in extra["operators"]}
    words = {"Shard(0)", "Shard(1)", "Shard(2)", "Shard(expert)", "Replicate()", "Partial()"}
    for entry in extra["placements"].values():
        assert set(entry) <= {"input", "output", "weight"}
        assert all(len(places) == 2 and set(places) <= words for places in entry.values())
    json.dumps(dict(extra))


def test_the_plan_names_every_layer_and_device_and_is_simulated(result) -> None:
    (stage,) = result.plan.stages
    assert len(stage.ops) == len(result.problem.graph.ops)
    assert sorted(stage.devices) == list(range(16))
    assert stage.strategy.n_devices == 16
    assert result.timeline is not None and result.timeline.peak_bytes[0] <= 80e9 * 1.1


def test_it_is_never_slower_than_splitting_the_batch_alone_or_not_at_all(result) -> None:
    from meshwright.planners.pase.our_models import sharding_problem
    from meshwright.solvers.pairwise.problem import total_cost

    sharding = sharding_problem(Problem(result.problem.model_spec, result.problem.cluster, batch=Batch(16)))
    for wanted in ("batch", "none"):
        labels = [
            next(i for i, way in enumerate(made.choices) if all(choice.name == wanted for choice in way))
            for made in sharding.menus
        ]
        assert result.answer.objective.value <= total_cost(sharding.problem, np.array(labels))


def test_less_memory_is_kept_within_at_a_price() -> None:
    free = _answer(recompute="none").answer
    limit = free.extra["held_bytes"] * 0.95
    tight = _answer(recompute="none", memory=str(limit)).answer
    assert tight.extra["held_bytes"] <= limit
    assert tight.objective.value >= free.objective.value
    assert tight.bound.value <= tight.objective.value


def test_where_memory_is_short_the_quickest_way_to_recompute_is_found() -> None:
    free = _answer(recompute="none").answer
    short = {"memory": str(free.extra["held_bytes"] * 0.3)}
    found = _answer(**short).answer
    assert found.plan is not None
    assert found.extra["recompute"] != "none"
    nothing = _answer(memory="10 MB").answer
    assert nothing.plan is None and nothing.missing_bytes > 0 and "devices" in nothing.nearest


def test_a_certificate_is_accepted_as_written_and_refused_when_tampered_with(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    _answer(certificate=str(path), recompute="none", memory="20 GB")
    entry = json.loads(path.read_text())
    problem = posed_again(entry, "c")
    assert check_certificate(entry, "c", problem).valid
    for change in ("value", "bound"):
        wrong = dict(entry)
        wrong[change] = entry[change] * (0.99 if change == "value" else 1.01)
        assert not check_certificate(wrong, "c", problem).valid
    wrong = dict(entry, shardings=[["none", "none"]] * len(entry["shardings"]))
    assert not check_certificate(wrong, "c", problem).valid
    wrong = dict(entry, question=dict(entry["question"], batch=64))
    assert not check_certificate(wrong, "c", posed_again(wrong, "c")).valid


def test_the_report_has_a_line_for_operators_that_repeat(result) -> None:
    text = report.explain(result)
    assert "layers.*.mlp.in" in text and "operators" in text
    assert len([line for line in text.splitlines() if "attention.core" in line]) <= 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_processors": "8"}, "is for pase:GRAPH"),
        ({"flops": "10 TFLOP/s", "bandwidth": "1 GB/s"}, "is for pase:GRAPH"),
        ({"mesh": "3,5"}, "3x5: has 15 places"),
        ({"recompute": "sometimes"}, "auto, none, selective, full"),
    ],
)
def test_options_that_do_not_apply_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _answer(**settings)


def test_a_micro_batch_is_refused_and_so_are_mesh_options_on_pase_graphs() -> None:
    with pytest.raises(InputError, match="--micro-batch"):
        api.plan("gpt2", "dgx-h100:8", search="pase", batch=Batch(8, 2))
    with pytest.raises(InputError, match="--set mesh"):
        api.plan("pase:alexnet", settings={"mesh": "2,4"})
