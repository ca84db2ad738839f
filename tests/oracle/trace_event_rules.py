"""The rules of the Trace Event Format that a viewer relies on, as a list of what a trace breaks.

Times are read as Perfetto's importer reads them: microseconds, as decimal text, to whole nanoseconds, the rest cut off.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

PHASES = {
    "X": {"ph": str, "name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "C": {"ph": str, "name": str, "pid": int, "ts": float, "args": dict},
    "M": {"ph": str, "name": str, "pid": int, "args": dict},
    "s": {"ph": str, "name": str, "cat": str, "pid": int, "tid": int, "ts": float, "id": int},
    "f": {"ph": str, "name": str, "cat": str, "pid": int, "tid": int, "ts": float, "id": int, "bp": str},
}
"""Required fields of every phase in use; ``args`` may be left out of spans without any, ``tid`` is asked of threads' names."""
METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def broken_rules(text: str) -> list[str]:
    """Return what the text of a trace breaks; empty for a valid one."""
    try:
        trace = json.loads(text, parse_constant=_refused)
    except ValueError as error:
        return [f"not JSON: {error}"]
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["no list traceEvents"]
    found = []
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append(f"displayTimeUnit {trace['displayTimeUnit']}")
    events = trace["traceEvents"]
    for i, event in enumerate(events):
        found += [f"event {i}: {reason}" for reason in _wrong_fields(event)]
    if found:
        return found
    return [*_names(events), *_order(events), *_spans(events), *_flows(events)]


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _wrong_fields(event: Any) -> list[str]:
    if not isinstance(event, dict) or event.get("ph") not in PHASES:
        return [f"unknown phase in {event}"]
    wanted = dict(PHASES[event["ph"]])
    if event["ph"] == "M" and str(event.get("name")).startswith("thread"):
        wanted["tid"] = int
    found = [f"{name} is missing" for name in wanted if name not in event]
    found += [f"{name} is not known" for name in event if name not in wanted]
    for name, kind in wanted.items():
        value = event.get(name, kind())
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not fits:
            found.append(f"{name} is {value!r}")
        elif name in ("ts", "dur", "pid", "tid", "id") and value < 0:
            found.append(f"{name} is negative")
    if event["ph"] == "M" and not found:
        argument = METADATA.get(event["name"])
        if argument is None or set(event["args"]) != {argument}:
            found.append(f"metadata {event['name']} with {event['args']}")
        elif not isinstance(event["args"][argument], str if argument == "name" else int):
            found.append(f"metadata {event['name']} is {event['args'][argument]!r}")
    if event["ph"] == "C" and not found:
        found += [
            f"counter {name} is {value!r}" for name, value in event["args"].items() if not isinstance(value, (int, float))
        ]
    if event["ph"] == "f" and not found and event["bp"] != "e":
        found.append(f"bp is {event['bp']!r}: the arrow would end at the next span, not in this one")
    return found


def _names(events: list[dict[str, Any]]) -> list[str]:
    """Every process and thread is named, once, before it is used."""
    found, named = [], set()
    for event in events:
        if event["ph"] == "M":
            key = (event["name"], event["pid"], event.get("tid"))
            if key in named:
                found.append(f"{key} is named twice")
            named.add(key)
            continue
        if ("process_name", event["pid"], None) not in named:
            found.append(f"process {event['pid']} has no name")
        if "tid" in event and ("thread_name", event["pid"], event["tid"]) not in named:
            found.append(f"thread {event['tid']} of process {event['pid']} has no name")
    return sorted(set(found))


def _nanoseconds(microseconds: float) -> int:
    """Return what viewers make of a time: both ways to cut off must agree."""
    whole, _, rest = repr(float(microseconds)).partition(".")
    if "e" in rest:
        return int(microseconds * 1000.0)
    by_text = int(whole) * 1000 + int(float(f"0.{rest}") * 1000.0)
    assert by_text == int(microseconds * 1000.0), f"{microseconds!r} is read as {by_text} or {int(microseconds * 1000.0)} ns"
    return by_text


def _order(events: list[dict[str, Any]]) -> list[str]:
    """Events come by time; a counter has one value at a time."""
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    return [f"time goes back from {a} to {b}" for a, b in itertools.pairwise(timed) if b < a]


def _spans(events: list[dict[str, Any]]) -> list[str]:
    """Spans of one thread follow each other."""
    rows: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = _nanoseconds(event["ts"])
            rows[event["pid"], event["tid"]].append((start, start + _nanoseconds(event["dur"]), event["name"]))
    return [
        f"thread {thread}: {first[2]} ends at {first[1]} ns, {then[2]} starts at {then[0]} ns"
        for thread, row in rows.items()
        for first, then in itertools.pairwise(row)
        if then[0] < first[1]
    ]


def _flows(events: list[dict[str, Any]]) -> list[str]:
    """Every arrow starts once and ends once, later, under one name,
    and both its ends lie in a span that came before in the file.
    """
    found: list[str] = []
    open_: dict[int, dict[str, Any]] = {}
    used = set()
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for event in events:
        thread = (event["pid"], event.get("tid", -1))
        if event["ph"] == "X":
            start = _nanoseconds(event["ts"])
            last[thread] = (start, start + _nanoseconds(event["dur"]))
        if event["ph"] not in "sf":
            continue
        moment = _nanoseconds(event["ts"])
        start, end = last.get(thread, (1, 0))
        if not (start <= moment < end or start == moment == end):
            found.append(f"arrow {event['id']}: its {event['ph']} at {moment} ns lies in no span of thread {thread}")
        if event["ph"] == "s":
            if event["id"] in used:
                found.append(f"arrow {event['id']} starts twice")
            used.add(event["id"])
            open_[event["id"]] = event
            continue
        begun = open_.pop(event["id"], None)
        if begun is None:
            found.append(f"arrow {event['id']} ends without a start")
        elif (begun["name"], begun["cat"]) != (event["name"], event["cat"]):
            found.append(f"arrow {event['id']} changes its name")
        elif begun["ts"] > event["ts"]:
            found.append(f"arrow {event['id']} ends before it starts")
    return found + [f"arrow {number} never ends" for number in open_]
