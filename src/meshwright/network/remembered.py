"""A memo that holds no more than so many numbers (`Remembered`): what was asked for longest ago is forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Remembered"]

T = TypeVar("T")


class Remembered(Generic[T]):
    """Values by key, with how much each of them is; the last one stays, however much it is.

    `limit`: how much all values together may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """Return the value of a key; one that is not there, or no longer, is made, with how much it is."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key][0]
        value, size = make()
        self._values[key] = value, size
        self._total += size
        while self._total > self._limit and len(self._values) > 1:
            self._total -= self._values.popitem(last=False)[1][1]
        return value
