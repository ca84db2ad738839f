"""Integer programs by SciPy's solver alone: the same answers as by SciPy's own door, without importing the rest of it."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from meshwright.base import integer_program
from meshwright.base.integer_program import ProgramAnswer, ProgramRow, solve

LONE = """
import sys
import numpy as np
from meshwright.base.integer_program import ProgramRow, solve
if {before}:
    import scipy.optimize
row = ProgramRow(np.array([0, 1]), np.array([2.0, 3.0]), 7.0, np.inf)
print(solve(np.array([1.0, 1.4]), np.array([True, True]), 5.0, [row], most_nodes=100).bound, "scipy.optimize" in sys.modules)
from scipy.optimize import Bounds, LinearConstraint, milp
found = milp([1.0, 1.4], integrality=1, bounds=Bounds(0, 5), constraints=LinearConstraint([[2.0, 3.0]], 7.0, np.inf))
print(found.mip_dual_bound)
"""


def random_program(dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[ProgramRow]]:
    n, n_rows = int(dice.integers(2, 9)), int(dice.integers(1, 7))
    rows = []
    for _ in range(n_rows):
        columns = dice.permutation(n)[: int(dice.integers(1, n + 1))]
        low, high = np.sort(dice.integers(-20, 60, 2)).astype(float)
        values = np.round(dice.normal(size=len(columns)) * 5.0, int(dice.integers(0, 3)))
        rows.append(ProgramRow(columns, values, low, high if dice.random() < 0.6 else math.inf))
    upper = np.where(dice.random(n) < 0.5, dice.integers(1, 9, n).astype(float), math.inf)
    whole = dice.random(n) < 0.7
    whole[0] = True
    return np.round(dice.random(n) * 4.0, 2), whole, upper, rows


@pytest.mark.parametrize("most_nodes", [1, 1000])
def test_bounds_are_those_of_scipy_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, most_nodes: int) -> None:
    dice, kinds = np.random.default_rng(26), set()
    for _ in range(60):
        program = random_program(dice)
        alone = solve(*program, most_nodes=most_nodes)
        with monkeypatch.context() as patch:
            patch.setattr(integer_program, "_solver", lambda: None)
            assert solve(*program, most_nodes=most_nodes) == alone
        kinds.add("infeasible" if alone.infeasible else "none" if alone.bound is None else "bound")
    assert {"infeasible", "bound"} <= kinds


def test_a_program_by_hand() -> None:
    # 2a + 3b >= 7 with whole a, b: (2, 1) costs 3.4, (1, 2) 3.8, (4, 0) 4
    row = ProgramRow(np.array([0, 1]), np.array([2.0, 3.0]), 7.0, math.inf)
    found = solve(np.array([1.0, 1.4]), np.array([True, True]), 5.0, [row], most_nodes=100)
    assert not found.infeasible
    assert found.bound == pytest.approx(3.4, abs=1e-6)
    assert solve(np.ones(2), np.array([True, True]), 1.0, [row], most_nodes=100) == ProgramAnswer(True, None)


@pytest.mark.parametrize("before", [False, True])
def test_the_rest_of_scipy_is_not_imported_for_it_and_can_be_before_and_after(before: bool) -> None:
    done = subprocess.run([sys.executable, "-c", LONE.format(before=before)], capture_output=True, text=True, check=True)
    first, loaded, second = done.stdout.split()
    assert loaded == str(before)
    assert float(first) == float(second)
