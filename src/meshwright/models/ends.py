"""The two ends of a language model, and the assembly of its layers into a graph."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.graph import Edge, Graph, Op, Operator, SharedWeights
from meshwright.models.dense_blocks import Block, norm, product

__all__ = ["chain", "embedding", "head", "lookup", "ops", "tied"]

_LOGIT_BYTES = 4  # the loss is computed, and its logits kept, in fp32


def lookup(name: str, rows: int, sequence: int, hidden: int, *, split: bool) -> Operator:
    """Return a table look-up: of words (split over the vocabulary) or of positions (held by every rank)."""
    dims = (("sequence", sequence), ("vocabulary", rows), ("hidden", hidden))
    return Operator(name, "embedding", dims, "vocabulary" if split else "", n_parameters=rows * hidden)


def embedding(block: Block, vocabulary: int, positions: int = 0, *, width: int = 0) -> tuple[Operator, ...]:
    """Return the operators before the first layer.

    `vocabulary`, `positions`: rows of the word table and of the learned position table (0 for none).
    `width`: width of the word table where a projection follows it (OPT-350m); 0 for the hidden size.
    """
    body = [lookup("words", vocabulary, block.sequence, width or block.hidden, split=True)]
    if width and width != block.hidden:
        body.append(product("projection", block.sequence, width, block.hidden, axis="sequence", saved=width))
    if positions:
        body.append(lookup("positions", positions, block.sequence, block.hidden, split=False))
    if positions or block.dropout:
        dims = (("sequence", block.sequence), ("hidden", block.hidden), ("inputs", 2 if positions else 1))
        mask = block.sequence * block.hidden if block.dropout else 0
        body.append(Operator("sum", "elementwise", dims, "sequence", saved_extra_bytes=mask, saved_axis="sequence"))
    return tuple(body)


def head(block: Block, vocabulary: int, *, final_norm: bool = True, bias: bool = False, name: str = "") -> tuple[Operator, ...]:
    """Return final norm, unembedding and loss; the norm keeps its input and its output, the loss its logits."""
    last = (norm(f"{name}norm", block, saved=2, selective=False),) if final_norm else ()
    logits = product(f"{name}unembedding", block.sequence, block.hidden, vocabulary, axis="out", bias=bias)
    dims = (("sequence", block.sequence), ("vocabulary", vocabulary))
    kept = _LOGIT_BYTES * block.sequence * vocabulary
    return (*last, logits, Operator(f"{name}loss", "cross_entropy", dims, "vocabulary", saved_extra_bytes=kept))


def ops(layers: Sequence[tuple[str, str, tuple[Operator, ...]]]) -> tuple[Op, ...]:
    """Return layers of (name, kind, operators), those with the same operators pointing to the first of them."""
    first: dict[tuple[str, int], int] = {}
    made: list[Op] = []
    for i, (name, kind, body) in enumerate(layers):
        like = first.setdefault((kind, id(body)), i)
        made.append(Op(name, kind, made[like].body if like < i else body, like))
    return tuple(made)


def chain(
    name: str,
    layers: Sequence[tuple[str, str, tuple[Operator, ...]]],
    block: Block,
    *,
    shared: int = 0,
    active: int = 0,
    places: tuple[tuple[int, str], ...] = (),
) -> Graph:
    """Return the graph of layers in a row, the residual stream between them.

    `layers`: name, kind and operators of each layer; repeated layers hand in the same tuple.
    `shared`: weights counted twice because two layers share them.
    `active`: weights a token meets; 0 means all.
    `places`: layers and operators that have the word table; none for those of embedding and head.
    """
    stream = block.sequence * block.hidden
    made = ops(layers)
    edges = tuple(Edge(i, i + 1, stream) for i in range(len(made) - 1))
    return Graph(name, made, edges, block.sequence, shared, active, shared=tied(made, shared, places))


def tied(made: Sequence[Op], n_parameters: int, places: tuple[tuple[int, str], ...] = ()) -> tuple[SharedWeights, ...]:
    """Return the word table that embedding and head share, or the layers at `places`; nothing where nothing is shared.

    `n_parameters`: weights that are counted twice.
    """
    if not n_parameters:
        return ()
    places = places or ((0, "words"), (len(made) - 1, "unembedding"))
    return (SharedWeights(places, n_parameters // (len(places) - 1)),)
