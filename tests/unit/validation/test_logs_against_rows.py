"""What a log says against the row, the model, the cluster and the configuration beside it: a contradiction is never silent."""

from __future__ import annotations

import math
import pathlib

import pytest

from meshwright import validation
from meshwright.base.errors import InputError

ARGUMENTS = {
    "bf16": "True", "global_batch_size": "128", "hidden_size": "4096", "micro_batch_size": "1", "num_attention_heads": "32",
    "num_layers": "32", "overlap_grad_reduce": "True", "seq_length": "8192", "sequence_parallel": "True",
    "tensor_model_parallel_size": "4", "use_distributed_optimizer": "True", "world_size": "8",
}  # fmt: skip
HEADER = "model,cluster,framework,config,log,global_batch,micro_batch,data,tensor,pipeline,step_seconds,reserved_gib"


def megatron(*seconds: float, more: str = "", **changed: str) -> str:
    """Return a log of Megatron-LM with steps of so many seconds."""
    options = "".join(f"  {name} ........ {value}\n" for name, value in (ARGUMENTS | changed).items())
    lines = "".join(
        f" iteration {i:8d}/ 500 | elapsed time per iteration (ms): {1e3 * one} | global batch size: 128 |\n"
        for i, one in enumerate(seconds, 1)
    )
    return f"------------------------ arguments ------------------------\n{options}----- end of arguments -----\n{lines}{more}"


def deepspeed(**more: str) -> str:
    """Return a log of DeepSpeed, its names padded to 29 characters as DeepSpeed does."""
    said = {
        "train_batch_size": "64", "train_micro_batch_size_per_gpu": "2", "zero_optimization_stage": "3", "world_size": "8",
        **more,
    }  # fmt: skip
    head = "".join(
        f"[2026-10-01 10:00:00,000] [INFO] [config.py:996:print]   {k} {'.' * (29 - len(k))} {v}\n" for k, v in said.items()
    )
    steps = "".join(
        f"[2026-10-01 10:{i:02d}:00,000] [INFO] [timer.py:260:stop] epoch=0/global_step={8 * i}, RunningAvgSamplesPerSec=8.5, "
        "CurrSamplesPerSec=8.533, MaxMemAllocated=50.1GB\n"
        for i in range(1, 9)
    )
    return head + steps


def row(folder: pathlib.Path, log: str, **cells: str) -> validation.Point | validation.Skipped:
    """Return the row of a log."""
    (folder / "run.log").write_text(log)
    told = {"model": "llama-3.1-8b", "cluster": "dgx-h100:8", "log": "run.log", **cells}
    (folder / "runs.csv").write_text(f"{HEADER}\n{','.join(told.get(name, '') for name in HEADER.split(','))}\n")
    report = validation.validate(folder / "runs.csv")
    return (*report.points, *report.skipped)[0]


def refusal(folder: pathlib.Path, log: str, **cells: str) -> str:
    """Return why a row of a log is not predicted."""
    try:
        found = row(folder, log, **cells)
    except InputError as error:
        return str(error)
    assert isinstance(found, validation.Skipped)
    return found.reason


def test_a_log_of_few_lines_is_read_without_its_first(tmp_path: pathlib.Path) -> None:
    for seconds, median in (((45.0, 14.0), 14.0), ((45.0, 14.0, 16.0), 15.0)):
        found = row(tmp_path, megatron(*seconds))
        assert isinstance(found, validation.Point) and found.measured_seconds == median
    assert "line 15: times the first step alone" in refusal(tmp_path, megatron(45.0))


def test_a_run_that_ends_for_want_of_memory_counts_as_failed(tmp_path: pathlib.Path) -> None:
    out = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = row(tmp_path, megatron(45.0, 14.0, 14.0, more=out))
    assert isinstance(found, validation.Point) and math.isinf(found.measured_seconds) and not found.ran
    assert "line 18 of the log: memory ran out; the run counts as failed" in found.note
    caught = out + megatron(45.0, 14.0, 14.0)  # a run that was started again, and went on
    assert isinstance(again := row(tmp_path, caught), validation.Point) and again.ran
    assert "line 1 memory ran out before a step: say oom" in refusal(tmp_path, out)
    assert "step_seconds is oom, but the log" in refusal(tmp_path, megatron(45.0, 14.0, 14.0), step_seconds="oom")


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"hidden_size": "8192"}, "--hidden-size: is 8192, but llama-3.1-8b has 4096: another model?"),
     ({"num_layers": "80"}, "--num-layers: makes 80 layers, but llama-3.1-8b has 32: another model?")],
)  # fmt: skip
def test_a_log_of_another_model_is_refused(changed: dict[str, str], said: str, tmp_path: pathlib.Path) -> None:
    assert said in refusal(tmp_path, megatron(14.0, 14.0, 14.0, **changed))


def test_attention_that_is_not_fused_is_priced_as_such(tmp_path: pathlib.Path) -> None:
    plain, unfused = (
        row(tmp_path, megatron(20.0, 20.0, 20.0, attention_backend=f"AttnBackend.{word}")) for word in ("auto", "unfused")
    )
    assert isinstance(plain, validation.Point) and isinstance(unfused, validation.Point)
    assert unfused.predicted_seconds > 1.3 * plain.predicted_seconds


@pytest.mark.parametrize(
    ("cells", "said"),
    [({"step_seconds": "20"}, "step_seconds is 20, but the log"), ({"reserved_gib": "20"}, "reserved_gib is 20, but the log")],
)
def test_what_was_measured_is_told_once_or_alike(cells: dict[str, str], said: str, tmp_path: pathlib.Path) -> None:
    memory = "[Rank 0] (after 10 iterations) memory (MB) | max allocated: 48000.0 | max reserved: 52000.0\n"
    assert said in refusal(tmp_path, megatron(14.0, 14.0, 14.0, more=memory), **cells)
    near = {"step_seconds": "14.2", "reserved_gib": "51"}
    assert isinstance(row(tmp_path, megatron(14.0, 14.0, 14.0, more=memory), **near), validation.Point)


@pytest.mark.parametrize(
    ("options", "said"),
    [("--tensor-model-parallel-size 2", "tensor is 4, but"), ("--tensor-model-parallel-size 4", "recompute is none, but")],
)
def test_a_configuration_against_the_options_in_the_log_is_refused(options: str, said: str, tmp_path: pathlib.Path) -> None:
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        f"--bf16 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 "
        f"--sequence-parallel {full} --use-distributed-optimizer {options}\n"
    )
    text = refusal(tmp_path, megatron(14.0, 14.0, 14.0), config="run.sh", framework="megatron")
    assert "column config: by" in text and said in text


def test_what_deepspeed_prints_without_dots_is_read(tmp_path: pathlib.Path) -> None:
    found = row(tmp_path, deepspeed())
    assert isinstance(found, validation.Point) and found.measured_seconds == pytest.approx(7.5)
    assert "micro_batch is 4, but the log" in refusal(tmp_path, deepspeed(), micro_batch="4")


def test_what_deepspeed_keeps_on_the_host_or_in_fp32_is_not_priced_otherwise(tmp_path: pathlib.Path) -> None:
    away = "stage=3 offload_param=DeepSpeedZeroOffloadParamConfig(device='cpu', nvme_path=None) overlap_comm=True"
    assert "offload_param lies on cpu" in refusal(tmp_path, deepspeed(zero_config=away))
    for named in (away.replace("'cpu'", "<OffloadDeviceEnum.cpu: 'cpu'>"), "stage=2 cpu_offload=True"):
        assert "by its zero_config, which cells of a row cannot say" in refusal(tmp_path, deepspeed(zero_config=named))
    none = "stage=3 offload_param=None offload_optimizer=None overlap_comm=True"
    assert isinstance(row(tmp_path, deepspeed(zero_config=none)), validation.Point)
    single = refusal(tmp_path, deepspeed(bfloat16_enabled="False", fp16_enabled="False"))
    assert "at the fp32 peak of 8 devices" in single


def test_the_file_that_deepspeed_prints_is_read_as_one(tmp_path: pathlib.Path) -> None:
    def block(zero: str) -> str:
        start = "[2026-10-01 10:00:00,000] [INFO] [config.py:986:print_user_config]   json = "
        return start + '{\n    "zero_optimization": {\n        "stage": 3' + zero + "\n    }\n}\n" + deepspeed()

    away = ', \n        "offload_optimizer": {\n            "device": "cpu"\n        }'
    assert "offload_optimizer lies on cpu by its configuration" in refusal(tmp_path, block(away))
    found = row(tmp_path, block(', \n        "zero_quantized_weights": true'))
    assert isinstance(found, validation.Point) and "zero_quantized_weights: weights are priced as gathered" in found.note
    plain = row(tmp_path, block(""))
    assert isinstance(plain, validation.Point) and "configuration in the log" not in plain.note
    told = row(tmp_path, deepspeed(grad_accum_dtype="fp32"))
    assert isinstance(told, validation.Point) and "grad_accum_dtype: gradients are priced in two bytes" in told.note


def test_reductions_that_a_log_says_run_late_are_priced_so(tmp_path: pathlib.Path) -> None:
    """DeepSpeed's own lines tell the variant of a framework that starts it; a row that names one is left as it is."""
    off, on = (deepspeed(zero_optimization_stage="2", zero_config=f"stage=2 overlap_comm={word}") for word in ("False", "True"))

    def priced(log: str, **cells: str) -> validation.Point:
        found = row(tmp_path, log, **cells)
        assert isinstance(found, validation.Point) and found.kind is not None
        return found

    late, beside = priced(off), priced(on)
    assert late.kind.framework == "deepspeed:late_reduce" and beside.kind.framework == "deepspeed"
    assert late.predicted_seconds > beside.predicted_seconds and "overlap_comm is off" in late.note
    named = priced(off, framework="deepspeed")
    assert named.kind == late.kind and "by the log's lines deepspeed is deepspeed:late_reduce" in named.note
    assert priced(on, framework="deepspeed").note == beside.note
    for word, variant in (("transformers", "transformers:deepspeed"), ("accelerate", "deepspeed")):
        assert priced(on, framework=word).kind.framework == variant
    assert priced(off, framework="transformers").kind.framework == "transformers:deepspeed_late"
    assert priced(on, framework="deepspeed:late_reduce").kind.framework == "deepspeed:late_reduce"


def test_a_setting_that_a_log_prints_twice_counts_as_it_stands_last_and_is_said(tmp_path: pathlib.Path) -> None:
    again = megatron(14.0, 14.0, 14.0).replace("----- end of", "  micro_batch_size ........ 2\n----- end of")
    found = row(tmp_path, again)
    assert isinstance(found, validation.Point) and "micro_batch_size is printed once more, as 2, not 1" in found.note
    same = megatron(14.0, 14.0, 14.0).replace("----- end of", "  micro_batch_size ........ 1\n----- end of")
    assert isinstance(same_row := row(tmp_path, same), validation.Point) and "printed once more" not in same_row.note
    line = "[2026-10-01 10:00:00,000] [INFO] [config.py:996:print]   {} ......... {}\n"
    twice = line.format("train_batch_size", "32") + line.format("x", "<X object at 0x1a>") + deepspeed(x="<X object at 0x2b>")
    found = row(tmp_path, twice)
    assert isinstance(found, validation.Point) and "train_batch_size is printed once more, as 64, not 32" in found.note
    assert "<X object" not in found.note


def trainer(begun: str = "", rate: str = "9.85", runtime: str = "1014.0") -> str:
    """Return what the Trainer prints of 156 steps."""
    return (
        "***** Running training *****\n  Num examples = 10,000\n  Num Epochs = 1\n  Instantaneous batch size per device = 2\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n  Gradient Accumulation steps = 4\n"
        f"  Total optimization steps = 156\n{begun}"
        f"{{'train_runtime': {runtime}, 'train_samples_per_second': {rate}, 'train_steps_per_second': 0.154}}\n"
    )


def test_a_resumed_trainer_ran_the_steps_that_were_left(tmp_path: pathlib.Path) -> None:
    cells = {"tensor": "1", "pipeline": "1", "framework": "transformers"}
    begun = "  Continuing training from global step 100\n"
    whole, resumed = (row(tmp_path, text, **cells) for text in (trainer(), trainer(begun, "27.47", "364.0")))
    assert isinstance(whole, validation.Point) and isinstance(resumed, validation.Point)
    assert (whole.measured_seconds, resumed.measured_seconds) == (6.5, 6.5) and "from step 100" in resumed.note
    assert "30.1 samples/s make 2.126 s" in refusal(tmp_path, trainer(rate="30.1"), **cells)


TITAN = (
    "[titan] 2026-01-01 10:00:00,000 - root - INFO - Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, "
    "cp=1, tp=1\n[titan] 2026-01-01 10:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n"
    "[titan] 2026-01-01 10:00:00,000 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters\n"
    "[titan] 2026-01-01 10:00:00,000 - root - INFO - Compiling each TransformerBlock with torch.compile\n"
    "[titan] 2026-01-01 10:00:00,000 - root - INFO - Applied FSDP to the model\n"
    "[titan] 2026-01-01 10:00:00,000 - root - INFO - Trainer is initialized with local batch size 1, global batch size 8, "
    "gradient accumulation steps 1, sequence length 8192, total steps 100\n"
) + "".join(
    f"[titan] 2026-01-01 10:00:{20 + 2 * i:02d},000 - root - INFO - step: {i}  loss: 2.1  memory: 48.00GiB(60.1%)  tps: 4,096\n"
    for i in range(1, 8)
)


@pytest.mark.parametrize(
    ("model", "cluster", "said"),
    [("llama-3.1-8b", "dgx-a100:8", "line 2: ran on H100 SXM, but dgx-a100:8 has A100-SXM-80GB: another cluster?"),
     ("mistral-7b", "dgx-h100:8", "is of a model with 8.03 billion weights, but mistral-7b has 7.242: another model?"),
     ("llama-3.1-8b", "pcie-h100:8", "line 2: ran on H100 SXM, but pcie-h100:8 has H100-PCIe-80GB: another cluster?"),
     ("llama-3.1-8b", "hgx-h100-96:8", "line 2: ran on H100 SXM with 79.1 GiB, but hgx-h100-96:8 has H100-SXM-96GB"),
     ("llama-3.1-8b", "dgx-h100:8", "")],
)  # fmt: skip
def test_the_device_and_the_weights_that_a_log_names_count(model: str, cluster: str, said: str, tmp_path: pathlib.Path) -> None:
    if said:
        assert said in refusal(tmp_path, TITAN, model=model, cluster=cluster)
    else:
        assert isinstance(row(tmp_path, TITAN, model=model, cluster=cluster), validation.Point)


@pytest.mark.parametrize("name", ["H100 PCIe", "H100 NVL", "H800", "AMD Instinct MI300X"])
def test_other_boards_and_makers_are_other_devices(name: str, tmp_path: pathlib.Path) -> None:
    other = TITAN.replace("NVIDIA H100 80GB HBM3", name if "AMD" in name else f"NVIDIA {name}")
    assert "but dgx-h100:8 has H100-SXM-80GB: another cluster?" in refusal(tmp_path, other)


def test_what_torchtitan_keeps_on_the_host_is_not_priced_on_the_device(tmp_path: pathlib.Path) -> None:
    away = TITAN.replace(
        "- Applied FSDP to the model\n", "- Applied FSDP to the model\n[titan] Applied CPU Offloading to the model\n"
    )
    assert "weights, gradients and optimizer state lie on the host by line 6" in refusal(tmp_path, away)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("swiglu", "False", "--swiglu: is not set, but llama-3.1-8b has gated feed-forward networks: another model?"),
     ("untie_embeddings_and_output_weights", "False", "is not set, but llama-3.1-8b has a head of its own: another model?"),
     ("window_size", "(512, 0)", "--window-size: is 512,0, but llama-3.1-8b has no sliding windows: another model?"),
     ("hybrid_layer_pattern", "M*M*", "--hybrid-layer-pattern: state-space layers; plans have nothing like it"),
     ("use_torch_fsdp2", "True", "--use-torch-fsdp2: PyTorch's FSDP2 in Megatron-Core; plans have nothing like it")],
)  # fmt: skip
def test_arguments_of_another_model_or_program_are_refused(name: str, value: str, said: str, tmp_path: pathlib.Path) -> None:
    assert said in refusal(tmp_path, megatron(14.0, 14.0, 14.0, **{name: value}))


def test_arguments_that_are_priced_otherwise_are_said_and_usual_ones_not(tmp_path: pathlib.Path) -> None:
    usual = {
        "attention_dropout": "0.0", "cuda_graph_impl": "none", "deterministic_mode": "False", "exp_avg_dtype": "torch.float32",
        "main_grads_dtype": "torch.float32", "swiglu": "True", "timing_log_level": "0", "window_size": "None",
        "tensor_parallel_num_weight_shards": "1",
        "use_precision_aware_optimizer": "False", "untie_embeddings_and_output_weights": "True", "num_query_groups": "1",
    }  # fmt: skip
    other = {
        "attention_dropout": "0.1", "cuda_graph_impl": "local", "deterministic_mode": "True",
        "main_grads_dtype": "torch.bfloat16", "use_precision_aware_optimizer": "True",
    }  # fmt: skip
    plain, found = (row(tmp_path, megatron(14.0, 14.0, 14.0, **{**usual, **more})) for more in ({}, other))
    assert isinstance(plain, validation.Point) and isinstance(found, validation.Point) and not plain.note
    for name in other:
        assert f"--{name.replace('_', '-')}" in found.note


def test_the_weights_that_the_trainer_trains_are_the_row_s(tmp_path: pathlib.Path) -> None:
    cells = {"tensor": "1", "pipeline": "1", "framework": "transformers"}
    for told, said in (("6,815,744", "line 8: 6,815,744 weights are trained, but 8,030,261,248 of llama-3.1-8b"),
                       ("7,241,732,096", "or another model?"), ("8,030,261,248", ""), ("1,003,782,656", "")):  # fmt: skip
        text = trainer().replace("{'train", f"  Number of trainable parameters = {told}\n{{'train")
        found = row(tmp_path, text, **cells)
        assert isinstance(found, validation.Skipped if said else validation.Point)
        assert said in getattr(found, "reason", "")


def test_a_framework_that_prints_no_such_log_is_refused(tmp_path: pathlib.Path) -> None:
    log = megatron(14.0, 14.0, 14.0)
    assert "framework is torchtitan, but the log" in refusal(tmp_path, log, framework="torchtitan")
    assert "has the lines of megatron; correct one of them" in refusal(tmp_path, log, framework="fsdp2")
    late = refusal(tmp_path, log, framework="megatron:plain+late_reduce")
    assert "framework is megatron:plain+late_reduce, but" in late and "says plain; correct one of them" in late
    for word in ("megatron", "megatron:plain", "megatron_bridge", "megatron_deepspeed"):
        assert isinstance(row(tmp_path, log, framework=word), validation.Point)


def test_a_step_that_the_peak_does_not_allow_is_refused(tmp_path: pathlib.Path) -> None:
    """128 samples of 8,192 tokens of 8 billion weights are 54 PFLOP: 6.8 s at the peak of eight H100."""
    text = refusal(tmp_path, megatron(3.2, 3.2, 3.2))
    assert "a step of 3.2 s is shorter than the 6.819 s" in text and "at the bf16 peak of 8 devices" in text
    assert isinstance(row(tmp_path, megatron(7.0, 7.0, 7.0)), validation.Point)


def test_a_time_that_is_infinite_is_no_number(tmp_path: pathlib.Path) -> None:
    cells = {"global_batch": "128", "micro_batch": "1", "data": "2", "tensor": "4", "pipeline": "1", "step_seconds": "inf"}
    with pytest.raises(InputError, match="step_seconds is inf; it must be a number above 0"):
        row(tmp_path, megatron(14.0, 14.0, 14.0), **cells)


def test_rows_that_a_file_was_calibrated_to_are_not_held_out(tmp_path: pathlib.Path) -> None:
    first = row(tmp_path, megatron(20.0, 20.0, 20.0))
    assert isinstance(first, validation.Point)
    found = validation.calibrate(tmp_path / "runs.csv", framework="megatron")
    validation.write_calibration(found, str(tmp_path / "mine.toml"))
    report = validation.validate(tmp_path / "runs.csv", framework=str(tmp_path / "mine.toml"))
    assert not report.held_out and "1 rows are among those that their framework file was calibrated to" in report.notes[0]
    (tmp_path / "others.csv").write_text((tmp_path / "runs.csv").read_text().replace("run.log", "again.log"))
    (tmp_path / "again.log").write_text(megatron(19.0, 19.0, 19.0))
    other = validation.validate(tmp_path / "others.csv", framework=str(tmp_path / "mine.toml"))
    assert other.held_out == {1} and not other.notes
    with pytest.raises(InputError, match="is a file; calibrate starts from a built-in one"):
        validation.calibrate(tmp_path / "runs.csv", framework=str(tmp_path / "mine.toml"))
