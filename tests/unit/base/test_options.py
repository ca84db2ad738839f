"""Options of recipes: read as their field's annotation says, refused with the list of what is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from meshwright.base import options, registry
from meshwright.base.errors import InputError, UnknownNameError


@dataclass(frozen=True, slots=True)
class Params:
    """One option of every kind."""

    count: int = field(default=1, metadata={"minimum": 1, "maximum": 9})
    bandwidth: float = field(default=1.0, metadata={"unit": "bytes_per_second"})
    share: float = 0.5
    memory: float | None = field(default=None, metadata={"unit": "bytes"})
    exact: bool = True
    mode: str = field(default="a", metadata={"choices": ("a", "b")})
    ends: tuple[int, ...] = field(default=(), metadata={"minimum": 0})
    words: tuple[str, ...] = field(default=("x",), metadata={"choices": ("x", "y")})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "3", 3),
        ("bandwidth", "25 GB/s", 25e9),
        ("share", "0.25", 0.25),
        ("memory", "2 GiB", 2 * 2**30),
        ("memory", "none", None),
        ("exact", "False", False),
        ("exact", "yes", True),
        ("mode", "b", "b"),
        ("ends", "8,16", (8, 16)),
        ("ends", " 8 , 16 ", (8, 16)),
        ("words", "y,x", ("y", "x")),
    ],
)
def test_text_is_read_as_the_annotation_says(key: str, text: str, value: Any) -> None:
    assert getattr(options.parse(Params, {key: text}, "recipe r"), key) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *[("count", text) for text in ("0", "10", "1.5", "x", "", "nan", "inf", "9" * 400)],
        *[("bandwidth", text) for text in ("-1", "3 GiB", "nan", "")],
        *[("share", text) for text in ("nan", "inf", "half", "")],
        *[("memory", text) for text in ("none of it", "-1 B")],
        *[("exact", text) for text in ("maybe", "", "2")],
        *[("mode", text) for text in ("c", "", "A")],
        *[("ends", text) for text in ("8,", ",", "", "8,-1", "8;16")],
        *[("words", text) for text in ("z", "x,", "")],
    ],
)
def test_anything_else_is_refused_with_the_option_and_the_recipe(key: str, text: str) -> None:
    with pytest.raises(InputError, match=f"--set {key} \\(of recipe r\\): "):
        options.parse(Params, {key: text}, "recipe r")


def test_an_unknown_option_is_answered_by_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"no option of recipe r called 'cuont'; did you mean 'count'.*bandwidth"):
        options.parse(Params, {"cuont": "1"}, "recipe r")


def test_a_range_is_told_as_it_is() -> None:
    with pytest.raises(InputError, match="finite and at least 1 and at most 9"):
        options.parse(Params, {"count": "10"}, "recipe r")
    with pytest.raises(InputError, match=r"it must be finite$"):
        options.parse(Params, {"share": "nan"}, "recipe r")


@pytest.mark.parametrize("name", registry.names("search"))
def test_the_defaults_of_every_search_are_what_no_settings_give(name: str) -> None:
    module = registry.load("search", name, "search")
    assert options.parse(module.Params, {}, name) == module.Params()
