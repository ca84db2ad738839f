"""Attention that stays inside documents: a packed sample under a document mask (variable-length attention)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.errors import InputError
from meshwright.core.graph import Op, Operator
from meshwright.core.problem import ModelSpec

__all__ = ["UNTOLD", "has_masked_attention", "masked"]

UNTOLD = (
    "document mask: whoever feeds the program hands it the ends of documents and turns variable-length attention on; what is "
    "written for frameworks, and 'meshwright run', do not"
)
"""What is said of a plan under a document mask."""

_ATTENTION = ("attention", "causal_attention")


def masked(spec: ModelSpec, pairs_ratio: float) -> ModelSpec:
    """Return a model whose fused attention computes only pairs of tokens of one document.

    The mean number of keys that a query sees stands in for the documents: with pieces of l_1, l_2, ... tokens that fill samples
    of S, the products of full attention are sum l_i^2 pairs instead of S^2, of causal attention half of both, so S becomes
    `pairs_ratio` S keys. Layers with a window or chunks keep the smaller of that and their own mean: never less than what they
    compute. Attention that writes its scores computes the square and masks it, so it stays as it is.

    Parameters
    ----------
    spec : ModelSpec
        The model.
    pairs_ratio : float
        Mean of sum l_i^2 / S^2 over samples, above 0 and at most 1. 1 changes nothing.

    Returns
    -------
    ModelSpec
        With `pairs_ratio`, and notes: what a program is not told, and where the mask saves less than all of it.

    Raises
    ------
    InputError
        When the share is out of range, samples are no sequences, or the model has two sequences a sample.
    """
    graph = spec.graph
    if not 0.0 < pairs_ratio <= 1.0:
        raise InputError(f"model {spec.name}: pairs_ratio {pairs_ratio} is out of range; it must be above 0 and at most 1")
    if spec.objective:
        raise InputError(
            f"--lengths: pairs of sequences (--objective {spec.objective}) are priced at full length; leave it out"
        )
    if graph.sequence_length <= 1 or graph.tokens_name != "tokens":
        raise InputError(f"--lengths: samples of {spec.name} are no sequences of tokens; leave it out")
    if any(part.name.startswith("cross_attention") for op in graph.ops for part in op.body):
        raise InputError(f"--lengths: {spec.name} has an encoder and a decoder, two lengths a sample, which is not covered")
    if pairs_ratio == 1.0:
        return spec
    bodies: dict[int, tuple[Operator, ...]] = {}
    ops: list[Op] = []
    for op in graph.ops:
        body = bodies.setdefault(id(op.body), tuple(_masked(part, op.body, pairs_ratio) for part in op.body))
        ops.append(replace(op, body=body))
    return replace(
        spec, graph=replace(graph, ops=tuple(ops)), pairs_ratio=pairs_ratio, notes=(*spec.notes, *_notes(spec, pairs_ratio))
    )


def has_masked_attention(spec: ModelSpec) -> bool:
    """Return whether a document mask saves this model anything: whether it has fused attention."""
    return any(_fused(part, op.body) for op in spec.graph.ops for part in op.body)


def _masked(part: Operator, body: tuple[Operator, ...], pairs_ratio: float) -> Operator:
    """Return an operator with the keys that a query sees in its own document."""
    if not _fused(part, body):
        return part
    sequence, keys = part.size("sequence"), part.size("key_sequence", part.size("sequence"))
    seen = min(keys, max(1, round(pairs_ratio * sequence)))
    dims = tuple((name, seen if name == "key_sequence" else size) for name, size in part.dims)
    return replace(part, dims=dims)


def _fused(part: Operator, body: tuple[Operator, ...]) -> bool:
    """Return whether an operator is attention in one kernel; otherwise a soft maximum of its scores follows."""
    prefix = part.name.rpartition(".")[0]
    return part.kind in _ATTENTION and not part.flops and not any(
        other.kind == "softmax" and other.name.rpartition(".")[0] == prefix for other in body
    )  # fmt: skip


def _notes(spec: ModelSpec, pairs_ratio: float) -> tuple[str, ...]:
    """Say where a document mask saves less than its share."""
    found = [UNTOLD]
    parts = [(part, op.body) for op in spec.graph.ops for part in op.body if part.kind in _ATTENTION]
    if any(not _fused(part, body) for part, body in parts):
        found.append("document mask: attention that is not fused computes the whole square and masks it, so it costs the same")
    if any(part.size("key_sequence", part.size("sequence")) < part.size("sequence") for part, _ in parts):
        found.append(
            "document mask: layers with a window or chunks see the fewer of the keys in the window and those in the document, "
            "in the mean: no less than they compute, and up to what both limits together would save more"
        )
    return tuple(found)
