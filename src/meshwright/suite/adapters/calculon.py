"""Calculon's search of executions: ``--planner calculon:PATH`` runs its ``llm-optimal-execution`` and reads the best execution.

Format: Calculon at commit 71f6435 (its systems, examples and ``calculon/llm/optimal_execution.py``): an application, a system
and an answer, each a JSON file. The system is written from our cluster: peaks, what the device achieves of them, and of every
tier of the network the bandwidth at which our model's rings run, so both planners know the same machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright import api
from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.problem import Batch, Problem
from meshwright.network import Network
from meshwright.sim import fits
from meshwright.suite.adapting import PlannerFailed, ask, plan_entry

__all__ = ["answer", "application", "system"]

_GIB, _LARGE_BYTES = 2.0**30, 2.0**30
_RECOMPUTE = {"full": "full", "attn_only": "selective", "none": "none"}.get


def answer(asked: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return Calculon's best execution as a plan file.

    Parameters
    ----------
    asked : mapping
        The problem file of the bench.
    place : str
        Its program (``calculon``, or ``bin/calculon`` of a checkout).

    Raises
    ------
    InputError
        When the model is none that Calculon can describe.
    PlannerFailed
        When it ends with an error or writes no execution.
    """
    if asked["family"] != "models":
        raise InputError("Calculon plans transformers on clusters only (family models)")
    batch = Batch(asked["global_batch"], 0, asked["sequence_length"])
    problem = api.make_problem(asked["model"]["spec"], asked["cluster"]["name"], batch=batch)
    written = {"application.json": application(problem), "system.json": system(problem.required_cluster)}
    with files.temporary_folder("meshwright-calculon-") as folder:
        paths = {name: str(Path(folder) / name) for name in (*written, "answer.json")}
        for name, content in written.items():
            files.write(paths[name], json.dumps(content))
        program = str(Path(place).resolve()) if Path(place).exists() else place
        ask(
            (
                program, "llm-optimal-execution", paths["application.json"], str(asked["n_devices"]),
                str(asked["global_batch"]), "float16", paths["system.json"], paths["answer.json"], "--noneok",
            ),
            folder,
        )  # fmt: skip
        if not Path(paths["answer.json"]).is_file():
            raise PlannerFailed("calculon: wrote no answer")
        told = files.read_json(paths["answer.json"])
    if not told:
        return {"format": "meshwright/plan/1", "problem": asked["problem"], "feasible": False}
    try:
        return _plan(asked, told["0"]["execution"])
    except (KeyError, TypeError) as error:
        raise PlannerFailed(f"calculon: its answer lacks {error}") from None


def application(problem: Problem) -> dict[str, Any]:
    """Return a model as Calculon describes one.

    Parameters
    ----------
    problem : Problem
        A model whose layers hold operators.

    Returns
    -------
    dict
        ``hidden``, ``feedforward``, ``seq_size``, ``attn_heads``, ``attn_size``, ``num_blocks``.

    Raises
    ------
    InputError
        When its blocks are not alike, or are not those of GPT: attention of as many key as query heads, and two products.
    """
    blocks = problem.graph.ops[1:-1]
    dims = [{operator.name: dict(operator.dims) for operator in block.body} for block in blocks]
    like = f"Calculon knows models of GPT's kind only; {problem.model_spec.name} "
    if not dims or any(one != dims[0] for one in dims):
        raise InputError(like + "has blocks that differ")
    core, inner, outer = (dims[0].get(name, {}) for name in ("attention.core", "mlp.in", "mlp.out"))
    if not core or core["heads"] != core["kv_heads"] or not outer or inner.get("out") != outer["in"]:
        raise InputError(like + "has other attention, gated products or experts")
    return {
        "hidden": outer["out"], "feedforward": outer["in"], "seq_size": core["sequence"], "attn_heads": core["heads"],
        "attn_size": core["head"], "num_blocks": len(blocks),
    }  # fmt: skip


def system(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as Calculon describes one: a device, no second memory, and one or two tiers of network.

    Parameters
    ----------
    cluster : Cluster
        Of one kind of device and nodes of one size.

    Raises
    ------
    InputError
        When it has several kinds of device.
    """
    if not cluster.homogeneous:
        raise InputError(f"Calculon knows clusters of one kind of device only; {cluster.name} has several")
    device, inner = cluster.device(0), int(np.bincount(cluster.node_of_device).max())
    peaks = dict(device.flops_per_second)
    peak = peaks.get("fp16") or peaks.get("bf16") or max(peaks.values())
    vector = peaks.get("fp32", peak / 4.0)
    tiers = [np.arange(cluster.n_devices).reshape(-1, inner)] if inner > 1 else []
    if cluster.n_devices > inner:
        tiers.append(np.arange(cluster.n_devices).reshape(-1, inner).T)
    sizes = [group.shape[1] for group in tiers[:-1]] + [65536] * (len(tiers) > 0)
    return {
        "matrix": {"float16": {"tflops": peak / 1e12, "gflops_efficiency": [[0, device.matmul_ratio]]}},
        "vector": {"float16": {"tflops": vector / 1e12, "gflops_efficiency": [[0, 1.0]]}},
        "mem1": {
            "GiB": fits.free_bytes((device,)) / _GIB, "GBps": device.memory_bytes_per_second / 1e9,
            "MB_efficiency": [[0, device.memory_ratio]],
        },
        "mem2": {"GiB": 0, "GBps": 1, "MB_efficiency": [[0, 1.0]]},
        "processing_mode": "no_overlap",
        "networks": [_tier(cluster, groups, size, i == 0) for i, (groups, size) in enumerate(zip(tiers, sizes, strict=True))],
    }  # fmt: skip


def _tier(cluster: Cluster, groups: np.ndarray[Any, np.dtype[np.int64]], size: int, filled: bool) -> dict[str, Any]:
    """Return a tier of the network: the speed and latency at which all its groups reduce at once in rings."""
    axis, n = Network.of(cluster).axis(groups), groups.shape[1]
    small, large = (axis.seconds("all_reduce", n_bytes) for n_bytes in (1.0, _LARGE_BYTES))
    moved = 2.0 * (n - 1) / n * _LARGE_BYTES
    return {
        "bandwidth": moved / max(large - small, 1e-12) / 1e9, "efficiency": 1.0, "size": size, "latency": small / 2.0 / (n - 1),
        "ops": {"p2p": [1.0, None], "reduce_scatter": [1.0, -1], "all_gather": [1.0, -1], "all_reduce": [2.0, -1]},
        "must_be_filled": filled and cluster.n_devices > n, "processor_usage": 0.0,
    }  # fmt: skip


def _plan(asked: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan file of an execution: tensor ranks are neighbours, then data, then pipeline, as Megatron has them."""
    layers = [layer["name"] for layer in asked["layers"]]
    t, p, d, virtual = (int(told[key]) for key in ("tensor_par", "pipeline_par", "data_par", "pipeline_interleaving"))
    how = _RECOMPUTE(str(told["activation_recompute"]))
    if how is None or t * p * d != asked["n_devices"]:
        raise PlannerFailed(
            f"calculon: its execution is of {t * p * d} devices and recomputes {told['activation_recompute']!r}"
        )
    if any(told.get(f"{kind}_offload") for kind in ("weight", "activations", "optimizer")):
        raise PlannerFailed("calculon: its execution offloads, which a plan file cannot say")
    blocks, n_stages = layers[1:-1], p * virtual
    ends = [round(len(blocks) * (i + 1) / n_stages) for i in range(n_stages)]
    stages, first = [], 0
    for i, end in enumerate(ends):
        ops = [*(layers[:1] if i == 0 else []), *blocks[first:end], *(layers[-1:] if i + 1 == n_stages else [])]
        rank = i % p
        stages.append({
            "ops": ops, "devices": list(range(rank * t * d, (rank + 1) * t * d)), "data": d, "tensor": t,
            "sequence_parallel": t > 1 and told["tensor_par_comm_type"] != "ar",
            "shard": 1 if told["optimizer_sharding"] and d > 1 else 0,
            "recompute": [how if op in blocks else "none" for op in ops],
        })  # fmt: skip
        first = end
    batch, micro = int(told["batch_size"]), int(told["microbatch_size"])
    schedule = {
        "name": "interleaved_1f1b" if virtual > 1 else "1f1b", "n_microbatches": batch // (d * micro), "micro_batch": micro,
        "global_batch": batch,
    }  # fmt: skip
    return plan_entry(asked, stages, schedule)
