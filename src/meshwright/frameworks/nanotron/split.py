"""How nanotron cuts a model into the stages of a pipeline: by costs of its own, nowhere told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.core.problem import Problem
from meshwright.core.source import Source
from meshwright.models.readers import huggingface

__all__ = ["FAMILIES", "configuration", "of_fields", "of_problem"]

FAMILIES = ("llama", "mistral", "qwen2")
"""Values of ``model_type`` that its configurations of models hold: Llama's, which is Mistral's without a window; Qwen2's."""


def configuration(problem: Problem) -> dict[str, Any]:
    """Return a problem's Hugging Face configuration, or what a file of nanotron told of it; empty where there is none."""
    spec = problem.model_spec
    if not spec.spec:
        return dict(spec.instance) if isinstance(spec.instance, Mapping) else {}
    source = Source(spec.spec)
    if source.path is not None:
        return source.json if isinstance(source.json, dict) else {}
    return dict(huggingface.configuration(spec.spec)) if spec.spec in huggingface.names() else {}


def of_problem(problem: Problem, n_ranks: int) -> list[tuple[int, ...]] | None:
    """Return the layers of every stage, in our numbers; None where it does not hold the model, or leaves a rank empty."""
    if problem.model_spec.format != "huggingface":
        return None
    fields = configuration(problem)
    return of_fields(fields, n_ranks) if fields.get("model_type") in FAMILIES else None


def of_fields(fields: Mapping[str, Any], n_ranks: int) -> list[tuple[int, ...]] | None:
    """Return the layers of every stage; None where a rank gets none.

    Notes
    -----
    As ``nanotron/models/base.py``, ``build_model``, does it: blocks in order, embedding and norm free, a layer its products'
    weights, the head its table. A rank takes blocks until their sum passes its share of the total; the block that passes it
    still is its own.
    """
    hidden, heads = int(fields["hidden_size"]), int(fields["num_attention_heads"])
    layer = 4 * heads * (hidden // heads) * hidden + 3 * int(fields["intermediate_size"]) * hidden
    n_layers = int(fields["num_hidden_layers"])
    costs = [0, *[layer] * n_layers, 0, int(fields["vocab_size"]) * hidden]  # embedding, layers, norm, head
    total, done, rank = sum(costs), 0, 0
    ranks = []
    for cost in costs:
        ranks.append(rank)
        done += cost
        if done > total * ((rank + 1) / n_ranks):
            rank += 1
    if ranks[-1] != ranks[-2]:
        return None  # norm and head apart, which ours are not
    stages = [tuple(op for op, own in enumerate(ranks[:-1]) if own == rank) for rank in range(n_ranks)]
    return stages if all(stages) else None
