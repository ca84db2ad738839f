"""Pairs of a forward and a backward task: which tasks they are, what they cost, and where they are not run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright import api, schedules, sim
from meshwright.base.errors import ExportError, InputError, PluginError
from meshwright.core.plan import Plan, Stage
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import Batch, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy, repeats_dispatch
from meshwright.costs import analytic
from meshwright.frameworks.megatron import options, told
from meshwright.frameworks.megatron.limits import FRAMEWORK
from meshwright.planners.best import virtual
from meshwright.planners.best.layer_sums import chain_of
from meshwright.sim import pairs
from meshwright.sim.transfers import fixed

S = pairs.SLOWED_RATIO


def drawn(word: str, n_ranks: int, n_chunks: int, count: int) -> list[str]:
    """Return a line per rank, pairs in brackets."""
    order = schedules.ordered(word, n_ranks, n_chunks, count)
    first, lines = set(order.pairs.tolist()), []
    for a, b in zip(order.first[:-1], order.first[1:], strict=True):
        words = []
        for task in range(int(a), int(b)):
            text = f"{'FIWB'[order.phase[task]]}{order.stage[task]}.{order.microbatch[task]}"
            words.append(f"({text}" if task in first else f"{text})" if task - 1 in first else text)
        lines.append(" ".join(words))
    return lines


def test_on_one_rank_each_forward_task_runs_beside_the_backward_task_of_the_micro_batch_before() -> None:
    assert drawn("combined_1f1b", 1, 1, 4) == ["F0.0 (F0.1 B0.0) (F0.2 B0.1) (F0.3 B0.2) B0.3"]


def test_in_a_pipeline_the_warm_up_is_one_task_longer_so_that_pairs_are_of_two_micro_batches() -> None:
    assert drawn("combined_1f1b", 2, 2, 4) == [
        "F0.0 F0.1 F2.0 F2.1 F0.2 (F0.3 B2.0) (F2.2 B2.1) (F2.3 B0.0) B0.1 B2.2 B2.3 B0.2 B0.3",
        "F1.0 F1.1 F3.0 (F3.1 B3.0) (F1.2 B3.1) (F1.3 B1.0) (F3.2 B1.1) (F3.3 B3.2) B3.3 B1.2 B1.3",
    ]
    plain = schedules.load("interleaved_1f1b").in_flight(4, 2, 16)
    assert (schedules.load("combined_1f1b").in_flight(4, 2, 16) == plain + 1).all()


def test_dualpipe_v_pairs_what_its_paper_pairs() -> None:
    assert drawn("combined_dualpipe_v", 2, 2, 4) == [
        "F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 (F0.3 B3.1) (F3.2 B0.0) B3.2 (F3.3 B0.1) B3.3 I0.2 W0.2 I0.3 W0.3",
        "F1.0 F2.0 F1.1 F2.1 (F1.2 B2.0) (F2.2 B1.0) (F1.3 B2.1) (F2.3 B1.1) B2.2 B1.2 I2.3 I1.3 W2.3 W1.3",
    ]
    assert not len(schedules.ordered("combined_dualpipe_v", 2, 2, 3).pairs)


@pytest.mark.parametrize("word", ["combined_1f1b", "combined_dualpipe_v"])
def test_no_number_of_ranks_stages_and_micro_batches_deadlocks(word: str) -> None:
    for n_ranks in range(1, 7):
        for n_chunks in (1, 2, 3) if word == "combined_1f1b" else (2,):
            if n_ranks > 1 and n_chunks == 1:
                continue
            n = n_ranks * n_chunks
            for count in range(1, 19):
                seconds = sim.step_seconds(word, n_ranks, n_chunks, count, np.ones(n), np.ones(n), np.ones(n), np.zeros(n - 1))
                assert seconds >= 3.0 * n_chunks * count


def test_a_pipeline_with_one_stage_per_rank_is_refused() -> None:
    with pytest.raises(InputError, match="virtual stages"):
        schedules.ordered("combined_1f1b", 2, 1, 4)


def test_an_order_that_pairs_what_cannot_run_together_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = schedules.load("combined_1f1b")
    own = module.order(1, 1, 3)
    for wrong in ([0], [5], [2]):
        monkeypatch.setattr(module, "order", lambda *_, wrong=wrong: replace(own, pairs=np.array(wrong)))
        with pytest.raises(PluginError, match="pair"):
            schedules.ordered("combined_1f1b", 1, 1, 3)


@pytest.mark.parametrize(
    ("there", "back", "first", "second"),
    [(0.0, 0.0, 4.0, 8.0), (1.0, 1.0, 4.0 + S, 8.0 + S), (20.0, 10.0, 10.0, 20.0), (2.0, 30.0, 30.0, 8.0 + 2.0 * S)],
)
def test_either_part_of_a_pair_takes_as_long_as_the_longer_of_what_computes_and_what_is_sent(
    there: float, back: float, first: float, second: float
) -> None:
    load = StageCost(
        3.0, 4.0, 2.0, forward_communication=(("expert", there), ("tensor", 1.0)),
        backward_communication=(("expert", back), ("tensor", 2.0)),
    )  # fmt: skip
    order = schedules.ordered("combined_1f1b", 1, 1, 5)
    found = pairs.of_order(order, (load,))
    assert found.seconds.tolist() == [pytest.approx([first, second])]
    plan = Plan((Stage((0,), (0,)),), 5, 1, "combined_1f1b", 5)
    timeline = sim.engine.play(plan, (load,), fixed(order.rank_of_stage, np.zeros(0)))
    assert timeline.step_seconds == pytest.approx(4.0 * (first + second) + 12.0 + there + back)
    causes = dict(timeline.causes)
    assert causes["compute"] == pytest.approx(45.0) and causes["tensor"] == pytest.approx(15.0)
    assert causes["expert"] == pytest.approx(timeline.step_seconds - 60.0)


def test_both_tasks_of_a_pair_hold_their_working_memory_and_activations() -> None:
    load = StageCost(1.0, 2.0, weight_bytes=1000.0, activation_bytes=10.0, working_bytes=7.0)
    steps = {word: Plan((Stage((0,), (0,)),), 4, 1, word, 4) for word in ("1f1b", "combined_1f1b")}
    peaks = {
        word: sim.engine.play(plan, (load,), fixed(np.zeros(1, int), np.zeros(0))).peak_bytes for word, plan in steps.items()
    }
    assert peaks == {"1f1b": (1017.0,), "combined_1f1b": (1034.0,)}


def small(schedule: str, word: str = "none", expert: int = 4, framework: str = "megatron") -> tuple[Problem, Plan]:
    """Return a problem, and a plan of two ranks with two stages each."""
    problem = api.make_problem("mixtral-8x7b", "dgx-h100:8", batch=Batch(16, 1, 4096), framework=framework, memory_risk=0.5)
    chain = chain_of(problem.graph)
    ops, _ = chain.stages(virtual.spread(len(chain.layers), 2, 2))
    stages = tuple(
        Stage(own, tuple(range(4 * (i % 2), 4 * (i % 2) + 4)), Strategy(4, 1, 1, expert, shard=1),
              tuple(word if op in chain.layers else "none" for op in own))
        for i, own in enumerate(ops)
    )  # fmt: skip
    return problem, Plan(stages, 4, 1, schedule, 16)


def test_a_step_of_a_mixture_is_shorter_and_never_shorter_than_its_compute() -> None:
    seconds = {}
    for schedule in ("interleaved_1f1b", "combined_1f1b"):
        problem, plan = small(schedule)
        costs = analytic.stage_costs(problem, plan)
        timeline = sim.simulate(problem, plan, costs)
        assert timeline.step_seconds >= sim.least_seconds(problem, plan, costs) * (1 - 1e-12)
        seconds[schedule] = timeline.step_seconds
        compute = dict(timeline.causes)["compute"]
        assert timeline.step_seconds > compute
    assert seconds["combined_1f1b"] < seconds["interleaved_1f1b"]


@pytest.mark.parametrize("word", ["full", "moe"])
def test_layers_that_would_repeat_their_all_to_alls_are_refused_in_pairs(word: str) -> None:
    assert repeats_dispatch(word)
    problem, plan = small("combined_1f1b", word)
    with pytest.raises(InputError, match="all-to-alls of experts run beside another micro-batch"):
        sim.simulate(problem, plan, analytic.stage_costs(problem, plan))


def test_frameworks_that_run_no_pairs_refuse_them_and_one_that_does_asks_for_experts_that_are_spread() -> None:
    problem, plan = small("combined_1f1b")
    own = api.make_problem("mixtral-8x7b", "dgx-h100:8", batch=Batch(16, 1, 4096)).framework
    assert any("beside a backward task" in why for why in exceeded(own.limits, plan, problem.graph))
    assert not options.refusals(plan, problem)
    problem, plan = small("combined_1f1b", expert=1)
    assert any("expert degree of 1" in why for why in options.refusals(plan, problem))


def test_search_best_takes_pairs_only_where_they_are_asked_for_and_the_framework_has_them() -> None:
    problem = api.make_problem("mixtral-8x7b", "dgx-h100:16", batch=Batch(32, 1, 4096), framework="megatron")
    usual = {"expert": "8", "pipeline": "2", "tensor": "1", "context": "1"}
    answer = api.plan(problem, settings=usual | {"schedules": "combined_1f1b"})
    assert answer.plan.schedule == "combined_1f1b"
    assert api.plan(problem, settings=usual).plan.schedule != "combined_1f1b"
    assumed = api.make_problem("mixtral-8x7b", "dgx-h100:16", batch=Batch(32, 1, 4096))
    with pytest.raises(InputError, match="say --for NAME"):
        api.plan(assumed, settings=usual | {"schedules": "combined_1f1b"})


def test_the_option_is_written_and_read_back() -> None:
    problem, plan = small("combined_1f1b")
    result = SimpleNamespace(plan=plan, problem=problem)
    words = [" ".join(option) for option in options.arguments(result)]
    assert options.OVERLAP in words
    named = {option[0]: option[1:] for option in options.arguments(result)} | {"--num-layers": ("32",)}
    back = told.plan_of(named, "script", 8)
    assert back.schedule == "combined_1f1b" and back.stages[0].strategy == plan.stages[0].strategy
    for changed, wanted in (
        ({"--expert-model-parallel-size": ("1",)}, "--expert-model-parallel-size above 1"),
        ({"--num-virtual-stages-per-pipeline-rank": ("1",)}, "virtual stages beside a pipeline"),
        ({"--recompute-granularity": ("full",), "--recompute-method": ("uniform",), "--recompute-num-layers": ("1",)},
         "recompute neither everything nor their experts"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=wanted):
            told.plan_of(named | changed, "script", 8)
    assert FRAMEWORK.limits.paired_tasks
    problem, plan = small("combined_dualpipe_v")
    with pytest.raises((ExportError, InputError)):
        options.arguments(SimpleNamespace(plan=plan, problem=problem))
