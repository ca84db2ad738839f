"""Shell scripts that start a training script with the Trainer's arguments, as people keep them."""

from __future__ import annotations

import json
import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.api import advise
from meshwright.base.errors import InputError
from meshwright.core.problem import Stop
from meshwright.core.strategy import Strategy

MODULE = frameworks.load("transformers")

FASTCHAT = """#!/bin/bash
# --per_device_train_batch_size 99 in a comment says nothing
MODEL=meta-llama/Llama-3.1-8B
export N_GPUS=8
torchrun --nproc_per_node=$N_GPUS --nnodes 2 --master_port=20001 train_mem.py \\
    --model_name_or_path ${MODEL} \\
    --data_path data.json \\
    --bf16 True \\
    --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 16 \\
    --fsdp "full_shard auto_wrap" \\
    --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' \\
    --tf32 True --model_max_length 2048 --gradient_checkpointing
"""

DEEPSPEED = """deepspeed --num_gpus 4 --num_nodes=2 run_clm.py --deepspeed zero.json \\
  --model_name_or_path gpt2 --block-size 512 --per-device-train-batch-size 4 --fp16
"""

ACCELERATE = """ARGS=(
  --model_name_or_path gpt2
  --per_device_train_batch_size 4   # samples
  --bf16
)
accelerate launch --config_file acc.yaml sft.py "${ARGS[@]}" --max_length 1024
"""

FSDP = """distributed_type: FSDP
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_activation_checkpointing: true}
"""


@pytest.fixture
def graph():
    return api.make_problem("gpt2", "dgx-h100:8").graph


def _read(path: pathlib.Path, text: str, graph, n_devices: int = 0):
    path.write_text(text)
    assert MODULE.recognises(text)
    return MODULE.read(str(path), graph, n_devices)


def test_options_variables_and_lines_put_together_are_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(FASTCHAT)
    spec = MODULE.model_of(str(path), 2048)
    assert (spec.name, spec.graph.sequence_length) == ("llama-3.1-8b", 2048)
    said = MODULE.read(str(path), spec.graph)
    assert said.plan.stages[0].strategy == Strategy(16, shard=3)
    assert (said.plan.micro_batch, said.plan.n_microbatches, said.plan.global_batch) == (2, 16, 512)
    assert set(said.plan.stages[0].recompute[1:-1]) == {"full"}
    assert (said.precision, said.sequence_length) == ("bf16", 2048)
    *others, whole = said.warnings
    assert others == [
        f"{path}: line 7: nothing is known of data_path; it is left out",
        f"{path}: line 12: nothing is known of fsdp_transformer_layer_cls_to_wrap; it is left out",
    ]
    assert said.variant == "+no_sync" and whole.startswith(f"{path}: 16 micro-batches without sync_each_batch: ")
    synced = """ --accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}' --fsdp """
    path.write_text(FASTCHAT.replace(" --fsdp ", synced, 1))
    said = MODULE.read(str(path), spec.graph)
    assert (said.variant, len(said.warnings)) == ("", 2)


def test_deepspeeds_file_is_found_beside_the_script(tmp_path: pathlib.Path, graph) -> None:
    path = tmp_path / "train.sh"
    with pytest.raises(InputError, match=r"train.sh: deepspeed is the file zero.json, which is not there; put it beside"):
        _read(path, DEEPSPEED, graph)
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 2}}')
    said = _read(path, DEEPSPEED, graph)
    assert said.plan.stages[0].strategy == Strategy(4, 2, shard=2)
    assert (said.plan.micro_batch, said.plan.n_microbatches, said.precision) == (4, 1, "fp16")
    assert (said.sequence_length, said.variant, said.warnings) == (512, "deepspeed_late", ())
    (tmp_path / "zero.json").write_text("[1]")
    with pytest.raises(InputError, match=r"zero\.json: holds no table of settings"):
        _read(path, DEEPSPEED, graph)
    inline = DEEPSPEED.replace("zero.json", """'{"zero_optimization": {"stage": 3}}'""")
    assert _read(path, inline, graph).plan.stages[0].strategy == Strategy(8, shard=3)


@pytest.mark.parametrize(
    ("entries", "strategy", "word"),
    [
        (FSDP, Strategy(8, shard=2), "full"),
        ("distributed_type: MULTI_GPU\nnum_processes: 4\n", Strategy(4), "none"),
        ("distributed_type: 'NO'\nnum_processes: 1\n", Strategy(1), "none"),
        ("distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 3}\n", Strategy(4, shard=3), "none"),
        ("distributed_type: DEEPSPEED\nnum_processes: 4\n", Strategy(4, shard=2), "none"),
        (
            "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {deepspeed_config_file: zero.json}\n",
            Strategy(4, shard=1),
            "none",
        ),
    ],
)
def test_accelerates_file_says_the_degrees(tmp_path: pathlib.Path, graph, entries: str, strategy: Strategy, word: str) -> None:
    (tmp_path / "acc.yaml").write_text(entries)
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    said = _read(tmp_path / "train.sh", ACCELERATE, graph)
    assert said.plan.stages[0].strategy == strategy and set(said.plan.stages[0].recompute[1:-1]) == {word}
    assert (said.plan.micro_batch, said.sequence_length, said.precision, said.warnings) == (4, 1024, "bf16", ())


@pytest.mark.parametrize(
    ("of_script", "of_command", "of_file", "precision"),
    [
        ("--bf16", "", "", "bf16"), ("", "", "", "fp32"), ("", "", "bf16", "bf16"),
        ("", "--mixed_precision fp16", "bf16", "fp16"),
        ("--fp16", "", "bf16", "fp16"), ("--bf16 False", "", "'no'", "fp32"),
    ],
)  # fmt: skip
def test_precision_is_the_scripts_or_else_the_launchers(
    tmp_path: pathlib.Path, graph, of_script: str, of_command: str, of_file: str, precision: str
) -> None:
    """As TrainingArguments: the launcher's word counts where bf16 and fp16 are not set."""
    (tmp_path / "acc.yaml").write_text(FSDP + (f"mixed_precision: {of_file}\n" if of_file else ""))
    text = ACCELERATE.replace("--bf16", of_script).replace("--config_file", f"{of_command} --config_file")
    said = _read(tmp_path / "a.sh", text, graph)
    assert (said.precision, said.warnings) == (precision, ())


def test_what_the_command_says_goes_before_accelerates_file_and_the_rest_of_it_is_told(tmp_path: pathlib.Path, graph) -> None:
    entries = (
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 1, gradient_clipping: 1.0}\nrain: 3\n"
    )
    (tmp_path / "acc.yaml").write_text(entries)
    said = _read(tmp_path / "a.sh", ACCELERATE.replace("--config_file", "--num_processes 16 --config_file"), graph)
    assert said.plan.stages[0].strategy == Strategy(16, shard=1)
    assert said.warnings == (
        "acc.yaml: line 4: nothing is known of rain; it is left out",
        "acc.yaml: deepspeed_config.gradient_clipping is left out",
    )
    (tmp_path / "acc.yaml").write_text(FSDP + "mixed_precision: fp8\n")
    with pytest.raises(InputError, match="mixed_precision is 'fp8'; it must be bf16, fp16, no"):
        _read(tmp_path / "a.sh", ACCELERATE.replace("--bf16", ""), graph)


@pytest.mark.parametrize(
    ("text", "entries", "message"),
    [
        (ACCELERATE, "distributed_type: TPU\nnum_processes: 8\n", "acc.yaml: distributed_type is TPU; it must be FSDP, "),
        (ACCELERATE, FSDP.replace("fsdp_version: 2", "fsdp_version: 3"), "fsdp_version is 3; it must be 1 or 2"),
        (ACCELERATE, FSDP.replace("{", "{fsdp_offload_params: true, "),
         "acc.yaml: fsdp_offload_params is true: plans of accelerate"),
        (
            ACCELERATE, "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {offload_optimizer_device: cpu}\n",
            "offload_optimizer: plans of transformers hold nothing on the host",
        ),
        (ACCELERATE.replace("--bf16", "--fsdp full_shard"), FSDP, "both say how weights are sharded; keep one"),
        (ACCELERATE.replace("--config_file acc.yaml", "--use_fsdp"), "", "line 6: --use_fsdp: says degrees outside"),
        (ACCELERATE.replace("acc.yaml", "no.yaml"), "", "config_file is the file no.yaml, which is not there"),
        (FASTCHAT + FASTCHAT, "", "starts a training once more"),
        (FASTCHAT.replace("--nnodes 2", "--nnodes many"), "", "--nnodes is many; write the number of hosts"),
        (FASTCHAT.replace("=$N_GPUS", "=eight"), "", "--nproc_per_node is 'eight'; it must be a whole number"),
        (FASTCHAT.replace("=$N_GPUS", "=gpu"), "", "no torchrun command in it says how many processes there are"),
        (FASTCHAT.replace("_size 2", "_size two"), "", "per_device_train_batch_size is 'two'"),
        (FASTCHAT.replace("'LlamaDecoderLayer'", "'Llama"), "", "line 12: No closing quotation"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: pathlib.Path, graph, text: str, entries: str, message: str) -> None:
    (tmp_path / "acc.yaml").write_text(entries)
    with pytest.raises(InputError) as error:
        _read(tmp_path / "train.sh", text, graph)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "lora"),
    [
        ("--use_peft --lora_r 16 --lora_target_modules q_proj v_proj --load_in_8bit False", "r=16,targets=query,value"),
        ("--lora_enable True --lora_r 128 --lora_alpha 256 --lora_target_modules o_proj,down_proj --bits 4",
         "r=128,targets=output,down,base=4bit"),
        ("--finetuning_type lora --lora_rank 8 --lora_target q_proj,k_proj --quantization_bit 4",
         "r=8,targets=query,key,base=4bit"),
        ("--use_peft True --lora_r 4 --lora_target_modules gate_proj --load_in_4bit", "r=4,targets=gate,base=4bit"),
        ("--finetuning_type full", ""), ("--use_peft False --lora_r 16", ""), ("--load_in_4bit False", ""),
    ],
)  # fmt: skip
def test_adapters_among_the_arguments_are_read(tmp_path: pathlib.Path, graph, options: str, lora: str) -> None:
    said = _read(tmp_path / "a.sh", FASTCHAT.replace("--bf16 True", f"{options} --bf16"), graph)
    assert said.lora == lora and not any("lora" in warning or "bit" in warning for warning in said.warnings)


def test_what_peft_chooses_itself_is_said(tmp_path: pathlib.Path) -> None:
    graph = api.read("llama-3.2-1b").graph
    for options, lora, words in (
        ("--use_peft --lora_r 4", "r=4,targets=query,value", "line 8: --lora_r: target_modules is not set: peft chooses by"),
        ("--use_lora --lora_r 4 --lora_target_modules all-linear", "r=4,targets=query,key,value,output,gate,up,down",
         "target_modules is all-linear: adapters of query, key, value, output, gate, up, down are priced"),
    ):  # fmt: skip
        said = _read(tmp_path / "a.sh", FASTCHAT.replace("--bf16 True", f"{options} --bf16"), graph)
        assert said.lora == lora and any(words in warning for warning in said.warnings), said.warnings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--use_peft --lora_target_modules q_proj", "adapters without --lora_r"),
        ("--use_peft --lora_r many", "r is 'many'; it must be"),
        ("--use_peft --lora_r 8 --use_dora", "line 8: --use_dora is True; plans have plain adapters only"),
        ("--use_peft --lora_r 8 --load_in_8bit", "--load_in_8bit is True"), ("--use_lora --lora_r 8 --bits 8", "4 bits, or 16"),
        ("--lora_r 8", "whether adapters are trained is not said"), ("--finetuning_type freeze", "it must be full or lora"),
        ("--use_peft --lora_r 8 --lora_target_modules weather", "has 'weather'; known are"),
    ],
)  # fmt: skip
def test_adapters_that_are_no_plain_ones_are_refused(tmp_path: pathlib.Path, graph, options: str, message: str) -> None:
    with pytest.raises(InputError, match=r"a\.sh: ") as error:
        _read(tmp_path / "a.sh", FASTCHAT.replace("--bf16 True", f"{options} --bf16"), graph)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_adapters_are_priced_as_adapters(tmp_path: pathlib.Path) -> None:
    """Less memory and a quicker step than training all weights; the same as the plan with --lora."""
    path, entries = tmp_path / "a.sh", {}
    for word, options in (("all", ""), ("lora", "--use_peft --lora_r 8 --lora_target_modules q_proj v_proj")):
        path.write_text(FASTCHAT.replace("meta-llama/Llama-3.1-8B", "llama-3.2-1b").replace("--bf16", f"{options} --bf16"))
        found = advise.advise(str(path), "dgx-h100:16", stop=Stop(n_iterations=1))
        assert found.result.timeline is not None and not found.refusals
        entries[word] = found
    whole, adapted = (entries[word].result.timeline for word in ("all", "lora"))
    assert max(adapted.peak_bytes) < max(whole.peak_bytes) and adapted.step_seconds < whole.step_seconds
    spec = api.read("llama-3.2-1b", sequence_length=2048, lora="r=8,targets=query,value")
    assert entries["lora"].result.problem.graph.n_trained_parameters == spec.graph.n_trained_parameters


def test_an_elastic_range_is_its_most_hosts_and_the_cluster_says_what_the_script_does_not(
    tmp_path: pathlib.Path, graph
) -> None:
    assert _read(tmp_path / "a.sh", FASTCHAT.replace("--nnodes 2", "--nnodes 1:4"), graph).plan.n_devices == 32
    (tmp_path / "zero.json").write_text("{}")
    assert _read(tmp_path / "b.sh", DEEPSPEED.replace("--num_gpus 4 --num_nodes=2", ""), graph, 16).plan.n_devices == 16


@pytest.mark.parametrize(("head", "n_devices"), [("#SBATCH --nodes=4\n", 32), ("#SBATCH -N 2\n", 16), ("", 64)])
def test_hosts_that_slurm_is_asked_for_are_counted(tmp_path: pathlib.Path, graph, head: str, n_devices: int) -> None:
    text = head + FASTCHAT.replace("--nnodes 2", "--nnodes=$SLURM_NNODES")
    assert _read(tmp_path / "a.sh", text, graph, 64).plan.n_devices == n_devices
    every = head + FASTCHAT.replace("=$N_GPUS", "=auto").replace("--nnodes 2", "--nnodes $SLURM_JOB_NUM_NODES")
    assert _read(tmp_path / "b.sh", every, graph, 64).plan.n_devices == 64


def test_advice_names_the_model_by_itself(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(ACCELERATE)
    (tmp_path / "acc.yaml").write_text(FSDP)
    said = advise.advise(str(path), "dgx-h100:8")
    assert said.result.problem.model_spec.name == "gpt2" and said.result.problem.framework.name == "transformers"
    assert said.result.plan.n_devices == 8 and said.result.problem.graph.sequence_length == 1024
    path.write_text(ACCELERATE.replace("--model_name_or_path gpt2", ""))
    with pytest.raises(InputError, match=r"does not say the model \(model_name_or_path\); give --model"):
        advise.advise(str(path), "dgx-h100:8")


def test_scripts_that_only_speak_of_arguments_are_none() -> None:
    assert not MODULE.recognises("# torchrun train.py --per_device_train_batch_size 2\n")
    assert not MODULE.recognises("python report.py --per_device_train_batch_size 2\n")


def test_a_script_of_megatron_deepspeed_is_neither_of_megatron_nor_of_deepspeed(tmp_path: pathlib.Path) -> None:
    """Read as Megatron-LM's, its full recomputation would be an option that is refused, and its ZeRO would not be seen."""
    path = tmp_path / "run.sh"
    path.write_text(
        'cat > ds.json <<E\n{"train_batch_size": 8, "zero_optimization": {"stage": 1}}\nE\n'
        "deepspeed pretrain_gpt.py --tensor-model-parallel-size 2 --deepspeed_config ds.json --checkpoint-activations\n"
    )
    assert advise.framework_of_file(str(path)) == "megatron_deepspeed"
    with pytest.raises(InputError, match=r"run\.sh: --for megatron_deepspeed: there is no reader"):
        advise.advise(str(path), "flat:8", "gpt2")
