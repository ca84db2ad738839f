"""Copies, sums and extremes of arrays, as plain Python: compiled they are pieces of kernels only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright._kernels import arrays


def plain(function: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(function, "py_func", function)
    return found


def test_copies_take_as_many_entries_or_rows_as_asked() -> None:
    target = np.zeros(4)
    plain(arrays.copy)(target, np.array([1.0, 2.0, 3.0]), 2)
    assert target.tolist() == [1.0, 2.0, 0.0, 0.0]
    rows = np.zeros((3, 2))
    plain(arrays.copy_rows)(rows, np.array([[1.0, 2.0], [3.0, 4.0]]), 1)
    assert rows.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_sums_and_extremes_are_those_of_numpy() -> None:
    values = np.array([3.0, -1.0, 7.0, 7.0, 2.0])
    assert plain(arrays.total)(values) == values.sum() == 18.0
    assert plain(arrays.largest)(values) == values.max()
    assert plain(arrays.smallest)(values) == values.min()
    assert plain(arrays.total)(np.array([4, 5])) == 9
