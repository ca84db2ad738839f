"""Every schedule keeps the promises of its room."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from meshwright import schedules
from meshwright.base.errors import InputError
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions, Durations

CASES = [(ranks, chunks, count) for ranks in (1, 2, 3, 4, 5) for chunks in (1, 2, 3) for count in (1, 2, 3, 4, 7, 8, 12)]
CASES += [(ranks, chunks, count) for ranks in (6, 7, 8, 11) for chunks in (1, 2) for count in (3, 16)]


def cases(word: str) -> list[tuple[int, int, int]]:
    """Return the sizes that the schedule accepts; at least one number of stages per rank must be among them."""
    accepted = []
    for ranks, chunks, count in CASES:
        try:
            schedules.load(word).order(ranks, chunks, count, None)
        except InputError:
            continue
        accepted.append((ranks, chunks, count))
    assert len(accepted) >= len(CASES) // 3
    return accepted


def uneven(n_stages: int) -> Durations:
    rng = np.random.default_rng(n_stages)
    return Durations(
        1.0 + rng.random(n_stages), 0.5 + rng.random(n_stages), 0.5 + rng.random(n_stages), rng.random(n_stages - 1)
    )


def rows(slots: Actions) -> list[list[tuple[int, int, int]]]:
    flat = list(zip(slots.stage.tolist(), slots.microbatch.tolist(), slots.phase.tolist(), strict=True))
    return [flat[a:b] for a, b in zip(slots.first[:-1].tolist(), slots.first[1:].tolist(), strict=True)]


def deadlocks(slots: Actions) -> bool:
    """Whether some task can never run, found by running whatever can run until nothing more can."""
    waiting = [list(reversed(row)) for row in rows(slots)]
    done: set[tuple[str, int, int]] = set()
    last, moved = slots.n_stages - 1, True
    while moved:
        moved = False
        for row in waiting:
            while row:
                stage, i, phase = row[-1]
                if phase == FORWARD:
                    ready = stage == 0 or ("F", stage - 1, i) in done
                elif phase == BACKWARD_WEIGHT:
                    ready = ("I", stage, i) in done
                else:
                    ready = ("F", stage, i) in done and (stage == last or ("I", stage + 1, i) in done)
                if not ready:
                    break
                row.pop()
                done.add(("F" if phase == FORWARD else "W" if phase == BACKWARD_WEIGHT else "I", stage, i))
                moved = True
    return any(waiting)


@pytest.mark.parametrize("word", schedules.words())
@pytest.mark.parametrize("fitted", [False, True], ids=["alone", "with times"])
def test_every_microbatch_passes_every_stage_once_and_nothing_deadlocks(word: str, fitted: bool) -> None:
    module = schedules.load(word)
    for ranks, chunks, count in cases(word):
        slots = module.order(ranks, chunks, count, uneven(ranks * chunks) if fitted else None)
        place = module.placement(ranks, chunks)
        assert sorted(place.tolist()) == sorted(list(range(ranks)) * chunks)
        np.testing.assert_array_equal(slots.rank_of_stage, place)
        seen: dict[tuple[int, int], list[int]] = {}
        for rank, row in enumerate(rows(slots)):
            for stage, i, phase in row:
                assert place[stage] == rank
                seen.setdefault((stage, i), []).append(phase)
        assert sorted(seen) == [(stage, i) for stage in range(ranks * chunks) for i in range(count)]
        for phases in seen.values():
            assert phases in ([FORWARD, BACKWARD], [FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT])
        assert not deadlocks(slots), (ranks, chunks, count)


@pytest.mark.parametrize("word", schedules.words())
@pytest.mark.parametrize("fitted", [False, True], ids=["alone", "with times"])
def test_no_rank_ever_holds_more_activations_than_stated(word: str, fitted: bool) -> None:
    module = schedules.load(word)
    for ranks, chunks, count in cases(word):
        slots = module.order(ranks, chunks, count, uneven(ranks * chunks) if fitted else None)
        stated = module.in_flight(ranks, chunks, count)
        held = []
        for row in rows(slots):
            level = peak = 0
            for _, _, phase in row:
                level += phase == FORWARD
                peak = max(peak, level)
                level -= phase in (BACKWARD, BACKWARD_WEIGHT)
            assert level == 0
            held.append(peak)
        assert slots.in_flight().tolist() == held
        assert all(a <= b for a, b in zip(held, stated.tolist(), strict=True)), (ranks, chunks, count, held, stated)


@pytest.mark.parametrize("word", schedules.words())
def test_what_is_stated_is_held_by_some_order_at_most_sizes(word: str) -> None:
    """More than is held would refuse plans that fit: nowhere by more than a stage's share, and mostly not at all."""
    module, reached = schedules.load(word), []
    for ranks, chunks, count in cases(word):
        held = [module.order(ranks, chunks, count, times).in_flight() for times in (None, uneven(ranks * chunks))]
        reached.append(bool((np.maximum(*held) == module.in_flight(ranks, chunks, count)).all()))
    assert sum(reached) >= 2 / 3 * len(reached)


@pytest.mark.parametrize("word", schedules.words())
@pytest.mark.parametrize("fitted", [False, True], ids=["alone", "with times"])
def test_a_schedule_is_the_same_each_time(word: str, fitted: bool) -> None:
    module = schedules.load(word)
    for ranks, chunks, count in cases(word):
        times = uneven(ranks * chunks) if fitted else None
        once, again = (module.order(ranks, chunks, count, times) for _ in range(2))
        assert rows(once) == rows(again), (ranks, chunks, count)
        assert module.in_flight(ranks, chunks, count).tolist() == module.in_flight(ranks, chunks, count).tolist()


@pytest.mark.parametrize("word", schedules.words())
def test_a_schedule_has_the_signature_of_its_room(word: str) -> None:
    module = schedules.load(word)
    assert list(inspect.signature(module.order).parameters)[:4] == ["n_ranks", "n_chunks", "n_microbatches", "times"]
    assert list(inspect.signature(module.in_flight).parameters)[:3] == ["n_ranks", "n_chunks", "n_microbatches"]
    assert list(inspect.signature(module.placement).parameters) == ["n_ranks", "n_chunks"]


@pytest.mark.parametrize("word", schedules.words())
def test_the_word_of_a_schedule_survives_loading_and_dashes(word: str) -> None:
    assert schedules.word(word) == word
    assert schedules.load(word.replace("_", "-").upper()) is schedules.load(word)
