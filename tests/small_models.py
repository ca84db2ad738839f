"""Two models of a few small layers, their embedding and head not shared: what is recorded on them stays quick."""

from __future__ import annotations

import dataclasses
import json
import pathlib

from meshwright import api
from meshwright.core.cluster import Cluster
from meshwright.core.problem import Batch, MixedPrecision, Problem
from questions import fused

__all__ = ["question"]

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 3000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
CONFIGURATIONS = {
    "dense": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES},
    "experts": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        **SIZES,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
}


def question(
    kind: str,
    cluster: Cluster,
    folder: pathlib.Path,
    batch: Batch | None = None,
    training: MixedPrecision | None = None,
    costs: str = "",
) -> Problem:
    """Return a question on the ``dense`` model or that of ``experts``, trained by a framework that costs nothing.

    Peaks are taken as predicted.
    """
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(CONFIGURATIONS[kind]))
    problem = fused(api.make_problem(str(path), cluster, batch=batch or Batch(8), costs=costs, memory_risk=0.5))
    return problem if training is None else dataclasses.replace(problem, training=training)
