"""Whether a value is what an annotation says, down to what its fields and entries hold."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

__all__ = ["mismatch"]


def mismatch(value: object, hint: Any, place: str) -> str:
    """Say where a value is not of the kind that an annotation asks for.

    Parameters
    ----------
    value : object
        What is held.
    hint : Any
        A resolved annotation: a class, a dataclass (its fields are looked at), ``tuple[int, ...]``, ``Mapping[str, float]``,
        unions of these; what else there is of annotations allows everything.
    place : str
        What the value is called: ``"Answer.plan"``.

    Returns
    -------
    str
        ``"Answer.notes as str; it must be tuple"``; empty where all is as it should be. A whole number may stand for a
        ``float``, true and false may not stand for a number.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        wrong = [mismatch(value, one, place) for one in inner]
        deepest = max(wrong, key=len)
        return "" if "" in wrong else deepest
    if hint is None or hint is type(None):
        return "" if value is None else _told(value, "None", place)
    kind = origin or hint
    if not inspect.isclass(kind) or kind in (object, Any):
        return ""
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (kind in (int, float) and isinstance(value, bool)):
        return _told(value, kind.__name__, place)
    if isinstance(value, tuple) and inner:
        kinds = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            return f"{place} with {len(value)} entries; it must have {len(kinds)}"
        parts = [(one, wanted, f"{place}[{i}]") for i, (one, wanted) in enumerate(zip(value, kinds, strict=True))]
    elif isinstance(value, Mapping) and inner:
        parts = [(one, wanted, f"{place}[{key!r}]") for key, held in value.items()
                 for one, wanted in ((key, inner[0]), (held, inner[1]))]  # fmt: skip
    elif dataclasses.is_dataclass(value):
        parts = [(getattr(value, name), wanted, f"{place}.{name}") for name, wanted in _fields(value.__class__)]
    else:
        return ""
    return next((wrong for wrong in (mismatch(*part) for part in parts) if wrong), "")


def _told(value: object, kind: str, place: str) -> str:
    return f"{place} as {type(value).__name__}; it must be {kind}"


@cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a dataclass and their resolved annotations; empty where these cannot be resolved."""
    from numpy.typing import ArrayLike, NDArray  # which our modules import for type checkers only

    try:
        hints = typing.get_type_hints(kind, None, {"ArrayLike": ArrayLike, "NDArray": NDArray})
    except (NameError, TypeError):  # names that exist for type checkers only
        return ()
    return tuple((name, hints[name]) for name in getattr(kind, "__dataclass_fields__", ()))
