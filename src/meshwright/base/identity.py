"""Objects as keys that are told apart by identity (`ById`), and arrays that nobody can write to (`read_only`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["ById", "distinct", "locked", "read_only"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ById(Generic[T]):
    """An immutable object as the key of a memo: equal to itself only, found without looking at its content.

    The memo keeps the object alive, so its identity is not given to another.
    """

    of: T

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and self.of is other.of


def locked(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array closed for writing and contiguous, itself where it is so: kernels are compiled for one kind of array."""
    import numpy as np

    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def read_only(values: ArrayLike, dtype: type | None = None) -> NDArray[Any]:
    """Return contiguous values that nobody can write to: the array itself where that is so already, otherwise a copy.

    `values`: an array stays the caller's own, and writable.
    `dtype`: of the result; that of the values where it is not given.
    """
    import numpy as np

    array = np.ascontiguousarray(values, dtype=dtype)
    owner: object = array
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if owner is not None:
        array = array.copy()
        array.setflags(write=False)
    return array


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values, rising; by sorting, which is quicker than NumPy's hashing where most are different.

    `values`, shape (n,): whole numbers. `np.unique` of them loads masked arrays too, a fiftieth of a second.
    """
    import numpy as np

    values = np.sort(values, kind="stable")  # what comes here are a few rising runs, which it merges
    return np.asarray(values[np.diff(values, prepend=values[:1] - 1) != 0])
