"""What a profiler's trace or a training log says was measured: the step, what it was spent on, the memory."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.result import Result

__all__ = ["COMPARED", "Measured", "predicted", "read"]

COMPARED: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "compute": ("compute", "recompute", "optimizer"),
    "communication": ("tensor", "context", "expert", "gather", "contention", "transfer", "reduce"),
    "waiting": ("bubble", "imbalance"),
})  # fmt: skip
"""What a trace tells apart, and the causes of `Timeline.causes` in each: kernels that compute, NCCL's kernels beside which none
computes, and nothing."""

_NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?\d+)?)"
_LOGS: tuple[tuple[str, str, Callable[[float, int, int, int], float]], ...] = (
    ("Megatron-LM", rf"elapsed time per iteration \(ms\):\s*{_NUMBER}", lambda x, samples, tokens, n: x / 1e3),
    ("torchtitan", rf"\btps:\s*{_NUMBER}", lambda x, samples, tokens, n: tokens / (x * n)),
    ("DeepSpeed", rf"\bCurrSamplesPerSec=\s*{_NUMBER}", lambda x, samples, tokens, n: samples / x),
    ("transformers", rf"['\"]?train_steps_per_second['\"]?\s*[:=]\s*['\"]?{_NUMBER}", lambda x, samples, tokens, n: 1.0 / x),
    (
        "a log",
        rf"\b(?:step|iteration)[ _]time(?: ?\(s\)|_s|_seconds)?\s*[:=]\s*{_NUMBER}(?!\s*ms)",
        lambda x, samples, tokens, n: x,
    ),
)
"""Kind of log, pattern of its number, and a step's seconds: of the number, samples and tokens of a step, and devices."""

_MEMORY = (
    (rf"max allocated:\s*{_NUMBER}", 2.0**20), (rf"\bmemory:\s*{_NUMBER}\s*GiB", 2.0**30),
    (rf"\bMaxMemAllocated=\s*{_NUMBER}\s*GB", 2.0**30),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured.

    Parameters
    ----------
    source : str
        What it was read from: the kind of log or trace, and how many steps.
    step_seconds : float
        Of one step: the median of those after the first.
    causes : tuple of (str, float)
        Seconds of a step by the words of `COMPARED`; empty where only the step is known.
    peak_bytes : float
        Most memory that was allocated; 0 where it is not told.
    """

    source: str
    step_seconds: float
    causes: tuple[tuple[str, float], ...] = ()
    peak_bytes: float = 0.0


def read(path: str, result: Result) -> Measured:
    """Return what a trace or a log says.

    Parameters
    ----------
    path : str
        A trace of PyTorch's profiler (``.json``, ``.json.gz``), or the text that a program printed.
    result : Result
        The plan that ran: its samples, tokens and devices turn throughputs into seconds.

    Returns
    -------
    Measured
        The step, with causes where it is a trace.

    Raises
    ------
    InputError
        When it cannot be read, or says nothing of the time of a step.
    """
    try:
        content = Path(path).read_bytes()
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"--against {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if text.lstrip()[:1] in ("{", "[") and '"ph"' in text:
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--against {path}: is no JSON: {error}") from None
        return _of_trace(entry, path)
    return _of_log(text, path, result)


def predicted(result: Result) -> dict[str, float]:
    """Return the seconds of the predicted step by the words of `COMPARED`."""
    timeline = result.timeline
    causes = {} if timeline is None else dict(timeline.causes)
    return {word: sum(causes.get(cause, 0.0) for cause in some) for word, some in COMPARED.items()}


def _of_log(text: str, path: str, result: Result) -> Measured:
    """Return what a log says: the first kind of line that it has."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    plan = result.plan
    sizes = plan.global_batch, plan.global_batch * result.problem.graph.sequence_length, plan.n_devices
    for kind, pattern, seconds_of in _LOGS:
        numbers = [float(word.replace(",", "")) for word in re.findall(pattern, text)]
        numbers = [number for number in numbers if number > 0.0]
        if not numbers:
            continue
        kept = numbers[1:] if len(numbers) > 2 else numbers  # the first step warms up
        seconds = statistics.median(seconds_of(number, *sizes) for number in kept)
        found = [float(word.replace(",", "")) * unit for pattern, unit in _MEMORY for word in re.findall(pattern, text)]
        return Measured(f"{kind}, {len(kept)} line{'s' if len(kept) > 1 else ''}", seconds, (), max(found, default=0.0))
    raise InputError(
        f"--against {path}: says nothing of the time of a step; lines of {', '.join(kind for kind, _, _ in _LOGS[:-1])} and "
        "'step time: 1.2' are read, and traces of PyTorch's profiler"
    )


def _of_trace(entry: Any, path: str) -> Measured:
    """Return what a trace of PyTorch's profiler says of one device."""
    events = entry.get("traceEvents") if isinstance(entry, dict) else entry
    if not isinstance(events, list):
        raise InputError(f"--against {path}: has no list traceEvents")
    spans = [one for one in events if isinstance(one, dict) and one.get("ph") == "X"]
    try:
        kernels = [one for one in spans if "stream" in (one.get("args") or {}) and one.get("cat") != "user_annotation"]
        times = np.array([(float(one["ts"]), float(one["dur"])) for one in kernels]).reshape(-1, 2) / 1e6
        steps = [(float(one["ts"]) / 1e6, float(one["dur"]) / 1e6) for one in spans
                 if str(one.get("name")).startswith("ProfilerStep")]  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"--against {path}: an event lacks ts or dur, or they are no numbers: {error}") from None
    if not len(times):
        raise InputError(f"--against {path}: holds no kernels (events with a stream): was the device profiled?")
    steps = sorted(set(steps))
    begin, end = (steps[0][0], max(a + b for a, b in steps)) if steps else (times[:, 0].min(), times.sum(axis=1).max())
    n = max(len(steps), 1)
    inside = (times[:, 0] >= begin - 1e-9) & (times[:, 0] < end)
    nccl = np.array([str(one.get("name")).lower().startswith("nccl") for one in kernels])
    starts, ends = times[:, 0], np.minimum(times.sum(axis=1), end)
    compute = _covered(starts[inside & ~nccl], ends[inside & ~nccl])
    busy = _covered(starts[inside], ends[inside])
    step = (end - begin) / n
    waiting = step - busy / n if step - busy / n > 1e-9 else 0.0  # a trace has whole nanoseconds
    causes = (("compute", compute / n), ("communication", (busy - compute) / n), ("waiting", waiting))
    return Measured(f"a trace of {n} step{'s' if n > 1 else ''}", step, causes)


def _covered(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> float:
    """Return how long at least one of some spans runs."""
    order = np.argsort(starts, kind="stable")
    total, last = 0.0, -np.inf
    for a, b in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        total += max(0.0, b - max(a, last))
        last = max(last, b)
    return total
