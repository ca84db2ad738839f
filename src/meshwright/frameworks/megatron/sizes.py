"""Sizes of the model that Megatron-LM's options tell, beside those of the model that is priced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Operator

__all__ = ["check", "unlike_kind"]

Options = Mapping[str, tuple[str, ...]]

MOST_WORDS_RATIO = 1.05
"""Vocabularies may be so many times each other: a tokenizer's words, and what a configuration rounds them up to."""


def check(options: Options, place: str, graph: Graph, denied: Collection[str] = ()) -> None:
    """Refuse options that tell another size than the model that is named has.

    Parameters
    ----------
    options : mapping of str to tuple of str
        Of a script, or as a log prints them.
    place : str
        The file, for messages.
    graph : Graph
        The model.
    denied : collection of str
        Options that the file says are not set.

    Raises
    ------
    InputError
        When one tells another size.
    """
    body = [operator for op in graph.ops for operator in op.body if not operator.reference]
    if not body:  # only totals are known
        return
    cores = [one for one in body if one.kind in ("attention", "causal_attention")]
    experts = [one for one in body if one.kind == "grouped_matmul"]
    latent = any(one.name.endswith("key_value_down") for one in body)
    _mixture(options, place, graph, bool(experts))
    for name, what in unlike_kind(graph, denied):
        raise InputError(f"{place}: {name}: is not set, but {what}: another model?")
    if "--multi-latent-attention" in options and cores and not latent:
        raise InputError(f"{place}: --multi-latent-attention: {graph.name} has none: another model?")
    _windows(options, place, graph, cores)
    told = {
        "--hidden-size": _sizes(body, "hidden", lambda one: one.kind == "embedding"),
        "--num-attention-heads": _sizes(cores, "heads"),
        "--vocab-size": _sizes(body, "vocabulary", lambda one: one.kind == "embedding"),
        "--ffn-hidden-size": _sizes(body, "in", lambda one: one.name == "mlp.out" or one.name == "mlp.experts.out"),
        "--num-experts": _sizes(experts, "experts"),
    }  # fmt: skip
    told["--padded-vocab-size"] = told["--vocab-size"]
    if experts:
        told["--moe-router-topk"] = _sizes(experts, "top_k")
        told["--moe-ffn-hidden-size"] = _sizes(experts, "in", lambda one: one.name == "mlp.experts.out")
        if "--moe-ffn-hidden-size" in options:  # then it is of dense layers, if there are any
            told["--ffn-hidden-size"] = _sizes(body, "in", lambda one: one.name == "mlp.out")
    if "--group-query-attention" in options:
        told["--num-query-groups"] = _sizes(cores, "kv_heads")
    if cores and not latent:
        told["--kv-channels"] = _sizes(cores, "head")
    for name, own in told.items():
        said = " ".join(options.get(name, ()))
        if own and said.isdigit() and not _same(name, int(said), own, options):
            words = " or ".join(map(str, sorted(own)))
            raise InputError(f"{place}: {name}: is {said}, but {graph.name} has {words}: another model?")


def _windows(options: Options, place: str, graph: Graph, cores: Iterable[Operator]) -> None:
    """Refuse sliding windows in options of a model all of whose attention sees the whole sample."""
    said = "".join(options.get("--window-size", ())).strip("()")
    n_before = said.partition(",")[0]
    whole = all(one.kind == "causal_attention" for one in cores)
    if whole and n_before.isdigit() and int(n_before) + 1 < graph.sequence_length:
        raise InputError(f"{place}: --window-size: is {said}, but {graph.name} has no sliding windows: another model?")


def unlike_kind(graph: Graph, denied: Collection[str]) -> list[tuple[str, str]]:
    """Return options without which layers or the head are others than a model has, of those that are not set: each with what
    the model has, in words.

    Parameters
    ----------
    graph : Graph
        The model.
    denied : collection of str
        Options that are not set.
    """
    body = [operator for op in graph.ops for operator in op.body]
    outs = _sizes(body, "in", lambda one: one.name in ("mlp.out", "mlp.experts.out"))
    ins = _sizes(body, "out", lambda one: one.name in ("mlp.in", "mlp.experts.in"))
    found = []
    if "--swiglu" in denied and outs and ins and ins == {2 * size for size in outs}:
        found.append(("--swiglu", f"{graph.name} has gated feed-forward networks"))
    apart = any(one.name == "unembedding" for one in body) and not graph.n_shared_parameters
    if "--untie-embeddings-and-output-weights" in denied and apart:
        found.append(("--untie-embeddings-and-output-weights", f"{graph.name} has a head of its own"))
    return found


def _mixture(options: Options, place: str, graph: Graph, has_experts: bool) -> None:
    """Refuse experts in options of a dense model, and a mixture whose options have none."""
    experts = options.get("--num-experts", ())
    told = experts not in ((), ("0",), ("1",))  # Megatron-DeepSpeed prints 1 for none
    if told and not has_experts:
        raise InputError(f"{place}: --num-experts: is {' '.join(experts)}, but {graph.name} has none: another model?")
    if has_experts and not told and "--hidden-size" in options:
        raise InputError(f"{place}: --num-experts: is not there, but {graph.name} has experts: another model?")


def _sizes(body: Iterable[Operator], axis: str, which: Callable[[Operator], bool] = lambda one: True) -> set[int]:
    """Return the sizes that an axis has in some operators; empty where none has it."""
    return {one.size(axis, 0) for one in body if which(one)} - {0}


def _same(name: str, said: int, own: set[int], options: Options) -> bool:
    """Tell whether a size is one of some; words are padded to a multiple for each tensor rank."""
    if "vocab" not in name:
        return said in own
    numbers = [" ".join(options.get(one, ())) for one in ("--make-vocab-size-divisible-by", "--tensor-model-parallel-size")]
    multiple, tensor = (int(number) if number.isdigit() else usual for number, usual in zip(numbers, (128, 1), strict=True))
    padding = multiple * tensor if name == "--padded-vocab-size" else 0
    return any(size / MOST_WORDS_RATIO <= said <= size * MOST_WORDS_RATIO + padding for size in own)
