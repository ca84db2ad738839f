"""SimuMax: Llama and DeepSeek models cut to a few layers on 8 x B200, Megatron-LM without overlap; seconds and allocated
memory.

References
----------
.. [1] SimuMax 1.2, summary of its release on B200.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Run, built_in, clusters, point, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = ("gpu", "gpus", "case", "model", "layers", "tp", "cp", "pp", "dp", "ep", "seq", "mbs", "num_microbatches", "real_ms",
           "real_alloc_gib")  # fmt: skip


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row; allocated memory excludes what is reserved."""
    place, trained_by = clusters(), frameworks.variant("megatron", "plain")
    return [_point(i, fields, place, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        measured, held = ratio(fields, "real_ms") / 1e3, ratio(fields, "real_alloc_gib") * 2.0**30
        tensor, context, data = count(fields, "tp"), count(fields, "cp"), count(fields, "dp")
        micro_batch, gpus = count(fields, "mbs"), count(fields, "gpus")
        graph = _graph(fields["model"], count(fields, "layers"), count(fields, "seq"))
        strategy = Strategy(data, tensor, context, count(fields, "ep", 1), tensor > 1, shard=1)
        case = fields["case"]
        cluster = place(f"dgx-b200:{gpus}")
        run = Run(
            graph, cluster, (strategy,), pipeline=count(fields, "pp"), micro_batch=micro_batch,
            global_batch=micro_batch * count(fields, "num_microbatches") * data,
            recompute="full" if "full" in case else "selective" if "selective" in case or "recompute" in case else "none",
            training=MixedPrecision("fp8" if "fp8" in case else "bf16"), framework=trained_by,
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    return point(row, measured, predicted, held_bytes=held, memory="allocated")


def _graph(model: str, layers: int, sequence: int) -> Graph:
    """Return a model cut to its first layers."""
    names = {
        "llama3_8b": "llama-3.1-8b", "llama3_70b": "llama-3.1-70b", "llama3_405b": "llama-3.1-405b", "deepseekv2":
        "deepseek-v2", "deepseek_v2": "deepseek-v2", "deepseekv3": "deepseek-v3", "deepseek_v3": "deepseek-v3", "mixtral_8x7b":
        "mixtral-8x7b",
    }  # fmt: skip
    if model not in names:
        raise InputError(f"the model '{model}' is not known; there are: {', '.join(sorted(names))}")
    one_dense = {"first_k_dense_replace": 1} if model.startswith("deepseek") else {}  # [1]: "formal rows use dense_layers=1"
    return built_in(names[model], sequence, num_hidden_layers=layers, **one_dense)
