"""A plan as nanotron's configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files, yaml_text
from meshwright.base.errors import ExportError
from meshwright.core.result import Result
from meshwright.frameworks import _exact
from meshwright.frameworks.nanotron import split

__all__ = ["DTYPES", "ENGINES", "write"]

DTYPES: Mapping[str, str] = MappingProxyType({"bf16": "bfloat16", "fp32": "float32"})
"""``model.dtype`` of each precision."""

ENGINES: Mapping[str, str] = MappingProxyType({"1f1b": "1f1b", "gpipe": "afab"})
"""``parallelism.pp_engine`` of each schedule."""


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the file of a plan that is not refused, whole or not at all; returns what of the model it leaves out.

    Raises
    ------
    ExportError
        When nanotron's configurations do not hold the model.
    """
    problem, plan = result.problem, result.plan
    fields = split.configuration(problem)
    model, notes = _model(problem.model_spec.spec, fields, problem.graph.sequence_length)
    nodes, per_node = _exact.launch_sizes("nanotron", result)
    one = plan.stages[0].strategy
    own = problem.framework
    content = {
        "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints"},
        "data_stages": [
            {"name": "all", "start_training_step": 1, "data": {"dataset": None, "num_loading_workers": 1, "seed": 42}}
        ],
        "general": {"project": "plan", "run": problem.model_spec.name, "seed": 42},
        "model": {
            "dtype": DTYPES[problem.training.precision],
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": model,
        },
        "optimizer": {
            "accumulate_grad_in_fp32": True,
            "clip_grad": 1.0,
            "learning_rate_scheduler": {
                "learning_rate": 0.0003, "lr_decay_style": "cosine", "lr_warmup_steps": 10, "lr_warmup_style": "linear",
                "min_decay_lr": 0.00003,
            },
            "optimizer_factory": {
                "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1.0e-8, "name": "adamW", "torch_adam_is_fused": True,
            },
            "weight_decay": 0.1,
            "zero_stage": one.shard,
        },
        "parallelism": {
            "dp": one.data,
            "expert_parallel_size": 1,
            "pp": len(plan.ranks()),
            "pp_engine": ENGINES[plan.schedule],
            "recompute_layer": any("full" in stage.recompute for stage in plan.stages),
            "tp": one.tensor,
            "tp_linear_async_communication": own.name == "nanotron" and own.variant == "async_tensor" and one.sequence_parallel,
            "tp_mode": "REDUCE_SCATTER" if one.sequence_parallel and one.tensor > 1 else "ALL_REDUCE",
        },
        "tokens": {
            "batch_accumulation_per_replica": plan.n_microbatches,
            "micro_batch_size": plan.micro_batch,
            "sequence_length": problem.graph.sequence_length,
            "train_steps": 1000,
        },
    }  # fmt: skip
    endpoint = " --node-rank RANK --master-addr HOST" if nodes > 1 else ""
    head = [
        f"# {problem.model_spec.name} on {plan.n_devices} devices{_exact.predicted(result)}; for nanotron's main of 2025.",
        "# CUDA_DEVICE_MAX_CONNECTIONS=1 \\",
        f"# torchrun --nnodes {nodes} --nproc-per-node {per_node}{endpoint} run_train.py --config-file {Path(path).name}",
        "# Tokens are random until data_stages names a dataset and tokenizer a tokenizer.",
        *(f"# {note}." for note in notes),
    ]
    files.write(path, "\n".join(head) + "\n" + yaml_text.dump(content))
    return notes


def _model(name: str, fields: Mapping[str, Any], sequence_length: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return ``model_config`` of a Hugging Face configuration, and what it leaves out.

    Raises
    ------
    ExportError
        When it does not hold the family, or the model's dimensions or windows.
    """
    family = fields.get("model_type")
    if family not in split.FAMILIES:
        raise ExportError(
            f"nanotron: {name} is of the family {family}, which is not written out; {', '.join(split.FAMILIES)} are"
        )
    hidden, heads = int(fields["hidden_size"]), int(fields["num_attention_heads"])
    if int(fields.get("head_dim") or hidden // heads) != hidden // heads:
        raise ExportError(f"nanotron: {name} has heads of {fields['head_dim']}, and its own are {hidden // heads} wide")
    window = fields.get("sliding_window") if fields.get("use_sliding_window", True) else None
    if window and int(window) < sequence_length:
        raise ExportError(
            f"nanotron: sliding windows of {window} of {sequence_length} tokens are not written out, and attention to all "
            f"tokens takes longer than the plan of {name} says; plan with a --sequence-length within the window"
        )
    qwen = family == "qwen2"
    said = {
        "attention_bias": bool(fields.get("attention_bias", qwen)),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(fields["intermediate_size"]),
        "is_qwen2_config" if qwen else "is_llama_config": True,
        "max_position_embeddings": max(sequence_length, int(fields.get("max_position_embeddings") or 0)),
        "num_attention_heads": heads,
        "num_hidden_layers": int(fields["num_hidden_layers"]),
        "num_key_value_heads": int(fields.get("num_key_value_heads") or heads),
        "rms_norm_eps": float(fields.get("rms_norm_eps") or 1e-6),
        "rope_theta": float(fields.get("rope_theta") or 10000.0),
        "tie_word_embeddings": bool(fields.get("tie_word_embeddings", False)),
        "vocab_size": int(fields["vocab_size"]),
    }
    kind = (fields.get("rope_scaling") or {}).get("rope_type", "default")
    notes = () if kind == "default" else (f"the configuration scales rotary positions by '{kind}', which is not written",)
    return said, notes
