"""``meshwright advise``: what was measured beside the prediction, and models that the file itself says."""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Any

import pytest

import meshwright as mw
from meshwright.api import measured_run
from meshwright.base.errors import InputError
from meshwright.core.result import Result

SCRIPT = """torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 \\
  --vocab-size 1000 --swiglu --micro-batch-size 1 --global-batch-size 32 --seq-length 128 --tensor-model-parallel-size 2 --bf16
"""
LOGS = {
    "megatron": ("elapsed time per iteration (ms): 90.0 |\nelapsed time per iteration (ms): 50.0\nelapsed time per iteration "
                 "(ms): 70.0 | max allocated: 512.5\n", 0.06, 512.5 * 2**20),
    "torchtitan": ("\x1b[32mstep: 1 memory: 2.50GiB(3%) tps: 1,024\x1b[0m\n", 32 * 128 / (1024 * 4), 2.5 * 2**30),
    "deepspeed": ("RunningAvgSamplesPerSec=7, CurrSamplesPerSec=64.0, MaxMemAllocated=1.5GB\n", 0.5, 1.5 * 2**30),
    "transformers": ("{'train_runtime': 9, 'train_steps_per_second': 4.0}\n", 0.25, 0.0),
    "other": ("step time: 0.125 s\n", 0.125, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_says_the_step_and_the_memory(kind: str, planned: Result, tmp_path: pathlib.Path) -> None:
    from dataclasses import replace

    text, seconds, n_bytes = LOGS[kind]
    (tmp_path / "log").write_text(text)
    plan = replace(planned.plan, global_batch=32)
    graph = replace(planned.problem.graph, sequence_length=128)
    spec = replace(planned.problem.model_spec, graph=graph)
    result = replace(planned, answer=replace(planned.answer, plan=plan), problem=replace(planned.problem, model_spec=spec))
    found = measured_run.read(str(tmp_path / "log"), result)
    assert found.step_seconds == pytest.approx(seconds) and found.peak_bytes == pytest.approx(n_bytes)
    assert found.causes == ()


def trace(**said: Any) -> dict[str, Any]:
    """Return two steps of 100 us: compute 0-60 and 100-160, a collective 50-80 and 150-190."""

    def kernel(name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": "kernel", "ts": ts, "dur": dur, "pid": 0, "tid": 7, "args": {"stream": 7}}

    steps = [{"ph": "X", "name": f"ProfilerStep#{k}", "cat": "user_annotation", "ts": 100.0 * k, "dur": 100.0, "pid": 1,
              "tid": 1} for k in range(2)]  # fmt: skip
    kernels = [kernel("gemm", 0, 60), kernel("gemm", 100, 60), kernel("ncclDevKernel_AllReduce", 50, 30),
               kernel("ncclDevKernel_AllReduce", 150, 40)]  # fmt: skip
    host = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 0.0, "dur": 200.0, "pid": 1, "tid": 1, "args": {}}
    return {"traceEvents": [*steps, *kernels, host, {"ph": "M", "name": "process_name"}], **said}


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_says_compute_and_what_communication_adds(packed: bool, planned: Result, tmp_path: pathlib.Path) -> None:
    path, text = tmp_path / "t.json", json.dumps(trace())
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = measured_run.read(str(path), planned)
    assert found.step_seconds == pytest.approx(100e-6) and "2 steps" in found.source
    assert dict(found.causes) == pytest.approx({"compute": 60e-6, "communication": 25e-6, "waiting": 15e-6})


def test_a_trace_of_the_prediction_is_the_prediction(meshwright: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    advice = mw.advise(str(tmp_path / "run.sh"), "dgx-h100:4")
    assert isinstance(advice, mw.Advice) and advice.measured is None
    assert advice.result.problem.graph.sequence_length == 128
    mw.export(advice.result, "kineto_trace", str(tmp_path / "trace"))
    words = ("advise", "run.sh", "--cluster", "dgx-h100:4", "--against", "trace.0.json")
    entry = meshwright(*words, "--json").json["against"]
    assert entry["step_seconds"]["measured"] == pytest.approx(entry["step_seconds"]["predicted"], rel=1e-6)
    for cause in entry["causes"].values():
        assert cause["measured"] == pytest.approx(cause["predicted"], rel=2e-3, abs=2e-6)
    assert entry["causes"]["compute"]["predicted"] > 0 < entry["causes"]["communication"]["predicted"]
    text = meshwright(*words).out
    assert "measured (a trace of 1 step) beside predicted" in text and "communication: " in text


def test_the_model_is_what_the_file_says_or_is_asked_for(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    question = (
        "--cluster",
        "dgx-h100:4",
        "--global-batch",
        "16",
        "--sequence-length",
        "128",
        "--for",
        "fsdp2",
        "--within",
        "0",
    )
    meshwright("plan", tiny, *question, "--out", "plan.json", "--json")
    assert meshwright("export", "plan.json", "--to", "fsdp2", "--out", "train.py").code == 0
    own, named = (meshwright("advise", "train.py", "--cluster", "dgx-h100:4", *more, "--json").json
                  for more in ((), ("--model", tiny)))  # fmt: skip
    assert own["step_seconds"] == named["step_seconds"] and own["best"]["step_seconds"] == named["best"]["step_seconds"]
    (tmp_path / "a.json").write_text('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}')
    done = meshwright("advise", "a.json", "--cluster", "dgx-h100:4")
    assert done.code == 2 and "deepspeed does not say the model; give --model" in done.err and len(done.err.splitlines()) == 1


def test_torchtitans_flavors_are_built_in_models(tmp_path: pathlib.Path) -> None:
    from meshwright import frameworks

    path = tmp_path / "a.py"
    text = "from torchtitan.models.{} import model_registry\nc.model_spec = model_registry('{}')\nc.training.seq_len = 64\n"
    for family, flavor, name in (("llama3", "8B", "llama-3.1-8b"), ("qwen3", "30B-A3B", "qwen3-30b-a3b")):
        path.write_text(text.format(family, flavor))
        spec = frameworks.load("torchtitan").model_of(str(path))
        assert (spec.name, spec.graph.sequence_length) == (name, 64)
    path.write_text(
        "from torchtitan.models.llama3.config_registry import llama3_70b\nc = llama3_70b()\nc.training.seq_len = 8\n"
    )
    assert frameworks.load("torchtitan").model_of(str(path)).name == "llama-3.1-70b"
    for family, flavor, told in (("qwen3", "0.6B", "none of the built-in models"), ("llama3", "", "names the model")):
        path.write_text(text.format(family, flavor))
        with pytest.raises(InputError, match=f"{told}.*--model"):
            frameworks.load("torchtitan").model_of(str(path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read"), ("hello\n", "says nothing of the time of a step"),
        ('{"traceEvents": [{"ph": "X"}]}', "holds no kernels"), ('{"traceEvents": 3, "ph": 1}', "no list traceEvents"),
        ('{"ph": 1', "is no JSON"), ('{"traceEvents": [{"ph": "X", "args": {"stream": 1}}]}', "lacks ts or dur"),
    ],
)  # fmt: skip
def test_what_says_nothing_is_one_line(text: str | None, told: str, planned: Result, tmp_path: pathlib.Path) -> None:
    if text is not None:
        (tmp_path / "x").write_text(text)
    with pytest.raises(InputError, match=told) as caught:
        measured_run.read(str(tmp_path / "x"), planned)
    assert "\n" not in str(caught.value)
