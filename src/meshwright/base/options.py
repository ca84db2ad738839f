"""Options of a recipe: a frozen dataclass `Params` in its file, filled from ``--set KEY=VALUE``."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from meshwright.base import units
from meshwright.base.errors import InputError, UnknownNameError

__all__ = ["parse"]

P = TypeVar("P")


def parse(kind: type[P], settings: Mapping[str, str], what: str, *, prefix: str = "--set ") -> P:
    """Return the options of a recipe from text.

    `kind`: a dataclass. A field's annotation says how text is read: ``int``, ``float``, ``bool``, ``str``, ``tuple[int, ...]``
    (``"8,16"``), ``tuple[str, ...]``, each also ``| None`` (``"none"``). Its metadata may hold ``unit`` (a dimension of
    `meshwright.base.units.parse`), ``choices`` (allowed words), ``minimum`` and ``maximum`` (of a number) and ``word`` (its
    name in messages).
    `settings`: keys and values as typed.
    `what`: the recipe, for messages: ``"search piper"``.
    `prefix`: what stands before the key where the user types it, for messages.
    Returns: an instance of `kind`.
    Raises `UnknownNameError` when the recipe has no such option.
    Raises `InputError` when a value does not parse or is not allowed.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, text in settings.items():
        if key not in fields:
            raise UnknownNameError(f"option of {what}", key, fields)
        values[key] = _value(
            text, hints[key], fields[key].metadata, f"{prefix}{fields[key].metadata.get('word', key)} (of {what})"
        )
    return kind(**values)


def _value(text: str, hint: Any, metadata: Mapping[str, Any], place: str) -> Any:
    """Read one value as its annotation says."""
    options = typing.get_args(hint) if type(None) in typing.get_args(hint) else ()
    if options:
        if text.lower() == "none":
            return None
        hint = next(option for option in options if option is not type(None))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise InputError(f"{place}: '{text}' has an empty entry; write values separated by commas, for example 8,16")
        return tuple(_value(part, inner, metadata, place) for part in parts)
    if hint is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in words:
            raise InputError(f"{place}: '{text}' is neither true nor false")
        return words[text.lower()]
    if hint in (int, float):
        return _number(text, hint, metadata, place)
    if "choices" in metadata and text not in metadata["choices"]:
        raise InputError(f"{place}: '{text}' is not allowed; choose one of {', '.join(metadata['choices'])}")
    return text


def _number(text: str, hint: type, metadata: Mapping[str, Any], place: str) -> float | int:
    """Read a whole number or a quantity."""
    minimum, maximum = metadata.get("minimum", -math.inf), metadata.get("maximum", math.inf)
    if hint is float and "unit" in metadata:
        return units.parse(text, metadata["unit"], place=place, minimum=max(minimum, 0.0))
    try:
        value = hint(text)
    except ValueError:
        raise InputError(f"{place}: '{text}' is not a {'whole ' if hint is int else ''}number") from None
    if not (isinstance(value, int) or math.isfinite(value)) or not minimum <= value <= min(maximum, 1e300):
        allowed = "finite" + (f" and at least {minimum:g}" if minimum > -math.inf else "")
        raise InputError(
            f"{place}: {text} is out of range; it must be {allowed}"
            + (f" and at most {maximum:g}" if maximum < math.inf else "")
        )
    return typing.cast("float | int", value)
