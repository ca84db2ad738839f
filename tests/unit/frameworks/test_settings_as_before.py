"""What is read from files of every framework with one setting after the other changed, as it was when this was written."""

from __future__ import annotations

import functools
import pathlib

import pytest

from edited import answers
from meshwright import frameworks
from meshwright.core.graph import Graph
from meshwright.core.run_config import RunConfig
from meshwright.models.readers import huggingface
from recorded import Recorded

TORCHTITAN = """# torchrun --nnodes 2 --nproc-per-node 8
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_8b

def plan():
    config = llama3_8b()
    config.model_spec = model_registry("mine")
    config.training.local_batch_size = 4
    config.training.global_batch_size = 16
    config.training.seq_len = 128
    config.training.steps = 10
    config.training.mixed_precision_param = "bfloat16"
    config.activation_checkpoint = FullAC.Config()
    config.parallelism = ParallelismConfig(
        data_parallel_replicate_degree=2,
        data_parallel_shard_degree=2,
        fsdp_reshard_after_forward="default",
        tensor_parallel_degree=2,
        enable_sequence_parallel=True,
        context_parallel_degree=1,
        expert_parallel_degree=1,
        pipeline_parallel_degree=2,
        pipeline_parallel_microbatch_size=2,
        pipeline_parallel_schedule="Interleaved1F1B",
    )
"""
TORCHTITAN_PARTS = """ORDER = "0F0,0B0"
c = Trainer.Config(activation_checkpoint=SelectiveAC.Config(), training=TrainingConfig(local_batch_size=2, seq_len=64))
c.parallelism = ParallelismConfig(
    data_parallel_shard_degree=-1,
    fsdp_reshard_after_forward="never",
    context_parallel_degree=2,
    pipeline_parallel_degree=2,
    pipeline_parallel_schedule="ZBVZeroBubble",
    pipeline_parallel_schedule_csv=order_file(),
    module_fqns_per_model_part=[
        ["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["layers.3"], ["layers.4", "layers.5", "norm", "lm_head"],
    ],
)
"""
MEGATRON = """#!/bin/bash
TP=2
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --context-parallel-size 2 \\
    --num-layers 6 --seq-length 128 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 \\
    --max-position-embeddings 128 --sequence-parallel --use-tp-pp-dp-mapping --num-virtual-stages-per-pipeline-rank 3 \\
    --use-distributed-optimizer --num-distributed-optimizer-instances 2 \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 \\
    --micro-batch-size 2 --global-batch-size 16 --bf16 --fp8-format hybrid --fp8-recipe mxfp8
"""
MEGATRON_LAYOUT = """torchrun --nproc_per_node=8 pretrain_gpt.py \\
    --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "Et|t*2|tt|tL" \\
    --num-layers 6 --micro-batch-size 1 --global-batch-size 8 --fp16 \\
    --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --ckpt-format fsdp_dtensor \\
    --recompute-activations --recompute-modules core_attn mlp
"""
MEGATRON_EXPERTS = """torchrun --nproc-per-node 8 p.py --tensor-model-parallel-size 2 --expert-model-parallel-size 8 \\
    --expert-tensor-parallel-size 1 --num-experts 8 --num-layers 5 --mtp-num-layers 1 \\
    --position-embedding-type rope --sequence-parallel --disable-bias-linear \\
    --micro-batch-size 1 --global-batch-size 8
"""
BRIDGE = """# torchrun --nnodes 1 --nproc-per-node 8
LAYERS = 3
def recipe():
    cfg = ConfigContainer(
        train=config.TrainingConfig(micro_batch_size=1, global_batch_size=8),
        comm_overlap=CommOverlapConfig(tp_comm_overlap=False),
        mixed_precision="bf16_with_fp8_delayed_scaling_mixed",
    )
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_layout = [["embedding"] + ["decoder"] * LAYERS, ["decoder", "decoder", "decoder", "loss"]]
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 128
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_modules = ["core_attn", "mlp"]
    cfg.model.cpu_offloading = False
    cfg.ddp.use_distributed_optimizer = True
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    if True:
        cfg.ddp.use_megatron_fsdp = False
"""
NANOTRON = """# torchrun --nnodes 1 --nproc-per-node 8 run_train.py
model:
  dtype: bfloat16
  model_config:
    hidden_size: 64
    intermediate_size: 128
    num_attention_heads: 4
    num_hidden_layers: 6
    vocab_size: 1000
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 1
parallelism:
  dp: 2
  expert_parallel_size: 1
  pp: 2
  pp_engine: 1f1b
  recompute_layer: true
  tp: 2
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 4
  micro_batch_size: 2
  sequence_length: 128
  train_steps: 10
"""
MAXTEXT = """base_config: base.yml
base_num_decoder_layers: 6
per_device_batch_size: 0.5
gradient_accumulation_steps: 2
max_target_length: 128
dtype: float32
quantization: fp8
remat_policy: minimal
shard_optimizer_over_data: true
context_parallel_strategy: ring
dcn_data_parallelism: 2
ici_fsdp_parallelism: 2
ici_context_parallelism: 2
ici_tensor_parallelism: 2
ici_tensor_sequence_parallelism: 1
ici_expert_parallelism: 2
"""
MAXTEXT_OPEN = """base_num_decoder_layers: 6
dcn_fsdp_parallelism: 2
ici_tensor_sequence_parallelism: 2
optimizer_memory_host_offload: false
"""
MAXTEXT_DATA = """base_num_decoder_layers: 6
dcn_data_parallelism: -1
ici_data_parallelism: 2
ici_fsdp_parallelism: 1
per_device_batch_size: 2
shard_optimizer_over_data: true
"""
ACCELERATE = """# accelerate launch --config_file a.yaml run_clm.py \\
#   --block_size 128 --per_device_train_batch_size 2 --gradient_accumulation_steps 3 --gradient_checkpointing True
distributed_type: FSDP
num_processes: 16
mixed_precision: fp16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_activation_checkpointing: false
  fsdp_offload_params: false
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 2
"""
DEEPSPEED = """{
"train_batch_size": 16,
"train_micro_batch_size_per_gpu": 2,
"gradient_accumulation_steps": 2,
"bf16": {"enabled": true},
"fp16": {"enabled": false},
"zero_optimization": {"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "none"}},
"tensor_parallel": {"autotp_size": 2},
"activation_checkpointing": {"number_checkpoints": 6}
}
"""
DEEPSPEED_SCRIPT = """#!/bin/bash
cat > a.json <<'JSON'
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
"zero_optimization": {"stage": 3}}
JSON
exec deepspeed --num_nodes 1 --num_gpus 8 run_clm.py --deepspeed a.json --block_size 128 --gradient_checkpointing True "$@"
"""
SCRIPT = """NODES, GPUS_PER_NODE = 2, 8
REPLICATE, SHARD, CONTEXT, TENSOR = 2, 2, 2, 2
SEQUENCE_PARALLEL, RESHARD_AFTER_FORWARD = True, False
MICRO_BATCH, MICRO_BATCHES = 3, 2
PRECISION, SEQUENCE_LENGTH = torch.bfloat16, 128
LAYERS = "model.layers"
CHECKPOINTED = range(0, 6, 2)
MODEL = {"model_type": "llama", "hidden_size": 64}
"""
TRAINER = '''"""Of ours.

    torchrun --nnodes 2 --nproc-per-node 8 TRAIN.py
"""
SEQUENCE_LENGTH = 128
def arguments():
    return TrainingArguments(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        optim="adamw_torch_fused",
        bf16=True,
        gradient_checkpointing=False,
        torch_compile=True,
        auto_find_batch_size=False,
        use_liger_kernel=False,
        fsdp="full_shard auto_wrap",
        fsdp_config={"version": 2, "fsdp_activation_checkpointing": True, "reshard_after_forward": False, "cpu_offload": False},
        parallelism_config=ParallelismConfig(dp_replicate_size=2, dp_shard_size=4, cp_size=2, tp_size=1, sp_size=1),
    )
'''
TRAINER_ZERO = """{
"per_device_train_batch_size": 2,
"gradient_accumulation_steps": 1,
"block_size": 128,
"activation_checkpointing": true,
"activation_checkpointing_kwargs": {"every_n_layers": 1},
"tf32": true,
"deepspeed": {
"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 1,
"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}, "tensor_parallel": {"autotp_size": 2}
}
}
"""
TRAINER_SHELL = """#!/bin/bash
#SBATCH --nodes=2
SIZE=2
torchrun --nnodes $N --nproc_per_node 8 run_clm.py --model_name_or_path llama-3.1-8b \\
    --per_device_train_batch_size $SIZE --gradient_accumulation_steps 4 --bf16 --block_size 128 \\
    --gradient_checkpointing true --lora_r 8 --fsdp "shard_grad_op auto_wrap" --fsdp_config '{"version": 2}'
"""
TEXTS = {
    "torchtitan": (TORCHTITAN, TORCHTITAN_PARTS), "megatron": (MEGATRON, MEGATRON_LAYOUT, MEGATRON_EXPERTS),
    "megatron_bridge": (BRIDGE,), "nanotron": (NANOTRON,), "maxtext": (MAXTEXT, MAXTEXT_OPEN, MAXTEXT_DATA),
    "accelerate": (ACCELERATE,), "deepspeed": (DEEPSPEED, DEEPSPEED_SCRIPT), "fsdp2": (SCRIPT,),
    "transformers": (TRAINER, TRAINER_ZERO, TRAINER_SHELL),
}  # fmt: skip
CASES = [(name, i) for name, texts in TEXTS.items() for i in range(len(texts))]


@functools.cache
def graph(n_experts: int = 0) -> Graph:
    """Return six layers of Llama's family, or of Mixtral's."""
    fields = {
        "model_type": "mixtral" if n_experts else "llama", "num_local_experts": n_experts, "num_experts_per_tok": 2,
        "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 1000, "max_position_embeddings": 128,
    }  # fmt: skip
    return huggingface.graph_of(fields, "small", sequence_length=128)


def line(said: RunConfig) -> str:
    """Return what a file says, in one line: a plan with all of its stages."""
    plan = said.plan
    stages = " ".join(
        f"{stage.ops[0]}..{stage.ops[-1]}/{len(stage.ops)} on {','.join(map(str, stage.devices))} {' '.join(stage.recompute)};"
        for stage in plan.stages
    )
    one = plan.stages[0].strategy
    counts = (plan.n_microbatches, plan.micro_batch, plan.global_batch, plan.schedule, said.precision, said.sequence_length)
    return f"{one} {counts} {said.variant} {list(said.warnings)} {stages}"


@pytest.mark.parametrize(("name", "i"), CASES)
def test_of_settings_that_are_changed_one_by_one_as_much_is_read_as_before(
    name: str, i: int, tmp_path: pathlib.Path, recorded: Recorded
) -> None:
    module, path = frameworks.load(name), tmp_path / "mine.txt"
    n_devices = {("torchtitan", 1): 8, ("maxtext", 1): 8, ("maxtext", 2): 8, ("transformers", 1): 8}.get((name, i), 0)

    def read(text: str) -> str:
        path.write_text(text)
        return line(module.read(str(path), graph(8 if "--expert-tensor-parallel-size" in TEXTS[name][i] else 0), n_devices))

    recorded(answers(read, TEXTS[name][i], f"{tmp_path}/"))
