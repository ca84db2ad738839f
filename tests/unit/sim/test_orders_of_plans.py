"""The order of work of a plan: the schedule's own, where its stages lie as the schedule places them; channels between ranks."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import api, schedules, sim
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import PHASES
from meshwright.costs import analytic
from meshwright.schedules import Durations
from meshwright.sim import tasks, transfers


def plan(schedule: str, *ranks: int) -> Plan:
    return Plan(tuple(Stage((i,), (rank,)) for i, rank in enumerate(ranks)), 8, 1, schedule, 8)


def durations(n: int) -> Durations:
    return Durations(np.ones(n), np.ones(n), np.zeros(n), np.zeros(n - 1))


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [("1f1b", (0,)), ("1f1b", (0, 1, 2)), ("interleaved_1f1b", (0, 1, 0, 1)), ("zb_v", (0, 1, 1, 0)),
     ("v_half", (0, 1, 2, 2, 1, 0))],
)  # fmt: skip
def test_the_order_is_the_schedules_own(schedule: str, ranks: tuple[int, ...]) -> None:
    n, n_ranks = len(ranks), max(ranks) + 1
    found = tasks.order(plan(schedule, *ranks), durations(n))
    own = schedules.ordered(schedule, n_ranks, n // n_ranks, 8, durations(n))
    for name in type(own).__dataclass_fields__:
        assert np.array_equal(getattr(found, name), getattr(own, name))


@pytest.mark.parametrize(
    ("schedule", "ranks"), [("interleaved_1f1b", (0, 1, 0)), ("interleaved_1f1b", (0, 1, 1, 0)), ("zb_v", (0, 1, 0, 1))]
)
def test_stages_that_lie_elsewhere_are_refused(schedule: str, ranks: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"schedule {schedule}: the plan's {len(ranks)} stages lie on pipeline ranks"):
        tasks.order(plan(schedule, *ranks), durations(len(ranks)))


@pytest.mark.parametrize("ranks", [(0,), (0, 1), (0, 1, 2), (0, 1, 0, 1), (0, 1, 2, 2, 1, 0), (0, 0, 1, 1), (0, 1, 2, 0, 1, 2)])
def test_stages_share_a_channel_where_they_send_between_the_same_two_ranks(ranks: tuple[int, ...]) -> None:
    found, n = transfers.channels(np.array(ranks)), len(ranks)
    assert found.shape == (2, n)
    ends = {}
    for way, step in ((0, 1), (1, -1)):
        for stage in range(n):
            there = stage + step
            crosses = 0 <= there < n and ranks[there] != ranks[stage]
            assert (found[way, stage] >= 0) == crosses
            if crosses:
                assert ends.setdefault(int(found[way, stage]), (ranks[stage], ranks[there])) == (ranks[stage], ranks[there])
    assert len(set(ends.values())) == len(ends) and sorted(ends) == list(range(len(ends)))
    seconds = np.arange(1.0, n)
    sent = transfers.fixed(np.array(ranks), seconds)
    assert (
        sent.seconds.tolist() == [[*seconds, 0.0], [0.0, *seconds]] and not sent.latency_seconds.any() and not sent.bytes.any()
    )


def test_only_the_weight_gradient_alone_may_be_delayed() -> None:
    """Recomputation and blocking communication come with the input gradient."""
    cost = StageCost(
        1.0, 2.0, backward_weight_seconds=4.0, recompute_seconds=8.0, forward_communication=(("tensor", 16.0),),
        backward_communication=(("tensor", 64.0),),
    )  # fmt: skip
    found = tasks.times((cost, cost), np.array([5.0]))
    assert found.forward_seconds.tolist() == [17.0] * 2 and found.backward_input_seconds.tolist() == [74.0] * 2
    assert found.backward_weight_seconds.tolist() == [4.0] * 2 and found.transfer_seconds.tolist() == [5.0]
    assert tasks.task_seconds(found)[:, 0].tolist() == [17.0, 74.0, 4.0, 78.0]  # forward, input, weight, both


def test_the_order_that_is_told_is_the_one_that_is_played_where_it_is_fitted_to_slow_links() -> None:
    problem = api.make_problem("gpt2", "flat:4,bandwidth=200 MB/s", batch=Batch(8))
    n = len(problem.graph.ops)
    cuts = [range(0, 3), range(3, 6), range(6, 11), range(11, n)]
    zb_h1 = Plan(tuple(Stage(tuple(ops), (i,), recompute=("none",) * len(ops)) for i, ops in enumerate(cuts)), 8, 1, "zb_h1", 8)
    stage_costs = analytic.stage_costs(problem, zb_h1)
    told, played = sim.order(problem, zb_h1, stage_costs), sim.simulate(problem, zb_h1, stage_costs)
    alone = tasks.order(zb_h1, tasks.times(stage_costs, np.zeros(3)))
    assert not np.array_equal(told.phase, alone.phase) or not np.array_equal(told.microbatch, alone.microbatch)
    codes = {PHASES.index(word): code for code, word in enumerate(("forward", "backward_input", "backward_weight", "backward"))}
    for rank in range(4):
        mine = [
            (start, stage, microbatch, codes[phase])
            for start, stage, microbatch, phase in zip(
                played.start_seconds.tolist(),
                played.stage.tolist(),
                played.microbatch.tolist(),
                played.phase.tolist(),
                strict=True,
            )
            if stage == rank and phase in codes and microbatch >= 0
        ]
        row = slice(int(told.first[rank]), int(told.first[rank + 1]))
        assert [one[1:] for one in sorted(mine)] == list(
            zip(told.stage[row].tolist(), told.microbatch[row].tolist(), told.phase[row].tolist(), strict=True)
        )
