"""Communication that nothing hides: what ranks wait for once its sender is done, and the collectives at the end of a step."""

from __future__ import annotations

from typing import Any

from meshwright.core.plan import Plan
from meshwright.core.timeline import PHASES, Timeline

__all__ = ["measured_seconds", "on_one_clock", "predicted_seconds"]

_FORWARD, _BACKWARD = 0, 1
_OUTSIDE = ("reduce", "gather")


def on_one_clock(ranks: list[dict[str, Any]]) -> list[list[tuple[int, int, str, float, float]]]:
    """Return the spans of every rank (stage, micro-batch, phase, start, end) in seconds since the first rank began its step.

    `ranks`: of every rank its host, when its step began, and its spans.

    Notes
    -----
    Clocks of one machine agree; between machines, steps are taken to begin at once.
    """
    same_host = len({rank["host"] for rank in ranks}) == 1
    first = min((rank["began_seconds"] for rank in ranks), default=0.0)
    shifts = [rank["began_seconds"] - first if same_host else 0.0 for rank in ranks]
    return [
        [(stage, microbatch, phase, start + shift, end + shift) for stage, microbatch, phase, start, end in rank["spans"]]
        for rank, shift in zip(ranks, shifts, strict=True)
    ]


def measured_seconds(plan: Plan, ranks: list[dict[str, Any]]) -> list[float]:
    """Return the exposed communication of every stage in the step whose spans were kept; of its ranks, the most.

    `ranks`: of every rank its device, its host, when its step began, and its spans (stage, micro-batch, phase, start, end).

    Notes
    -----
    A rank that waits for a message first waits for the sender to finish, which is a bubble, and then for the bytes, which is
    communication. Collectives inside layers (tensor axes, gathered weights) are part of their compute.
    """
    done: dict[tuple[int, int, int], float] = {}
    shifted = list(zip((rank["device"] for rank in ranks), on_one_clock(ranks), strict=True))
    for _, spans in shifted:
        for stage, microbatch, phase, _, end in spans:
            if phase in ("forward", "backward", "backward_input"):
                key = (stage, microbatch, _FORWARD if phase == "forward" else _BACKWARD)
                done[key] = max(done.get(key, 0.0), end)
    found = []
    for stage, part in enumerate(plan.stages):
        mine = [spans for device, spans in shifted if device in part.devices]
        found.append(max((_of_rank(stage, spans, done) for spans in mine), default=0.0))
    return found


def _of_rank(stage: int, spans: list[tuple[int, int, str, float, float]], done: dict[tuple[int, int, int], float]) -> float:
    """Return the exposed communication of one rank for one stage."""
    total = 0.0
    seen: set[int] = set()
    for own, microbatch, phase, start, end in spans:
        if own != stage:
            continue
        if phase in _OUTSIDE:
            total += end - start
        elif phase == "wait":
            forward = stage > 0 and microbatch not in seen
            seen.add(microbatch)
            sender = (stage - 1, microbatch, _FORWARD) if forward else (stage + 1, microbatch, _BACKWARD)
            total += max(0.0, end - max(start, done.get(sender, start)))
    return total


def predicted_seconds(plan: Plan, timeline: Timeline) -> list[float]:
    """Return the same of a simulated step."""
    n_stages = len(plan.stages)
    names = [PHASES[int(code)] for code in timeline.phase]
    done: dict[tuple[int, int, int], float] = {}
    by_rank: dict[int, list[int]] = {}
    total = [0.0] * n_stages
    for i, name in enumerate(names):
        stage, microbatch = int(timeline.stage[i]), int(timeline.microbatch[i])
        if name in ("forward", "backward", "backward_input"):
            done[stage, microbatch, _FORWARD if name == "forward" else _BACKWARD] = float(timeline.end_seconds[i])
        if name in _OUTSIDE:
            total[stage] += float(timeline.end_seconds[i] - timeline.start_seconds[i])
        elif name != "send" and int(timeline.rank[i]) >= 0:
            by_rank.setdefault(int(timeline.rank[i]), []).append(i)
    for spans in by_rank.values():
        free = 0.0
        for i in sorted(spans, key=lambda i: float(timeline.start_seconds[i])):
            stage, microbatch, start = int(timeline.stage[i]), int(timeline.microbatch[i]), float(timeline.start_seconds[i])
            sender = {"forward": (stage - 1, microbatch, _FORWARD)}.get(names[i], (stage + 1, microbatch, _BACKWARD))
            if names[i] in ("forward", "backward", "backward_input") and sender in done:
                total[stage] += max(0.0, start - max(free, done[sender]))
            free = max(free, float(timeline.end_seconds[i]))
    return total
