"""What every function of some folders of the package returned while a test ran, as one line of figures each.

A search of a few layers calls most functions of its room, and what it answers at the end hides most of what they said: a bound
too loose, a rival thrown away too early, a table that is read where it does not matter. `Returned` watches the calls and keeps,
of each function, how often it was called and a check sum of all it gave, in order, numbers to six digits. A test records these
with the fixture `recorded`: a difference names the function that answers otherwise, on questions that stand in the test.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import pathlib
import struct
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from types import CodeType, FrameType, TracebackType

import numpy as np

import meshwright
from meshwright.base.errors import MeshwrightError
from recorded import told_fields

__all__ = ["Returned", "refusal"]

PACKAGE = str(pathlib.Path(meshwright.__file__).parent) + "/"
DEEPEST = 10  # of values in values
BY_NAME = (
    "Cluster",
    "Framework",
    "Graph",
    "ModelSpec",
    "Problem",
)  # nouns that travel along: said by others, told by their name
ZERO = 1e-14  # what is left of sums that cancel
_ONE, _THREE = struct.Struct("<q"), struct.Struct("<qqq")


def refusal(call: Callable[[], object], folder: object = "") -> str:
    """Return what a call says when it is refused, without the name of the folder of its files; ``answered`` where it is not."""
    try:
        call()
    except MeshwrightError as error:
        return str(error).replace(str(folder), "") if folder else str(error)
    return "answered"


class Returned:
    """Watches the functions of `folders` (below the package, ``planners/dapple/``) for as long as the block runs.

    `without`: functions left out, ``module:name``: what depends on time, or on a library's version.
    """

    def __init__(self, *folders: str, without: Sequence[str] = ()) -> None:
        self._folders = tuple(PACKAGE + folder for folder in folders)
        self._without = set(without)
        self._functions: dict[str, _Figures] = {}
        self._names: dict[CodeType, str | None] = {}

    def __enter__(self) -> Returned:
        _forget(self._folders)
        sys.setprofile(self._event)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.setprofile(None)

    def lines(self) -> dict[str, dict[str, str]]:
        """Return calls and check sum of each function by module: comprehensions and lambdas are part of what calls them."""
        found: dict[str, dict[str, str]] = {}
        for name, figures in sorted(self._functions.items()):
            module, _, function = name.partition(":")
            found.setdefault(module, {})[function] = str(figures)
        return found

    def _event(self, frame: FrameType, event: str, value: object) -> None:
        if event != "return":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._name(code)
        name = self._names[code]
        if name is None:
            return
        figures = self._functions.setdefault(name, _Figures())
        figures.n_calls += 1
        figures.add(value)
        if value is None:  # what it wrote into its arguments, or nothing
            for argument in code.co_varnames[: code.co_argcount]:
                given = frame.f_locals.get(argument)
                if isinstance(given, (np.ndarray, list, dict, tuple)):
                    figures.add(given)

    def _name(self, code: CodeType) -> str | None:
        """Return the name of a function that is watched; None of all others, and of modules and classes, imported late."""
        if not code.co_filename.startswith(self._folders) or not code.co_flags & inspect.CO_OPTIMIZED:
            return None
        name = f"{code.co_filename[len(PACKAGE) : -len('.py')]}:{code.co_qualname}"
        inner = name.rpartition(":")[2].rpartition(".")[2].startswith("<")
        return None if inner or name in self._without else name


class _Figures:
    """Calls and the check sum of one function."""

    def __init__(self) -> None:
        self.n_calls, self._sum = 0, 0

    def __str__(self) -> str:
        return f"{self.n_calls} {self._sum:08x}"

    def add(self, value: object, depth: int = 0) -> None:
        """Add a value: nouns by field, containers by entry, what has no plain form by the name of its type."""
        kind = type(value)
        if kind is float or kind is np.float64:  # most values are of these kinds, and an array for each takes long
            self._sum = zlib.crc32(_THREE.pack(*_of_float(value)), self._sum)
            return
        if kind is int and -(2**63) <= value < 2**63:  # type: ignore[operator]
            self._sum = zlib.crc32(_ONE.pack(value), self._sum)
            return
        if (kind is tuple or kind is list) and depth < DEEPEST:
            self._word(str(len(value)))  # type: ignore[arg-type]
            for of in value:  # type: ignore[attr-defined]
                self.add(of, depth + 1)
            return
        match value:
            case None | bool() | str() | enum.Enum():
                self._word(str(value))
            case int() | float() | np.number() | np.bool_():
                self._numbers(np.array([value]))
            case np.ndarray() if value.dtype.kind in "biuf":
                self._numbers(value.ravel())
            case Mapping() if depth < DEEPEST:
                for key, of in value.items():
                    self.add(key, depth + 1)
                    self.add(of, depth + 1)
            case Set() if depth < DEEPEST:
                self._word(str(len(value)))
                for of in sorted(value, key=repr):
                    self.add(of, depth + 1)
            case Sequence() | np.ndarray() if depth < DEEPEST:
                self._word(str(len(value)))
                for of in value:
                    self.add(of, depth + 1)
            case _ if dataclasses.is_dataclass(value) and type(value).__name__ not in BY_NAME and depth < DEEPEST:
                for name in told_fields(value):
                    self.add(getattr(value, name, None), depth + 1)
            case _:
                self._word(type(value).__name__)

    def _word(self, word: str) -> None:
        self._sum = zlib.crc32(word.encode(), self._sum)

    def _numbers(self, values: np.ndarray) -> None:
        if values.dtype.kind == "f":
            finite = np.isfinite(values)
            parts, powers = np.frexp(np.where(finite & (abs(values) > ZERO), values, 0.0))
            # an offset, since round figures lie at the middle between two others
            rounded = np.floor(parts * 2.0**20 + 0.3718).astype(np.int64)
            odd = np.where(finite, 0, np.where(np.isnan(values), 1, np.where(values > 0.0, 2, 3)))
            values = np.stack((rounded, powers.astype(np.int64), odd))
        self._sum = zlib.crc32(np.ascontiguousarray(values, dtype=np.int64).tobytes(), self._sum)


def _of_float(value: float) -> tuple[int, int, int]:
    """Return what `_Figures._numbers` makes of one number."""
    if not math.isfinite(value):
        return 0, 0, 1 if math.isnan(value) else 2 if value > 0.0 else 3
    part, power = math.frexp(value if abs(value) > ZERO else 0.0)
    return math.floor(part * 2.0**20 + 0.3718), power, 0


def _forget(folders: tuple[str, ...]) -> None:
    """Empty the memos of the modules, so that what was asked before, by other tests, is asked anew."""
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "").startswith(folders):
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()
