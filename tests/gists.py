"""Many figures as three: their number, their sum, and their sum by place, so that a file of recorded figures stays small."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from recorded import plain

__all__ = ["gist"]

WORDS = {"inf": 12345.6789, "-inf": -2345.6789, "nan": 345.6789}


def gist(*values: object) -> list[float]:
    """Return what changes when any figure or word in the values changes, or moves: their number and two sums."""
    figures = list(_figures([_whole(value) for value in values]))
    by_place = sum(figure * (1.0 + (0.6180339887 * (i + 1)) % 1.0) for i, figure in enumerate(figures))
    return [len(figures), *(float(f"{total:.12g}") for total in (sum(figures), by_place))]


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
        yield -0.123456789 if plainly is None else float(plainly)
