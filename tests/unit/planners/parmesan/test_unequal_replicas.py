"""Stages with unequally many replicas of our own models: what they do and hold, their bound,
and that the joint search finds them.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from meshwright import api, sim
from meshwright.api import plan_files
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.planners.parmesan.search import stage_mapping
from meshwright.planners.parmesan.sharded_pipelines import least_seconds_per_sample
from meshwright.writers import plan_json
from questions import fused

DATA = pathlib.Path(__file__).resolve().parents[3] / "data"
MODEL = str(DATA / "tiny_llama.json")


def posed(cluster: str, global_batch: int = 12) -> Problem:
    return api.make_problem(MODEL, cluster, batch=Batch(global_batch, sequence_length=256), memory_risk=0.5)


def pipeline(counts: tuple[int, ...], cut: int, micro_batch: int, n_microbatches: int, n_ops: int = 6) -> Plan:
    """Return two stages, cut before layer `cut`, with so many replicas."""
    places = list(itertools.pairwise(np.cumsum((0, *counts)).tolist()))
    parts = (tuple(range(cut)), tuple(range(cut, n_ops)))
    stages = tuple(
        Stage(ops, tuple(range(a, b)), Strategy(data=b - a), ("none",) * len(ops))
        for ops, (a, b) in zip(parts, places, strict=True)
    )
    return Plan(stages, n_microbatches, micro_batch, "gpipe", n_microbatches * micro_batch * max(counts))


def test_a_replica_of_a_narrower_stage_takes_the_samples_of_those_it_stands_for() -> None:
    problem = posed("full-mesh:6")
    unequal = pipeline((4, 2), 3, 1, 3)
    assert unequal.samples_of_replicas() == (1, 2)
    wide, narrow = analytic.stage_costs(problem, unequal)
    assert wide == analytic.stage_costs(posed("full-mesh:8"), pipeline((4, 4), 3, 1, 3))[0]
    # two replicas with two samples each do what every stage does in a plan of two replicas and micro-batches of two
    same = analytic.stage_costs(posed("full-mesh:6"), pipeline((2, 2), 3, 2, 3))[1]
    for name in (
        "forward_seconds",
        "backward_input_seconds",
        "activation_bytes",
        "output_bytes",
        "weight_bytes",
        "model_flops",
    ):
        assert getattr(narrow, name) == getattr(same, name)
    assert wide.activation_bytes * 2 == pytest.approx(
        analytic.stage_costs(problem, pipeline((2, 2), 3, 2, 3))[0].activation_bytes
    )


def test_samples_that_do_not_divide_count_for_the_fullest_replica() -> None:
    plan = pipeline((3, 2), 3, 1, 2)
    assert plan.samples_of_replicas()[1] == 2


def test_the_compute_of_a_step_does_not_depend_on_how_replicas_are_shared_out() -> None:
    done = []
    for counts in ((2, 2), (2, 1), (1, 2), (4, 2)):
        plan = pipeline(counts, 3, 4 // max(counts), 3)
        stage_costs = analytic.stage_costs(posed("full-mesh:6"), plan)
        done.append(sum(load.model_flops * len(stage.devices) for load, stage in zip(stage_costs, plan.stages, strict=True)))
    assert done == pytest.approx([done[0]] * 4)


@pytest.mark.parametrize("cluster", ["full-mesh:3", "full-mesh:4", str(DATA / "two_kinds.yaml")])
def test_the_joint_search_of_a_model_is_near_the_best_of_all_unsharded_plans_and_above_its_bound(cluster: str) -> None:
    problem = fused(posed(cluster))
    assert problem.cluster is not None
    answer = api.plan(problem, search="stage_mapping").answer
    assert answer.objective is not None and answer.bound is not None
    n_devices, best = problem.cluster.n_devices, float("inf")
    for n_stages in (1, 2, 3):
        for ends in itertools.combinations(range(1, 6), n_stages - 1):
            groups = list(itertools.pairwise((0, *ends, 6)))
            for counts in itertools.product(range(1, n_devices + 1), repeat=n_stages):
                if sum(counts) > n_devices or any(max(counts) % count for count in counts):
                    continue
                orders = (tuple(range(n_devices)), tuple(reversed(range(n_devices))))
                for micro_batch, order in itertools.product((1, 2, 4), orders):
                    if 12 % (micro_batch * max(counts)):
                        continue
                    places = list(itertools.pairwise(np.cumsum((0, *counts)).tolist()))
                    stages = tuple(
                        Stage(tuple(range(a, b)), order[x:y], Strategy(data=y - x), ("none",) * (b - a))
                        for (a, b), (x, y) in zip(groups, places, strict=True)
                    )
                    plan = Plan(stages, 12 // (micro_batch * max(counts)), micro_batch, "1f1b", 12)
                    best = min(best, sim.simulate(problem, plan, analytic.stage_costs(problem, plan)).step_seconds / 12)
    assert answer.bound.value <= min(best, answer.objective.value) * (1 + 1e-9)
    assert answer.objective.value <= best * 1.02


def test_devices_that_no_equal_number_of_replicas_can_use_are_used_by_unequal_ones() -> None:
    answer = api.plan(posed("full-mesh:6", 64), search="stage_mapping").answer
    equal = api.plan(posed("full-mesh:6", 64), search="stage_mapping", settings={"unequal": "false"}).answer
    assert answer.plan is not None and answer.objective is not None and equal.objective is not None
    assert len({stage.strategy.data for stage in answer.plan.stages}) > 1
    assert answer.plan.n_devices == 6 and answer.plan.global_batch == 64
    assert answer.objective.value < equal.objective.value


def test_the_bound_of_two_kinds_of_device_is_below_the_linear_program_that_shares_layers_out() -> None:
    problem = posed(str(DATA / "two_kinds.yaml"))
    cluster = problem.cluster
    assert cluster is not None
    seconds = []
    for kind in cluster.kinds:
        each = [
            np.array(list(analytic.compute_seconds(problem, Strategy(tensor=t, sequence_parallel=t > 1), size, kind).values()))
            * t / size
            for t in (1, 2, 4) for size in (1, 2, 3, 4, 6, 8, 12, 16)
        ]  # fmt: skip
        seconds.append(np.min(each, axis=0)[list(map(sorted(set(analytic.rows(problem))).index, analytic.rows(problem)))])
    n_layers, devices = len(seconds[0]), np.bincount(cluster.kind_of_device)
    # variables: share of layer l on kind k, then the step
    most = np.zeros((len(devices), len(devices) * n_layers + 1))
    for kind, column in enumerate(seconds):
        most[kind, kind * n_layers : (kind + 1) * n_layers] = column / devices[kind]
        most[kind, -1] = -1.0
    whole = np.hstack([np.tile(np.eye(n_layers), (1, len(devices))), np.zeros((n_layers, 1))])
    cost = np.zeros(len(devices) * n_layers + 1)
    cost[-1] = 1.0
    least = linprog(cost, most, np.zeros(len(devices)), whole, np.ones(n_layers)).fun
    assert 0.9 * least <= least_seconds_per_sample(problem) <= least * (1 + 1e-9)


def test_each_stage_recomputes_only_as_many_layers_as_it_takes_to_fit() -> None:
    problem = posed("full-mesh:2", 16)
    cluster = problem.cluster
    assert cluster is not None
    plenty = api.plan(problem, search="stage_mapping", settings={"n_stages": "2"}).answer
    assert plenty.plan is not None and not plenty.plan.recomputes
    peaks = sim.simulate(problem, plenty.plan, analytic.stage_costs(problem, plenty.plan)).peak_bytes
    kind = replace(cluster.kinds[0], memory_bytes=max(peaks) - 1.0)
    tight = replace(problem, cluster=replace(cluster, kinds=(kind,)))
    answer = api.plan(tight, search="stage_mapping", settings={"n_stages": "2"}).answer
    assert answer.plan is not None and answer.objective is not None and plenty.objective is not None
    assert answer.objective.value >= plenty.objective.value * (1 - 1e-9)
    held = sim.simulate(tight, answer.plan, analytic.stage_costs(tight, answer.plan)).peak_bytes
    assert sim.excess_bytes(tight, answer.plan, held) <= 0.0
    least = replace(problem, cluster=replace(cluster, kinds=(replace(kind, memory_bytes=2e9),)))
    nothing = api.plan(least, search="stage_mapping").answer
    assert nothing.plan is None and nothing.missing_bytes > 0.0


@pytest.mark.parametrize("cluster", ["full-mesh:3", "parmesan-dgx1:12"])
def test_a_plan_is_checked_from_its_file_and_a_changed_claim_is_refused(cluster: str, tmp_path: pathlib.Path) -> None:
    result = api.plan(posed(cluster, 16), search="stage_mapping", settings={"n_stages": "2"} if "12" in cluster else {})
    entry = plan_json.as_json(result)
    path = tmp_path / "plan.json"
    verdicts = []
    for factor in (1.0, 1.01):
        changed = {**entry, "mappings": [{**one, "bound_seconds": one["bound_seconds"] * factor} for one in entry["mappings"]]}
        path.write_text(json.dumps(changed))
        verdicts.append(stage_mapping.check_plan(plan_files.load(str(path)), changed, str(path)))
    assert verdicts[0].valid and not verdicts[1].valid
    again = plan_files.resimulate(str(path))
    assert again.timeline is not None and result.timeline is not None
    assert again.timeline.step_seconds == pytest.approx(result.timeline.step_seconds, rel=1e-12)


def test_a_batch_that_no_full_number_of_replicas_splits_leaves_devices_idle() -> None:
    answer = api.plan(posed("full-mesh:6", 1), search="stage_mapping", settings={"n_stages": "2"}).answer
    assert answer.plan is not None and answer.plan.global_batch == 1 and answer.plan.n_devices == 2
    assert any("4 of 6 devices are not used" in note for note in answer.notes)
