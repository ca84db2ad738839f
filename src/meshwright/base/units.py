"""Quantities at the edges: parse ``"25 GB/s"`` into base units, format base units for people.

Inside the package every number is in base units (seconds, bytes, FLOP, bytes per second); prefixes exist only here.
"""

from __future__ import annotations

import math
import re

from meshwright.base.errors import InputError

__all__ = ["format_bytes", "format_count", "format_seconds", "parse", "parse_count", "samples", "tokens"]

_QUANTITY = re.compile(r"^\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*$")


def _factor(unit: str) -> tuple[str, float] | None:
    """Return the dimension and the factor to base units of `unit`, or None when it is not known."""
    if unit in ("s", "ms", "us", "µs", "ns", "min", "h"):
        return "seconds", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}[unit]
    per_second = unit.endswith("/s")
    base = unit[:-2] if per_second else unit
    if unit.endswith("bps"):
        base, per_second = unit[:-3] + "bit", True
    prefixes = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    prefixes |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
    for name, dimension, scale in (
        ("FLOPs", "flops", 1.0),
        ("FLOP", "flops", 1.0),
        ("bit", "bytes", 0.125),
        ("B", "bytes", 1.0),
    ):
        if base.endswith(name) and base[: -len(name)] in prefixes:
            return dimension + ("_per_second" if per_second else ""), prefixes[base[: -len(name)]] * scale
    return None


def parse(text: str | float | int, dimension: str, *, place: str, minimum: float = 0.0, exclusive: bool = False) -> float:
    """Return a quantity in base units.

    `text`: ``"80 GiB"``, ``"100 Gbit/s"``, ``"1 us"``, ``"312 TFLOP/s"``; a bare number is already in base units.
    `dimension`: ``seconds``, ``bytes``, ``flops``, ``bytes_per_second`` or ``flops_per_second``.
    `place`: where the quantity stands, for the message: ``"--link-bandwidth"``, ``"a.yaml: link 3: bandwidth"``.
    `minimum`: smallest value allowed, in base units.
    `exclusive`: whether `minimum` itself is refused.
    Returns: the quantity in base units.
    Raises `InputError` when the text does not parse, the unit is of another dimension, or the value is out of range or not
    finite.
    """
    if isinstance(text, bool):
        raise InputError(f"{place}: {text!r} is not a quantity; write for example {_example(dimension)}")
    if isinstance(text, (int, float)):
        value = float(text)
    else:
        match = _QUANTITY.match(str(text))
        if match is None:
            raise InputError(f"{place}: '{text}' is not a quantity; write for example {_example(dimension)}")
        value = float(match[1])
        if match[2]:
            found = _factor(match[2])
            if found is None:
                raise InputError(
                    f"{place}: '{text}' has the unknown unit '{match[2]}'; write for example {_example(dimension)}"
                )
            if found[0] != dimension:
                raise InputError(
                    f"{place}: '{text}' is in {found[0]}, but {dimension} is needed; write for example {_example(dimension)}"
                )
            value *= found[1]
    if not math.isfinite(value) or value < minimum or (exclusive and value == minimum):
        raise InputError(f"{place}: {text} is out of range; it must be finite and {'>' if exclusive else '>='} {minimum:g}")
    return value


def parse_count(text: str | int, *, place: str, binary: bool = False) -> int:
    """Return a whole number, 0 or more: ``4096``, ``4k``, ``1.5M``, ``4Ki``, ``1e3``.

    `binary`: whether ``k``, ``M`` and ``G`` are of 1,024, as names of models have it (a length of 32k is 32,768 tokens), or of
    1,000; ``Ki`` is of 1,024 either way.
    Raises `InputError` when it is none.
    """
    word = str(text).strip()
    match = re.fullmatch(r"((?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]\+?[0-9]{1,2})?)\s*(|[kKMGT]i?)", word)
    if match is None:
        raise InputError(
            f"{place} {text}: is not a whole number; write for example {'32768 or 32k' if binary else '4096 or 4Ki'}"
        )
    step = 1024 if binary or match[2].endswith("i") else 1000
    exponent = " kMGT".index(match[2][:1].replace("K", "k") or " ")
    from fractions import Fraction

    value = Fraction(match[1]) * step**exponent
    if value.denominator != 1:
        raise InputError(f"{place} {text}: is {float(value):g}, which is not a whole number")
    return int(value)


def samples(text: str | int) -> int:
    """Return a number of samples as typed after an option; what is below 0 is left to whoever knows the option."""
    if re.fullmatch(r"-[0-9]+", str(text)):
        return int(text)
    return parse_count(text, place="number of samples")


def tokens(text: str | int) -> int:
    """Return a number of tokens of one sample as typed after an option: 32k is 32,768; below 0 as `samples`."""
    if re.fullmatch(r"-[0-9]+", str(text)):
        return int(text)
    return parse_count(text, place="--sequence-length", binary=True)


def _example(dimension: str) -> str:
    examples = {"seconds": "'10 us'", "bytes": "'80 GiB'", "flops": "'2 TFLOP'",
                "bytes_per_second": "'100 Gbit/s' or '25 GB/s'",
                "flops_per_second": "'312 TFLOP/s'"}  # fmt: skip
    return examples[dimension]


def format_seconds(seconds: float) -> str:
    """Return a time with three significant digits and a fitting prefix."""
    size = abs(seconds)
    for limit, factor, unit in (
        (0.9995e-6, 1e9, "ns"),  # 999.5 of a unit are 1 of the next in three digits
        (0.9995e-3, 1e6, "us"),
        (0.9995, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
    ):
        if size < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def format_bytes(n_bytes: float) -> str:
    """Return a number of bytes with a binary prefix."""
    size, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size) < 1024 or unit == "PiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}" if unit != "B" else f"{size:.0f} B"


def format_count(count: float) -> str:
    """Return a count with a decimal prefix: 70.6 B, 1.2 T."""
    size = float(count)
    for unit in ("", " k", " M", " B", " T"):
        if abs(size) < 1000 or unit == " T":
            return f"{size:.4g}{unit}"
        size /= 1000
    return f"{size:.4g}"
