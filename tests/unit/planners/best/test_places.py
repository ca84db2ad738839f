"""Where devices lie up to an exchange of blocks that are wired alike: nodes of 4 devices, pods of 2 nodes."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.planners.best.ranks import _place

PERIODS = (4, 8)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([0, 2], [4, 6], True), ([0, 2], [8, 10], True), ([0, 2], [1, 3], False),  # within a node
        ([1, 5], [9, 13], True), ([1, 5], [17, 21], True), ([1, 5], [5, 9], False),  # both nodes of a pod; of two pods
        ([1, 9], [5, 13], True), ([1, 9], [1, 17], True), ([1, 5, 9], [9, 13, 17], True),
        ([1, 5, 9], [1, 9, 13], False), ([1, 5, 9, 13], [17, 21, 25, 29], True),
        ([0, 1, 2, 3], [4, 5, 6, 7], True),  # neighbours
        ([2, 3, 4, 5], [6, 7, 8, 9], False),  # the latter lie in two pods
        ([0, 1, 2, 3], [8, 9, 10, 11], True), ([2, 3], [10, 11], True), ([3, 4], [2, 3], False),
    ],
)  # fmt: skip
def test_places_that_are_wired_alike_are_equal(one: list[int], other: list[int], alike: bool) -> None:
    places = [_place(np.array(devices, np.int64), PERIODS) for devices in (one, other)]
    assert (places[0] == places[1]) is alike


def test_single_devices_are_alike_and_without_blocks_nothing_else_is() -> None:
    assert _place(np.array([3]), PERIODS) == _place(np.array([11]), ())
    assert _place(np.array([0, 1]), ()) != _place(np.array([2, 3]), ())
