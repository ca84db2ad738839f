"""The quick kernel of one-forward-one-backward pipelines says what the simulator's own kernel says."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import schedules, sim
from meshwright._kernels.dapple import early_backward


@pytest.mark.parametrize("schedule", ["1f1b", "early_backward_a", "early_backward_b"])
def test_the_last_backward_ends_when_the_simulator_says(schedule: str) -> None:
    random = np.random.default_rng(1)
    for _ in range(60):
        n, m = int(random.integers(1, 6)), int(random.integers(1, 9))
        forward, backward = random.uniform(0.1, 1.0, n), random.uniform(0.1, 2.0, n)
        transfer = random.uniform(0.0, 1.0, n - 1)
        send = np.zeros((2, n))
        send[0, :-1] = send[1, 1:] = transfer
        depth = np.array(schedules.load(schedule).in_flight(n, 1, m))
        ends = early_backward.drained_seconds(forward, backward, send, depth, m)
        wanted = sim.step_seconds(schedule, n, 1, m, forward, backward, np.zeros(n), transfer)
        assert max(ends) == pytest.approx(wanted, rel=1e-12)
