"""How one mesh axis may split an operator, and in which layout that leaves the tensors it reads and writes."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.base.errors import UnknownNameError
from meshwright.core.graph import Operator

__all__ = ["BATCH", "EXPERT", "HIDDEN", "PARTIAL", "REPLICATED", "SEQUENCE", "Choice", "choices", "placement"]

BATCH, SEQUENCE, HIDDEN, EXPERT, REPLICATED, PARTIAL = range(6)
"""Layouts of a tensor over one mesh axis. Written: split along a dimension, whole everywhere, or partial sums. Read: PARTIAL
stands for a tensor read whole whose gradient comes back as partial sums."""

KINDS = (
    "attention", "causal_attention", "combine", "convolution", "cross_entropy", "dispatch", "elementwise", "embedding",
    "grouped_matmul", "matmul", "norm", "other", "pooling", "softmax",
)  # fmt: skip
"""Kinds of operator, as in `meshwright.core.graph.Operator`."""


class Choice(NamedTuple):
    """One way to split an operator over one mesh axis.

    `name`: what is split: ``batch``, ``out``, ``none``, ...
    `read`, `written`: layouts of its inputs and of its output.
    `axes`: sizes of the operator that are divided; ``batch`` is the number of samples.
    `weights`: ``split``: each device has a part; ``partial``: all have all, gradients are summed; ``shard``: gathered when
    needed, gradients scattered (ZeRO-3, FSDP); ``same``: all have all and compute the same gradients.
    """

    name: str
    read: int
    written: int
    axes: tuple[str, ...]
    weights: str


def choices(operator: Operator) -> tuple[Choice, ...]:
    """Return every way to split an operator over one mesh axis.

    Returns: not splitting comes last.
    Raises `UnknownNameError` when the operator is of no known kind.
    """
    if operator.kind not in KINDS:
        raise UnknownNameError(f"kind of operator ({operator.name})", operator.kind, KINDS)
    found = [Choice("batch", BATCH, BATCH, ("batch",), "partial")]
    if operator.n_parameters and operator.kind in ("matmul", "grouped_matmul", "embedding"):
        found.append(Choice("batch, weights sharded", BATCH, BATCH, ("batch",), "shard"))
    if operator.size("sequence", 0) > 1:
        found.append(Choice("sequence", SEQUENCE, SEQUENCE, ("sequence",), "partial"))
    found += _own(operator)
    return (*found, Choice("none", REPLICATED, REPLICATED, (), "same"))


def _own(operator: Operator) -> list[Choice]:
    """Return the ways that only this kind of operator has."""
    kind = operator.kind
    if kind in ("matmul", "grouped_matmul") or (kind == "convolution" and min(operator.size("in"), operator.size("out")) > 1):
        found = [
            Choice("out", PARTIAL, HIDDEN, ("out",), "split"),
            Choice("in", HIDDEN, PARTIAL, ("in",), "split"),
        ]
        if kind == "grouped_matmul":
            found.append(Choice("experts", EXPERT, EXPERT, ("sequence", "experts"), "split"))
        return found
    if kind in ("attention", "causal_attention"):
        return [Choice("heads", HIDDEN, HIDDEN, ("heads",), "split")]
    if kind == "embedding":
        return [
            Choice("vocabulary", REPLICATED, PARTIAL, ("vocabulary",), "split"),
            Choice("hidden", REPLICATED, HIDDEN, ("hidden",), "split"),
        ]
    if kind == "cross_entropy":
        return [Choice("vocabulary", HIDDEN, HIDDEN, ("vocabulary",), "split")]
    if kind in ("norm", "elementwise") or (kind == "softmax" and operator.tensor_axis == "hidden"):
        found = [Choice("hidden", HIDDEN, HIDDEN, ("hidden",), "split")]
        if ".experts." in operator.name:
            found.append(Choice("experts", EXPERT, EXPERT, ("sequence",), "split"))
        return found
    if kind in ("dispatch", "combine"):
        return [Choice("hidden", HIDDEN, HIDDEN, ("hidden",), "split")]
    return []


def placement(layout: int, *, read: bool = False) -> str:
    """Return a layout as PyTorch's DTensor says it, for a tensor of dimensions (batch, sequence, hidden).

    `layout`: one of the layouts above.
    `read`: whether it is the layout in which a tensor is read.
    """
    if layout == PARTIAL:
        return "Replicate()" if read else "Partial()"
    words = {BATCH: "Shard(0)", SEQUENCE: "Shard(1)", HIDDEN: "Shard(2)", EXPERT: "Shard(expert)", REPLICATED: "Replicate()"}
    return words[layout]
