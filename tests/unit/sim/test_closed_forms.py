"""The simulator says what the published formulas say, for stages of equal tasks and transfers that take no time.

p ranks, m micro-batches, f, b, w seconds of forward, input gradient and weight gradient of one rank, v stages per rank. Sources
of the formulas: the README of the zero-bubble repository (its table gives the bubble rate B = (p - 1) / (m + p - 1) of 1F1B, B
/ 3 for ZB-H1 and 0 for ZB-H2 and ZB-V, with f = b = w), the README of DualPipe (bubbles in seconds, its B is our b + w), and
Narayanan et al. 2021, section 2.2 (interleaved: the bubble divided by v).
"""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import schedules, sim


def played(schedule: str, p: int, v: int, m: int, seconds: tuple[float, float, float]) -> float:
    columns = [np.full(p * v, part / v) for part in seconds]
    return sim.step_seconds(schedule, p, v, m, *columns, np.zeros(p * v - 1))


SIZES = [(1, 1), (2, 3), (4, 8), (5, 5), (8, 20)]
TIMES = [(1.0, 1.0, 1.0), (1.0, 1.5, 0.5), (0.25, 0.75, 0.5)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "early_backward_a", "early_backward_b"])
@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("times", TIMES)
def test_gpipe_and_1f1b_wait_p_minus_1_microbatches(schedule: str, p: int, m: int, times: tuple[float, float, float]) -> None:
    assert played(schedule, p, 1, m, times) == pytest.approx((m + p - 1) * sum(times), rel=1e-12)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize(("p", "groups"), [(2, 1), (2, 3), (4, 2), (8, 2)])
@pytest.mark.parametrize("times", TIMES)
def test_interleaving_divides_the_bubble_by_the_stages_per_rank(
    v: int, p: int, groups: int, times: tuple[float, float, float]
) -> None:
    m = p * groups
    assert played("interleaved_1f1b", p, v, m, times) == pytest.approx((m + (p - 1) / v) * sum(times), rel=1e-12)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (4, 2, 4), (4, 3, 8), (8, 2, 11)])
def test_breadth_first_waits_as_little_as_interleaving(p: int, v: int, m: int) -> None:
    assert played("looped_bfs", p, v, m, (1.0, 1.5, 0.5)) == pytest.approx((m + (p - 1) / v) * 3.0, rel=1e-12)


@pytest.mark.parametrize("m", [5, 6, 7, 9])
def test_interleaving_with_a_remainder_is_no_slower_than_the_next_multiple(m: int) -> None:
    p, v = 4, 3
    assert m * 3.0 < played("interleaved_1f1b", p, v, m, (1.0, 1.0, 1.0)) <= (-(-m // p) * p + (p - 1) / v) * 3.0 + 1e-9


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (5, 5), (8, 20)])
def test_zb_h1_waits_a_third_of_what_1f1b_waits(p: int, m: int) -> None:
    bubble = played("zb_h1", p, 1, m, (1.0, 1.0, 1.0)) - 3.0 * m
    assert bubble == pytest.approx((played("1f1b", p, 1, m, (1.0, 1.0, 1.0)) - 3.0 * m) / 3, rel=1e-12)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (1.0, 1.0, 0.5)])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 20)])
def test_zb_h1_waits_f_plus_b_minus_w_per_rank(p: int, m: int, times: tuple[float, float, float]) -> None:
    f, b, w = times
    assert played("zb_h1", p, 1, m, times) == pytest.approx(m * (f + b + w) + (p - 1) * (f + b - w), rel=1e-12)


@pytest.mark.parametrize(("schedule", "v"), [("zb_h2", 1), ("zb_v", 2)])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 7), (4, 12), (8, 20)])
def test_no_rank_of_zb_h2_and_zb_v_waits_between_its_tasks(schedule: str, v: int, p: int, m: int) -> None:
    """So one step lasts the work of a rank and the skew with which ranks start: p - 1 forward tasks of one stage."""
    assert played(schedule, p, v, m, (1.0, 1.0, 1.0)) == pytest.approx(3.0 * m + (p - 1) / v, rel=1e-12)


@pytest.mark.parametrize(("schedule", "v", "share"), [("zb_h1", 1, 1.0), ("zb_v", 2, 1.0), ("zb_h2", 1, 2.0)])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_zero_bubble_schedules_hold_as_much_as_1f1b_or_twice_as_much(schedule: str, v: int, share: float, p: int) -> None:
    m = 4 * p
    held = schedules.load(schedule).order(p, v, m, None).in_flight().max() / v
    assert held <= share * schedules.load("1f1b").order(p, 1, m, None).in_flight().max()
    assert held > (share - 1.0) * p


@pytest.mark.parametrize(("schedule", "of_bubble", "of_memory"), [("v_half", 1 / 2, 1 / 2), ("v_min", 2 / 3, 1 / 3)])
@pytest.mark.parametrize("p", range(1, 13))
def test_v_half_and_v_min_hold_and_wait_the_published_shares(schedule: str, of_bubble: float, of_memory: float, p: int) -> None:
    """Of the 3 (p - 1) seconds and the p whole activations of 1F1B; the published shares of memory leave out a constant."""
    m = 4 * p
    assert played(schedule, p, 2, m, (1.0, 1.0, 1.0)) - 3.0 * m <= of_bubble * 3.0 * (p - 1) + 1e-9
    held = schedules.load(schedule).order(p, 2, m, None).in_flight().max() / 2
    assert of_memory * p <= held <= of_memory * p + 4 / 3


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.5, 0.5), (1.0, 1.25, 0.75)])
@pytest.mark.parametrize("p", range(1, 9))
def test_dualpipe_v_waits_and_holds_no_more_than_published(p: int, times: tuple[float, float, float]) -> None:
    """With nothing of a pair hidden its F&B is F + B: ``(PP / 2 - 1) (F&B + B - 3 W)`` of a chunk's times, PP the 2 p stages,
    and PP + 1 activations. ZB-V waits less and holds less.
    """
    m, v = 6 * p, 2
    f, b, w = (part / v for part in times)
    bubble = played("dualpipe_v", p, v, m, times) - m * sum(times)
    assert played("zb_v", p, v, m, times) - m * sum(times) - 1e-9 <= bubble <= (p - 1) * (f + (b + w) + (b + w) - 3 * w) + 1e-9
    assert schedules.load("dualpipe_v").order(p, v, m, None).in_flight().tolist() == [2 * p + 1] * p
