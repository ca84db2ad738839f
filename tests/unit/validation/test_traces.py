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


def kineto(name: str, start: float, seconds: float, stream: int = 7, *, category: str = "kernel") -> dict[str, object]:
    """Return an event of a device as a trace has it, its times in milliseconds, without a collective's name."""
    return event(name, start * 1e-3, seconds * 1e-3, category) | {"tid": stream, "args": {"device": 0, "stream": stream}}


def steps_of(path: pathlib.Path, events: list[dict[str, object]]) -> validation.TraceCauses:
    path.write_text(json.dumps({"traceEvents": events}))
    return validation.trace_causes(path)


def test_steps_marked_on_every_stream_last_from_start_to_start(tmp_path: pathlib.Path) -> None:
    """The device works 8 of 10 ms of each step; the communication's stream is marked for itself, from its own first kernel."""
    events = []
    for i in range(3):
        at = 100.0 + 10.0 * i
        events += [
            kineto(f"ProfilerStep#{5 + i}", at, 6.0, category="gpu_user_annotation"),
            kineto(f"ProfilerStep#{5 + i}", at + 5.0, 3.0, 20, category="gpu_user_annotation"),
            kineto("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT", at, 6.0),
            kineto("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", at + 5.0, 3.0, 20),
            kineto("module.py(1511): _wrapped_call_impl", at, 9.0, category="python_function"),
            kineto("nccl:all_reduce", at, 9.0, category="cpu_op"),
        ]
    found = steps_of(tmp_path / "trace.json", events)
    assert (found.n_steps, found.notes) == (2, ())
    assert found.step_seconds == pytest.approx(10e-3)
    assert dict(found.causes) == pytest.approx({"compute": 6e-3, "copy": 0.0, "all_reduce": 2e-3, "idle": 2e-3})
    assert dict(found.hidden) == pytest.approx({"all_reduce": 1e-3})


def test_one_step_lasts_as_long_as_on_the_host_and_a_gap_ends_the_steps(tmp_path: pathlib.Path) -> None:
    one = [
        kineto("ProfilerStep#7", 2.0, 6.0, category="gpu_user_annotation"),
        kineto("ProfilerStep#7", 0.0, 9.0, category="user_annotation"),
        kineto("sm90_xmma_gemm_bf16bf16_bf16f32", 2.0, 6.0),
    ]
    found = steps_of(tmp_path / "one.json", one)
    assert (found.n_steps, found.step_seconds) == (1, pytest.approx(9e-3)) and "one step is marked" in found.notes[0]
    assert dict(found.causes)["idle"] == pytest.approx(3e-3)
    apart = [kineto(f"ProfilerStep#{n}", at, 5.0, category="gpu_user_annotation") for n, at in ((7, 0), (8, 6), (20, 90))]
    found = steps_of(tmp_path / "gap.json", [*apart, kineto("gemm", 0.0, 5.0), kineto("gemm", 6.0, 5.0)])
    assert (found.n_steps, found.step_seconds) == (1, pytest.approx(6e-3)) and "steps after 8" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_receive"),
        ("ncclAllGatherRingLLKernel_sum_i8(ncclColl)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void deep_ep::internode::dispatch<false, 4, false>(int4*, float*)", "all_to_all"),
        ("void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>", "all_reduce"),
        ("kuserbuffers_pushrecv", "communication"),
        ("triton_poi_fused_all_gather_into_tensor_cat_3", "compute"),
        ("void small_gather_kernel<float>", "compute"),
        ("void at::native::reduce_kernel<512, 1>", "compute"),
    ],
)
def test_kernels_by_their_names(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    found = steps_of(tmp_path / "trace.json", [kineto(name, 0.0, 2.0)])
    assert {cause: seconds for cause, seconds in found.causes if seconds} == pytest.approx({kind: 2e-3})


def test_an_annotation_over_a_kernel_says_more_than_its_name_and_its_argument_more_than_both(tmp_path: pathlib.Path) -> None:
    """NCCL 2.13 calls kernels of any collective SendRecv; PyTorch marks the collective on the kernel's own stream."""
    wrong = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
    events = [
        kineto("nccl:_reduce_scatter_base", 0.0, 4.0, 20, category="gpu_user_annotation"),
        kineto("nccl:all_to_all", 0.0, 20.0, 24, category="gpu_user_annotation"),
        kineto(wrong, 1.0, 2.0, 20),
        kineto(wrong, 5.0, 2.0, 20),  # under no annotation
        event(wrong, 8e-3, 2e-3, collective="_allgather_base") | {"tid": 24},
    ]
    found = steps_of(tmp_path / "trace.json", events)
    told = {cause: seconds for cause, seconds in found.causes if seconds and cause != "idle"}
    assert told == pytest.approx({"reduce_scatter": 2e-3, "send_receive": 2e-3, "all_gather": 2e-3})


def test_copies_between_devices_communicate_and_spans_without_an_end_are_left_out(tmp_path: pathlib.Path) -> None:
    events = [
        kineto("Memcpy PtoP (Device -> Device)", 0.0, 1.0, category="gpu_memcpy"),
        kineto("Memcpy DtoD (Device -> Device)", 1.0, 1.0, category="gpu_memcpy"),
        kineto("Memcpy DtoH (Device -> Pinned)", 2.0, 1.0, category="Memcpy"),
        kineto("gemm", 3.0, float("nan")),
        kineto("gemm", 3.0, -1.0),
    ]
    found = steps_of(tmp_path / "trace.json", events)
    assert dict(found.causes) == pytest.approx({"communication": 1e-3, "compute": 1e-3, "copy": 1e-3, "idle": 0.0})
