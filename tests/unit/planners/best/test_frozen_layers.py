"""Models of which most layers are frozen: what the others recompute is searched all the same, and what is missing is said."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import joint_enumerator as enumerator
import pytest

from meshwright import api
from meshwright.core.problem import Batch, Problem
from meshwright.planners.best.check.proof import BoundProof
from meshwright.planners.best.check.space import inside
from meshwright.planners.best.limits import Limits

ONE = {"pipeline": "1", "data": "1", "tensor": "1", "context": "1", "schedules": "1f1b"}


@pytest.fixture(scope="module")
def half_frozen(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """Six layers, the first three frozen: more of these are alike than of any others."""
    path = tmp_path_factory.mktemp("frozen") / "model.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    }))  # fmt: skip
    frozen = ("*embed*", "layers.0", "layers.1", "layers.2")
    return api.make_problem(str(path), "flat:2", batch=Batch(4, 1, 4096), memory_risk=0.5, freeze=frozen)


def with_room(problem: Problem, n_bytes: float) -> Problem:
    """Return the problem on devices with so much beside what the runtime takes."""
    return enumerator.with_memory(problem, n_bytes + problem.required_cluster.kinds[0].reserved_bytes)


@pytest.mark.parametrize("n_bytes", [1.55e8, 1.9e8, 2.1e8, 2.3e8, 2.6e8])
def test_the_answer_is_the_best_of_all_mixtures(half_frozen: Problem, n_bytes: float) -> None:
    """Cheap activations of trained layers are recomputed although frozen ones have none."""
    asked = enumerator.Question(with_room(half_frozen, n_bytes), ONE, "half frozen")
    verdict = enumerator.judge(asked, 100_000, whole=True)
    assert verdict.best is not None and verdict.answer is not None
    assert verdict.answer.objective.value == pytest.approx(verdict.best.step_seconds, rel=1e-9)
    assert verdict.excess_ratio <= enumerator.TOLERANCE
    only = {name: (int(value),) for name, value in ONE.items() if name != "schedules"}
    limits = inside(asked.problem, dataclasses.asdict(Limits(**only, schedules=("1f1b",))))
    proof = BoundProof(asked.problem, limits, verdict.best.step_seconds * (1 + 1e-6))
    proof.run()
    assert proof.open, "the check must leave the plan that was played"


def test_where_only_the_full_bound_shows_that_nothing_fits_the_nearest_is_said(half_frozen: Problem) -> None:
    """With no plan yet, what the last bound refuses is kept for the answer, and is not taken for illegal."""
    answer = api.plan(with_room(half_frozen, 1.15e8), settings=ONE).answer
    assert answer.plan is None and answer.infeasible_proven
    assert answer.missing_bytes == pytest.approx(153912217.6 - 1.15e8)  # all recomputed takes the first
    assert answer.nearest == "closest with these devices: one device, micro-batch 1, sharding level 0"


def test_random_models_with_frozen_layers(tmp_path: pathlib.Path) -> None:
    n_feasible = 0
    for seed in (0, 5, 11):
        verdict = enumerator.judge(enumerator.frozen_question(seed, tmp_path), 40, seed)
        assert not verdict.false_refusal and verdict.excess_ratio <= enumerator.TOLERANCE, verdict.question.name
        n_feasible += verdict.best is not None
    assert n_feasible >= 2
