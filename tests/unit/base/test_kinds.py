"""What a plug-in returned is looked at down to the entries of what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from meshwright.base import kinds


@dataclass(frozen=True)
class Part:
    size: int
    share: float = 1.0


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    place: tuple[str, int] = ("a", 1)
    names: Mapping[str, float] = field(default_factory=dict)
    near: Part | None = None
    free: Any = None


@pytest.mark.parametrize(
    "value", [Whole(()), Whole((Part(1), Part(2, 3))), Whole((), names={"a": 1}), Whole((), near=Part(1), free=object())]
)
def test_what_its_annotations_allow_is_not_told(value: Whole) -> None:
    assert kinds.mismatch(value, Whole, "Whole") == ""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Whole([Part(1)]), "Whole.parts as list; it must be tuple"),
        (Whole((Part(1), Part("2"))), "Whole.parts[1].size as str; it must be int"),
        (Whole((Part(1.0),)), "Whole.parts[0].size as float; it must be int"),
        (Whole((Part(True),)), "Whole.parts[0].size as bool; it must be int"),
        (Whole((), ("a",)), "Whole.place with 1 entries; it must have 2"),
        (Whole((), (1, 1)), "Whole.place[0] as int; it must be str"),
        (Whole((), names={"a": "b"}), "Whole.names['a'] as str; it must be float"),
        (Whole((), names={1: 1.0}), "Whole.names[1] as int; it must be str"),
        (Whole((), near=Part(None)), "Whole.near.size as NoneType; it must be int"),
        (3, "Whole as int; it must be Whole"),
    ],
)
def test_what_they_do_not_allow_is_told_with_its_place(value: object, told: str) -> None:
    assert kinds.mismatch(value, Whole, "Whole") == told
