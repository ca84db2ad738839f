"""A trace of PyTorch's profiler as seconds by cause (computing, communication not hidden, idle) beside a prediction's."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base import files
from meshwright.base.errors import InputError

__all__ = ["GROUPS", "TraceCauses", "beside", "is_trace", "trace_causes"]

KINDS = (
    ("all_to_all", r"all_?to_?all|dispatch|combine"), ("all_reduce", r"all_?reduce"), ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"), ("broadcast", r"broadcast"), ("send_receive", r"send_?recv|^send|^recv|coalesced"),
)  # fmt: skip
"""Kinds of communication and what their names hold, first those that others' names are part of."""

GROUPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType({
    "compute": (("compute", "copy"), ("compute", "recompute", "optimizer")),
    "collectives": (
        ("all_to_all", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "communication"),
        ("tensor", "context", "expert", "gather", "reduce", "contention"),
    ),
    "waiting": (("send_receive", "idle"), ("transfer", "bubble", "imbalance")),
})  # fmt: skip
"""Causes of a trace and of a prediction that say the same. A process that waits for another pipeline rank shows a kernel that
receives, so that a trace does not tell transfers from bubbles."""

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
"""Categories of what runs on a device; the last two of 2021's profiler."""

LIBRARIES = (
    r"nccl|rccl|deep_?ep|hybrid_?ep|nvshmem|userbuffers|"
    r"^(?!triton_[a-z]+_fused).*(?<![a-z])((all|cross_device)_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
)
"""What names of kernels that communicate hold: libraries', or those of symmetric memory's kernels (PyTorch).
Inductor calls kernels that compute after the collectives beside them."""

ANNOTATED = r"[nrhx]ccl:"
"""What PyTorch writes over a collective's kernels begins with: NCCL of 2022 names them after any collective."""

Spans = NDArray[np.float64]
"""Disjoint spans of time, sorted: start and end of each, in seconds."""


@dataclass(frozen=True, slots=True)
class TraceCauses:
    """Where the seconds of a step went on one device.

    Parameters
    ----------
    file : str
        The trace.
    step_seconds : float
        Of one step.
    n_steps : int
        Steps that the trace holds.
    causes : tuple of (str, float)
        Seconds of a step, adding up to `step_seconds`: ``compute`` (a kernel that is no communication runs), ``copy`` (host and
        device exchange data), every kind of communication while neither runs, and ``idle``.
    hidden : tuple of (str, float)
        Seconds of a step in which a kind of communication ran beside computing, copies or another kind.
    notes : tuple of str
        What was assumed.
    """

    file: str
    step_seconds: float
    n_steps: int
    causes: tuple[tuple[str, float], ...]
    hidden: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()


def is_trace(path: str | Path) -> bool:
    """Tell whether a file is a trace of PyTorch's profiler: JSON (packed by gzip or not) with ``traceEvents``."""
    if not re.search(r"\.json(\.gz)?$", str(path)):
        return False
    try:
        return "traceEvents" in _load(path)
    except InputError:
        return False


def beside(measured: TraceCauses, predicted: Sequence[tuple[str, float]]) -> tuple[tuple[str, float, float], ...]:
    """Return measured and predicted seconds of a step in the terms that both tell.

    Parameters
    ----------
    measured : TraceCauses
        Of a trace.
    predicted : sequence of (str, float)
        Of a prediction, `meshwright.core.timeline.Timeline.causes`.

    Returns
    -------
    tuple of (str, float, float)
        Name of the group (`GROUPS`), measured, predicted; each column adds up to its step.
    """
    told, said = dict(measured.causes), dict(predicted)
    known = {name for _, names in GROUPS.values() for name in names}
    rows = [
        (group, sum(told.get(name, 0.0) for name in own), sum(said.get(name, 0.0) for name in names))
        for group, (own, names) in GROUPS.items()
    ]
    other = sum(seconds for name, seconds in said.items() if name not in known)
    return (*rows, ("other", 0.0, other)) if other else tuple(rows)


def trace_causes(path: str | Path) -> TraceCauses:
    """Return where the seconds of a step went.

    Parameters
    ----------
    path : str or Path
        What ``torch.profiler`` exported: ``trace.json``, or packed as ``trace.json.gz``.

    Returns
    -------
    TraceCauses
        Of the device with most kernels, on average over the steps that the profiler marked.

    Raises
    ------
    InputError
        When it cannot be read, is no such trace, or holds no kernels.
    """
    content = _load(path)
    events = content.get("traceEvents")
    if not isinstance(events, list):
        raise InputError(f"{path}: has no traceEvents; a trace that torch.profiler exported is needed")
    whole = [event for event in events if isinstance(event, dict) and event.get("ph") == "X" and _timed(event)]
    kernels = [event for event in whole if str(event.get("cat")).lower() in ON_DEVICE]
    if not kernels:
        raise InputError(f"{path}: holds no kernels; profile with ProfilerActivity.CUDA")
    notes: list[str] = []
    devices = [_device(event) for event in kernels]
    device = max(sorted(set(devices)), key=devices.count)
    if len(set(devices)) > 1:
        notes.append(f"kernels of {len(set(devices))} devices; those of device {device}, which has most, are taken")
        kernels = [event for event, own in zip(kernels, devices, strict=True) if own == device]
    start, end, n_steps = _window(whole, kernels, device, notes)
    collectives = _annotations(whole, device)
    groups: dict[str, list[tuple[float, float]]] = {"compute": [], "copy": []}
    for event in kernels:
        first, last = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
        if first < end and last > start:
            groups.setdefault(_kind(event, collectives), []).append((max(first, start), min(last, end)))
    spans = {name: _union(own) for name, own in groups.items()}
    covered, causes, hidden = _union([]), [], []
    for name, own in spans.items():  # computing first, then copies, then communication
        both = _union([*map(tuple, covered), *map(tuple, own)])
        exposed = _length(both) - _length(covered)
        causes.append((name, exposed / n_steps))
        if name not in ("compute", "copy"):
            hidden.append((name, (_length(own) - exposed) / n_steps))
        covered = both
    step = (end - start) / n_steps
    causes.append(("idle", max(0.0, step - _length(covered) / n_steps)))
    return TraceCauses(str(path), step, n_steps, tuple(causes), tuple(hidden), tuple(notes))


def _load(path: str | Path) -> dict[str, Any]:
    """Return what a JSON file holds, packed or not."""
    data = files.read_bytes(path)
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        content = json.loads(text.decode("utf-8", errors="replace"), strict=False)
    except (OSError, ValueError, EOFError, zlib.error, RecursionError):
        raise InputError(f"{path}: is no whole JSON file; was the trace cut off while it was written?") from None
    return content if isinstance(content, dict) else {}


def _timed(event: Mapping[str, Any]) -> bool:
    """Tell whether an event says when it was and how long."""
    told = [event.get(name) for name in ("ts", "dur")]
    return all(isinstance(value, int | float) and math.isfinite(value) for value in told) and event["dur"] >= 0


def _device(event: Mapping[str, Any]) -> str:
    """Return the device that an event ran on."""
    arguments = event.get("args")
    return str(arguments.get("device", event.get("pid"))) if isinstance(arguments, dict) else str(event.get("pid"))


def _kind(event: Mapping[str, Any], collectives: Mapping[str, Sequence[tuple[float, float, str]]]) -> str:
    """Return what a kernel counts as. `collectives`: as of `_annotations`."""
    name = str(event.get("name"))
    if str(event.get("cat")).lower() in ("gpu_memcpy", "memcpy"):  # between devices: what symmetric memory gathers with
        return "compute" if "DtoD" in name else "communication" if "PtoP" in name else "copy"
    arguments = event.get("args")
    said = str(arguments.get("Collective name", "")) if isinstance(arguments, dict) else ""
    if not said and not re.search(LIBRARIES, name, re.I):
        return "compute"
    said = said or _annotated(event, collectives.get(str(event.get("tid")), ()))
    return next((kind for kind, words in KINDS if re.search(words, said or _plain(name), re.I)), "communication")


def _annotations(events: Sequence[Mapping[str, Any]], device: str) -> dict[str, list[tuple[float, float, str]]]:
    """Return start, end and name of collectives as annotated on every stream of a device, in their order."""
    found: dict[str, list[tuple[float, float, str]]] = {}
    for event in events:
        name = str(event.get("name"))
        if event.get("cat") == "gpu_user_annotation" and re.match(ANNOTATED, name) and _device(event) == device:
            span = event["ts"], event["ts"] + event["dur"], name.partition(":")[2]
            found.setdefault(str(event.get("tid")), []).append(span)
    return {stream: sorted(spans) for stream, spans in found.items()}


def _annotated(event: Mapping[str, Any], spans: Sequence[tuple[float, float, str]]) -> str:
    """Return the collective whose annotation covers the middle of a kernel on its stream; empty for none."""
    middle = event["ts"] + event["dur"] / 2.0
    i = bisect_right(spans, middle, key=lambda span: span[0]) - 1
    return spans[i][2] if i >= 0 and middle <= spans[i][1] else ""


def _plain(name: str) -> str:
    """Return the name of a kernel without the library's: ``ncclDevKernel_SendRecv(...)`` is ``SendRecv``."""
    return re.sub(r"^.*?[nr]ccl(Dev)?(Kernel)?_?|\(.*$", "", name)


def _window(
    events: Sequence[Mapping[str, Any]], kernels: Sequence[Mapping[str, Any]], device: str, notes: list[str]
) -> tuple[float, float, int]:
    """Return start and end of the marked steps in seconds, and how many there are.

    On the device a step is marked on each of its streams, from its first kernel to its last: several steps last from the
    first's start to the last's, so that what the device idles between two is in them. A single one lasts as long as on the
    host at least.
    """
    host = _marked(events, "user_annotation", "", [])
    if on_device := _marked(events, "gpu_user_annotation", device, notes):
        first, (start, end) = on_device[0]
        if len(on_device) > 1:
            return start, on_device[-1][1][0], len(on_device) - 1
        notes.append("one step is marked: what the device idles after it is known as far as the host's own mark goes")
        longest = max((until - begun for step, (begun, until) in host if step == first), default=0.0)
        return start, max(end, start + longest), 1
    if host:
        return host[0][1][0], max(until for _, (_, until) in host), len(host)
    notes.append("the profiler marked no steps (profiler.step() is not called): all kernels are taken for one step")
    first = min(event["ts"] for event in kernels)
    return first * 1e-6, max(event["ts"] + event["dur"] for event in kernels) * 1e-6, 1


def _marked(
    events: Sequence[Mapping[str, Any]], category: str, device: str, notes: list[str]
) -> list[tuple[int, tuple[float, float]]]:
    """Return the first steps that the profiler marked without a gap, with start and end in seconds over all streams.

    `device`: of any device where it is empty.
    """
    found: dict[int, tuple[float, float]] = {}
    for event in events:
        if event.get("cat") != category or (device and _device(event) != device):
            continue
        if match := re.fullmatch(r"ProfilerStep#(\d+)", str(event.get("name"))):
            start, end = found.get(int(match[1]), (math.inf, -math.inf))
            found[int(match[1])] = min(start, event["ts"] * 1e-6), max(end, (event["ts"] + event["dur"]) * 1e-6)
    steps = sorted(found.items())
    unbroken = [step for i, step in enumerate(steps) if step[0] == steps[0][0] + i]
    if len(unbroken) < len(steps):
        notes.append(f"steps after {unbroken[-1][0]} were marked, too, but not the next one; they are left out")
    return unbroken


def _union(spans: Sequence[tuple[float, ...]]) -> Spans:
    """Return the union of spans as disjoint ones, sorted."""
    if not spans:
        return np.zeros((0, 2))
    found = np.array(sorted(spans), dtype=np.float64)
    reach = np.maximum.accumulate(found[:, 1])
    first = np.concatenate(([True], found[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((found[first, 0], reach[last]))


def _length(spans: Spans) -> float:
    """Return how long disjoint spans are together."""
    return float((spans[:, 1] - spans[:, 0]).sum())
