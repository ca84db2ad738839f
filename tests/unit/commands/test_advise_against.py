"""``meshwright advise``: what was measured beside the prediction, and models that the file itself says."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import meshwright as mw
from meshwright import validation
from meshwright.base.errors import InputError

SCRIPT = """torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 \\
  --vocab-size 1000 --max-position-embeddings 128 --swiglu --micro-batch-size 1 --global-batch-size 32 --seq-length 128 \\
  --tensor-model-parallel-size 2 --bf16
"""


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
    assert entry["causes"]["compute"]["predicted"] > 0 < entry["causes"]["collectives"]["predicted"]
    text = meshwright(*words).out
    assert "measured (a trace of 1 step) beside predicted" in text and "collectives: " in text


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


MEGATRON = "".join(
    f" iteration {k:8d}/ 100 | consumed samples: {32 * k} | elapsed time per iteration (ms): "
    f"{90.0 if k == 1 else 50 + k % 3:.1f} | "
    f"learning rate: 1.0E-04 | global batch size: {size} |\n"
    for size in (32,) for k in range(1, 8)
)  # fmt: skip


def test_a_log_says_the_step(meshwright: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "train.log").write_text(MEGATRON)
    words = ("advise", "run.sh", "--cluster", "dgx-h100:4", "--against", "train.log")
    entry = meshwright(*words, "--json").json
    assert entry["against"]["kind"] == "log" and entry["against"]["causes"] == {}
    assert entry["against"]["step_seconds"] == {"measured": pytest.approx(0.051, abs=1e-3), "predicted": entry["step_seconds"]}
    assert "beside predicted" in meshwright(*words).out


@pytest.mark.parametrize(
    ("text", "told"), [(None, "cannot be read"), ("hello\n", "has none of"), ('{"traceEvents": []}', "kernels")]
)
def test_what_says_nothing_is_one_line(text: str | None, told: str, meshwright: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    done = meshwright("advise", "run.sh", "--cluster", "dgx-h100:4", "--against", "x.json")
    assert done.code == 2 and told in done.err and len(done.err.splitlines()) == 1 and not done.out


def test_a_log_of_another_framework_than_the_file_is_said(meshwright: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    words = ("advise", "run.sh", "--cluster", "dgx-h100:4", "--against", "train.log")
    said = "train.log: lines of maxtext, for a configuration of megatron"
    for line, foreign in (
        ("completed step: {i}, seconds: 0.05, TFLOP/s/device: 1.0, loss: 2.0", True),
        ("iteration {i}/ 9 | elapsed time per iteration (ms): 50.0 | global batch size: 32 |", False),
    ):
        (tmp_path / "train.log").write_text("".join(line.format(i=i) + "\n" for i in range(1, 9)))
        assert (said in meshwright(*words).out) == foreign


def test_a_log_of_another_configuration_is_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.json").write_text('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}')
    head = "[2023-12-29 13:02:00,000] [INFO] [config.py:1003:print]   {} .... {}\n"
    line = (
        "[2023-12-29 13:02:{:06.3f}] [INFO] [timer.py:260:stop] epoch=0/micro_step=0/global_step={}, RunningAvgSamplesPerSec=1"
    )
    said = (("train_batch_size", 8), ("world_size", 8), ("fp16_enabled", True))
    steps = (f"{line.format(step, 10 * step)}, CurrSamplesPerSec=80, MaxMemAllocated=3.5GB\n" for step in range(1, 9))
    (tmp_path / "run.log").write_text("".join((*(head.format(*cells) for cells in said), *steps)))
    log = str(tmp_path / "run.log")
    measured = mw.advise(str(tmp_path / "a.json"), "dgx-h100:4", model="gpt2", framework="deepspeed", against=log).measured
    assert isinstance(measured, validation.MeasuredRun)
    assert f"{log}: data 8, for a configuration with 4" in measured.notes
    assert f"{log}: products in fp16, for a configuration with bf16" in measured.notes
    assert f"{log}: devices 8, for a configuration with 4" in measured.notes


def test_a_log_of_another_batch_is_said(meshwright: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    words = ("advise", "run.sh", "--cluster", "dgx-h100:4", "--against", "train.log")
    line = "iteration {i}/ 9 | elapsed time per iteration (ms): 50.0 | global batch size: {batch} |\n"
    for batch in (16, 32):
        (tmp_path / "train.log").write_text("".join(line.format(i=i, batch=batch) for i in range(1, 9)))
        said = f"train.log: global batch {batch}, for a configuration with 32"
        assert (said in meshwright(*words).out) == (batch != 32)
