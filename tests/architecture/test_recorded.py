"""What is recorded beside a test notices every changed figure, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from meshwright.core.strategy import Strategy
from recorded import Recorded, differences, plain


def test_nouns_arrays_and_containers_become_what_json_says() -> None:
    value = {"strategy": Strategy(data=2), 3: np.arange(3), "set": {2, 1}, "far": float("inf"), "call": plain}
    value["pair"] = (1, np.float64(2.5))
    said = json.loads(json.dumps(plain(value)))
    assert said["strategy"]["data"] == 2
    assert said["3"] == [0, 1, 2] and said["set"] == [1, 2] and said["far"] == "inf"
    assert said["call"] == "plain" and said["pair"] == [1, 2.5]


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no plain form"):
        plain(object())


@pytest.mark.parametrize(
    "change", [lambda a: a[::-1], lambda a: a + 1e-6, lambda a: a[:-1], lambda a: np.where(a == 7, np.inf, a)]
)
def test_a_change_anywhere_in_a_long_array_is_seen(change) -> None:
    array = np.arange(100.0)
    assert differences(plain(array), plain(change(array)))
    assert not differences(plain(array), plain(array.copy()))


@pytest.mark.parametrize(
    ("was", "now"),
    [(1.0, 1.0 + 1e-7), (1, 2), ("a", "b"), ([1], [1, 2]), ({"a": 1}, {"b": 1}), (True, 1), (None, 0), (0.0, 1e-12)],
)
def test_a_difference_is_told_by_place(was: object, now: object) -> None:
    assert differences([was], [now])[0].startswith("[0]")
    assert not differences([was], [was])


def test_rounding_is_no_difference() -> None:
    assert not differences([1.0, 3], [1.0 + 1e-12, 3.0])


def test_a_test_that_recorded_nothing_fails_and_one_that_did_compares(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "recorded" / "test_x.json"
    with pytest.raises(AssertionError, match="has nothing for test_a"):
        Recorded(file, "test_a", write=False)(1.5)
    Recorded(file, "test_a", write=True)(1.5)
    Recorded(file, "test_b", write=True)(dataclasses.replace(Strategy(), data=4), "strategy")
    Recorded(file, "test_a", write=False)(1.5)
    with pytest.raises(AssertionError, match=r"test_a is not what was recorded.*\n: 1.5 before, 1.6 now"):
        Recorded(file, "test_a", write=False)(1.6)
