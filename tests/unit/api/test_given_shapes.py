"""Of plans in a given shape the quickest that fits is the answer; where none does, that which misses least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.api import shaping
from meshwright.base import registry


@pytest.mark.parametrize(
    ("excess", "seconds", "chosen", "missing"),
    [
        ((-5.0, -1.0, 3.0), (4.0, 2.0, 1.0), 1, None), ((5.0, 2.0, 3.0), (1.0, 9.0, 2.0), None, 2.0),
        ((-9.0, -1.0, -5.0), (2.0, 3.0, 2.5), 0, None), ((7.0, 4.0, 0.0), (1.0, 2.0, 30.0), 2, None),
    ],
)  # fmt: skip
def test_what_fits_goes_before_what_is_quick(
    excess: tuple[float, ...],
    seconds: tuple[float, ...],
    chosen: int | None,
    missing: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [Shaped(str(i), SimpleNamespace(graph=None), i, seconds[i], SHAPES) for i in range(3)]
    monkeypatch.setattr(registry, "load", lambda *_: SimpleNamespace(in_shape=lambda graph, plan, *_: [plan + "x"]))
    monkeypatch.setattr(shaping, "judged", lambda one: made[int(one.answer.plan[0])])
    monkeypatch.setattr(shaping, "replace", lambda one, **changed: one.replaced(**changed))
    monkeypatch.setattr(shaping, "_excess", lambda one: excess[one.n])
    monkeypatch.setattr(shaping.answers, "check_plan", lambda *_: None)
    monkeypatch.setattr(shaping.targets, "checked", lambda *_: None)
    asked: Any = Shaped("0", SimpleNamespace(graph=None), -1, None, SHAPES)
    found: Any = shaping.shaped(asked, 2, ())
    if chosen is None:
        assert found.answer.plan is None and found.answer.missing_bytes == missing
    else:
        assert found.answer.plan == f"{chosen}" and found.answer.objective.value == seconds[chosen]
    assert found.answer.notes[-1].startswith("2 virtual stages given: made of the degrees of the 3 best plans")


class Fields:
    """An answer that `replace` changes the named fields of."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def replaced(self, **changed: Any) -> Any:
        return Fields(**(self.__dict__ | changed))


SHAPES = tuple(SimpleNamespace(plan=name) for name in ("1", "2"))


class Shaped(Fields):
    """A judged plan."""

    def __init__(self, plan: str, problem: Any, n: int, seconds: float | None, others: Any) -> None:
        answer = Fields(plan=plan, alternatives=others, notes=(), extra={})
        super().__init__(plan=plan, problem=problem, n=n, step_seconds=seconds, answer=answer, settings={})
