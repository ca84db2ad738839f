"""Orders of every schedule for small pipelines, of equal and unequal tasks, and what is said of wrong ones, as recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import schedules
from meshwright.schedules import Actions, Durations
from recorded import Recorded
from returned import Returned, refusal

TWO = ("combined_1f1b", "combined_dualpipe_v", "zb_v", "v_half", "v_min", "dualpipe_v")
MORE = ("interleaved_1f1b", "looped_bfs")


def durations(n_stages: int, seed: int) -> Durations:
    dice = np.random.default_rng(seed)
    return Durations(*(dice.integers(1, 9, n_stages) / 8 for _ in range(3)), dice.integers(0, 5, n_stages - 1) / 8)


@pytest.mark.parametrize("word", schedules.words())
def test_orders_of_small_pipelines_are_as_recorded(word: str, recorded: Recorded) -> None:
    module, said, drawn = schedules.load(word), {}, {}
    with Returned("schedules/", without=("schedules/__init__:Actions.__post_init__",)) as found:
        for n_ranks, n_microbatches in itertools.product((1, 2, 3, 4), (1, 2, 3, 5, 8)):
            for n_chunks in (2,) if word in TWO else (1, 2, 3) if word in MORE else (1,):
                orders = [schedules.ordered(word, n_ranks, n_chunks, n_microbatches)]
                if n_ranks < 4:
                    orders.append(
                        schedules.ordered(
                            word, n_ranks, n_chunks, n_microbatches, durations(n_ranks * n_chunks, n_microbatches)
                        )
                    )
                limit = module.in_flight(n_ranks, n_chunks, n_microbatches)
                for order in orders:
                    assert (
                        (order.in_flight() <= limit).all()
                        and order.n_ranks == n_ranks
                        and order.n_microbatches == n_microbatches
                    )
                    assert order.n_stages == n_ranks * n_chunks
                key = f"{n_ranks} {n_chunks} {n_microbatches}"
                said[key] = [limit.tolist(), orders[0].in_flight().tolist()]
                if n_ranks == 3 and n_microbatches == 3:
                    tasks = zip(*(getattr(orders[-1], name).tolist() for name in ("stage", "phase", "microbatch")), strict=True)
                    drawn[key] = [
                        orders[-1].first.tolist(),
                        " ".join(f"{stage}{'FIWB'[phase]}{i}" for stage, phase, i in tasks),
                    ]
    recorded(said, "held")
    recorded(drawn, "drawn")
    recorded(found.lines(), "functions")


@pytest.mark.parametrize("word", ["early_backward_a", "early_backward_b"])
def test_orders_under_a_limit_hold_no_more(word: str, recorded: Recorded) -> None:
    module = schedules.load(word)
    cases = list(itertools.product((1, 3, 4), (1, 4, 9), (0, 1, 2, 5)))
    recorded([[module.in_flight(r, 1, m, limit=n), module.order(r, 1, m, None, limit=n).in_flight()] for r, m, n in cases])


def test_what_is_wrong_with_an_order_is_said_as_recorded(recorded: Recorded) -> None:
    right = schedules.load("zb_v").order(2, 2, 3)
    both = schedules.load("1f1b").order(2, 1, 3)
    n = len(right.stage)

    def changed(name: str, place: int, value: int) -> Actions:
        column = getattr(right, name).copy()
        column[place] = value
        return replace(right, **{name: column})

    wrong: dict[str, tuple[Any, int, int, int]] = {
        "right": (right, 2, 4, 3),
        "both in one": (both, 2, 2, 3),
        "ranks": (right, 3, 4, 3),
        "stages": (right, 2, 5, 3),
        "fewer stages": (right, 2, 3, 3),
        "more micro-batches": (right, 2, 4, 4),
        "fewer micro-batches": (right, 2, 4, 2),
        "stage": (changed("stage", 5, 4), 2, 4, 3),
        "negative": (changed("stage", 5, -1), 2, 4, 3),
        "phase": (changed("phase", 0, 4), 2, 4, 3),
        "kind": (changed("phase", 0, 3), 2, 4, 3),
        "last stage": (changed("stage", 0, 3), 2, 4, 3),
        "twice": (changed("microbatch", 0, 1), 2, 4, 3),
        "microbatch": (changed("microbatch", 3, 3), 2, 4, 3),
        "first": (changed("first", 0, 1), 2, 4, 3),
        "last": (changed("first", 2, n - 1), 2, 4, 3),
        "falling": (changed("first", 1, n + 1), 2, 4, 3),
        "rank": (replace(right, rank_of_stage=np.array([0, 1, 0, 1])), 2, 4, 3),
        "ranks of stages": (replace(right, rank_of_stage=np.array([0, 1, 1])), 2, 4, 3),
        "columns": (replace(right, phase=right.phase[1:]), 2, 4, 3),
        "empty": (replace(right, stage=right.stage[:0]), 2, 4, 3),
    }
    found = {name: schedules._faults(*case) for name, case in wrong.items()}
    assert not found["right"] and not found["both in one"]
    recorded(found)


def test_refusals_and_words_are_as_recorded(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Callable[[], object]] = {
        f"{word} {n}": lambda word=word, n=n: schedules.ordered(word, 2, n, 3) for word in schedules.words() for n in (1, 2, 3)
    }
    calls |= {"unknown": lambda: schedules.load("pipedream"), "spelled": lambda: schedules.ordered(" ZB-V ", 2, 2, 2)}
    right = schedules.load("gpipe").order(2, 1, 2)
    late = SimpleNamespace(order=lambda *_: replace(right, microbatch=right.microbatch * 0))
    monkeypatch.setattr(schedules, "load", lambda name: late)
    refused = {"faulty": refusal(lambda: schedules.ordered("gpipe", 2, 1, 2))}
    monkeypatch.undo()
    refused |= {name: refusal(call) for name, call in calls.items()}
    recorded([refused, [schedules.word(name) for name in ("1f1b", "one_f_one_b", "Interleaved", "zbv", "zb-v")]])
    assert schedules.looped(3, 2).tolist() == [0, 1, 2, 0, 1, 2] and schedules.v_shaped(3, 3).tolist() == [
        0,
        1,
        2,
        2,
        1,
        0,
        0,
        1,
        2,
    ]
