"""Ideals whose compute is none or all of it, by sums that rounding moves: none is left out of a proof."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.solvers.partition import operator_stages
from meshwright.solvers.partition.hypergraph import Operators


@pytest.mark.parametrize("digits", [2.8790472, 2.87904729, 2.87904742, 0.1, 0.3, 1e-9])
def test_an_operator_that_costs_nothing_on_a_device_may_stand_there_alone(digits: float) -> None:
    """One stage of the first operator, the host for both others: 12 + 5 instead of 17 + 12 + 5."""
    operators = Operators(
        compute=np.array([0.0, digits, 1000.0]), host=np.array([17.0, 12.0, 5.0]), memory=np.array([2.0, 4.0, 0.0]),
        supported=np.array([True, False, True]), edges=((0, 2), (1, 2)), colocated=(0, 1, 2),
        nets=((0.5237527638008601, (0, 2)), (0.4920810568848796, (1, 2))),
    )  # fmt: skip
    for shift in np.random.default_rng(0).random(40) * 1e-6:
        moved = np.array([0.0, digits + shift, 1000.0])
        found = operator_stages.cut(Operators(**{**_fields(operators), "compute": moved}), 2, n_hosts=1)
        assert found.partition.exact and max(found.partition.loads) == 17.0 == found.partition.bound_value


def _fields(operators: Operators) -> dict[str, object]:
    return {name: getattr(operators, name) for name in operators.__dataclass_fields__}
