"""An order of work that breaks a promise of its room is refused before it is played, in one line that names the schedule."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright import schedules, sim
from meshwright.base.errors import PluginError
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions

Rows = list[list[tuple[int, int, int]]]
N_RANKS, N_MICROBATCHES = 2, 3


def rows() -> Rows:
    """Return GPipe's order."""
    phases = (FORWARD, BACKWARD)
    return [[(rank, i, phase) for phase in phases for i in range(N_MICROBATCHES)] for rank in range(N_RANKS)]


def without(keep: Callable[[tuple[int, int, int]], bool]) -> Rows:
    return [[task for task in row if keep(task)] for row in rows()]


def split(phases: tuple[int, ...]) -> Rows:
    """Return GPipe's order with backward passes in parts."""
    return [
        [
            part
            for stage, i, phase in row
            for part in ([(stage, i, p) for p in phases] if phase == BACKWARD else [(stage, i, phase)])
        ]
        for row in rows()
    ]


def with_task(task: tuple[int, int, int]) -> Rows:
    return [[*row, task] if rank == 0 else row for rank, row in enumerate(rows())]


WRONG: dict[str, tuple[Rows, str]] = {
    "no backward": (without(lambda task: task[2] == FORWARD), "1 forward, 0 backward_input, 0 backward_weight, 0 backward"),
    "the first micro-batch only": (without(lambda task: task[1] == 0), "0 forward.* of micro-batch 1 on stage 0"),
    "the last one dropped": (without(lambda task: task[1] < N_MICROBATCHES - 1), "of micro-batch 2 on stage 0"),
    "no weight gradients": (split((BACKWARD_INPUT,)), "1 backward_input, 0 backward_weight, 0 backward"),
    "no input gradients": (split((BACKWARD_WEIGHT,)), "0 backward_input, 1 backward_weight, 0 backward"),
    "a backward too many": (split((BACKWARD_INPUT, BACKWARD_WEIGHT, BACKWARD)), "1 backward_weight, 1 backward tasks"),
    "everything twice": ([row + row for row in rows()], "2 forward"),
    "a micro-batch too many": (with_task((0, N_MICROBATCHES, FORWARD)), r"a task with microbatch 3; there are 0\.\.2"),
    "an unknown stage": (with_task((99, 0, FORWARD)), r"a task with stage 99; there are 0\.\.1"),
    "a stage below the first": (with_task((-1, 0, FORWARD)), "a task with stage -1"),
    "an unknown phase": (with_task((0, 0, 4)), r"a task with phase 4; there are 0\.\.3"),
    "nothing at all": ([[], []], "0 forward"),
    "on the wrong rank": (rows()[::-1], "a task of stage 1 on another rank than 1"),
    "a rank too few": ([rows()[0] + rows()[1]], "over 2 ranks"),
}


def planted(monkeypatch: pytest.MonkeyPatch, made: object) -> None:
    """Put a schedule beside the others that answers with one order, whatever is asked."""
    load = schedules.load
    module = SimpleNamespace(placement=schedules.looped, order=lambda *_: made)
    monkeypatch.setattr(schedules, "load", lambda name: module if name == "planted" else load(name))


def play() -> float:
    graph = Graph("tiny", tuple(Op(f"layers.{i}", "mlp") for i in range(N_RANKS)))
    plan = Plan(tuple(Stage((i,), (i,)) for i in range(N_RANKS)), N_MICROBATCHES, 1, "planted", N_MICROBATCHES)
    problem = Problem(ModelSpec("tiny", "test", "tiny", graph))
    return sim.simulate(problem, plan, (StageCost(1.0, 1.0, 1.0),) * N_RANKS).step_seconds


@pytest.mark.parametrize("wrong", WRONG)
def test_an_order_that_breaks_a_promise_is_not_played(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order, told = WRONG[wrong]
    planted(monkeypatch, schedules.slots(order, schedules.looped(N_RANKS, 1)))
    with pytest.raises(PluginError, match=f"^schedule planted: its order of work has .*{told}") as error:
        play()
    assert "\n" not in str(error.value)


def test_arrays_of_an_order_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = schedules.slots(rows(), schedules.looped(N_RANKS, 1))
    columns = {name: getattr(made, name) for name in Actions.__dataclass_fields__}
    for changed, told in (
        ({"microbatch": made.microbatch[:-1]}, "stages beside microbatch of shape"),
        ({"rank_of_stage": np.zeros(3)}, "rank_of_stage of shape"),
        ({"first": np.array([1, 6, 12])}, "must rise from 0 to 12"),
        ({"first": np.array([0, 13, 12])}, "must rise"),
        ({"first": np.array([0, 6, 13])}, "must rise"),
    ):
        planted(monkeypatch, Actions(**{**columns, **changed}))
        with pytest.raises(PluginError, match=told):
            play()
    planted(monkeypatch, None)
    with pytest.raises(PluginError, match="returned NoneType; it must return Actions"):
        play()


def test_right_orders_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four forward and four backward slots of 1 s and 2 s; where gradients are split, ranks wait for the input's only."""
    for order, seconds in ((rows(), 12.0), (split((BACKWARD_INPUT, BACKWARD_WEIGHT)), 11.0)):
        planted(monkeypatch, schedules.slots(order, schedules.looped(N_RANKS, 1)))
        assert play() == pytest.approx(seconds)
