"""Fields of a file, whatever it is written in: every wrong one is answered with file, place, value and what is allowed.

A place is the file, then the way to the field: ``a.json: nodes[3]: choices[0]: seconds``. A value comes as the parser of JSON,
TOML or YAML gives it. Where a part of a file is a plain list of fields, a dataclass says what they are and `record` reads it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from meshwright.base.errors import InputError, UnknownNameError

__all__ = ["entry", "flag", "items", "number", "of_format", "of_kind", "record", "show", "text", "whole"]

R = TypeVar("R")

_LONGEST = 60


def show(value: Any) -> str:
    """Return a value for a message: as JSON spells it, cut to a readable length."""
    word = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else repr(value)
    return word if len(word) <= _LONGEST else word[: _LONGEST - 3] + "..."


def entry(value: Any, place: str, known: Iterable[str] | None = None, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Return an object of a file (a mapping, a table).

    `value`: what the parser gave.
    `place`: where it stands, for messages.
    `known`: the fields it may have; None for any.
    `needed`: the fields it must have.
    Raises `InputError` when it is no object, has an unknown field, or lacks one.
    """
    if not isinstance(value, dict):
        raise _wrong(value, place, "an object" + (f" with {', '.join(needed)}" if needed else ""))
    if known is not None:
        known = tuple(known)
        for key in value:
            if key not in known:
                raise UnknownNameError(f"field in {place}", str(key), known)
    for key in needed:
        if key not in value:
            raise InputError(f"{place}: the field '{key}' is missing; needed are {', '.join(needed)}")
    return value


def of_format(value: Any, place: str, file_format: str, kind: str) -> dict[str, Any]:
    """Return the content of one of our own files: an object whose field ``format`` names the format.

    Raises `InputError` when it is something else; `kind` says in words what was expected.
    """
    if not isinstance(value, dict) or value.get("format") != file_format:
        raise InputError(f'{place}: is not {kind}: its "format" must be "{file_format}"')
    return value


def items(value: Any, place: str, *, at_least: int = 0, of: str = "") -> list[Any]:
    """Return a list of at least so many entries (InputError otherwise); `of` names them in the message."""
    if not isinstance(value, list) or len(value) < at_least:
        least = {0: "", 1: " with at least one entry"}.get(at_least, f" with at least {at_least} entries")
        raise _wrong(value, place, f"a list{f' of {of}' if of else ''}{least}")
    return value


def number(
    value: Any, place: str, *, minimum: float | None = None, maximum: float | None = None, above: float | None = None, meaning:
    str = ""
) -> float:  # fmt: skip
    """Return a finite number in its range; `above` is a smallest value that is not allowed itself.

    Raises `InputError` when it is no number, not finite or out of range; `meaning` says in the message what it stands for.
    """
    found = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
    low, high = -math.inf if minimum is None else minimum, math.inf if maximum is None else maximum
    if not (math.isfinite(found) and low <= found <= high and (above is None or found > above)):
        raise _wrong(
            value, place, ("a finite number" if maximum is None else "a number") + _range(minimum, maximum, above), meaning
        )
    return found


def whole(
    value: Any, place: str, *, minimum: int | None = None, maximum: int | None = None, meaning: str = "", or_float: bool = False
) -> int:
    """Return a whole number in its range; with `or_float` ``3.0`` is one too.

    Raises `InputError` when it is none, or out of range; `meaning` says in the message what it stands for.
    """
    right = isinstance(value, int) and not isinstance(value, bool)
    right = right or (or_float and isinstance(value, float) and value.is_integer())
    if not right or (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise _wrong(value, place, "a whole number" + _range(minimum, maximum, None), meaning)
    return int(value)


def flag(value: Any, place: str, *, meaning: str = "") -> bool:
    """Return true or false (InputError for anything else)."""
    if not isinstance(value, bool):
        raise _wrong(value, place, "true or false", meaning)
    return value


def of_kind(name: str, given: object, kind: type | tuple[type, ...], example: str) -> None:
    """Refuse an argument of another kind, or of none of several; None is allowed.

    `example`: one that is right, for the message.
    Raises `InputError` when it is of another kind.
    """
    if given is not None and not isinstance(given, kind):
        names = " or a ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise InputError(f"{name} {given!r}: must be a {names}, as in {name}={example}")


def text(value: Any, place: str, *, choices: Iterable[str] = (), at_least: int = 0, meaning: str = "") -> str:
    """Return a text of at least so many characters, or one of a few words.

    Raises `InputError` when it is none; `UnknownNameError` where it is not one of the words.
    """
    if not isinstance(value, str) or len(value) < at_least:
        raise _wrong(value, place, "a text that is not empty" if at_least else "a text", meaning)
    if choices and value not in choices:
        raise UnknownNameError(f"value of {place}", value, choices)
    return value


def record(kind: type[R], value: Any, place: str) -> R:
    """Return an object of a file as a dataclass: its annotations say what each field must be, its defaults which may be left
    out.

    `kind`: a dataclass of ``int``, ``float``, ``bool``, ``str``, ``str | float`` (a quantity), other such dataclasses, and
    ``tuple[X, ...]`` and ``Mapping[str, X]`` of these, each also ``| None``. A field's metadata may hold ``minimum``,
    ``maximum``, ``above``, ``choices``, ``at_least`` (of a list or text) and ``name`` (its name in the file).
    `value`: what the parser gave.
    `place`: where it stands, for messages.
    Returns: an instance of `kind`.
    Raises `InputError` when it is no object, or a field is missing, unknown or wrong.
    """
    parts = _parts(kind)  # type: ignore[arg-type]
    found = entry(value, place, [part[0] for part in parts], [part[0] for part in parts if part[4]])
    return kind(
        **{
            attribute: _typed(found[name], f"{place}: {name}", hint, limits)
            for name, attribute, hint, limits, _ in parts
            if name in found
        }
    )


@cache
def _parts(kind: Any) -> tuple[tuple[str, str, Any, dict[str, Any], bool], ...]:
    """Return name in the file, attribute, type, limits and need of each field; asked once for each class, which does not
    change.
    """
    hints = typing.get_type_hints(kind)
    made = []
    for field in dataclasses.fields(kind):
        limits = {key: limit for key, limit in field.metadata.items() if key != "name"}
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        made.append((field.metadata.get("name", field.name), field.name, hints[field.name], limits, needed))
    return tuple(made)


def _typed(value: Any, place: str, hint: Any, limits: dict[str, Any]) -> Any:
    """Return a value as its annotation says."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inner:
            return None
        inner = tuple(option for option in inner if option is not type(None))
        if inner == (str, float):
            return _quantity(value, place)
        return _typed(value, place, inner[0], limits)
    if origin is tuple:
        return tuple(_typed(held, f"{place}[{i}]", inner[0], {}) for i, held in enumerate(items(value, place, **limits)))
    if origin is Mapping:
        return {str(key): _typed(held, f"{place}: {key}", inner[1], {}) for key, held in entry(value, place).items()}
    if dataclasses.is_dataclass(hint):
        return record(hint, value, place)  # type: ignore[arg-type]
    reader: Any = {int: whole, float: number, bool: flag, str: text}[hint]
    return reader(value, place, **limits)


def _quantity(value: Any, place: str) -> str | float:
    """Return what `meshwright.base.units.parse` takes."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(value, place, "a number or a text with a unit")
    return value


def _range(minimum: float | None, maximum: float | None, above: float | None) -> str:
    """Return a range in words."""
    low, high, open_end = (f"{end}" if isinstance(end, int) else f"{end or 0:g}" for end in (minimum, maximum, above))
    if above is not None:
        return f" above {open_end}" + (f" and at most {high}" if maximum is not None else "")
    if minimum is None:
        return "" if maximum is None else f" of at most {high}"
    return f" of at least {low}" if maximum is None else f" between {low} and {high}"


def _wrong(value: Any, place: str, allowed: str, meaning: str = "") -> InputError:
    """Return the one sentence about a wrong value."""
    return InputError(f"{place} is {show(value)}; it must be {allowed}{f' ({meaning})' if meaning else ''}")
