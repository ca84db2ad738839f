"""Which field of a recipe each of Megatron-LM's options is, and what is known of families and fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["ASIDE", "FLAGS", "PRECISIONS", "VALUES", "known"]

VALUES: Mapping[str, str] = MappingProxyType({
    "--tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "--num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "--pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    "--context-parallel-size": "model.context_parallel_size",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
    "--recompute-granularity": "model.recompute_granularity",
    "--recompute-method": "model.recompute_method",
    "--recompute-num-layers": "model.recompute_num_layers",
    "--recompute-modules": "model.recompute_modules",
    "--num-layers": "model.num_layers",
    "--mtp-num-layers": "model.mtp_num_layers",
    "--seq-length": "model.seq_length",
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
})  # fmt: skip
"""Fields with a value, which is None where the option is not given."""

FLAGS: Mapping[str, str] = MappingProxyType({
    "--sequence-parallel": "model.sequence_parallel",
    "--use-tp-pp-dp-mapping": "dist.use_tp_pp_dp_mapping",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
    "--use-megatron-fsdp": "ddp.use_megatron_fsdp",
})  # fmt: skip
"""Fields that are True where the option is given."""

ASIDE: Mapping[str, str] = MappingProxyType({
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--account-for-embedding-in-pipeline-split": "model.account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "model.account_for_loss_in_pipeline_split",
    "--rampup-batch-size": "train.rampup_batch_size",
    "--defer-embedding-wgrad-compute": "model.defer_embedding_wgrad_compute",
    "--delay-wgrad-compute": "model.delay_wgrad_compute",
    "--overlap-moe-expert-parallel-comm": "model.overlap_moe_expert_parallel_comm",
    "--moe-expert-capacity-factor": "model.moe_expert_capacity_factor",
    "--moe-token-dispatcher-type": "model.moe_token_dispatcher_type", "--moe-enable-deepep": "model.moe_enable_deepep",
    "--distribute-saved-activations": "model.distribute_saved_activations", "--cp-comm-type": "model.cp_comm_type",
    "--fp32-residual-connection": "model.fp32_residual_connection",
    "--use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "--outer-dp-sharding-strategy": "ddp.outer_dp_sharding_strategy",
})  # fmt: skip
"""Fields that cut layers, or are priced otherwise; recipes of ours leave them as they are."""

PRECISIONS: Mapping[str, str] = MappingProxyType({
    "bf16_mixed": "bf16", "fp16_mixed": "fp16", "bf16_with_fp8_current_scaling_mixed": "fp8",
    "bf16_with_mxfp8_mixed": "mxfp8", "bf16_with_nvfp4_mixed": "fp4",
})  # fmt: skip
"""Precision of products of each recipe of mixed precision that plans have; none of them for fp32."""


def known() -> dict[str, Any]:
    """Return the families that are told, and the names of fields, from the data file."""
    path = Path(__file__).parents[1] / "data" / "megatron_bridge_options.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
