"""Circuits that change during a step: nothing lost, dark times paid, and never slower than circuits that stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshwright._kernels.topoopt.fair_steps import Windows
from meshwright.planners.topoopt import finder, moves, windows
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, Step, data_parallel


def fitted(step: Step, plan: Placement, n: int, degree: int = 2, rate: float = 1e8) -> Fabric:
    traffic = step.traffic(plan)
    rings = finder.random_cycles(n, degree // 2, np.random.default_rng(0))
    made = next(iter(finder.fabrics(traffic, n, degree, rate, 1e-6, rings)))
    return made.refitted(traffic.pair_bytes, traffic.group_bytes)


@pytest.mark.parametrize("seed", range(4))
def test_changing_to_the_same_circuits_without_darkness_changes_nothing(small: Callable[..., Step], seed: int) -> None:
    step, rng = small(), np.random.default_rng(seed)
    plan = data_parallel(step.space)
    for _ in range(3 * seed):
        plan = moves.propose(step.space, moves.chains(step.space.workload), plan, rng, "either")
    fabric = fitted(step, plan, 4)
    _, stays = windows.play(step, plan, [fabric], Windows(np.zeros(1), 0.0))
    assert stays.seconds == pytest.approx(step.seconds(plan, fabric, traffic="fair"), rel=1e-9)
    moments = np.concatenate([[0.0], np.sort(rng.random(4)) * stays.seconds])
    _, changes = windows.play(step, plan, [fabric] * 5, Windows(moments, 0.0))
    assert changes.seconds == pytest.approx(stays.seconds, rel=1e-6)


def test_an_all_reduce_across_a_change_is_late_by_the_dark_time_and_slower_on_slower_circuits(
    small: Callable[..., Step],
) -> None:
    step = small("topoopt:dlrm,tables=1,rows=10,width=1,bottom=512-2048-1,top=2-1,batch=64", n=2, shard=False)
    plan = data_parallel(step.space)
    fast = fitted(step, plan, 2, 1, 1e7)  # the matrix of 512 x 2048 is the last to be ready: nothing begins after it
    slow = fitted(step, plan, 2, 1, 0.5e7)
    _, stays = windows.play(step, plan, [fast], Windows(np.zeros(1), 0.0))
    last = int(np.argmax(stays.reduce_end - stays.reduce_start))
    begins, ends = float(stays.reduce_start[last]), float(stays.reduce_end[last])
    assert ends == stays.seconds and ends - begins > 0.5 * stays.seconds
    middle, dark = 0.5 * (begins + ends), 0.1 * begins  # the darkness at the start is over before anything is sent
    _, late = windows.play(step, plan, [fast, fast], Windows(np.array([0.0, middle]), dark))
    assert late.seconds == pytest.approx(stays.seconds + dark, rel=1e-2)
    _, slower = windows.play(step, plan, [fast, slow], Windows(np.array([0.0, middle]), 0.0))
    assert slower.seconds == pytest.approx(ends + (ends - middle), rel=1e-2)


def test_circuits_chosen_anew_are_faster_or_not_chosen_and_keep_to_the_interfaces(small: Callable[..., Step]) -> None:
    step = small("topoopt:candle,batch=4096,tower=512x3,top=512x2-1", n=8, shard=False)
    plan = next(iter(moves.beside(step.space, "contiguous")))
    staying = fitted(step, plan, 8, 2, 1e9)
    drawn = finder.random_cycles(8, 1, np.random.default_rng(0))
    found = [windows.choose(step, plan, staying, 2, dark, drawn) for dark in (1e-9, 1e-5, 1e3)]
    assert found[2] is None
    assert found[0] is not None and found[0].seconds < found[0].staying_seconds
    assert found[1] is None or found[0].seconds <= found[1].seconds * (1 + 1e-2)
    for fabric in found[0].fabrics:
        assert max(np.bincount(fabric.source, fabric.count)) <= 2
