"""PaSE answers in words and JSON: the split of every operator, what it costs, and the certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.planners.pase.layer_costs import (
    configurations,
    data_parallel_splits,
    edge_cost,
    layer_cost,
    tensor_splits,
)
from meshwright.planners.pase.on_cluster import step_seconds
from meshwright.planners.pase.operators import PaseGraph, PaseOperator
from meshwright.planners.pase.question import PaseQuestion
from meshwright.planners.pase.tables import PaseTables, splits_cost
from meshwright.solvers.pairwise.budget import Budgeted

__all__ = [
    "baseline_notes",
    "baselines",
    "certificate",
    "data_parallel",
    "expert_splits",
    "impossible",
    "on_cluster",
    "one_weird_trick",
    "outside",
    "shardings",
]

Ints = NDArray[np.int64]


def shardings(question: PaseQuestion, chosen: Sequence[Ints]) -> dict[str, Any]:
    """Return the split of every operator by name, and a table of what each costs.

    `chosen`, each shape (n_axes,), int64: splits of each operator.
    Returns: ``shardings`` (splits by operator), ``axes`` (the word of each axis by operator) and ``operators``: per
    operator its split in words, and FLOP equivalents of its work and reductions, and of re-sharding its inputs.
    """
    operators = question.network.operators
    moved = [0.0] * len(operators)
    for u, v, use in question.network.edges():
        produced = tensor_splits(chosen[u][None, :], operators[u].output_axes)
        consumed = tensor_splits(chosen[v][None, :], use.axes)
        moved[v] += float(edge_cost(use.shape, produced, consumed, question.word_flop)[0, 0])
    rows = []
    for operator, split, resharding in zip(operators, chosen, moved, strict=True):
        words = [f"{name}/{part}" for name, part in zip(operator.axis_names, split.tolist(), strict=True) if part > 1]
        cost = float(layer_cost(operator, split[None, :], question.word_flop)[0])
        rows.append({"operator": operator.name, "split": " ".join(words) or "none", "layer": cost, "resharding": resharding})
    return {
        "shardings": {operator.name: split.tolist() for operator, split in zip(operators, chosen, strict=True)},
        "axes": {operator.name: list(operator.axis_names) for operator in operators},
        "operators": rows,
    }


def impossible(network: PaseGraph, chosen: Sequence[Ints]) -> str:
    """Return in words which split does not divide its axis, as every configuration has to; empty where all do.

    `chosen`, each shape (n_axes,), int64: splits of each operator.
    """
    for operator, row in zip(network.operators, chosen, strict=True):
        for word, size, parts in zip(operator.axis_names, operator.sizes, row.tolist(), strict=True):
            if size % parts:
                return f"{parts} processors do not divide axis {word} of {operator.name}, which has {size}"
    return ""


def outside(question: PaseQuestion, chosen: Sequence[Ints]) -> str:
    """Return the name of the first operator whose split is none of PaSE's configurations, too fine for them; empty for none."""
    known: dict[PaseOperator, Ints] = {}
    for operator, row in zip(question.network.operators, chosen, strict=True):
        like = replace(operator, name="", uses=())
        rows = known.setdefault(like, configurations(like, question.n_processors))
        if not (rows == row).all(axis=1).any():
            return operator.name
    return ""


def data_parallel(question: PaseQuestion) -> tuple[Ints, ...]:
    """Return the splits of data parallelism: only the batch, over all processors, enumerated or not."""
    return tuple(data_parallel_splits(operator, question.n_processors)[0] for operator in question.network.operators)


def one_weird_trick(question: PaseQuestion) -> tuple[Ints, ...]:
    """Return data parallelism with fully connected layers split by their outputs, where that split is allowed.

    References
    ----------
    .. [1] A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997, 2014.
    """
    chosen = list(data_parallel(question))
    for i, operator in enumerate(question.network.operators):
        if operator.kind in ("FC", "SoftmaxCrossEntropy"):
            axis = operator.axis_names.index("n") if "n" in operator.axis_names else len(operator.sizes) - 1
            allowed = configurations(operator, question.n_processors)[:, axis]
            chosen[i] = np.ones(len(operator.sizes), dtype=np.int64)
            chosen[i][axis] = question.n_processors if question.n_processors in allowed else 1
    return tuple(chosen)


def expert_splits(network: PaseGraph, n_processors: int) -> tuple[Ints, ...]:
    """Return the splits of experts that the paper compares with, as its released benchmarks have them (commit 32aa761).

    `network`: of PaSE's graphs.
    `n_processors`: an even number from 4 on.
    Raises `InputError` when the processors do not divide what they split.
    Returns: the transformer as Mesh-TensorFlow splits it: heads, inner widths and vocabularies over 4, samples over the rest;
    the language model with its LSTM layers one after the other, each on half of the processors, which share the samples;
    convolutions as one weird trick.
    """
    if network.name in ("transformer", "rnnlm"):
        wide, layers = (4, 1) if network.name == "transformer" else (1, 2)
        words = {"b": n_processors // (wide * layers), "layer": layers} | dict.fromkeys(("h", "f", "v"), wide)
        chosen = [np.array([words.get(name, 1) for name in one.axis_names], dtype=np.int64) for one in network.operators]
        if network.name == "transformer":
            chosen[-1][-1] = wide  # the loss over the vocabulary
    else:
        chosen = list(one_weird_trick(PaseQuestion(network, n_processors, network.operators[0].sizes[0], 128, 0.0, ())))
    wrong = impossible(network, chosen)
    if wrong:
        raise InputError(f"{network.name} on {n_processors} processors has no splits of experts: {wrong}")
    return tuple(chosen)


def baselines(question: PaseQuestion) -> dict[str, float]:
    """Return the cost of data parallelism and of the one weird trick (where there are fully connected layers); without those
    that split an axis into parts that do not divide it.
    """
    return {
        name: splits_cost(question.network, chosen, question.word_flop)
        for name, chosen in _simple(question).items()
        if not impossible(question.network, chosen)
    }


def baseline_notes(question: PaseQuestion) -> tuple[str, ...]:
    """Say which baselines are impossible, and which lie outside the configurations that the optimum is of."""
    notes = []
    for name, chosen in _simple(question).items():
        word, wrong = name.replace("_", " "), impossible(question.network, chosen)
        if wrong:
            notes.append(f"no baseline '{word}': {wrong}")
        elif finer := outside(question, chosen):
            notes.append(
                f"the baseline '{word}' splits {finer} finer than PaSE's configurations do: the optimum is of those, and may "
                "cost more than this baseline"
            )
    return tuple(notes)


def _simple(question: PaseQuestion) -> dict[str, tuple[Ints, ...]]:
    """Return the splits of the baselines by name."""
    found = {"data_parallel": data_parallel(question)}
    if any(operator.kind == "FC" for operator in question.network.operators):
        found["one_weird_trick"] = one_weird_trick(question)
    return found


def on_cluster(question: PaseQuestion, cluster: Cluster, chosen: Sequence[Ints]) -> dict[str, float | None]:
    """Return the seconds of a step on a cluster, in single precision and without overlap, beside data parallelism there.

    `chosen`, each shape (n_axes,), int64: splits of each operator.
    Returns: ``step_seconds``, its parts, and ``data_parallel_step_seconds``; None in place of all where the cluster has unlike
    devices or no peak in single precision, in place of the last where the processors do not divide the batch.
    """
    words = ("compute", "reduction", "resharding", "gradient")
    names = ("step_seconds", *(f"{word}_seconds" for word in words), "data_parallel_step_seconds")
    if not cluster.homogeneous or "fp32" not in dict(cluster.device(0).flops_per_second):
        return dict.fromkeys(names)
    ours = step_seconds(question.network, chosen, cluster)
    simple, theirs = data_parallel(question), None
    if not impossible(question.network, simple):
        theirs = step_seconds(question.network, simple, cluster).step_seconds
    return dict(zip(names, (ours.step_seconds, *(getattr(ours, f"{w}_seconds") for w in words), theirs), strict=True))


def certificate(question: PaseQuestion, tables: PaseTables, found: Budgeted, memory_bytes: float | None) -> dict[str, Any]:
    """Return the certificate: the question, the splits, their cost, the bound, and the messages that prove it.

    `memory_bytes`: most bytes a device may hold.
    Returns: JSON-ready. Under a memory limit the bound is the one that the multiplier proves, which may be below the bound
    of the answer (integer programming leaves no short proof).
    """
    relaxation = found.relaxed.relaxation
    bound = found.bound_value
    if memory_bytes is not None and found.multiplier_ratio > 0:
        bound = min(found.relaxed.bound_value - found.multiplier_ratio * memory_bytes, found.value)
    elif found.method == "highs":
        bound = relaxation.bound_value
    return {
        "format": "meshwright/certificate/1",
        "kind": "pase",
        "question": {
            "graph": question.network.name,
            "n_processors": question.n_processors,
            "batch": question.batch,
            "model": question.model,
            "flop_per_word": question.word_flop,
            "memory_bytes": memory_bytes,
        }
        | ({"written": question.written} if question.written else {}),
        "shardings": [tables.splits[v][label].tolist() for v, label in enumerate(found.labels.tolist())],
        "value": found.value,
        "bound": bound,
        "multiplier": found.multiplier_ratio,
        "to_source": [message.tolist() for message in relaxation.to_row],
        "to_target": [message.tolist() for message in relaxation.to_column],
    }
