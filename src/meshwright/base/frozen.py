"""Frozen dataclasses as those of the standard library, whose methods are written when they are first asked for.

The standard library writes and compiles six methods as it makes a class, a millisecond each. A command makes a hundred classes
and uses the half of them, of which most are never compared, hashed or shown: that was a tenth of all its seconds.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]


class _Default:
    """Stands in a signature for a default that a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Default()


class _Written:
    """A method of a class that is written when it is first looked up, and from then on stands in the class itself."""

    __slots__ = ("_kind", "_name", "_text")

    def __init__(self, kind: type, name: str, text: Callable[[type], tuple[str, dict[str, Any]]]) -> None:
        self._kind, self._name, self._text = kind, name, text

    def __get__(self, one: object, kind: type | None = None) -> Any:
        text, known = self._text(self._kind)
        known["__name__"] = self._kind.__module__
        exec(text, known)
        method = known[self._name]
        method.__qualname__ = f"{self._kind.__qualname__}.{self._name}"
        if self._name == "__init__":
            method.__annotations__ = {f.name: f.type for f in dataclasses.fields(self._kind)} | {"return": None}
        setattr(self._kind, self._name, method)
        return method if one is None else method.__get__(one)


def _init(kind: Any) -> tuple[str, dict[str, Any]]:
    """Return the text of ``__init__`` and the names in it; a slot's own setter is quicker than that of `object`."""
    known: dict[str, Any] = {"_made": _MADE}
    heads, lines = ["self"], []
    for f in dataclasses.fields(kind):
        known[f"_set_{f.name}"] = vars(kind)[f.name].__set__
        value = f.name
        if f.default is not dataclasses.MISSING:
            known[f"_of_{f.name}"] = f.default
            heads.append(f"{f.name}=_of_{f.name}")
        elif f.default_factory is not dataclasses.MISSING:
            known[f"_of_{f.name}"] = f.default_factory
            heads.append(f"{f.name}=_made")
            value = f"_of_{f.name}() if {f.name} is _made else {f.name}"
        else:
            heads.append(f.name)
        lines.append(f"_set_{f.name}(self, {value})")
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    return f"def __init__({', '.join(heads)}):\n " + "\n ".join(lines or ["pass"]), known


def _values(of: str, names: list[str]) -> str:
    return "(" + "".join(f"{of}.{name}, " for name in names) + ")"


def _eq(kind: Any) -> tuple[str, dict[str, Any]]:
    """Return the text of ``__eq__``: of the same class, and equal in every field that is compared."""
    names = [f.name for f in dataclasses.fields(kind) if f.compare]
    same = f"{_values('self', names)} == {_values('other', names)}"
    return f"def __eq__(self, other):\n return {same} if other.__class__ is self.__class__ else NotImplemented", {}


def _hash(kind: Any) -> tuple[str, dict[str, Any]]:
    """Return the text of ``__hash__``, that of the tuple of what is compared."""
    names = [f.name for f in dataclasses.fields(kind) if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self):\n return hash({_values('self', names)})", {}


@reprlib.recursive_repr()
def _shown(self: Any) -> str:
    held = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]
    return f"{self.__class__.__qualname__}({', '.join(held)})"


def _set(self: object, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state):
        vars(type(self))[f.name].__set__(self, value)


_OWN = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__")
"""Methods that are set here: a class that has one of them is made by the standard library."""


def _is_plain(kind: type) -> bool:
    """Return whether a class asks for nothing but fields with defaults: no base, no method of `_OWN`, no pseudo-field."""
    if kind.__bases__ != (object,) or any(name in vars(kind) for name in _OWN):
        return False
    held = [value for value in vars(kind).values() if isinstance(value, dataclasses.Field)]
    annotated = map(str, vars(kind).get("__annotations__", {}).values())
    return all(f.init and f.kw_only is not True for f in held) and not any(
        word in text for text in annotated for word in ("ClassVar", "InitVar", "KW_ONLY")
    )


def _dataclass(*, frozen: bool, slots: bool, eq: bool = True, repr: bool = True, order: bool = False) -> Callable[[type], type]:
    """Return a decorator as `dataclasses.dataclass` does, to be called with ``frozen=True, slots=True``."""

    def made(kind: type) -> type:
        if order or not (frozen and slots and _is_plain(kind)):
            return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, repr=repr, order=order)(kind)
        kind = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(kind)
        told: Any = kind.__dataclass_params__  # type: ignore[attr-defined]
        told.init, told.frozen, told.eq, told.repr = True, True, eq, repr
        methods: dict[str, Any] = {"__init__": _Written(kind, "__init__", _init)}
        methods |= {"__setattr__": _set, "__delattr__": _delete, "__getstate__": _state, "__setstate__": _restore}
        if repr:
            methods["__repr__"] = _shown
        if eq:
            methods |= {"__eq__": _Written(kind, "__eq__", _eq), "__hash__": _Written(kind, "__hash__", _hash)}
        for name, method in methods.items():
            setattr(kind, name, method)
        return kind

    return made


if TYPE_CHECKING:
    from dataclasses import dataclass  # what type checkers know of it holds here too
else:
    dataclass = _dataclass
