"""The corrected planner against brute force on small chains, and its bound against every plan."""

from __future__ import annotations

import math
import pathlib
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import dapple_brute_force as oracle

from meshwright import api
from meshwright.planners.dapple import exact

CASES = (
    # machines, layers, batch, weight bytes, activation bytes: slow network, heavy weights, tight memory
    ((2, 1), 3, 4, 2e8, 1e6),
    ((1, 1, 1), 4, 4, 1e9, 5e6),
    ((3,), 4, 4, 1.3e9, 1e6),
    ((2, 2), 3, 2, 2e9, 2e9),
    ((1, 2), 3, 6, 1e7, 8e8),
    ((1, 1), 4, 4, 4e8, 3.5e9),
    ((2, 1), 3, 4, 4e8, 3.5e9),
    ((1, 1), 3, 4, 8e9, 1e6),
)


def chain(seed: int, n_layers: int, weight_bytes: float, activation_bytes: float) -> list[oracle.Layer]:
    random = np.random.default_rng(seed)
    return [
        oracle.Layer(
            round(float(random.uniform(0.001, 0.02)), 6),
            round(float(random.uniform(0.002, 0.04)), 6),
            float(random.integers(1, 10)) * activation_bytes / 5,
            float(random.integers(0, 10)) * weight_bytes / 5,
        )
        for _ in range(n_layers)
    ]


@cache
def quickest(case: int, seed: int) -> float | None:
    """Return the quickest step of all plans of a case's chain; several tests ask for it."""
    sizes, n_layers, batch, weight_bytes, activation_bytes = CASES[case]
    return oracle.best(chain(100 * case + seed, n_layers, weight_bytes, activation_bytes), sizes, batch)


def write(layers: list[oracle.Layer], path: pathlib.Path) -> None:
    lines = [
        f"node{i} -- Layer{i} -- forward_compute_time={layer.forward * 1000!r}, "
        f"backward_compute_time={layer.backward * 1000!r}, "
        f"activation_size={layer.activation!r}, parameter_size={layer.parameter!r}"
        for i, layer in enumerate(layers)
    ]
    lines += [f"\tnode{i} -- node{i + 1}" for i in range(len(layers) - 1)]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("seed", range(2))
def test_the_answer_is_the_quickest_of_all_plans(tmp_path: pathlib.Path, case: int, seed: int) -> None:
    sizes, n_layers, batch, weight_bytes, activation_bytes = CASES[case]
    layers = chain(100 * case + seed, n_layers, weight_bytes, activation_bytes)
    write(layers, tmp_path / "chain.txt")
    wanted = quickest(case, seed)
    ends = ",".join(str(end) for end in np.cumsum(sizes))
    result = api.plan(
        str(tmp_path / "chain.txt"),
        settings={"profile_batch": "1", "global_batch": str(batch), "machines": ends, "proof_steps": "1000000"},
    )
    if wanted is None:
        assert result.answer.plan is None and result.answer.missing_bytes > 0
        return
    assert result.answer.objective is not None and result.answer.bound is not None and result.timeline is not None
    assert result.answer.bound.method == "exact"
    assert result.answer.objective.value == pytest.approx(wanted, rel=1e-9)
    assert result.timeline.step_seconds == pytest.approx(wanted, rel=1e-9)
    assert max(result.timeline.peak_bytes) <= 16e9


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_proof_finds_the_quickest_by_itself(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    """Where no plan is known before: a bound too high would cut the best plan off."""
    sizes, n_layers, batch, weight_bytes, activation_bytes = CASES[case]
    proven, found = exact.proven, []

    def unaided(evaluator: Any, numbers: Any, following: Any, kept: Any, best: Any, budget: int) -> Any:
        found.append(proven(evaluator, numbers, following, kept, (math.inf, best[1]), budget))
        return found[-1]

    monkeypatch.setattr(exact, "proven", unaided)
    for seed in range(3):
        layers = chain(100 * case + seed, n_layers, weight_bytes, activation_bytes)
        write(layers, tmp_path / "chain.txt")
        wanted = quickest(case, seed)
        ends = ",".join(str(end) for end in np.cumsum(sizes))
        settings = {"profile_batch": "1", "global_batch": str(batch), "machines": ends, "proof_steps": "1000000"}
        api.plan(str(tmp_path / "chain.txt"), settings=settings)
        if wanted is not None:
            assert found[-1][0] == pytest.approx(wanted, rel=1e-9)
    assert found or case == len(CASES) - 1


@pytest.mark.parametrize("case", range(len(CASES)))
def test_without_the_proof_the_bound_still_holds(tmp_path: pathlib.Path, case: int) -> None:
    sizes, n_layers, batch, weight_bytes, activation_bytes = CASES[case]
    layers = chain(100 * case, n_layers, weight_bytes, activation_bytes)
    write(layers, tmp_path / "chain.txt")
    wanted = quickest(case, 0)
    ends = ",".join(str(end) for end in np.cumsum(sizes))
    answer = api.plan(
        str(tmp_path / "chain.txt"),
        settings={"profile_batch": "1", "global_batch": str(batch), "machines": ends, "proof_steps": "0"},
    ).answer
    if wanted is None:
        assert answer.plan is None
        return
    assert answer.objective is not None and answer.bound is not None
    assert answer.bound.method == "relaxation"
    assert answer.bound.value <= wanted * (1 + 1e-12) <= answer.objective.value * (1 + 1e-9)
    assert answer.objective.value <= 1.1 * wanted
