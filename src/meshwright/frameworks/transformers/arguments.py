"""A plan as ``TrainingArguments``: a Python module with a function ``arguments``, or the JSON file of a training script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.core.result import Result
from meshwright.frameworks import _adapters, _exact, _one_config, _optimizers
from meshwright.models import preference_pairs

__all__ = ["PRECISIONS", "write"]

PRECISIONS: Mapping[str, str] = MappingProxyType({"bf16": "bf16", "fp16": "fp16", "tf32": "tf32"})
"""The argument that is true for each precision; none of them for fp32."""


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the file of a plan that is not refused, whole or not at all; returns how to start a JSON file.

    Raises
    ------
    ExportError
        When transformers does not build the model, or JSON cannot say what a plan needs.
    """
    problem = result.problem
    fields = _exact.decoder("transformers", problem)
    sizes = _exact.launch_sizes("transformers", result)
    said, mesh = _said(result, str(fields["model_type"])), _mesh(result)
    endpoint = " --node-rank RANK --master-addr HOST" if sizes[0] > 1 else ""
    launch = f"torchrun --nnodes {sizes[0]} --nproc-per-node {sizes[1]}{endpoint}"
    if not path.endswith(".json"):
        files.write(path, _module(result, said, mesh, launch))
        return ()
    if mesh:
        raise ExportError(
            "transformers: a JSON file cannot hold parallelism_config, which is a Python object, and this plan has replicas of "
            "shards or a context axis; write to a name that ends in .py"
        )
    script = {"config_name": "MODEL", "block_size": problem.graph.sequence_length}
    files.write(path, json.dumps(script | said, indent=2) + "\n")
    started = f"start it with: {launch} run_clm.py {Path(path).name} ({_one_config.model_parts(problem)})"
    return (started, *_one_config.of_so_many(result))


def _said(result: Result, family: str) -> dict[str, Any]:
    """Return the arguments, those of the mesh left out."""
    plan, precision = result.plan, result.problem.training.precision
    optimizer = result.problem.training.optimizer
    one, full = plan.stages[0].strategy, "full" in plan.stages[0].recompute
    said: dict[str, Any] = {
        "output_dir": "out",
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.n_microbatches,
        "optim": _optimizers.TRAINER[optimizer][0],
    }
    if _optimizers.TRAINER[optimizer][1]:
        said["optim_args"] = _optimizers.TRAINER[optimizer][1]
    if precision in PRECISIONS:
        said[PRECISIONS[precision]] = True
    if "compiled" in _variant(result).split("+"):
        said["torch_compile"] = True
    said |= _pairs(result)
    if _variant(result).startswith("deepspeed"):
        return said | {"activation_checkpointing": full, "deepspeed": _deepspeed(result)}
    if not one.shard:
        return said | {"activation_checkpointing": full, "ddp_find_unused_parameters": False}
    kept = _one_config.synchronised(plan, result.problem)
    said |= {"accelerator_config": kept} if kept else {}
    return said | {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "reshard_after_forward": one.shard == 3,
            "activation_checkpointing": full,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": [_exact.DECODERS[family][1]],
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }


def _pairs(result: Result) -> dict[str, Any]:
    """Return the arguments of TRL's ``DPOConfig``, which by itself recomputes layers and computes in bf16; empty for others."""
    spec = result.problem.model_spec
    if not spec.objective:
        return {}
    asked = preference_pairs.parse_objective(spec.objective, adapters=bool(spec.lora))
    said: dict[str, Any] = {"max_length": spec.graph.sequence_length, "activation_checkpointing": False}
    said |= {"bf16": False} if result.problem.training.precision != "bf16" else {}
    return said | ({"precompute_ref_log_probs": True} if asked.reference == "precomputed" else {})


def _variant(result: Result) -> str:
    """Return the variant that a plan is priced for; empty for the plain one, and where it is priced for another framework."""
    own = result.problem.framework
    return own.variant if own.name == "transformers" else ""


def _deepspeed(result: Result) -> dict[str, Any]:
    """Return DeepSpeed's configuration. Its train_batch_size is left out: the Trainer would take it from all processes, also
    where a tensor axis makes fewer data ranks of them.
    """
    one, precision = result.plan.stages[0].strategy, result.problem.training.precision
    zero = {
        "stage": one.shard,
        "overlap_comm": result.problem.framework.overlaps_reduce,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    content: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": zero,
    }
    if precision != "fp32":
        content[precision] = {"enabled": "auto"}
    if one.tensor > 1:
        content["tensor_parallel"] = {"autotp_size": one.tensor}
    return content


def _mesh(result: Result) -> dict[str, int]:
    """Return the sizes of Accelerate's mesh; none where its defaults make it."""
    one = result.plan.stages[0].strategy
    shard = one.shard_degree or one.data
    if _variant(result).startswith("deepspeed") or not one.shard or (one.context == 1 and shard == one.data):
        return {}
    return {"dp_replicate_size": one.data // shard, "dp_shard_size": shard, "cp_size": one.context}


def _module(result: Result, said: Mapping[str, Any], mesh: Mapping[str, int], launch: str) -> str:
    """Return the Python module."""
    problem = result.problem
    lora, quantised = _adapters.config(problem), problem.graph.quantised
    tuned = "get_peft_model(model, adapters())" if lora else "model"
    pairs, kind = bool(problem.model_spec.objective), "DPOConfig" if problem.model_spec.objective else "TrainingArguments"
    started = f"Trainer({tuned}, arguments(), ...) with samples of SEQUENCE_LENGTH tokens."
    if pairs:
        given = ", peft_config=adapters()" if lora else ""
        held = preference_pairs.parse_objective(problem.model_spec.objective, adapters=bool(lora)).reference
        given += ", ref_model=REFERENCE" if lora and held == "copy" else ""
        started = f"trl.DPOTrainer(model, args=arguments(){given}, ...) with pairs of up to SEQUENCE_LENGTH tokens each."
    imported = [*(["BitsAndBytesConfig"] if quantised else []), *([] if pairs else [kind])]
    dictionary = {key: value for key, value in said.items() if isinstance(value, dict)}
    lines = [
        f'"""{problem.model_spec.name} on {result.plan.n_devices} devices{_exact.predicted(result)}; for transformers 5.23.',
        "",
        f"    {launch} TRAIN.py",
        "",
        f"where TRAIN.py is a script of yours: {started}",
        '"""',
        "",
        *(["from accelerate.parallelism_config import ParallelismConfig"] if mesh else []),
        *(["import torch"] if quantised else []),
        *(["from peft import LoraConfig"] if lora else []),
        *([f"from transformers import {', '.join(imported)}"] if imported else []),
        *(["from trl import DPOConfig"] if pairs else []),
        "",
        f"SEQUENCE_LENGTH = {problem.graph.sequence_length}",
        "",
        "",
        f"def arguments() -> {kind}:",
        f"    return {kind}(",
        *(f"        {key}={_quoted(value)}," for key, value in said.items() if key not in dictionary),
        *(
            line
            for key, table in dictionary.items()
            for line in (
                f"        {key}={{",
                *(f'            "{name}": {_quoted(value)},' for name, value in table.items()),
                "        },",
            )
        ),
    ]
    if mesh:
        lines.append(f"        parallelism_config=ParallelismConfig({', '.join(f'{k}={v}' for k, v in mesh.items())}),")
    return "\n".join([*lines, "    )", *_adapters_of(lora, quantised), ""])


def _adapters_of(lora: Mapping[str, Any], quantised: bool) -> list[str]:
    """Return the functions that say adapters, and frozen weights in four bits."""
    if not lora:
        return []
    lines = [
        "", "", "def adapters() -> LoraConfig:",
        f"    return LoraConfig({', '.join(f'{name}={_quoted(value)}' for name, value in lora.items())})",
    ]  # fmt: skip
    if quantised:
        lines += [
            "", "", "def quantised() -> BitsAndBytesConfig:",
            '    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,',
            "        bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.bfloat16)",
        ]  # fmt: skip
    return lines


def _quoted(value: Any) -> str:
    """Return a constant as people write it in Python: strings in double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {_quoted(one)}' for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)
