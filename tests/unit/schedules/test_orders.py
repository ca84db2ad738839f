"""Orders as the papers draw them, on sizes small enough to read."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import schedules
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.schedules import Actions


def drawn(slots: Actions, by_stage: bool = False) -> list[str]:
    """Return one word per rank: F0 F1 B0 ..., the stage before the letter where asked."""
    rows = []
    for a, b in zip(slots.first[:-1], slots.first[1:], strict=True):
        tasks = zip(slots.stage[a:b], slots.phase[a:b], slots.microbatch[a:b], strict=True)
        rows.append(" ".join(f"{stage if by_stage else ''}{'FIWB'[phase]}{i}" for stage, phase, i in tasks))
    return rows


def test_gpipe_runs_everything_forward_and_then_backward() -> None:
    assert drawn(schedules.load("gpipe").order(2, 1, 3)) == ["F0 F1 F2 B2 B1 B0"] * 2


def test_1f1b_alternates_after_a_warm_up_that_shrinks_rank_by_rank() -> None:
    assert drawn(schedules.load("1f1b").order(3, 1, 4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_the_second_warm_up_of_dapple_runs_twice_as_far_ahead() -> None:
    assert drawn(schedules.load("early_backward_b").order(3, 1, 6)) == [
        "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    ]


@pytest.mark.parametrize("word", ["early_backward_a", "early_backward_b"])
def test_dapple_runs_no_further_ahead_than_memory_allows(word: str) -> None:
    module = schedules.load(word)
    assert module.order(4, 1, 9, None, limit=2).in_flight().tolist() == module.in_flight(4, 1, 9, limit=2).tolist()
    assert module.in_flight(4, 1, 9, limit=2).tolist() == [2, 2, 2, 1]


def test_warm_up_b_hides_transfers_that_warm_up_a_waits_for() -> None:
    """Transfers of half a task: a round trip between neighbours takes one task longer than policy A allows for."""
    from meshwright import sim

    columns = [np.ones(4), np.ones(4), np.zeros(4), np.full(3, 0.5)]
    early, late = (sim.step_seconds(word, 4, 1, 16, *columns) for word in ("early_backward_b", "early_backward_a"))
    assert early < late
    assert late == sim.step_seconds("1f1b", 4, 1, 16, *columns)


def test_interleaving_sends_a_group_through_one_stage_before_the_next() -> None:
    assert drawn(schedules.load("interleaved_1f1b").order(2, 2, 2), by_stage=True) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


def test_zb_h1_delays_weight_gradients_by_the_rank() -> None:
    assert drawn(schedules.load("zb_h1").order(2, 1, 3)) == [
        "F0 F1 I0 W0 F2 I1 W1 I2 W2",
        "F0 I0 F1 I1 W0 F2 I2 W1 W2",
    ]


def test_zb_v_goes_there_and_back() -> None:
    assert drawn(schedules.load("zb_v").order(2, 2, 3), by_stage=True) == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ]


def test_dualpipe_v_pairs_forward_and_backward_tasks_of_the_two_ways() -> None:
    assert drawn(schedules.load("dualpipe_v").order(2, 2, 4), by_stage=True) == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3",
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3",
    ]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 7])
def test_dualpipe_v_is_pytorchs_own(n_ranks: int) -> None:
    """torchtitan names the schedule and PyTorch makes the order, so ours must be the same, task by task."""
    theirs = pytest.importorskip("torch.distributed.pipelining.schedules", reason="needs PyTorch")
    if not hasattr(theirs, "ScheduleDualPipeV"):
        pytest.skip("PyTorch before 2.9 has no DualPipeV")
    letters = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}
    for n_microbatches in (2 * n_ranks, 2 * n_ranks + 1, 5 * n_ranks + 2):
        made = theirs.ScheduleDualPipeV.__new__(theirs.ScheduleDualPipeV)
        made.pp_group_size, made._n_microbatches = n_ranks, n_microbatches
        expected = []
        for rank in range(n_ranks):
            actions = [part for one in made._calculate_single_rank_operations(rank) for part in one.sub_actions or (one,)]
            told = [f"{one.stage_index}{letters[one.computation_type.name]}{one.microbatch_index}" for one in actions]
            expected.append(" ".join(told))
        assert drawn(schedules.load("dualpipe-v").order(n_ranks, 2, n_microbatches), by_stage=True) == expected


def test_the_words_are_the_fields_own() -> None:
    assert {"1f1b", "gpipe", "interleaved_1f1b", "zb_h1", "zb_v"} <= set(schedules.words())
    assert schedules.load("1F1B") is schedules.load("one-f-one-b")
    assert schedules.load("interleaved") is schedules.load("interleaved-1f1b")
    assert schedules.word("one_f_one_b") == "1f1b"
    assert schedules.word("DualPipeV") == "dualpipe_v"
    with pytest.raises(
        UnknownNameError,
        match=r"no schedule called 'pipedream'.*1f1b, combined_1f1b, combined_dualpipe_v, dualpipe_v, early_backward_a",
    ):
        schedules.load("pipedream")


@pytest.mark.parametrize("word", ["gpipe", "1f1b", "zb_h1", "zb_h2", "early_backward_a"])
def test_schedules_of_one_stage_per_rank_refuse_more(word: str) -> None:
    with pytest.raises(InputError, match=rf"schedule {word}: 2 stages per rank"):
        schedules.load(word).order(4, 2, 8)


@pytest.mark.parametrize("word", ["zb_v", "v_half", "v_min", "dualpipe_v"])
def test_schedules_in_the_shape_of_a_v_refuse_other_than_two_stages_per_rank(word: str) -> None:
    with pytest.raises(InputError, match=rf"schedule {word}: 1 stages per rank, but it runs two; cut the model into 8 stages"):
        schedules.load(word).order(4, 1, 8)
