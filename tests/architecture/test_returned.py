"""What watched functions returned: the same calls give the same lines, other figures others; memos hide no call."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import network, schedules
from meshwright.base.errors import InputError
from returned import Returned, refusal
from small_clusters import boxes


def lines(*sizes: tuple[int, int]) -> dict[str, dict[str, str]]:
    with Returned("schedules/", "network/") as found:
        for size in sizes:
            schedules.looped(*size)
    return found.lines()


def test_the_same_calls_give_the_same_lines_and_others_do_not() -> None:
    assert lines((2, 2), (3, 1)) == lines((2, 2), (3, 1))
    assert list(lines((2, 2))) == ["schedules/__init__"] and list(lines((2, 2))["schedules/__init__"]) == ["looped"]
    told = [
        lines(*sizes)["schedules/__init__"]["looped"] for sizes in (((2, 2),), ((2, 3),), ((2, 2), (3, 1)), ((3, 1), (2, 2)))
    ]
    assert len(set(told)) == 4 and [one.split()[0] for one in told] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    "change", [lambda a: a + 1e-5, lambda a: a[::-1], lambda a: a[:-1], lambda a: np.where(a > 1.5, np.inf, a), lambda a: -a]
)
def test_a_changed_number_changes_the_line_and_rounding_does_not(change) -> None:
    from returned import _Figures

    def line(value: object) -> str:
        figures = _Figures()
        figures.add({"one": [value, ("two", None)]})
        return str(figures)

    numbers = np.array([0.1 + 0.2, 1.0, 2.0])
    assert line(numbers) == line(np.array([0.3, 1.0, 2.0])) != line(change(numbers))
    assert line(1e-17) == line(0.0) and line(float("nan")) != line(0.0) and line(1) != line(2) and line(True) != line(False)


def test_what_was_asked_before_is_asked_anew() -> None:
    cluster = boxes([2, 2])
    network.Network.of(cluster).axis([[0, 1]])
    with Returned("network/model") as found:
        network.Network.of(cluster).axis([[0, 1]])
    assert "Network.__init__" in found.lines()["network/model"]


def test_functions_left_out_are_not_told() -> None:
    with Returned("schedules/", without=("schedules/__init__:looped",)) as found:
        schedules.looped(2, 2)
    assert found.lines() == {}


def test_a_refusal_is_told_without_the_folder_of_its_files() -> None:
    def refuse() -> None:
        raise InputError("/tmp/here/a.json: no")

    assert refusal(refuse, "/tmp/here") == "/a.json: no" and refusal(refuse) == "/tmp/here/a.json: no"
    assert refusal(lambda: 1) == "answered"
    with pytest.raises(ValueError):
        refusal(lambda: int("x"))
