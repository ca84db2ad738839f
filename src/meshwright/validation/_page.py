"""The page of ``validate --report``: predicted against measured, how the errors spread,
and the worst rows by cause; offline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.base import files as _files
from meshwright.validation import _worst
from meshwright.validation._report import Report, as_json

__all__ = ["page", "write"]

MOST_WORST = 8
"""Worst rows of each set that the page lists, of time and of memory."""


def page(reports: Sequence[Report]) -> str:
    """Return the page as one HTML file that needs no network."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    found = as_json(reports)["sets"]
    assert isinstance(found, list)
    data = {"sets": [_set(report, errors) for report, errors in zip(reports, found, strict=True)]}
    # a tag or an opening comment inside a name would change where the script element ends
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return template.replace("__DATA__", text)


def write(reports: Sequence[Report], path: str) -> None:
    """Write the page to a file, whole or not at all; see `page`.

    Raises `InputError` when the file cannot be written.
    """
    _files.write(path, page(reports))


def _set(report: Report, errors: dict[str, Any]) -> dict[str, Any]:
    """Return one file as the page reads it: errors, points of both quantities with their rows, the worst rows with causes."""
    entry: dict[str, Any] = {
        "name": Path(report.file).name,
        "kind": report.kind,
        "n_rows": errors["n_rows"],
        "errors": {"time": errors["time"], "memory": errors["memory"], "verdicts": errors["verdicts"]},
        "regret": errors["regret"],
        "interval": errors["interval"],
        "skipped": errors["skipped"],
    }
    for quantity in ("time", "memory"):
        found = _worst.misses(report, quantity)
        entry[quantity] = [
            [miss.row, _short(miss.measured_value), _short(miss.predicted_value), miss.description, *map(_short, miss.interval)]
            for miss in found
        ]
        entry[f"{quantity}_worst"] = [
            [miss.row, [[cause, _short(value)] for cause, value in miss.causes]] for miss in found[:MOST_WORST]
        ]
    return entry


def _short(value: float) -> float:
    """Return a value with as many digits as the page shows."""
    return float(f"{value:.6g}")
