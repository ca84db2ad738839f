"""Tasks of NeMo, as NeMo-Run writes them down: the same fields as of Megatron-Bridge, in other places."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError

__all__ = ["CONFIGS", "STRATEGY", "sections"]

CONFIGS: Mapping[str, str] = MappingProxyType({
    "Llama2Config7B": "llama-2-7b", "Llama2Config13B": "llama-2-13b", "Llama2Config70B": "llama-2-70b",
    "Llama3Config8B": "llama-3-8b", "Llama3Config70B": "llama-3-70b", "Llama31Config8B": "llama-3.1-8b",
    "Llama31Config70B": "llama-3.1-70b", "Llama31Config405B": "llama-3.1-405b", "Llama32Config1B": "llama-3.2-1b",
    "Llama32Config3B": "llama-3.2-3b", "MistralConfig7B": "mistral-7b", "MixtralConfig8x7B": "mixtral-8x7b",
    "MixtralConfig8x22B": "mixtral-8x22b", "Qwen25Config7B": "qwen2.5-7b", "Qwen25Config72B": "qwen2.5-72b",
    "Qwen3Config8B": "qwen3-8b", "Qwen3Config32B": "qwen3-32b", "Qwen3Config30B_A3B": "qwen3-30b-a3b",
    "Qwen3Config235B_A22B": "qwen3-235b-a22b", "Gemma2Config9B": "gemma-2-9b", "Gemma2Config27B": "gemma-2-27b",
    "GPTConfig175B": "gpt3-175b", "DeepSeekV2Config": "deepseek-v2", "DeepSeekV2LiteConfig": "deepseek-v2-lite",
})  # fmt: skip
"""Which built-in model each class of configuration is, where nothing else is set (nemo/collections/llm/gpt/model)."""

_DEGREES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "pipeline_model_parallel_layout", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
)  # fmt: skip
STRATEGY = (
    "ddp", "fsdp", "data_sampler", "lazy_init", "find_unused_parameters", "pipeline_dtype", "gradient_as_bucket_view",
    "parallel_devices", "cluster_environment", "checkpoint_io", "use_te_rng_tracker", "use_sharp", "moe_extended_tp",
    "setup_optimizers", "init_model_parallel", "replace_progress_bar", "progress_interval", "restore_config",
    "save_ckpt_format", "megatron_log_level", "use_tp_pp_dp_mapping", "num_distributed_optimizer_instances",
    "nccl_communicator_config_path",
    "microbatch_group_size_per_vp_stage", "ckpt_load_optimizer", "ckpt_save_optimizer", "ckpt_async_save",
    "ckpt_torch_dist_multiproc", "ckpt_assume_constant_structure", "ckpt_parallel_save", "ckpt_parallel_save_within_dp",
    "ckpt_parallel_load", "ckpt_parallel_save_optim", "ckpt_load_directly_on_device", "ckpt_load_strictness",
    "ckpt_load_main_params", "_target_",
)  # fmt: skip
"""Other fields of the strategy that are known."""


def sections(
    content: Mapping[str, Any], lines: Mapping[tuple[str, ...], int], path: str
) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, ...], int]]:
    """Return a task's fields by the parts of Megatron-Bridge's configuration that they belong to, as `dump.parts`.

    Raises
    ------
    InputError
        When a table is missing, or the trainer is none of Megatron-Core.
    """
    above: tuple[str, ...] = ()
    if "task" in content and isinstance(content["task"], dict) and "trainer" not in content:
        content, above = content["task"], ("task",)
    trainer, data, model = (_table(content, name, path) for name in ("trainer", "data", "model"))
    strategy = _table(trainer, "strategy", path)
    if "MegatronStrategy" not in str(strategy.get("_target_", "MegatronStrategy")):
        raise InputError(f"{path}: trainer.strategy is {strategy['_target_']}; only MegatronStrategy is read")
    if trainer.get("accumulate_grad_batches", 1) != 1:
        raise InputError(f"{path}: trainer.accumulate_grad_batches: must be 1; the sampler makes the global batch")
    fsdp = strategy.get("fsdp")
    if fsdp not in (None, "megatron"):
        raise InputError(f"{path}: trainer.strategy.fsdp is {fsdp!r}; it must be megatron, or null")
    optim = content.get("optim") if isinstance(content.get("optim"), dict) else {}
    optimizer, overlap = dict(_table(optim, "config", path)), _overlap(trainer)
    ddp = _ddp(strategy, optimizer, bool(overlap))
    config = dict(_table(model, "config", path)) | {name: strategy[name] for name in _DEGREES if strategy.get(name) is not None}
    found = {
        "trainer": dict(trainer), "model": config, "ddp": ddp, "optimizer": optimizer, "comm_overlap": overlap,
        "train": {name: data.get(name) for name in ("micro_batch_size", "global_batch_size", "rampup_batch_size")},
        "dist": {"use_tp_pp_dp_mapping": strategy.get("use_tp_pp_dp_mapping")},
        "dataset": {"seq_length": data.get("seq_length")}, "mixed_precision": _precision(trainer, path),
        "strategy": {name: value for name, value in strategy.items() if name not in _DEGREES},
        "peft": content.get("peft") or content.get("model_transform") or {},
    }  # fmt: skip
    return {name: part for name, part in found.items() if part}, _placed(lines, above)


def _table(entry: Any, name: str, path: str) -> dict[str, Any]:
    """Return a table, empty where it is left out. Raises `InputError` when it is something else."""
    value = (entry or {}).get(name)
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{path}: {name} is {value!r}; it must be a table of fields")
    return value or {}


def _ddp(strategy: Mapping[str, Any], optimizer: Mapping[str, Any], overlapped: bool) -> dict[str, Any]:
    """Return the fields of the data axis; `overlapped`: whether the callback of overlaps sets what is left open."""
    found = dict(strategy["ddp"]) if isinstance(strategy.get("ddp"), dict) else {}
    found = {"overlap_grad_reduce": overlapped, "overlap_param_gather": overlapped, **found}
    found["use_distributed_optimizer"] = bool(optimizer.get("use_distributed_optimizer"))  # NeMo sets the other to this
    if strategy.get("num_distributed_optimizer_instances") is not None:
        found["num_distributed_optimizer_instances"] = strategy["num_distributed_optimizer_instances"]
    if strategy.get("fsdp") == "megatron":
        found["use_megatron_fsdp"] = True
    else:
        found.pop("data_parallel_sharding_strategy", None)  # nothing reads it without FSDP
    return found


def _precision(trainer: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the flags that the plugin of mixed precision says."""
    plugins = trainer.get("plugins")
    every = plugins if isinstance(plugins, list) else [plugins] if plugins else []
    own = next((one for one in every if isinstance(one, dict) and "MixedPrecision" in str(one.get("_target_"))), None)
    own = own or {}
    word = str(own.get("precision") or trainer.get("precision") or "32")
    if word not in ("bf16-mixed", "16-mixed", "32", "32-true", "bf16", "16"):
        raise InputError(f"{path}: trainer.plugins.precision is '{word}'; it must be bf16-mixed, 16-mixed or 32")
    return {**own, "bf16": word.startswith("bf16"), "fp16": word.startswith("16")}


def _overlap(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the callback of overlaps says."""
    every = trainer.get("callbacks")
    for one in every if isinstance(every, list) else []:
        if isinstance(one, dict) and "CommOverlap" in str(one.get("_target_")):
            return {"tp_comm_overlap": bool(one.get("tp_comm_overlap"))}
    return {}


def _placed(lines: Mapping[tuple[str, ...], int], above: tuple[str, ...]) -> dict[tuple[str, ...], int]:
    """Return the lines by the parts that fields belong to."""
    homes = {
        ("model", "config"): "model", ("trainer", "strategy", "ddp"): "ddp", ("data",): "train",
        ("optim", "config"): "optimizer",
        ("trainer", "strategy"): "strategy", ("trainer", "plugins"): "mixed_precision", ("peft",): "peft",
    }  # fmt: skip
    found: dict[tuple[str, ...], int] = {}
    for keys, line in lines.items():
        inner = keys[len(above) :]
        if inner[:-1] in homes:
            found[(homes[inner[:-1]], inner[-1])] = line
        if inner[:-1] == ("trainer", "strategy") and inner[-1] in _DEGREES:
            found[("model", inner[-1])] = line
        if inner in homes:
            found.setdefault((homes[inner],), line)
    return found
