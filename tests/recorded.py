"""Figures as a room gave them when its test was written, kept in a file beside the test.

A test that compares a value with a twin or a bound says that the value is right; one that compares it with what was recorded
says only that it is still the same, to the last digits that every processor agrees on. It notices a change that nobody meant
where no twin exists: a starting value, an order, a constant, a count of what was tried. Where a change is meant, `make record`
writes the files anew and their difference is read like code.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np

__all__ = ["Recorded", "differences", "plain", "told_fields"]

_NOTHING = (None, False, 0, "", ())
_NEWER = {
    "host_bytes": (0.0,), "offload": ("none", ("none",)), "host": (), "offloads": (), "offload_shards": (),
    "reference": _NOTHING, "n_borrowed_parameters": _NOTHING, "borrowed": _NOTHING, "preference_pairs": _NOTHING,
    "RunConfig.objective": _NOTHING, "Stage.choices": _NOTHING, "Result.compiling_seconds": _NOTHING,
    "tensor_heads": _NOTHING,
}  # fmt: skip
"""Fields that came after most records were written, and values with which they say nothing new (empty: none is recorded; where
hosts and limits are looked at, tests name them)."""

CLOSE_RATIO = 1e-9  # sums in another order, on another processor, differ by less
LARGEST_ARRAY = 64  # longer ones are recorded as their shape and four sums


def told_fields(value: object) -> list[str]:
    """Return the fields of a noun that records hold: all but newer ones that say nothing new."""
    return [
        name for name, silent in _fields(type(value))
        if silent is None or (silent and getattr(value, name, None) not in silent)
    ]  # fmt: skip


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Sequence[object] | None], ...]:
    """Return the fields of a class, and of a newer one the values that say nothing new."""
    names = [field.name for field in dataclasses.fields(kind)]
    return tuple((name, _NEWER.get(f"{kind.__name__}.{name}", _NEWER.get(name))) for name in names)


def plain(value: object) -> object:
    """Return a value as JSON can say it: nouns by field, arrays as lists or sums, functions and modules by name."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        return _array(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in told_fields(value)}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(plain(key)): plain(of) for key, of in value.items()}
    if isinstance(value, Set):
        return sorted((plain(of) for of in value), key=repr)
    if isinstance(value, Sequence):
        return [plain(of) for of in value]
    if isinstance(value, Callable) and hasattr(value, "__qualname__"):
        return value.__qualname__
    raise TypeError(f"{type(value).__name__} has no plain form; record its figures one by one")


def differences(was: object, now: object, where: str = "") -> list[str]:
    """Return a line for each place at which two plain values differ, floats by more than rounding."""
    if isinstance(was, dict) and isinstance(now, dict):
        lines = [f"{where}/{key}: only {'before' if key in was else 'now'}" for key in sorted(was.keys() ^ now.keys())]
        return lines + [line for key in was if key in now for line in differences(was[key], now[key], f"{where}/{key}")]
    if isinstance(was, list) and isinstance(now, list):
        lines = [] if len(was) == len(now) else [f"{where}: {len(was)} entries before, {len(now)} now"]
        return lines + [line for i, (a, b) in enumerate(zip(was, now)) for line in differences(a, b, f"{where}[{i}]")]
    numbers = all(isinstance(of, (int, float)) and not isinstance(of, bool) for of in (was, now))
    if numbers and any(isinstance(of, float) for of in (was, now)):
        same = math.isclose(was, now, rel_tol=CLOSE_RATIO, abs_tol=1e-300)
    else:
        same = type(was) is type(now) and was == now
    return [] if same else [f"{where}: {was!r} before, {now!r} now"]


class Recorded:
    """The recorded figures of one test: `recorded(value)`, or `recorded(value, "name")` where a test has several."""

    def __init__(self, file: pathlib.Path, test: str, *, write: bool) -> None:
        self._file = file
        self._test = test
        self._write = write

    def __call__(self, value: object, name: str = "") -> None:
        """Compare a value with the recorded one, or record it."""
        key = f"{self._test}/{name}" if name else self._test
        now = json.loads(json.dumps(plain(value)))
        kept = json.loads(self._file.read_text()) if self._file.exists() else {}
        if self._write:
            self._file.parent.mkdir(exist_ok=True)
            lines = [f"{json.dumps(of)}: {json.dumps(figures)}" for of, figures in sorted({**kept, key: now}.items())]
            self._file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            return
        assert key in kept, f"{self._file.name} has nothing for {key}; `make record` writes it"
        lines = differences(kept[key], now)
        assert not lines, "\n".join([f"{key} is not what was recorded in {self._file}:", *lines[:20]])


def _array(value: np.ndarray) -> object:
    """Return an array as a list, or a long one as its shape and sums that a changed or moved entry changes."""
    if value.size <= LARGEST_ARRAY:
        return plain(value.tolist())
    flat = value.astype(np.float64).ravel()
    finite = np.where(np.isfinite(flat), flat, 0.0)
    place = np.arange(1, flat.size + 1, dtype=np.float64) / flat.size
    sums = {"sum": finite.sum(), "squares": (finite**2).sum(), "by_place": (finite * place).sum()}
    n_finite = int(np.isfinite(flat).sum())
    return {"shape": list(value.shape), "n_finite": n_finite, **{key: float(of) for key, of in sums.items()}}
