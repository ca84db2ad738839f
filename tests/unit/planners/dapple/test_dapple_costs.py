"""What stages of a measured profile do and hold, worked out by hand, by the cost model and by the search's own judge."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import numpy as np
import pytest

from meshwright import models
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.planners.dapple import arrays, evaluate, machines, states
from meshwright.planners.dapple.costs import dapple
from meshwright.planners.dapple.profile import ProfiledTraining

PROFILE = """\
n0 -- a -- forward_compute_time=10.0, backward_compute_time=20.0, activation_size=400.0, parameter_size=7.0
n1 -- b -- forward_compute_time=30.0, backward_compute_time=50.0, activation_size=1000.0, parameter_size=11.0
n2 -- c -- forward_compute_time=2.0, backward_compute_time=3.0, activation_size=60.0, parameter_size=13.0
\tn0 -- n1
\tn1 -- n2
"""
"""Milliseconds of 4 samples."""

PLAN = Plan(
    (Stage((0, 1), (0, 1, 2), Strategy(data=3)), Stage((2,), (3,), recompute=("full",))), n_microbatches=2, micro_batch=7,
    schedule="1f1b", global_batch=14,
)  # fmt: skip


@pytest.fixture
def problem(tmp_path: pathlib.Path) -> Problem:
    """Three layers measured with 4 samples, on two machines of two devices; 14 samples a step."""
    path = tmp_path / "three.txt"
    path.write_text(PROFILE)
    spec = models.read(str(path))
    training = ProfiledTraining(spec.instance, 4, 3.0, activation_ratio=2.5, published_links=True)
    cluster = machines.machines_cluster((2, 4))
    return Problem(replace(spec, instance=training), cluster, "dapple", Batch(14))


def check(found: tuple[StageCost, ...]) -> None:
    """Compare with the plan's stages by hand.

    Two micro-batches of 7 samples: over three replicas the fullest takes 3, which is 3 / 4 of what was measured; a tensor sent on is of
    7 / 3 samples on average. Activations hold 2.5 times what the file says; weights, gradients and optimizer three times the weights.
    """  # noqa: E501
    first, _ = found
    assert (first.forward_seconds, first.backward_input_seconds) == pytest.approx((0.040 * 3 / 4, 0.070 * 3 / 4))
    assert (first.recompute_seconds, first.working_bytes) == (0.0, 0.0)
    assert first.activation_bytes == pytest.approx(1400 * 2.5 * 3 / 4)
    assert first.output_bytes == pytest.approx(1000 * 7 / 3 / 4)
    assert (first.weight_bytes, first.optimizer_bytes) == (18.0, 36.0)
    assert first.reduce_seconds > 0.0


def recomputed(last: StageCost) -> None:
    """Seven samples of the last layer: it keeps what enters, 1000 bytes of four samples, and holds its own activation while it runs."""  # noqa: E501
    assert (last.forward_seconds, last.backward_input_seconds) == pytest.approx((0.002 * 7 / 4, 0.003 * 7 / 4))
    assert last.recompute_seconds == last.forward_seconds
    assert last.activation_bytes == pytest.approx(1000 * 7 / 4)
    assert last.working_bytes == pytest.approx(60 * 2.5 * 7 / 4)
    assert (last.output_bytes, last.reduce_seconds) == (0.0, 0.0)


def test_the_cost_model_sums_layers_by_samples_and_holds_the_peak_of_activations(problem: Problem) -> None:
    found = dapple.loads(problem, PLAN)
    check(found)
    recomputed(found[1])


def test_the_judge_of_the_search_says_the_same(problem: Problem) -> None:
    training = problem.model_spec.instance
    assert isinstance(training, ProfiledTraining)
    shape = evaluate.PlanOutline(2, (evaluate.Cut(1, (0, 1, 2)), evaluate.Cut(2, (3,))), "1f1b")
    cuts = states.states_of(problem.model_spec)
    judge = evaluate.Judge(problem, training, cuts, "never")
    check(judge.loads(shape))
    recomputed(evaluate.Judge(problem, training, cuts, "always").loads(shape)[1])


def test_the_arrays_of_the_search_hold_activations_of_one_sample_at_their_peak(problem: Problem) -> None:
    training = problem.model_spec.instance
    assert isinstance(training, ProfiledTraining)
    cuts = states.states_of(problem.model_spec)
    space = arrays.space_of(problem, training, cuts, [0, 1, 2], arrays.PlanLimits(1, 0, "choose", True, 0, 0))
    forward, backward, activation, parameter = space.layers[:4]
    assert forward == pytest.approx(np.array([0.0, 0.010, 0.040, 0.042]) / 4)
    assert backward == pytest.approx(np.array([0.0, 0.020, 0.070, 0.073]) / 4)
    assert activation == pytest.approx(np.array([0.0, 400.0, 1400.0, 1460.0]) * 2.5 / 4)
    assert parameter == pytest.approx(np.array([0.0, 7.0, 18.0, 31.0]))
