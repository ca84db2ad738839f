"""Proofs of search best against plans that an enumerator of its space plays one by one; `make prove` asks thousands of fresh
problems.
"""

from __future__ import annotations

import pathlib
import random
import sys
from collections.abc import Iterable

import pytest

from meshwright.core.strategy import Strategy

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import joint_enumerator as enumerator
from played_bounds import largest_excess

N_PLAYED = 32


def held(family: str, seeds: Iterable[int], folder: pathlib.Path, n_played: int = N_PLAYED) -> list[enumerator.Verdict]:
    """Ask the small ones of some seeds: no bound may be above a plan, the answer's or on the way; return the verdicts."""
    found = []
    for seed in seeds:
        question = enumerator.FAMILIES[family](seed, folder)
        if not enumerator.is_small(question, seed):
            continue
        verdict = enumerator.judge(question, n_played, seed)
        assert not verdict.false_refusal, verdict.question.name
        assert verdict.excess_ratio <= enumerator.TOLERANCE, (verdict.question.name, verdict.best)
        excess = largest_excess(question, verdict.fitting)
        assert excess.ratio <= enumerator.TOLERANCE, (verdict.question.name, excess)
        found.append(verdict)
    return found


def strategies(verdicts: list[enumerator.Verdict]) -> list[Strategy]:
    """Return the strategy of the first stage of each answer that has a plan."""
    return [own.answer.plan.stages[0].strategy for own in verdicts if own.answer is not None and own.answer.plan is not None]


@pytest.mark.parametrize("block", range(4))
def test_no_bound_is_above_a_plan_that_can_be_played_and_nothing_that_fits_is_refused(
    block: int, tmp_path: pathlib.Path
) -> None:
    verdicts = held("random", range(block, 56, 4), tmp_path)
    assert sum(verdict.answer is not None for verdict in verdicts) >= 3


@pytest.mark.parametrize("seed", [3, 17, 40])
def test_tiny_problems_are_enumerated_whole(seed: int, tmp_path: pathlib.Path) -> None:
    """A few layers on two devices: every shape, every split; the answer is the best of them."""
    question = enumerator.tiny_question(seed, tmp_path)
    verdict = enumerator.judge(question, 100_000, 1, whole=True)
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
    verdict = enumerator.judge(enumerator.tied_question(schedule, tmp_path), 100_000, 1, whole=True)
    assert verdict.question.problem.graph.shared
    assert not verdict.false_refusal and verdict.best is not None and verdict.answer is not None
    assert verdict.excess_ratio <= enumerator.TOLERANCE, verdict.best
    assert verdict.answer.objective.value <= verdict.best.step_seconds * (1 + enumerator.TOLERANCE)


@pytest.mark.parametrize("block", range(2))
def test_proofs_hold_for_every_exchange_over_a_context_axis(block: int, tmp_path: pathlib.Path) -> None:
    """Rings, gathering, all-to-all, what frameworks have of them: long sequences, slow links, uneven rings, few key heads."""
    verdicts = held("context", range(block, 40, 2), tmp_path, 16)
    used = {one.context_exchange if one.context > 1 else "" for one in strategies(verdicts)}
    assert used >= {"all_gather", "all_to_all", ""}


def test_proofs_hold_where_a_context_axis_is_split_by_heads_and_by_queries(tmp_path: pathlib.Path) -> None:
    """Beside other exchanges, alone, or in the framework and not asked for: then no answer has it."""
    verdicts = held("both_ways", range(24), tmp_path, 16)
    for verdict in verdicts:
        allowed = verdict.question.settings.get("context_exchange", "ring,all_gather,all_to_all").split(",")
        assert all(one.context == 1 or one.context_exchange in allowed for one in strategies([verdict]))
    used = {one.context_exchange if one.context > 1 else "" for one in strategies(verdicts)}
    assert used >= {"all_to_all+ring", "ring", ""}


def test_proofs_hold_where_the_optimizers_state_may_lie_on_the_host(tmp_path: pathlib.Path) -> None:
    """Slow and quick hosts, large ones and such that hold little, with all shardings or some; devices that are full."""
    used = {one.offload for one in strategies(held("offload", range(22), tmp_path))}
    assert used == {"none", "optimizer"}


def test_proofs_hold_where_activations_may_lie_on_the_host(tmp_path: pathlib.Path) -> None:
    """Of any number of first layers, beside what recomputes layer by layer or as a whole, or alone."""
    answers = [verdict.answer for verdict in held("activations", (1, 6, 7, 76, 80, 95), tmp_path)]
    assert sum(answer is not None and answer.plan is not None and answer.plan.n_offloaded > 0 for answer in answers) >= 4


def test_proofs_hold_where_pipelines_reduce_gradients_once_a_step(tmp_path: pathlib.Path) -> None:
    """Of ZeRO-2 beside other levels: gradients stand whole in a pipeline, and without one micro-batches scatter them."""
    used = {one.shard for one in strategies(held("gathered", range(20), tmp_path, 16))}
    assert 2 in used and len(used) > 1


def test_proofs_hold_for_every_spread_of_layers_over_virtual_stages(tmp_path: pathlib.Path) -> None:
    """And many answers have fewer layers on the first or the last stage than an even spread."""
    schedules, n_uneven = set(), 0
    for verdict in held("virtual", range(1, 28), tmp_path):
        question, plan = verdict.question, None if verdict.answer is None else verdict.answer.plan
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
    verdicts = held("paired", range(1, 16), tmp_path)
    plans = [own.answer.plan for own in verdicts if own.answer is not None]
    assert {plan.schedule for plan in plans if plan is not None} >= {"combined_1f1b", "combined_dualpipe_v"}
    asked = [own.question for own in verdicts]
    over_tensor = [any(own.strategy.folded for own in enumerator.shapes(one.problem, one.settings)) for one in asked]
    assert sum(over_tensor) >= 3  # experts spread over the tensor axis too, each whole


@pytest.mark.parametrize("block", range(2))
def test_proofs_hold_for_every_mixture_of_what_unlike_layers_recompute(block: int, tmp_path: pathlib.Path) -> None:
    """The least work need not be the shortest step: 81 and 118 have a quicker plan that recomputes more, or other layers."""
    verdicts = [*held("unlike", range(block, 12, 2), tmp_path, 48), *held("unlike", [(81, 118)[block]], tmp_path, 150)]
    assert sum(bool(verdict.best is not None and verdict.best.plan.recomputes) for verdict in verdicts) >= 3


@pytest.mark.parametrize(
    "settings",
    [{}, {"recompute": "full"}, {"recompute": "full", "pipeline": "2"}, {"recompute": "none,full", "schedules": "zb_h1"}],
)
def test_where_no_layer_repeats_embedding_and_head_recompute_nothing(settings: dict[str, str], tmp_path: pathlib.Path) -> None:
    verdict = enumerator.judge(enumerator.two_layers_question(settings, tmp_path), 100_000, 1, whole=True)
    assert verdict.answer is not None and verdict.answer.plan is not None and verdict.best is not None
    assert verdict.excess_ratio <= enumerator.TOLERANCE
    words = [word for stage in verdict.answer.plan.stages for word in stage.recompute]
    assert {words[0], words[-1]} == {"none"} and len(words) == 4


def test_proofs_hold_under_other_optimizers(tmp_path: pathlib.Path) -> None:
    """State by shape, matrices put together between replicas: what is proven is still below every plan that can be played."""
    assert len(held("optimizer", range(1, 21), tmp_path)) >= 6


def test_the_enumerator_plays_every_split_of_a_small_pipeline(tmp_path: pathlib.Path) -> None:
    question = enumerator.tiny_question(3, tmp_path)
    shape = next(
        shape for shape in enumerator.shapes(question.problem, {}) if shape.schedule == "1f1b" and len(shape.devices) == 2
    )
    prefix, layers, suffix = enumerator.chain(question.problem)
    counts = set(enumerator.splits(question.problem, shape, random.Random(0), 1000))
    assert counts == {(i, len(layers) - i) for i in range(len(layers) + 1)}
    assert prefix and suffix
