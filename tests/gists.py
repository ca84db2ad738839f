"""Many figures as three: their number, their sum, and their sum by place, so that a file of recorded figures stays small."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

from recorded import plain

__all__ = ["gist"]

WORDS = {"inf": 123.456789, "-inf": -23.456789, "nan": 3.456789}
SMALLEST = 1e-13  # what is nearer to 0 may be rounding


def gist(*values: object) -> list[float]:
    """Return what changes when any figure or word in the values changes, or moves: their number and two sums.

    Figures are summed by their logarithms, so that microseconds count beside gigabytes.
    """
    figures = list(_figures([_whole(value) for value in values]))
    by_place = sum(figure * (1.0 + (0.6180339887 * (i + 1)) % 1.0) for i, figure in enumerate(figures))
    return [len(figures), *(float(f"{total:.11g}") for total in (sum(figures), by_place))]


def _whole(value: object) -> object:
    """Return long arrays as lists too, which would be recorded as sums."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_whole(of) for of in value]
    if isinstance(value, (list, tuple)):
        return [_whole(of) for of in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _figures(value: object) -> Iterator[float]:
    plainly = plain(value)
    if isinstance(plainly, dict):
        plainly = [of for item in plainly.items() for of in item]
    if isinstance(plainly, list):
        for of in plainly:
            yield from _figures(of)
    elif isinstance(plainly, str):
        yield WORDS[plainly] if plainly in WORDS else zlib.crc32(plainly.encode()) / 2.0**32
    else:
        yield -0.123456789 if plainly is None else _scaled(float(plainly))


def _scaled(figure: float) -> float:
    """Return a number of about the same size for figures of any size, that grows with them."""
    return math.copysign(30.0 + math.log(abs(figure)), figure) if abs(figure) > SMALLEST else 0.0
