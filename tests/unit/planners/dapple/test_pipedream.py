"""PipeDream's planner against every split of small chains, and its refusals."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import pytest

from meshwright import api
from meshwright.base.errors import InputError

NVLINK = 25e9


def slowest(layers: list[tuple[float, float, float]], n_devices: int) -> float:
    """Smallest slowest stage of all splits on one machine: (seconds, output bytes, weight bytes) per layer."""
    n = len(layers)

    def stage(i: int, j: int, m: int) -> float:
        weights = sum(layer[2] for layer in layers[i:j])
        return max(sum(layer[0] for layer in layers[i:j]), 2 * (m - 1) * weights / NVLINK) / m

    best = np.inf
    for mask in range(2 ** (n - 1)):
        cuts = [0, *(i + 1 for i in range(n - 1) if mask >> i & 1), n]
        spans = list(itertools.pairwise(cuts))
        sends = max((2 * layers[cut - 1][1] / NVLINK for cut in cuts[1:-1]), default=0.0)

        def share(spans: list[tuple[int, int]], left: int) -> float:
            if len(spans) == 1:
                return stage(*spans[0], left)
            return min(
                (max(stage(*spans[0], m), share(spans[1:], left - m)) for m in range(1, left - len(spans) + 2)), default=np.inf
            )

        if len(spans) <= n_devices:
            best = min(best, max(share(spans, n_devices), sends))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_the_slowest_stage_is_the_least_of_all_splits(tmp_path: pathlib.Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    n, n_devices = int(random.integers(2, 6)), int(random.integers(1, 5))
    layers = [
        (float(random.integers(1, 50)) / 1000, float(random.integers(1, 9)) * 1e7, float(random.integers(0, 9)) * 1e8)
        for _ in range(n)
    ]
    lines = [
        f"n{i} -- L -- forward_compute_time={t * 400!r}, backward_compute_time={t * 600!r}, activation_size={a!r}, "
        f"parameter_size={w!r}"
        for i, (t, a, w) in enumerate(layers)
    ]
    path = tmp_path / "p.txt"
    path.write_text("\n".join(lines + [f"\tn{i} -- n{i + 1}" for i in range(n - 1)]) + "\n")
    settings = {"profile_batch": "1", "global_batch": "8", "machines": str(n_devices)}
    result = api.plan(str(path), search="pipedream", settings=settings)
    assert result.answer.objective is not None
    assert result.answer.objective.value == pytest.approx(slowest(layers, n_devices), rel=1e-12)
    assert result.timeline is not None and result.timeline.step_seconds > 0
    used = [device for stage in result.plan.stages for device in stage.devices]
    assert sorted(used) == list(range(n_devices))


def test_unequal_machines_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("a -- L -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n")
    with pytest.raises(InputError, match="machines of one size"):
        api.plan(str(path), search="pipedream", settings={"profile_batch": "1", "global_batch": "8", "machines": "2,3"})
