"""A plan as MaxText's configuration: what differs from its ``base.yml``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files, yaml_text
from meshwright.base.errors import ExportError
from meshwright.core.result import Result
from meshwright.core.source import Source
from meshwright.frameworks import _exact
from meshwright.models.readers import huggingface

__all__ = ["BY_DIMENSIONS", "REMAT", "key", "known", "write"]

REMAT: Mapping[str, str] = MappingProxyType({"none": "minimal_with_context", "full": "full"})
"""``remat_policy`` of each setting of recomputation."""

BY_DIMENSIONS: Mapping[str, str] = MappingProxyType({"llama": "llama2", "mistral": "mistral"})
"""``decoder_block`` of the families that are told by their dimensions."""


def known() -> dict[str, Any]:
    """Return names of models and entries, from the data file."""
    path = Path(__file__).parents[1] / "data" / "maxtext_options.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def key(fields: Mapping[str, Any]) -> str:
    """Return by what the data file knows a model of a Hugging Face configuration."""
    sizes = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size")
    return " ".join(str(fields.get(size)) for size in sizes)


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the file of a plan that is not refused, whole or not at all.

    Raises
    ------
    ExportError
        When MaxText does not have the model, or no batch of a device makes the plan's micro-batches.
    """
    problem, plan = result.problem, result.plan
    one, precision = plan.stages[0].strategy, problem.training.precision
    shard = (one.shard_degree or one.data) if one.shard == 3 else 1
    per_device = plan.micro_batch / (one.tensor * one.context)
    if int(per_device * plan.n_devices) != plan.micro_batch * one.data:
        raise ExportError(
            f"maxtext: no per_device_batch_size makes micro-batches of {plan.micro_batch} over {one.tensor * one.context} "
            "tensor and context ranks; plan with a --micro-batch that they divide"
        )
    split = "tensor_sequence" if one.sequence_parallel else "tensor"
    axes = {"data": one.data // shard, "fsdp": shard // one.expert, "context": one.context, split: one.tensor}
    axes["expert"] = one.expert
    graphics = problem.cluster is None or not all(kind.name.lower().startswith("tpu") for kind in problem.cluster.kinds)
    content: dict[str, Any] = {
        "base_config": "base.yml",
        "run_name": "plan",
        "hardware": "gpu" if graphics else "tpu",
        "attention": "cudnn_flash_te" if graphics else "flash",
        **_model(result),
        "dataset_type": "synthetic",
        "steps": 1000,
        "max_target_length": problem.graph.sequence_length,
        "per_device_batch_size": int(per_device) if per_device.is_integer() else per_device,
        "gradient_accumulation_steps": plan.n_microbatches,
        "dtype": "float32" if precision == "fp32" else "bfloat16",
        "quantization": "fp8" if precision == "fp8" else "",
        "remat_policy": REMAT["full" if "full" in plan.stages[0].recompute else "none"],
        "shard_optimizer_over_data": one.shard == 1,
        **(
            {"context_parallel_strategy": one.context_exchange, "context_parallel_load_balance": True}
            if one.context > 1
            else {}
        ),
        **_over_slices(axes, _exact.launch_sizes("maxtext", result)[1] if graphics else plan.n_devices),
    }
    head = [
        f"# {problem.model_spec.name} on {plan.n_devices} devices{_exact.predicted(result)}; for MaxText's main of 2026.",
        "# Put it into src/maxtext/configs and start on every host:",
        f"#   python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/{Path(path).name} base_output_directory=OUT",
        "# It trains on synthetic tokens until dataset_type says otherwise.",
    ]
    files.write(path, "\n".join(head) + "\n" + yaml_text.dump(content))
    return ()


def _over_slices(axes: dict[str, int], n_devices: int) -> dict[str, int]:
    """Return the sizes of axes inside slices (``ici``) and over them (``dcn``): as if all were one, the last axis fastest.

    `n_devices`: of a slice. On GPUs that is a host: XLA gives all devices of a host one slice index
    (``xla/pjrt/distributed/topology_util.cc``), and MaxText counts these (``max_utils.get_num_slices``). Sizes inside multiply
    to the devices of a slice, those over slices to the slices.

    Raises
    ------
    ExportError
        When an axis ends inside a host where it does not divide it.
    """
    inside: dict[str, int] = {}
    left = n_devices
    for axis in reversed(axes):
        inside[axis] = math.gcd(axes[axis], left)
        if inside[axis] != min(axes[axis], left):
            raise ExportError(
                f"maxtext: a {axis} degree of {axes[axis]} over hosts of {n_devices} devices, of which {left} are left for it: "
                "every host is a slice there, and one of both has to divide the other; plan with --set and other degrees"
            )
        left //= inside[axis]
    over = {f"dcn_{axis}_parallelism": axes[axis] // inside[axis] for axis in axes}
    said = {name: size for name, size in over.items() if size > 1 or name == "dcn_data_parallelism"}
    return said | {f"ici_{axis}_parallelism": inside[axis] for axis in axes}


def _model(result: Result) -> dict[str, Any]:
    """Return what names the model, or its dimensions.

    Raises
    ------
    ExportError
        When MaxText does not have it.
    """
    spec, graph = result.problem.model_spec, result.problem.graph
    source = Source(spec.spec)
    if source.path is not None:
        fields = source.json if isinstance(source.json, dict) else {}
    else:
        fields = dict(huggingface.configuration(spec.spec)) if spec.spec in huggingface.names() else {}
    family = str(fields.get("model_type"))
    name = known()["models"].get(key(fields))
    if name:
        ahead = sum(op.name.startswith("mtp.") for op in graph.ops)
        return {"model_name": name, **({"mtp_num_layers": ahead, "override_model_config": True} if ahead else {})}
    if family not in BY_DIMENSIONS:
        raise ExportError(
            f"maxtext: {spec.spec} is none of its models that are known here, and of the family {family}, which is not told by "
            f"its dimensions; {', '.join(BY_DIMENSIONS)} are"
        )
    window = fields.get("sliding_window")
    if window and int(window) < graph.sequence_length:
        raise ExportError(
            f"maxtext: sliding windows of {window} of {graph.sequence_length} tokens are not written out, and attention to all "
            f"tokens takes longer than the plan of {spec.spec} says; plan with a --sequence-length within the window"
        )
    heads = int(fields["num_attention_heads"])
    scaled = (fields.get("rope_scaling") or {}).get("rope_type") == "llama3"
    return {
        "decoder_block": BY_DIMENSIONS[family],
        "base_emb_dim": int(fields["hidden_size"]),
        "base_num_query_heads": heads,
        "base_num_kv_heads": int(fields.get("num_key_value_heads") or heads),
        "base_mlp_dim": int(fields["intermediate_size"]),
        "base_num_decoder_layers": int(fields["num_hidden_layers"]),
        "head_dim": int(fields.get("head_dim") or int(fields["hidden_size"]) // heads),
        "vocab_size": int(fields["vocab_size"]),
        "logits_via_embedding": bool(fields.get("tie_word_embeddings", False)),
        "normalization_layer_epsilon": float(fields.get("rms_norm_eps") or 1e-5),
        "rope_max_timescale": int(fields.get("rope_theta") or 10000),
        **({"rope_type": "llama3.1"} if scaled else {}),
    }
