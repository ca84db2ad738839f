"""The simulated step as PyTorch's profiler (Kineto) would have recorded it: one file for every pipeline rank.

Holistic Trace Analysis and other programs that read profiles of training runs read these: kernels on streams, each with the
call that launched it, collectives under NCCL's names, the step as ``ProfilerStep#0``.

Notes
-----
The simulator knows no host: a kernel is launched when the one before on its stream starts, so that all waiting is for other
kernels. Collectives that block a task stand after its compute, one kernel for each cause: how they are spread inside a task is
not simulated.

References
----------
.. [1] PyTorch, Kineto: ``libkineto/src/output_json.cpp``.
.. [2] Holistic Trace Analysis 0.5.0: ``hta/configs/default_event_args.py``, ``hta/utils/utils.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.base.trace_events import durations, in_order, microseconds, names
from meshwright.core.result import Result
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import PHASES, Timeline

__all__ = ["FROZEN", "RINGS", "SEVERAL", "as_json", "kernel_name", "write"]

FROZEN = RINGS = SEVERAL = True

_HOST, _COMPUTE, _REDUCE, _SEND = 1, 7, 20, 24
"""Thread of the host, and streams: compute (PyTorch's default stream is 7), reductions, sends."""

_KERNELS: Mapping[str, str] = MappingProxyType({
    "send": "SendRecv", "context": "AllGather", "expert": "SendRecv", "reduce": "ReduceScatter", "gather": "AllGather",
    "tensor": "AllGather", "transfer": "SendRecv",
})  # fmt: skip

Kernel = tuple[float, float, int, str, int, int]
"""Start, end, stream, name, stage and micro-batch."""


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the traces, ``PATH.0.json`` for the first pipeline rank; returns what the files are called.

    `path`: the beginning of the names; an ending ``.json`` is left out.
    Raises `InputError` when there is no timeline or a file cannot be written.
    """
    stem = str(Path(path).with_suffix("")) if path.endswith(".json") else path
    traces = as_json(result)
    for rank, trace in enumerate(traces):
        files.write(f"{stem}.{rank}.json", json.dumps(trace) + "\n")
    last = f"{Path(stem).name}.{len(traces) - 1}.json"
    return (f"one trace for each pipeline rank: {Path(stem).name}.0.json{'' if len(traces) == 1 else f' to {last}'}",)


def as_json(result: Result) -> list[dict[str, Any]]:
    """Return the trace of every pipeline rank as the JSON object of the format.

    Raises `InputError` when there is no timeline.
    """
    timeline = result.timeline
    if timeline is None or result.answer.plan is None:
        raise InputError("there is no timeline to write: nothing fits, or the cost model cannot tell how long the stages take")
    n_ranks = len(result.plan.ranks())
    kernels: list[list[Kernel]] = [[] for _ in range(n_ranks)]
    _spread(result, timeline, kernels)
    return [_trace(result, timeline, rank, sorted(own)) for rank, own in enumerate(kernels)]


def kernel_name(cause: str, sharded: bool = True, sequence_parallel: bool = True) -> str:
    """Return what NCCL calls the kernel of a cause of communication; what shards nothing reduces by all-reduce."""
    whole = (cause == "reduce" and not sharded) or (cause == "tensor" and not sequence_parallel)
    return f"ncclDevKernel_{'AllReduce' if whole else _KERNELS.get(cause, 'Generic')}: {cause}"


def _spread(result: Result, timeline: Timeline, kernels: list[list[Kernel]]) -> None:
    """Put every span into the list of its rank, the blocking communication of tasks as kernels of its own."""
    rank_of_stage = result.plan.rank_of_stage()
    columns = (timeline.stage, timeline.microbatch, timeline.phase, timeline.start_seconds, timeline.end_seconds)
    for stage, microbatch, code, start, end in zip(*(column.tolist() for column in columns), strict=True):
        phase, own = PHASES[code], kernels[rank_of_stage[stage]]
        strategy = result.plan.stages[stage].strategy
        name = kernel_name(phase, strategy.shard > 0) if phase in ("send", "reduce", "gather") else phase
        if phase == "send":
            own.append((start, end, _SEND, name, stage, microbatch))
        elif phase in ("reduce", "gather"):
            own.append((start, end, _REDUCE, name, stage, microbatch))
        else:
            parts = _parts(result.stage_costs[stage], phase) if result.stage_costs else [("", 1.0)]
            at = start
            for i, (cause, ratio) in enumerate(parts):
                until = end if i == len(parts) - 1 else at + ratio * (end - start)
                named = kernel_name(cause, True, strategy.sequence_parallel) if cause else name
                if until > at:
                    own.append((at, until, _COMPUTE, named, stage, microbatch))
                at = until


def _parts(cost: StageCost, phase: str) -> list[tuple[str, float]]:
    """Return the shares of a task: its compute (an empty cause) and what blocks it, by cause."""
    blocking = {"forward": cost.forward_communication, "backward": cost.backward_communication,
                "backward_input": cost.backward_communication}.get(phase, ())  # fmt: skip
    compute = {
        "forward": cost.forward_seconds,
        "backward": cost.backward_input_seconds + cost.backward_weight_seconds + cost.recompute_seconds,
        "backward_input": cost.backward_input_seconds + cost.recompute_seconds,
    }.get(phase, 1.0)
    total = compute + sum(seconds for _, seconds in blocking)
    if total <= 0.0:
        return [("", 1.0)]
    return [("", compute / total), *((cause, seconds / total) for cause, seconds in blocking if seconds > 0.0)]


def _trace(result: Result, timeline: Timeline, rank: int, kernels: list[Kernel]) -> dict[str, Any]:
    """Return the trace of one rank."""
    cluster, device = result.problem.cluster, result.plan.ranks()[rank][0]
    kind = "" if cluster is None else cluster.device(device).name
    streams = sorted({kernel[2] for kernel in kernels})
    titles = {_COMPUTE: "stream 7: compute", _REDUCE: "stream 20: reduce and gather", _SEND: "stream 24: sends"}
    events = names(0, f"pipeline rank {rank}, device {device}", {stream: titles[stream] for stream in streams})
    host = 1 + rank
    events += [event | {"pid": host} for event in names(0, "host", {_HOST: "launches"})]
    spans: list[dict[str, Any]] = [{
        "ph": "X", "name": "ProfilerStep#0", "cat": "user_annotation", "pid": host, "tid": _HOST, "ts": 0.0,
        "dur": float(microseconds(np.array([timeline.step_seconds]))[0]), "args": {"External id": 0},
    }]  # fmt: skip
    starts, ends = np.array([kernel[0] for kernel in kernels]), np.array([kernel[1] for kernel in kernels])
    times = zip(kernels, microseconds(starts).tolist(), durations(starts, ends).tolist(), strict=True)
    before = dict.fromkeys(streams, 0.0)
    for i, ((_, _, stream, name, stage, microbatch), ts, dur) in enumerate(times, 1):
        ids = {"correlation": i, "External id": i}
        launch = {"ph": "X", "name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": host, "tid": _HOST}
        spans.append({**launch, "ts": before[stream], "dur": 0.0, "args": {**ids, "cbid": 211}})
        args: dict[str, Any] = {**ids, "device": 0, "context": 1, "stream": stream, "stage": stage}
        args |= {"microbatch": microbatch} if microbatch >= 0 else {}
        args |= {"Collective name": "all_to_allv"} if name.endswith(": expert") else {}  # NCCL runs it as sends and receives
        spans.append({"ph": "X", "name": name, "cat": "kernel", "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args})
        before[stream] = ts
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": len(result.plan.ranks())},
        "deviceProperties": [{"id": 0, "name": kind}],
        "displayTimeUnit": "ms",
        "traceEvents": [*events, *in_order(spans)],
    }
