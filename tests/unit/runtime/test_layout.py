"""Who holds which rows and who sends them to whom."""

from __future__ import annotations

import json
import pathlib

import pytest
from runtime_processes import plan_of

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import Strategy
from meshwright.runtime.ranks.layout import layout, rows_of
from meshwright.runtime.ranks.plan_file import read_plan


def test_rows_are_dealt_out_evenly_and_completely() -> None:
    assert [rows_of(7, 3, part) for part in range(3)] == [(0, 3), (3, 5), (5, 7)]


def test_every_row_reaches_every_replica_that_works_on_it_once() -> None:
    stages = (Stage((0,), (4, 2, 0), Strategy(data=3)), Stage((1,), (1, 3), Strategy(data=2)))
    places = layout(Plan(stages, n_microbatches=2, schedule="1f1b", global_batch=10))
    assert places.device_of_rank == (0, 1, 2, 3, 4)
    for source, target in ((0, 1), (1, 0)):
        messages = places.messages(source, target, 5)
        for data in range(places.plan.stages[target].strategy.data):
            receiver = places.rank_at(target, data, 0)
            got = sorted(row for m in messages if m.target == receiver for row in range(m.start, m.stop))
            assert got == list(range(*places.rows(target, data, 5)))
        for message in messages:
            seat = places.seat(message.source, source)
            low, high = places.rows(source, seat.data, 5)
            assert low <= message.start < message.stop <= high


def test_tensor_ranks_of_unlike_degrees_all_receive_all_rows() -> None:
    stages = (Stage((0,), (0, 1), Strategy(tensor=2)), Stage((1,), (2, 3, 4, 5), Strategy(data=2, tensor=2)))
    places = layout(Plan(stages, n_microbatches=1, global_batch=4))
    messages = places.messages(0, 1, 4)
    assert {(m.source, m.target, m.start, m.stop) for m in messages} == {(0, 2, 0, 2), (1, 3, 0, 2), (0, 4, 2, 4), (1, 5, 2, 4)}


@pytest.mark.parametrize(
    ("strategy", "told"),
    [(Strategy(data=3, expert=2), "expert degree 2"), (Strategy(data=2, shard=3, shard_degree=3), "does not divide")],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(strategy: Strategy, told: str) -> None:
    stage = Stage((0,), tuple(range(strategy.n_devices)), strategy)
    with pytest.raises(InputError, match=told):
        layout(Plan((stage,), n_microbatches=1, global_batch=8))


def test_ranks_of_context_and_tensor_axes_hold_the_same_rows() -> None:
    wide = Stage((0,), tuple(range(8)), Strategy(data=2, context=2, tensor=2))
    places = layout(Plan((wide, Stage((1,), (8,))), n_microbatches=1, global_batch=4))
    assert {(message.source, message.target, message.start, message.stop) for message in places.messages(0, 1, 4)} == {
        (0, 8, 0, 2), (4, 8, 2, 4),
    }  # fmt: skip
    assert [message.target for message in places.messages(1, 0, 4)] == list(range(8))
    assert [places.seat(rank, 0).inner for rank in range(8)] == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    ("devices", "tensor", "channels"),
    [
        ([(0, 1)], 1, []),
        ([(0, 1), (2, 3)], 1, [(0, ((0, 2), (1, 3))), (1, ((2, 0), (3, 1)))]),
        ([(0, 1), (2, 3)], 2, [(0, ((0, 2), (0, 3), (1, 2), (1, 3))), (1, ((2, 0), (2, 1)))]),
        ([(0, 1), (0, 1)], 2, [(0, ((0, 1),)), (0, ((1, 0),)), (1, ((0, 1),))]),
        ([(0, 1), (2,)], 1, [(0, ((0, 2), (1, 2))), (1, ((2, 0), (2, 1)))]),
    ],
)
def test_a_channel_goes_one_way_between_ranks_that_exchange_rows(devices: list, tensor: int, channels: list) -> None:
    strategies = [Strategy(data=len(devices[0]))] + [
        Strategy(data=len(placed) // tensor, tensor=tensor) for placed in devices[1:]
    ]
    stages = tuple(Stage((i,), placed, strategy) for i, (placed, strategy) in enumerate(zip(devices, strategies, strict=True)))
    schedule = "interleaved_1f1b" if devices[0] == devices[-1] else "1f1b"
    found = layout(Plan(stages, n_microbatches=2, schedule=schedule, global_batch=8)).channels()
    assert [(channel.direction, channel.pairs) for channel in found] == channels


def test_a_backward_pass_that_sharded_weights_keep_whole_is_told() -> None:
    stages = (Stage((0,), (0, 1), Strategy(data=2, shard=3)), Stage((1,), (2, 3), Strategy(data=2)))
    (note,) = layout(Plan(stages, n_microbatches=2, schedule="zb_h1", global_batch=8)).notes()
    assert note.startswith("stage 0: weights are sharded (FSDP)") and "zb_h1" in note
    assert layout(Plan(stages, n_microbatches=2, schedule="1f1b", global_batch=8)).notes() == ()


@pytest.mark.parametrize(("schedule", "ranks"), [("combined_1f1b", (0, 1, 0, 1)), ("combined_dualpipe_v", (0, 1, 1, 0))])
def test_tasks_in_pairs_run_one_after_another_and_a_pipeline_that_has_none_is_refused(
    schedule: str, ranks: tuple[int, ...]
) -> None:
    stages = tuple(Stage((i,), (rank,)) for i, rank in enumerate(ranks))
    (note,) = layout(Plan(stages, n_microbatches=4, schedule=schedule, global_batch=8)).notes()
    assert note.startswith(f"schedule {schedule} runs a forward and a backward task at the same time; what runs are both one")
    with pytest.raises(InputError, match=f"schedule {schedule}: ") as refused:
        layout(Plan(stages[:2], n_microbatches=4, schedule=schedule, global_batch=8))
    assert "\n" not in str(refused.value)


def test_a_plan_sharded_operator_by_operator_says_which_degrees_run(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    plan = plan_of([(8, [0, 1], {"shard": 3})])
    path.write_text(json.dumps(plan))
    assert read_plan(str(path)).notes() == ()
    path.write_text(json.dumps({**plan, "shardings": [["data"]]}))
    (note,) = read_plan(str(path)).notes()
    assert "stage 0: data 2, tensor 1, shard 3" in note
    path.write_text(json.dumps({**plan, "splits": [{"layers": ["embed"]}]}))
    (note,) = read_plan(str(path)).notes()
    assert "what runs are Megatron's splits" in note
