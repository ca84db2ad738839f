"""A profiler's trace as seconds by cause: what is hidden is not counted twice, and the sum is the step."""

from __future__ import annotations

import gzip
import json
import pathlib

import pytest

from meshwright import validation
from meshwright.base.errors import InputError


def event(
    name: str, start: float, seconds: float, category: str = "kernel", *, device: int = 0, collective: str = ""
) -> dict[str, object]:
    """Return an event, its times in microseconds as in a trace."""
    return {
        "ph": "X", "cat": category, "name": name, "ts": start * 1e6, "dur": seconds * 1e6, "pid": 0, "tid": 7,
        "args": {"device": device} | ({"Collective name": collective} if collective else {}),
    }  # fmt: skip


EVENTS = [
    event("ProfilerStep#3", 10.0, 5.0, "user_annotation"), event("ProfilerStep#4", 15.0, 5.0, "user_annotation"),
    event("nvjet_tst_192x192", 9.0, 3.0),  # a second of it before the steps
    event("void at::native::elementwise_kernel", 11.5, 1.5),  # half a second beside the first
    event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 12.0, 2.0),  # half of it hidden
    event("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)", 13.5, 1.0),  # half of it beside the gather
    event("ncclDevKernel_SendRecv(...)", 15.0, 1.0, collective="all_to_allv"),
    event("ncclDevKernel_SendRecv(...)", 16.0, 2.0),
    event("Memcpy HtoD (Pinned -> Device)", 18.0, 0.5, "gpu_memcpy"),
    event("nvjet_of_another_device", 10.0, 9.0, device=1),
    {"ph": "i", "name": "no span"}, "no event",
]  # fmt: skip


def test_causes_add_up_to_the_step_and_hidden_communication_is_told_apart(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    found = validation.trace_causes(path)
    causes = dict(found.causes)
    assert found.n_steps == 2 and found.step_seconds == pytest.approx(5.0)
    assert causes == pytest.approx(
        {
            "compute": 1.5,
            "copy": 0.25,
            "all_gather": 0.5,
            "reduce_scatter": 0.25,
            "all_to_all": 0.5,
            "send_receive": 1.0,
            "idle": 1.0,
        }
    )
    assert sum(causes.values()) == pytest.approx(found.step_seconds)
    assert dict(found.hidden)["all_gather"] == pytest.approx(0.5)  # per step: a second beside computing of two steps
    assert found.notes == ("kernels of 2 devices; those of device 0, which has most, are taken",)
    assert validation.is_trace(path) and not validation.is_trace(tmp_path / "other.json")


def test_measured_and_predicted_stand_side_by_side(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    predicted = (("compute", 1.0), ("optimizer", 0.2), ("gather", 0.3), ("reduce", 0.1), ("bubble", 0.4), ("new cause", 0.05))
    rows = validation.beside(validation.trace_causes(path), predicted)
    assert [name for name, _, _ in rows] == ["compute", "collectives", "waiting", "other"]
    assert [value for _, value, _ in rows] == pytest.approx([1.75, 1.25, 2.0, 0.0])
    assert [value for _, _, value in rows] == pytest.approx([1.2, 0.4, 0.4, 0.05])


def test_without_marked_steps_all_kernels_are_one_step_and_a_broken_file_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS[2:5]}))
    found = validation.trace_causes(path)
    assert found.step_seconds == pytest.approx(5.0) and "marked no steps" in found.notes[0]
    path.write_text(json.dumps({"traceEvents": EVENTS})[:-40])
    with pytest.raises(InputError, match=r"trace.json: is no whole JSON file; was the trace cut off"):
        validation.trace_causes(path)
    path.write_text(json.dumps({"traceEvents": EVENTS[:2]}))
    with pytest.raises(InputError, match=r"holds no kernels"):
        validation.trace_causes(path)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"has no traceEvents"):
        validation.trace_causes(path)
