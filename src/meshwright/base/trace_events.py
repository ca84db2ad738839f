"""What all Chrome traces share: names, times in microseconds that viewers read back as whole nanoseconds, the order of events.

References
----------
.. [1] Trace Event Format, Google, 2016: duration events (``X``), flow events (``s``, ``f``), counters (``C``), metadata
   (``M``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["durations", "in_order", "microseconds", "names"]


def names(process: int, title: str, threads: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the events that name a process and its threads and put them in the order of their numbers."""
    of = {"ph": "M", "pid": process}
    events: list[dict[str, Any]] = [
        {**of, "name": "process_name", "args": {"name": title}},
        {**of, "name": "process_sort_index", "args": {"sort_index": process}},
    ]
    for thread, name in sorted(threads.items()):
        events.append({**of, "name": "thread_name", "tid": thread, "args": {"name": name}})
        events.append({**of, "name": "thread_sort_index", "tid": thread, "args": {"sort_index": thread}})
    return events


def microseconds(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return times as a trace holds them: microseconds that are whole nanoseconds.

    Viewers multiply by a thousand and cut off: each value is the smallest that comes back as its nanosecond, so that spans
    which follow each other never overlap.
    """
    return _exact(_ticks(seconds))


def durations(start_seconds: NDArray[np.float64], end_seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return durations as a trace holds them: from the nanosecond of the start to that of the end, in microseconds."""
    return _exact(_ticks(end_seconds) - _ticks(start_seconds))


def in_order(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events by time; of those at one moment the spans first, so that flows find the span they are bound to."""
    return sorted(events, key=lambda event: (event["ts"], "XCsf".index(event["ph"])))


def _ticks(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return nanoseconds."""
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e9)


def _exact(ticks: NDArray[np.float64]) -> NDArray[np.float64]:
    values = ticks / 1e3
    return np.where(np.trunc(values * 1e3) < ticks, np.nextafter(values, np.inf), values)
