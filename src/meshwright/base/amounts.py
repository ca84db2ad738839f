"""Amounts as people type them after options: tokens of a run, days, money, watts; beside the quantities of `units`."""

from __future__ import annotations

import math
import re

from meshwright.base import units
from meshwright.base.errors import InputError

__all__ = ["duration", "duration_text", "money", "money_text", "total_tokens", "watts"]

_SCALES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("B", 1e9), ("T", 1e12))
_NUMBER = r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"
_YEAR_DAYS = 365.25
_DAYS = {
    "d": 1.0, "day": 1.0, "days": 1.0, "w": 7.0, "week": 7.0, "weeks": 7.0,
    "y": _YEAR_DAYS, "year": _YEAR_DAYS, "years": _YEAR_DAYS,
}.items()  # fmt: skip
_TIMES = ("s", "ms", "us", "ns", "min", "h")


def total_tokens(text: str | float, place: str) -> int:
    """Return a number of tokens of a whole run: ``15T``, ``300B``, ``1.5e12``; k, M, B (or G) and T are decimal.

    Raises `InputError` when it is no whole number above 0.
    """
    value = _scaled(str(text), place, "a number of tokens", "15T or 300B")
    if value != int(value) or value < 1:
        raise InputError(f"{_typed(place, text)}: must be a whole number of at least 1; write for example 15T or 300B")
    return int(value)


def duration(text: str, place: str) -> float:
    """Return seconds of a time with its unit: ``30d``, ``2 weeks``, ``5y``, ``50000h``, ``10 min``; a bare number is refused.

    Raises `InputError` when it is none, or not above 0 and finite.
    """
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([A-Za-z]+)\s*", str(text))
    if match is None:
        raise InputError(f"{_typed(place, text)}: is no time with its unit; write for example 30d, 50000h or 10min")
    days = dict(_DAYS).get(match[2].lower(), 0)
    hours = {"hour": "h", "hours": "h", "hr": "h", "hrs": "h", "sec": "s", "minutes": "min", "minute": "min", "m": "min"}
    number = match[1].replace("_", "")
    unit = hours.get(match[2].lower(), match[2])
    if not days and unit not in _TIMES:
        raise InputError(
            f"{_typed(place, text)}: has the unknown unit '{match[2]}'; write for example 30d, 50000h, 5y or 10min"
        )
    seconds = (
        float(number) * days * 86400.0 if days else units.parse(f"{number} {unit}", "seconds", place=place, exclusive=True)
    )
    if not 0.0 < seconds < math.inf:
        raise InputError(f"{_typed(place, text)}: must be above 0")
    return seconds


def duration_text(seconds: float) -> str:
    """Return a time of minutes to years in words of three digits."""
    for limit, factor, unit in ((7200.0, 0.0, ""), (172800.0, 3600.0, "h"), (math.inf, 86400.0, "days")):
        if seconds < limit:
            return f"{seconds / factor:.3g} {unit}" if factor else units.format_seconds(seconds)
    return "never"


def money(text: str | float, place: str) -> float:
    """Return US dollars: ``2 M$``, ``$2M``, ``500k``, ``2000000 USD``; other currencies are refused.

    Raises `InputError` when it is no amount above 0.
    """
    word = str(text).strip()
    if re.search(r"[€£¥]|\b(EUR|GBP|JPY|CNY|CHF)\b", word, re.I):
        raise InputError(f"{_typed(place, text)}: prices are in US dollars; write for example '2 M$' or 2000000")
    bare, n_signs = re.subn(r"\$|USD", "", word, flags=re.I)
    if n_signs > 1:
        raise InputError(f"{_typed(place, text)}: names the currency {n_signs} times; write for example '2 M$'")
    value = _scaled(bare, place, "an amount of money", "'2 M$' or 500k", shown=word)
    if value <= 0.0:
        raise InputError(f"{_typed(place, text)}: must be above 0")
    return value


def money_text(dollars: float) -> str:
    """Return dollars with three significant digits: $1.23M."""
    size = float(dollars)
    for unit in ("", "k", "M", "B"):
        if abs(size) < 999.5 or unit == "B":
            return f"${size:.3g}{unit}" if abs(size) < 999.5 else f"${size:,.0f}{unit}"
        size /= 1000.0
    return f"${dollars:,.0f}"


def watts(text: str | float, place: str) -> float:
    """Return watts: ``700 W``, ``1.3kW``; a bare number is watts.

    Raises `InputError` when it is none, or not above 0.
    """
    match = re.fullmatch(rf"\s*{_NUMBER}\s*(|W|kW|MW)\s*", str(text))
    if match is None:
        raise InputError(f"{_typed(place, text)}: is no power; write for example 700W or 1.3kW")
    value = float(match[1].replace("_", "")) * {"": 1.0, "W": 1.0, "kW": 1e3, "MW": 1e6}[match[2]]
    if not 0.0 < value < math.inf:
        raise InputError(f"{_typed(place, text)}: must be above 0")
    return value


def _typed(place: str, text: object) -> str:
    """Return an option and its value as they were typed: ``--budget 2x``, ``--price h100=2x``."""
    return f"{place}{'' if place.endswith('=') else ' '}{text}"


def _scaled(text: str, place: str, what: str, example: str, *, shown: str = "") -> float:
    """Return a number with a decimal prefix."""
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([kKMmGBbTt]?)\s*", text)
    if match is None:
        raise InputError(f"{_typed(place, shown or text)}: is not {what}; write for example {example}")
    scale = dict(_SCALES)[match[2].upper().replace("K", "k")]
    value = float(match[1].replace("_", "")) * scale
    if not value < 1e30:
        raise InputError(f"{_typed(place, shown or text)}: is too large")
    return round(value) if scale > 1.0 and abs(value - round(value)) <= 1e-9 * value else value
