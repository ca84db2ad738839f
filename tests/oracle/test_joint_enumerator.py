"""Proofs of search best against plans that an enumerator of its space plays one by one; `make prove` asks thousands of fresh
problems.
"""

from __future__ import annotations

import pathlib
import random
import sys
from dataclasses import replace

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import joint_enumerator as enumerator

N_SEEDS, N_BLOCKS, N_PLAYED = 60, 6, 32


@pytest.mark.parametrize("block", range(N_BLOCKS))
def test_no_bound_is_above_a_plan_that_can_be_played_and_nothing_that_fits_is_refused(
    block: int, tmp_path: pathlib.Path
) -> None:
    n_feasible = 0
    for seed in range(block, N_SEEDS, N_BLOCKS):
        verdict = enumerator.ask(seed, tmp_path, N_PLAYED)
        assert not verdict.false_refusal, verdict.question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (verdict.question.name, verdict.best)
        n_feasible += verdict.answer is not None
    assert n_feasible >= 5


@pytest.mark.parametrize("seed", [3, 17, 40])
def test_tiny_problems_are_enumerated_whole(seed: int, tmp_path: pathlib.Path) -> None:
    """A few layers on two devices: every shape, every split; the answer is the best of them."""
    question = enumerator.tiny_question(seed, tmp_path)
    verdict = enumerator.judge(question, 100_000, whole=True)
    assert verdict.answer is not None and verdict.best is not None
    assert verdict.answer.objective.value == pytest.approx(verdict.best.step_seconds, rel=1e-9)
    assert verdict.answer.bound.value <= verdict.best.step_seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    "schedule",
    [
        "1f1b",
        "gpipe",
        "zb_h1",
        "zb_h2",
        "early_backward_b",
        "interleaved_1f1b",
        "looped_bfs",
        "zb_v",
        "v_half",
        "v_min",
        "dualpipe_v",
    ],
)
def test_proofs_hold_where_embedding_and_head_are_one_table(schedule: str, tmp_path: pathlib.Path) -> None:
    """A rank that holds both has the table once, under V-shaped schedules and alone; two ranks have one each."""
    verdict = enumerator.judge(enumerator.tied_question(schedule, tmp_path), 100_000, whole=True)
    assert verdict.question.problem.graph.shared
    assert not verdict.false_refusal and verdict.best is not None and verdict.answer is not None
    assert verdict.excess_ratio <= enumerator.TOLERANCE, verdict.best
    assert verdict.answer.objective.value <= verdict.best.step_seconds * (1 + enumerator.TOLERANCE)


@pytest.mark.parametrize("block", range(4))
def test_proofs_hold_for_every_exchange_over_a_context_axis(block: int, tmp_path: pathlib.Path) -> None:
    """Rings, gathering, all-to-all, what frameworks have of them: long sequences, slow links, uneven rings, few key heads."""
    used = set()
    for seed in range(block, 60, 4):
        verdict = enumerator.judge(enumerator.context_question(seed, tmp_path), 16, seed)
        assert not verdict.false_refusal, verdict.question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (verdict.question.name, verdict.best)
        one = None if verdict.answer is None or verdict.answer.plan is None else verdict.answer.plan.stages[0].strategy
        used.add(one.context_exchange if one is not None and one.context > 1 else "")
    assert used >= {"all_gather", "all_to_all", ""}


def test_proofs_hold_where_a_context_axis_is_split_by_heads_and_by_queries(tmp_path: pathlib.Path) -> None:
    """Beside other exchanges, alone, or in the framework and not asked for: then no answer has it."""
    used = set()
    for seed in range(40):
        question = enumerator.both_ways_question(seed, tmp_path)
        verdict = enumerator.judge(question, 16, seed)
        assert not verdict.false_refusal, question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (question.name, verdict.best)
        plan = None if verdict.answer is None else verdict.answer.plan
        kind = "" if plan is None or plan.stages[0].strategy.context == 1 else plan.stages[0].strategy.context_exchange
        assert kind in ("", *question.settings.get("context_exchange", "ring,all_gather,all_to_all").split(","))
        used.add(kind)
    assert used >= {"all_to_all+ring", "ring", ""}


@pytest.mark.parametrize("block", range(2))
def test_proofs_hold_where_the_optimizers_state_may_lie_on_the_host(block: int, tmp_path: pathlib.Path) -> None:
    """Slow and quick hosts, large ones and such that hold little, with all shardings or some; devices that are full."""
    used = set()
    for seed in range(block, 24, 2):
        verdict = enumerator.judge(enumerator.offload_question(seed, tmp_path), N_PLAYED, seed)
        assert not verdict.false_refusal, verdict.question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (verdict.question.name, verdict.best)
        plan = None if verdict.answer is None else verdict.answer.plan
        used |= set() if plan is None else {plan.stages[0].strategy.offload}
    assert used == {"none", "optimizer"}


def test_proofs_hold_for_every_spread_of_layers_over_virtual_stages(tmp_path: pathlib.Path) -> None:
    """And many answers have fewer layers on the first or the last stage than an even spread."""
    schedules, n_uneven = set(), 0
    for seed in range(24):
        question = enumerator.virtual_question(seed, tmp_path)
        verdict = enumerator.judge(question, 32, seed)
        assert not verdict.false_refusal, question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (question.name, verdict.best)
        plan = None if verdict.answer is None else verdict.answer.plan
        if plan is None or len(plan.stages) == len(plan.ranks()):
            continue
        schedules.add(plan.schedule)
        shape = enumerator.Shape(
            plan.ranks(), plan.stages[0].strategy, 1, plan.schedule, len(plan.stages) // len(plan.ranks()), ""
        )
        even, *others = enumerator.splits(question.problem, shape, random.Random(0), 1)
        layers = set(enumerator.chain(question.problem)[1])
        counts = tuple(len(layers & set(stage.ops)) for stage in plan.stages)
        assert counts in (even, *others)
        n_uneven += counts != even
    assert n_uneven >= 3 and len(schedules) >= 4


def test_proofs_hold_where_tasks_run_in_pairs(tmp_path: pathlib.Path) -> None:
    """Mixtures on quick and slow links: all-to-alls that compute hides, and such that take longer than it."""
    used = set()
    for seed in range(16):
        verdict = enumerator.judge(enumerator.paired_question(seed, tmp_path), 32, seed)
        assert not verdict.false_refusal, verdict.question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (verdict.question.name, verdict.best)
        plan = None if verdict.answer is None else verdict.answer.plan
        used |= set() if plan is None else {plan.schedule}
    assert used >= {"combined_1f1b", "combined_dualpipe_v"}


@pytest.mark.parametrize("block", range(2))
def test_proofs_hold_for_every_mixture_of_what_unlike_layers_recompute(block: int, tmp_path: pathlib.Path) -> None:
    """The least work need not be the shortest step: 81 and 118 have a quicker plan that recomputes more, or other layers."""
    n_mixed = 0
    for seed in [*range(block, 16, 2), (81, 118)[block]]:
        verdict = enumerator.judge(enumerator.unlike_question(seed, tmp_path), 150, seed)
        assert not verdict.false_refusal, verdict.question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (verdict.question.name, verdict.best)
        n_mixed += verdict.best is not None and verdict.best.plan.recomputes
    assert n_mixed >= 3


@pytest.mark.parametrize(
    "settings",
    [{}, {"recompute": "full"}, {"recompute": "full", "pipeline": "2"}, {"recompute": "none,full", "schedules": "zb_h1"}],
)
def test_where_no_layer_repeats_embedding_and_head_recompute_nothing(settings: dict[str, str], tmp_path: pathlib.Path) -> None:
    verdict = enumerator.judge(enumerator.two_layers_question(settings, tmp_path), 100_000, whole=True)
    assert verdict.answer is not None and verdict.answer.plan is not None and verdict.best is not None
    assert verdict.excess_ratio <= enumerator.TOLERANCE
    words = [word for stage in verdict.answer.plan.stages for word in stage.recompute]
    assert {words[0], words[-1]} == {"none"} and len(words) == 4


@pytest.mark.parametrize("optimizer", ["muon", "adafactor", "adam-8bit", "sgd"])
def test_proofs_hold_under_other_optimizers(optimizer: str, tmp_path: pathlib.Path) -> None:
    """State by shape, matrices put together between replicas: what is proven is still below every plan that can be played."""
    for seed in (5, 11, 23):
        question = enumerator.random_question(seed, tmp_path)
        problem = replace(question.problem, training=question.problem.training.updated_by(optimizer))
        verdict = enumerator.judge(question._replace(problem=problem), N_PLAYED, seed)
        assert not verdict.false_refusal, question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (question.name, verdict.best)


def test_the_enumerator_plays_every_split_of_a_small_pipeline(tmp_path: pathlib.Path) -> None:
    question = enumerator.tiny_question(3, tmp_path)
    shape = next(
        shape for shape in enumerator.shapes(question.problem, {}) if shape.schedule == "1f1b" and len(shape.devices) == 2
    )
    prefix, layers, suffix = enumerator.chain(question.problem)
    counts = set(enumerator.splits(question.problem, shape, random.Random(0), 1000))
    assert counts == {(i, len(layers) - i) for i in range(len(layers) + 1)}
    assert prefix and suffix
