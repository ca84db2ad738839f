"""Runs read from logs: the median after warm-up in seconds, what the log says of the plan, contradictions refused."""

from __future__ import annotations

import gzip
import json
import pathlib

import pytest

from meshwright import validation
from meshwright.base.errors import InputError

ARGUMENTS = """using world size: 8, data-parallel size: 2
------------------------ arguments ------------------------
  bf16 ............................................ True
  micro_batch_size ................................ 1
  recompute_granularity ........................... None
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 4
  virtual_pipeline_model_parallel_size ............ 2
  fp8 ............................................. hybrid
  recompute_modules ............................... ['core_attn', 'mlp']
  world_size ...................................... 8
-------------------- end of arguments ---------------------
"""


def megatron(step: int, milliseconds: float, batch: int = 256, more: str = "") -> str:
    """Return an iteration line of Megatron-LM."""
    return (
        f" [2024-05-01 12:00:00] iteration {step:8d}/  500000 | consumed samples: {step * batch:12d} | elapsed time per "
        f"iteration (ms): {milliseconds} | throughput per GPU (TFLOP/s/GPU): 410.5 | learning rate: 1.0E-04 | global batch "
        f"size: {batch:5d} | lm loss: 1.0E+01 | number of nan iterations:   0 |{more}"
    )


def stored(folder: pathlib.Path, *lines: str, name: str = "run.log") -> pathlib.Path:
    """Return a file of lines."""
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_megatron_lines_give_the_median_after_warm_up_and_the_arguments(tmp_path: pathlib.Path) -> None:
    lines = [megatron(step, 9000.0 if step <= 10 else 3000.0 + step) for step in range(1, 31)]
    lines[24] = megatron(25, 60000.0)
    memory = "[Rank 0] (after 1 iterations) memory (MB) | max allocated: 2048.0 | reserved: 1 | max reserved: 4096.0"
    run = validation.measured_run(stored(tmp_path, ARGUMENTS, memory, *lines))
    assert run.framework == "megatron"
    assert run.step_seconds == pytest.approx(3.0205) and (run.n_entries, run.n_warm_up, run.n_slow) == (20, 10, 1)
    assert run.global_batch == 256 and run.device_flops_per_second == pytest.approx(410.5e12)
    assert run.allocated_bytes == 2.0**31 and run.reserved_bytes == 2.0**32
    assert run.settings["devices"] == "8"
    assert run.options["--tensor-model-parallel-size"] == ("4",) and run.options["--sequence-parallel"] == ()
    assert run.options["--num-virtual-stages-per-pipeline-rank"] == ("2",) and run.options["--fp8-format"] == ("hybrid",)
    assert run.options["--recompute-modules"] == ("core_attn", "mlp") and "--recompute-granularity" not in run.options
    assert "1 of them more than 1.5 times as long" in run.words and "10 before them left out" in run.words


@pytest.mark.parametrize(
    "before", ["0: ", "node-1.cluster: ", "2024-05-01T12:00:00.123Z stdout F ", "(Actor pid=1) ", "[default0]:"]
)
def test_what_launchers_write_before_a_line_hides_no_argument(before: str, tmp_path: pathlib.Path) -> None:
    lines = [*ARGUMENTS.splitlines(), *(megatron(step, 3000.0) for step in range(1, 16))]
    bare = validation.measured_run(stored(tmp_path, *lines))
    found = validation.measured_run(stored(tmp_path, *(before + line for line in lines)))
    assert found.options == bare.options and found.options["--world-size"] == ("8",)
    assert (found.settings, found.step_seconds) == (bare.settings, bare.step_seconds)


def test_lines_that_cannot_be_read_are_said_with_their_row_and_other_batches_left_out(tmp_path: pathlib.Path) -> None:
    ramp = [megatron(step, 1000.0, 128) for step in range(11, 15)]
    good = [megatron(step, 2000.0) for step in range(15, 20)]
    run = validation.measured_run(
        stored(tmp_path, *ramp, *good, megatron(20, float("nan")), " iteration       21/  500000 | consu")
    )
    assert run.step_seconds == 2.0 and run.n_entries == 5
    assert [note.split(";")[0] for note in run.notes] == [
        "line 10: iteration 20 tells no time above 0", "line 11: iteration 21 tells no time above 0",
        "4 lines have another batch than the last ones' 256",
    ]  # fmt: skip


def test_seconds_and_samples_that_contradict_each_other_are_a_wrong_unit(tmp_path: pathlib.Path) -> None:
    # a log of Megatron-DeepSpeed that says seconds: 35.8651 s at 28.551 samples/s are 1,024 samples
    line = (
        "[default3]: iteration {:8d}/  292968 | consumed samples: 10240 | elapsed time per iteration ({}): 35.8651 | global "
        "batch size:  1024 | lm loss: 1.3E+01 | samples per second: 28.551 | TFLOPs: 190.1 |"
    )
    run = validation.measured_run(stored(tmp_path, *(line.format(step, "s") for step in range(11, 15))))
    assert run.step_seconds == 35.8651 and run.samples_per_second == 28.551
    with pytest.raises(InputError, match=r"run.log: line 4: 0.03587 s a step .* but the batch is 1024: .* another unit"):
        validation.measured_run(stored(tmp_path, *(line.format(step, "ms") for step in range(11, 15))))


TITAN = "\n".join(
    f"[rank0]:[titan] 2026-02-11 01:21:06,136 - root - INFO - {words}"
    for words in (
        "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=12, cp=1, tp=1, ep=1",
        "Applied selective activation checkpointing to the model",
        "Trainer is initialized with local batch size 1, global batch size 48, gradient accumulation steps 2, sequence length "
        "4096, total steps 10000 (warmup 200)",
    )
)


def titan(step: int, moment: str, rate: str = "1,425") -> str:
    """Return a step line of torchtitan, with its colours."""
    return (
        f"[rank0]:[titan] 2026-02-11 01:{moment} - root - INFO - \x1b[31mstep: {step:2d}  \x1b[32mloss:  7.74407  "
        f"\x1b[38;2;180;60;0mgrad_norm: 28.7206  \x1b[36mmemory: 15.45GiB(24.14%)  \x1b[34mtps: {rate}  \x1b[36mtflops: 58.77"
        f"  \x1b[35mmfu: 19.71%\x1b[39m"
    )


def test_torchtitan_lines_are_timed_by_their_moments_and_rates_agree(tmp_path: pathlib.Path) -> None:
    steps = [titan(2, "22:00,096"), titan(3, "22:05,838"), titan(4, "22:11,584"), titan(5, "22:17,321")]
    run = validation.measured_run(stored(tmp_path, TITAN, *steps))
    assert run.framework == "torchtitan:eager" and run.step_seconds == pytest.approx(5.7415)
    assert run.reserved_bytes == pytest.approx(15.45 * 2**30) and run.device_tokens_per_second == 1425.0
    assert run.settings == {
        "global_batch": "48", "sequence_length": "4096", "devices": "24", "data": "24", "context": "1", "tensor": "1",
        "pipeline": "1", "expert": "1", "shard": "3", "recompute": "every_second_product", "shard_degree": "12",
        "micro_batch": "1",
    }  # fmt: skip
    assert run.seconds_of(48, 4096, 24) == run.step_seconds
    with pytest.raises(InputError, match=r"1425 tokens/s a device make 11.5 s for 96 samples .* another batch"):
        run.seconds_of(96, 4096, 24)


EIGHT_BITS = {
    "Float8 training active": "fp8", "Float8 tensorwise scaled training active": "fp8", "Swapped to Float8Linear layers": "fp8",
    "Swapped to MXLinear layers": "mxfp8", "Loaded a tokenizer": "",
}  # fmt: skip


@pytest.mark.parametrize("line", EIGHT_BITS)
def test_a_log_of_torchtitan_tells_precision_and_whether_blocks_are_compiled(line: str, tmp_path: pathlib.Path) -> None:
    steps = [titan(2, "22:00,096"), titan(3, "22:05,838"), titan(4, "22:11,584"), titan(5, "22:17,321")]
    compiled = "[rank0]:2025-01-31 10:12:50,571 - root - INFO - Compiling each TransformerBlock with torch.compile\n"
    said = compiled.replace("Compiling each TransformerBlock with torch.compile", line)
    run = validation.measured_run(stored(tmp_path, TITAN, said, compiled, *steps))
    assert (run.framework, run.settings.get("precision", "")) == ("torchtitan", EIGHT_BITS[line])
    beside = compiled.replace("Compiling each TransformerBlock with torch.compile", "Async TP is enabled")
    assert validation.measured_run(stored(tmp_path, TITAN, beside, compiled, *steps)).framework == "torchtitan:async_tensor"
    assert validation.measured_run(stored(tmp_path, *steps)).framework == "torchtitan"  # its head is not there


def test_a_single_step_of_torchtitan_tells_a_rate_only(tmp_path: pathlib.Path) -> None:
    run = validation.measured_run(stored(tmp_path, titan(10, "22:00,096", "1,000"), titan(20, "")[:140]))
    assert run.step_seconds == 0.0 and run.seconds_of(10, 1000, 5) == pytest.approx(2.0)
    assert run.notes == ("line 2: the line of a step without its memory or rate; left out",)


def test_deepspeed_lines_and_the_configuration_it_prints(tmp_path: pathlib.Path) -> None:
    head = "[2023-12-29 13:02:00,000] [INFO] [config.py:1003:print]   "
    said = [
        f"{head}{name} {'.' * 20} {value}"
        for name, value in (
            ("train_batch_size", "16"), ("train_micro_batch_size_per_gpu", "1"), ("world_size", "8"),
            ("zero_optimization_stage", "2"), ("bfloat16_enabled", "True"),
        )
    ]  # fmt: skip
    timer = (
        "[2023-12-29 13:02:{:06.3f}] [INFO] [timer.py:260:stop] epoch=0/micro_step={}/global_step={}, RunningAvgSamplesPerSec=1"
        "10.86936118523683, CurrSamplesPerSec={}, MemAllocated=1.87GB, MaxMemAllocated=6.12GB"
    )
    lines = [timer.format(1.462 * i, 10 * i, 10 * i, 109.4) for i in range(1, 8)]
    run = validation.measured_run(stored(tmp_path, *said, *lines))
    assert run.framework == "deepspeed" and run.step_seconds == pytest.approx(0.1462, rel=1e-2)
    assert run.allocated_bytes == pytest.approx(6.12 * 2**30)
    assert {name: run.settings[name] for name in ("global_batch", "micro_batch", "data", "shard", "precision", "devices")} == {
        "global_batch": "16", "micro_batch": "1", "data": "8", "shard": "2", "precision": "bf16", "devices": "8",
    }  # fmt: skip
    assert run.seconds_of(16, 2048, 8) == run.step_seconds
    with pytest.raises(InputError, match=r"109.4 samples/s make 0.2925 s for 32 samples"):
        run.seconds_of(32, 2048, 8)
    pipeline = [f"steps: {step} loss: 3.1000 iter time (s): 1.250 samples/sec: 51.2" for step in range(11, 15)]
    assert validation.measured_run(stored(tmp_path, *pipeline)).step_seconds == 1.25


def test_the_trainer_s_bar_its_head_and_its_state(tmp_path: pathlib.Path) -> None:
    head = [
        "***** Running training *****", "  Instantaneous batch size per device = 8",
        "  Total train batch size (w. parallel, distributed & accumulation) = 128", "  Gradient Accumulation steps = 2",
        "  Total optimization steps = 1,000",
    ]  # fmt: skip
    bar = [
        f"{step / 10:3.0f}%|██        | {step}/1000 [{t // 3600}:{t // 60 % 60:02d}:{t % 60:02d}<1:04:41,  3.13s/it]"
        for step in range(0, 1001, 10)
        for t in [100 + 3 * step if step else 0]
    ]
    run = validation.measured_run(stored(tmp_path, *head, "\r".join(bar), "{'loss': 2.3, 'epoch': 0.1}"))
    assert run.framework == "accelerate" and run.step_seconds == pytest.approx(3.0)  # 100 s of warm-up are in no window
    assert run.settings == {"global_batch": "128", "micro_batch": "8", "data": "8"}
    summary = "{'train_runtime': 3100.0, 'train_samples_per_second': 41.2, 'train_steps_per_second': 0.323, 'epoch': 1.0}"
    whole = validation.measured_run(stored(tmp_path, *head, summary))
    assert whole.step_seconds == pytest.approx(3.1) and "warm-up, evaluation and checkpoints are in it" in whole.notes[0]
    history = [{"loss": 1.2, "step": 5}, {"train_runtime": 620.0, "step": 200, "train_samples_per_second": 41.3}]
    state = {"global_step": 200, "train_batch_size": 8, "log_history": history}
    found = validation.measured_run(stored(tmp_path, json.dumps(state), name="trainer_state.json"))
    assert found.step_seconds == pytest.approx(3.1) and found.settings == {"micro_batch": "8"}
    with pytest.raises(InputError, match=r"times no step: log_history has no train_runtime"):
        validation.measured_run(stored(tmp_path, json.dumps({**state, "log_history": history[:1]})))


def test_what_is_no_log_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"run.log: has none of Megatron-LM's iteration lines"):
        validation.measured_run(stored(tmp_path, "hello"))
    with pytest.raises(InputError, match=r"cannot be read: no such file"):
        validation.measured_run(tmp_path / "none.log")
    with pytest.raises(InputError, match=r"times no step: line 1: iteration 3 tells no time above 0"):
        validation.measured_run(stored(tmp_path, megatron(3, -1.0)))


def nanotron(step: int, milliseconds: str, more: str = "", rank: str = "PP=0") -> str:
    """Return an iteration line of nanotron."""
    return (
        f"10/17/2025 16:31:56 [INFO|DP=0|{rank}|TP=0|node-1]: iteration: {step} / 500 | consumed_tokens: 85.8G | "
        f"elapsed_time_per_iteration_ms: {milliseconds} | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | "
        f"global_batch_size: 64 | lm_loss: 2.38 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | grad_norm: 1.25{more}"
    )


def test_lines_of_nanotron_with_letters_behind_numbers(tmp_path: pathlib.Path) -> None:
    lines = [nanotron(step, "11.5K", rank=rank) for step in range(1, 21) for rank in ("PP=0", "PP=1")]
    lines[30] = nanotron(16, "980", " | cuda_memory_allocated: 75.2M | cuda_max_memory_reserved: 54.7G")
    run = validation.measured_run(stored(tmp_path, *lines))
    assert (run.framework, run.step_seconds, run.global_batch) == ("nanotron", 11.5, 64)
    assert (run.n_entries, run.n_warm_up, run.device_tokens_per_second) == (10, 10, 11.4e3)
    assert run.device_flops_per_second == pytest.approx(38.3e12) and run.reserved_bytes == pytest.approx(54.7e9)
    with pytest.raises(InputError, match=r"times no step: line 1: iteration 3 tells no time above 0"):
        validation.measured_run(stored(tmp_path, nanotron(3, "soon")))


def test_lines_of_maxtext_in_seconds(tmp_path: pathlib.Path) -> None:
    head = "I0425 09:31:20 1 maxtext_utils.py:1718] Num_devices: 32, shape (1, 1, 1, 32, 1)"
    lines = [
        f"I0425 09:32:00 1 train.py:9] completed step: {step}, seconds: {2.0 + step / 100:.3f}, TFLOP/s/device: 93.9, "
        f"Tokens/s/device: 14,166.5, total_weights: 65536, loss: 9.4"
        for step in range(20)
    ]
    run = validation.measured_run(stored(tmp_path, head, *lines, "completed step: 20, of which nothing is said"))
    assert run.framework == "maxtext" and run.step_seconds == pytest.approx(2.145)
    assert (run.n_entries, run.settings["devices"], run.device_tokens_per_second) == (10, "32", 14166.5)
    assert run.device_flops_per_second == pytest.approx(93.9e12)
    assert run.notes == ("line 22: step 20 without its seconds; left out",)


def test_lines_of_nemo_and_of_lightnings_bar(tmp_path: pathlib.Path) -> None:
    lines = [
        f"[NeMo I 2025-06-13 nemo_logging:393] Training epoch 0, iteration {step}/99 | lr: 1e-07 | global_batch_size: 32 | "
        f"global_step: {step} | reduced_train_loss: 11.0 | train_step_timing in s: {4.0 + step / 10} | consumed_samples: {step}"
        for step in range(20)
    ]
    run = validation.measured_run(stored(tmp_path, *lines))
    assert (run.framework, run.global_batch, run.n_entries) == ("megatron", 32, 10)
    assert run.step_seconds == pytest.approx(5.45)
    bar = "\r".join(
        f"Epoch 0: :   {step}%|#  | {step}/100 [00:10<12:00, reduced_train_loss=11.0, global_step={step}.0, "
        f"train_step_timing in s={4.0 + step / 10}]"
        for step in range(20)
        for _ in range(2)
    )
    again = validation.measured_run(stored(tmp_path, bar))
    assert (again.step_seconds, again.n_entries, again.global_batch) == (pytest.approx(5.45), 10, 0)
    untimed = [line.replace("train_step_timing in s", "something") for line in lines]
    with pytest.raises(InputError, match=r"times no step: line 1: no train_step_timing: set log_step_timing"):
        validation.measured_run(stored(tmp_path, *untimed))


def test_lines_of_one_rank_count_where_ranks_write_beside_each_other(tmp_path: pathlib.Path) -> None:
    lines = [
        f"[rank{rank}]:{titan(step, f'22:{4 * step + rank:02d},000')}"
        for first in (1, 3, 5)
        for rank in (3, 0)
        for step in (first, first + 1)
    ]
    run = validation.measured_run(stored(tmp_path, *lines))
    assert (run.step_seconds, run.notes) == (pytest.approx(4.0), ())


def test_nemo_s_bar_without_step_timing_is_timed_by_its_clock(tmp_path: pathlib.Path) -> None:
    bar = [
        f"Epoch 0:   1%|   | {step}/5000 [{at // 60:02d}:{at % 60:02d}<9:40:01, 7.00s/it, loss=3.1, v_num=, "
        f"reduced_train_loss=3.090, global_step={step - 1}.0, consumed_samples=1.63e+6]"
        for step in range(1, 40)
        for at in [50 + 7 * step]
    ]
    run = validation.measured_run(stored(tmp_path, "\r".join(bar)))
    assert run.framework == "megatron" and run.step_seconds == pytest.approx(7.0)
    with pytest.raises(InputError, match=r"times no step: its bar covers less than a minute"):
        validation.measured_run(stored(tmp_path, *bar[:2]))
    with pytest.raises(InputError, match=r"has none of"):  # of Lightning alone: which framework trained is not told
        validation.measured_run(stored(tmp_path, "Epoch 0:   1%|   | 3/50 [00:50<9:40:01, 0.50it/s, v_num=0, loss=3.1]"))


def test_updates_count_where_deepspeed_s_old_timer_counts_micro_batches(tmp_path: pathlib.Path) -> None:
    """An update of eight micro-batches takes 12 s; ten updates lie between two lines."""
    times = [f"[2022-03-11 02:{2 * i:02d}:58,985] [INFO]" for i in range(1, 6)]
    timer = [f"{at} [timer.py:189:stop] 0/{80 * i}, SamplesPerSec=10.6, MemAllocated=0.2GB" for i, at in enumerate(times, 1)]
    update = [f"{at} [logging.py:69:log_dist] [Rank 0] step={10 * i}, skipped=0, lr=[5e-05]" for i, at in enumerate(times, 1)]
    both = validation.measured_run(stored(tmp_path, *(line for pair in zip(timer, update, strict=True) for line in pair)))
    assert (both.step_seconds, both.samples_per_second) == (pytest.approx(12.0), 10.6)
    assert both.seconds_of(128, 512, 8) == both.step_seconds
    alone = validation.measured_run(stored(tmp_path, *update))
    assert (alone.framework, alone.step_seconds) == ("deepspeed", pytest.approx(12.0))
    first = [f"[INFO 2020-06-08 06:0{i}:19] 0/{50 * i}, SamplesPerSec=7.4588" for i in range(1, 5)]
    assert validation.measured_run(stored(tmp_path, *first)).step_seconds == pytest.approx(1.2)


def test_deepspeed_s_breakdown_adds_up_to_a_step(tmp_path: pathlib.Path) -> None:
    head = "[2023-06-21 07:39:09,443] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) |"
    micro = f"{head} fwd_microstep: 10.0 | bwd_microstep: 30.0 | bwd_inner_microstep: 20.0 | step_microstep: 0.1"
    whole = f"{head} fwd: 40.0 | bwd: 120.0 | bwd_inner: 80.0 | bwd_allreduce: 40.0 | step: 25.5"
    run = validation.measured_run(stored(tmp_path, *[micro, micro, whole] * 4))
    assert run.step_seconds == pytest.approx(0.1855) and "waiting for batches is not in them" in run.notes[0]


def test_rounded_rates_of_the_trainer_and_lines_of_llama_factory(tmp_path: pathlib.Path) -> None:
    summary = "{'train_runtime': 7000.0, 'train_samples_per_second': 0.5, 'train_steps_per_second': 0.004}"
    with pytest.raises(InputError, match=r"times no step: line 1: 0.004 steps a second, rounded to three places"):
        validation.measured_run(stored(tmp_path, summary))
    lines = [
        json.dumps(
            {"current_steps": 5 * i, "total_steps": 1000, "loss": 1.2, "elapsed_time": text, "remaining_time": "1:00:00"}
        )
        for i, text in enumerate(("23:58:00", "23:59:30", "1 day, 0:01:00", "1 day, 0:02:30", "1 day, 0:04:00"), 1)
    ]
    run = validation.measured_run(stored(tmp_path, *lines, name="trainer_log.jsonl"))
    assert run.framework == "accelerate" and run.step_seconds == pytest.approx(18.0)


@pytest.mark.parametrize("again", [1, 21, 31])
def test_of_two_runs_in_one_log_the_last_counts(again: int, tmp_path: pathlib.Path) -> None:
    """The second was started from the beginning, from an earlier checkpoint, or goes on with another tensor degree."""
    first = [ARGUMENTS, *(megatron(step, 3000.0) for step in range(1, 31))]
    memory = "[Rank 0] (after 1 iterations) memory (MB) | max allocated: 9000.0 | reserved: 1 | max reserved: 9001.0"
    other = ARGUMENTS.replace("..... 4\n", "..... 2\n")
    assert other != ARGUMENTS
    second = [megatron(step, 50000.0 if step == again else 5000.0) for step in range(again, again + 29)]
    run = validation.measured_run(stored(tmp_path, memory, *first, other, *second))
    assert (run.step_seconds, run.n_entries, run.n_slow) == (5.0, 19, 0)
    assert run.options["--tensor-model-parallel-size"] == ("2",) and run.reserved_bytes == 0.0
    assert run.notes == (f"line 58: step {again} after step 30: a run of its own; the run before it is left out",)


def test_a_run_that_was_cut_off_after_a_few_lines_does_not_count(tmp_path: pathlib.Path) -> None:
    first = [ARGUMENTS, *(megatron(step, 3000.0) for step in range(1, 31))]
    second = [ARGUMENTS.replace("..... 4\n", "..... 2\n"), megatron(1, 50000.0), megatron(2, 5000.0)]
    run = validation.measured_run(stored(tmp_path, *first, *second))
    assert (run.step_seconds, run.options["--tensor-model-parallel-size"]) == (3.0, ("4",))
    assert "too few lines; left out" in run.notes[-1]


def test_a_resumed_run_of_the_same_settings_is_one_run_and_warms_up_again(tmp_path: pathlib.Path) -> None:
    resumed = [megatron(step, 50000.0 if step < 5010 else 3000.0) for step in range(5001, 5031)]
    run = validation.measured_run(stored(tmp_path, ARGUMENTS, *resumed))
    assert (run.step_seconds, run.n_warm_up, run.n_slow) == (3.0, 10, 0)
    both = [ARGUMENTS, *(megatron(step, 3000.0) for step in range(1, 31)), ARGUMENTS]
    both += [megatron(step, 3000.0) for step in range(31, 61)]
    assert validation.measured_run(stored(tmp_path, *both)).n_entries == 50


def test_another_mesh_of_torchtitan_is_another_run(tmp_path: pathlib.Path) -> None:
    mesh = "[rank0]:[titan] 2025-03-01 12:00:00,000 - root - INFO - Building {}-D device mesh with [{}], [{}]"
    first = [mesh.format(1, "'dp_shard'", "8"), *(titan(step, f"22:{2 * step:02d},000") for step in range(1, 9))]
    second = [titan(step, f"23:{3 * step - 20:02d},000") for step in range(9, 20)]
    run = validation.measured_run(stored(tmp_path, *first, mesh.format(2, "'dp_shard', 'tp'", "4, 2"), *second))
    assert run.step_seconds == pytest.approx(3.0) and (run.settings["data"], run.settings["tensor"]) == ("4", "2")


def test_decimals_after_a_comma_are_no_numbers(tmp_path: pathlib.Path) -> None:
    for text in ("4500,5", "4.500,5", "4,50"):
        with pytest.raises(InputError, match="tells no time above 0; left out"):
            validation.measured_run(
                stored(tmp_path, *(megatron(step, 0.0).replace("(ms): 0.0", f"(ms): {text}") for step in range(1, 30)))
            )
    thousands = [megatron(step, 0.0).replace("(ms): 0.0", "(ms): 4,500.5") for step in range(1, 30)]
    assert validation.measured_run(stored(tmp_path, *thousands)).step_seconds == 4.5005


def test_packed_logs_and_those_of_powershell_are_read(tmp_path: pathlib.Path) -> None:
    text = "\n".join(megatron(step, 3000.0) for step in range(1, 31))
    packed, wide = tmp_path / "run.log.gz", tmp_path / "run.log"
    packed.write_bytes(gzip.compress(text.encode()))
    wide.write_bytes(text.encode("utf-16"))
    assert validation.measured_run(packed).step_seconds == validation.measured_run(wide).step_seconds == 3.0
    packed.write_bytes(gzip.compress(text[:2000].encode()) + gzip.compress(text[2000:].encode()))  # as appended to
    assert validation.measured_run(packed).n_entries == 20
    packed.write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(InputError, match="is no whole gzip file"):
        validation.measured_run(packed)
