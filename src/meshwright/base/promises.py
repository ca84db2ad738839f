"""What is wrong with a plug-in as it was imported, before any of its functions is called."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

__all__ = ["CONSTANTS", "broken", "is_raised_by_a_statement", "one_line"]

CONSTANTS: Mapping[str, tuple[type, str]] = MappingProxyType(
    {
        "BASELINES": (tuple, "a tuple of names"),
        "BUILT_IN": (bool, "True or False"),
        "CHECKED": (tuple, "a tuple of names"),
        "CHOICES": (bool, "True or False"),
        "COLUMNS": (tuple, "a tuple of names"),
        "EXAMPLE": (str, "a text"),
        "FRAMEWORKS": (bool, "True or False"),
        "FROZEN": (bool, "True or False"),
        "GIVEN": (tuple, "a tuple of names"),
        "OPTIONAL": (tuple, "a tuple of names"),
        "OTHER_FIELDS": (bool, "True or False"),
        "PATHS": (tuple, "a tuple of names"),
        "RINGS": (bool, "True or False"),
        "ROUNDS": (bool, "True or False"),
        "STATES": (bool, "True or False"),
        "STOPS_EARLY": (bool, "True or False"),
        "SUFFIX": (str, "a text"),
    }
)
"""What constants hold, in whatever room they stand: a type, and how it is called in messages."""


def broken(module: ModuleType, needs: Sequence[str], *, needs_defaults: bool) -> str:
    """Return the first thing that is wrong with a plug-in, in words; empty for nothing.

    Parameters
    ----------
    module : module
        The plug-in.
    needs : sequence of str
        What its room asks of it, as `meshwright.base.registry.ROOMS` has it.
    needs_defaults : bool
        Whether its `Params` must be built without arguments.
    """
    wrong = [text for text in (_lacking(module, need) for need in needs) if text]
    wrong += [text for text in (_wrong_constant(module, name) for name in CONSTANTS) if text]
    if not wrong and "Params" in needs:
        wrong = [_wrong_params(module.Params, needs_defaults)]
    return wrong[0] if wrong else ""


def is_raised_by_a_statement(error: BaseException) -> bool:
    """Return whether another's code raised an error in so many words; not where a key of the user's or our alarm did."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or place.tb_frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        return False
    return dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"


def one_line(error: BaseException) -> str:
    """Return an error's kind and what it says, in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _wrong_constant(module: ModuleType, name: str) -> str:
    """Return what is wrong with the type of a constant, in words; empty for nothing, and where there is none."""
    kind, called = CONSTANTS[name]
    found: Any = getattr(module, name, None)
    words = list(found) if isinstance(found, tuple) else []
    right = found is None or (isinstance(found, kind) and all(isinstance(word, str) for word in words))
    return "" if right else f"has {name} = {found!r:.60}; it must be {called}"


def _wrong_params(params: type, needs_defaults: bool) -> str:
    """Return what is wrong with the options of a plug-in, in words; empty for nothing."""
    try:
        typing.get_type_hints(params)
    except Exception as error:
        return f"has a Params with an annotation that cannot be resolved: {one_line(error)}"
    if not needs_defaults:
        return "" if dataclasses.fields(params) else "has a Params without a field"
    try:
        params()
    except Exception as error:
        return f"has a Params that cannot be built without arguments: {one_line(error)}"
    return ""


def _lacking(module: ModuleType, need: str) -> str:
    """Return what a plug-in lacks of one entry of `ROOMS`, in words; empty for nothing."""
    name, is_function, called = need.rstrip(")").partition("(")
    found = getattr(module, name, None)
    if found is None:
        return f"has no {need}"
    if not is_function:
        return "" if name != "Params" or dataclasses.is_dataclass(found) else "has a Params that is no dataclass"
    by_position, _, by_name = called.partition("*")
    try:
        inspect.signature(found).bind(*_words(by_position), **dict.fromkeys(_words(by_name)))
    except (TypeError, ValueError):
        return f"cannot be called as {need}"
    return ""


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
