"""Fields of files: each wrong one is answered by one sentence with place, value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from meshwright.base import fields
from meshwright.base.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Wheel:
    spokes: int = field(metadata={"minimum": 3})
    rim: str = field(default="steel", metadata={"choices": ("steel", "wood")})


@dataclass(frozen=True)
class Cart:
    from_: str = field(metadata={"name": "from"})
    wheels: tuple[Wheel, ...] = field(metadata={"at_least": 1})
    load: str | float = 0.0
    brakes: Mapping[str, bool] = field(default_factory=dict)
    grip_ratio: float | None = field(default=None, metadata={"above": 0, "maximum": 1})


CART = {"from": "here", "wheels": [{"spokes": 3}]}


def test_a_record_is_filled_as_its_annotations_say() -> None:
    held = fields.record(Cart, CART | {"load": "2 kB", "brakes": {"left": True}, "grip_ratio": 1}, "a.yaml")
    assert held == Cart("here", (Wheel(3),), "2 kB", {"left": True}, 1.0)
    assert isinstance(held.grip_ratio, float)
    assert fields.record(Cart, CART | {"grip_ratio": None}, "a.yaml").grip_ratio is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"wheels": []}, "a.yaml: wheels is []; it must be a list with at least one entry"),
        ({"wheels": [{"spokes": 2}]}, "a.yaml: wheels[0]: spokes is 2; it must be a whole number of at least 3"),
        ({"wheels": [{"spokes": True}]}, "a.yaml: wheels[0]: spokes is true; it must be a whole number of at least 3"),
        ({"wheels": [{"spokes": 4.0}]}, "a.yaml: wheels[0]: spokes is 4.0; it must be a whole number of at least 3"),
        ({"wheels": [{}]}, "a.yaml: wheels[0]: the field 'spokes' is missing; needed are spokes"),
        ({"wheels": [7]}, "a.yaml: wheels[0] is 7; it must be an object with spokes"),
        ({"wheels": None}, "a.yaml: wheels is null; it must be a list with at least one entry"),
        ({"load": False}, "a.yaml: load is false; it must be a number or a text with a unit"),
        ({"brakes": {"left": 1}}, "a.yaml: brakes: left is 1; it must be true or false"),
        ({"grip_ratio": 0}, "a.yaml: grip_ratio is 0; it must be a number above 0 and at most 1"),
        ({"grip_ratio": math.nan}, "a.yaml: grip_ratio is nan; it must be a number above 0 and at most 1"),
        ({"from": ["x" * 99]}, f"a.yaml: from is ['{'x' * 55}...; it must be a text"),
    ],
)
def test_a_wrong_field_is_told_whole(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        fields.record(Cart, CART | change, "a.yaml")
    assert str(caught.value) == says


def test_unknown_fields_and_words_are_answered_by_the_closest() -> None:
    with pytest.raises(UnknownNameError, match=r"no field in a: wheels\[0\] called 'spoke'; did you mean 'spokes'"):
        fields.record(Cart, CART | {"wheels": [{"spokes": 3, "spoke": 3}]}, "a")
    with pytest.raises(UnknownNameError, match=r"no value of a: wheels\[0\]: rim called 'steal'; did you mean 'steel'"):
        fields.record(Cart, CART | {"wheels": [{"spokes": 3, "rim": "steal"}]}, "a")
    with pytest.raises(UnknownNameError, match="no field in a called 'from_'; did you mean 'from'"):
        fields.record(Cart, CART | {"from_": ""}, "a")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fields.number(10**400, "a: b"), "it must be a finite number"),
        (lambda: fields.number(2, "a: b", minimum=0, maximum=1, meaning="a share"), "a number between 0 and 1 (a share)"),
        (lambda: fields.number("2", "a: b", above=0), "a finite number above 0"),
        (lambda: fields.whole(5, "a: b", maximum=4), "a whole number of at most 4"),
        (lambda: fields.whole(4.5, "a: b", or_float=True), "a whole number"),
        (lambda: fields.whole(math.inf, "a: b", or_float=True), "a whole number"),
        (lambda: fields.flag(0, "a: b"), "true or false"),
        (lambda: fields.text("", "a: b", at_least=1), "a text that is not empty"),
        (lambda: fields.items({}, "a: b", of="ids"), "a list of ids"),
        (lambda: fields.items([1], "a: b", at_least=2), "a list with at least 2 entries"),
        (lambda: fields.of_format({"format": "x"}, "a: b", "y/1", "a plan"), 'is not a plan: its "format" must be "y/1"'),
    ],
)  # fmt: skip
def test_each_kind_of_value_says_what_is_allowed(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(InputError, match="a: b") as caught:
        call()
    assert str(caught.value).endswith(says)


def test_right_values_come_back_as_their_kind() -> None:
    assert fields.whole(3.0, "a", or_float=True) == 3 and isinstance(fields.whole(3.0, "a", or_float=True), int)
    assert isinstance(fields.number(3, "a"), float)
    assert fields.number(0, "a", minimum=0) == 0.0
    assert [fields.show(value) for value in (None, True, 1.5, "x")] == ["null", "true", "1.5", "'x'"]
