"""What is inside a layer: traced operators as `Operator`s, runs of memory-bound ones of one module put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwright.core.graph import Operator
from meshwright.runtime.capture import attention
from meshwright.runtime.capture.axes import Axes, tensor_axes
from meshwright.runtime.capture.operators import MEMORY_BOUND, operator_of
from meshwright.runtime.capture.segments import OperatorSegment
from meshwright.runtime.capture.trace import COPIES, Trace

__all__ = ["CapturedLayer", "build", "unread"]


@dataclass(frozen=True, slots=True)
class CapturedLayer:
    """One layer of the graph.

    `name`, `kind`: as in `meshwright.core.graph.Op`.
    `body`: what is inside.
    `operators`: ids of the trace.
    """

    name: str
    kind: str
    body: tuple[Operator, ...]
    operators: tuple[int, ...]


def build(trace: Trace, parts: Sequence[OperatorSegment], level: str, sequence: int) -> list[CapturedLayer]:
    """Return the layers of a trace.

    `level`: ``layers`` keeps them; ``operator`` makes a layer of every computing operator.
    `sequence`: tokens per sample.
    """
    idle_weights = unread(trace)
    layers: list[CapturedLayer] = []
    later = _read_later(trace, parts)
    for k, part in enumerate(parts):
        axes = _axes(trace, part, later)
        made = [
            (i, operator_of(i, trace, _name(trace, i, part), axes.words.get(i, ""), weights, sequence))
            for i, weights in _weights(trace, part).items()
        ]
        made = _with_exchange(trace, made)
        idle, frozen = _idle(trace, idle_weights, parts, k)
        if level == "operator":
            layers += _single(trace, made, idle, frozen)
            continue
        for found in attention.find(trace, part.operators, axes.splits):
            made = _with_attention(made, found)
        body = _fused(trace, made, part)
        if idle:
            body = (*body, Operator("unread", "other", (), n_parameters=idle, n_frozen_parameters=frozen))
        layers.append(CapturedLayer(part.name, _kind(part, body), body, part.operators))
    return _unique(layers) if level == "operator" else layers


def _axes(trace: Trace, part: OperatorSegment, later: frozenset[int]) -> Axes:
    """Return the tensor axes of a layer's operators."""
    return tensor_axes(trace.operators, part.operators[0], part.operators[-1], later)


def _read_later(trace: Trace, parts: Sequence[OperatorSegment]) -> frozenset[int]:
    """Return the ids whose results are read by another layer."""
    last = {i: part.operators[-1] for part in parts for i in range(part.operators[0], part.operators[-1] + 1)}
    return frozenset(
        source
        for i, operator in enumerate(trace.operators)
        for source in operator.sources
        if source >= 0 and i > last.get(source, len(trace.operators))
    )


def _weights(trace: Trace, part: OperatorSegment) -> dict[int, tuple[int, int]]:
    """Return the weights that each operator is the first of its layer to read, and how many of them are frozen."""
    seen: set[str] = set()
    found: dict[int, tuple[int, int]] = {}
    for i in part.operators:
        copies = trace.operators[i].name in COPIES  # the weights belong to the operator that computes with the copy
        new = set() if copies else {weight for weight in trace.operators[i].weights if weight} - seen
        seen |= new
        found[i] = _count(trace, new), _count(trace, new & trace.frozen)
    return found


def _count(trace: Trace, names: Iterable[str]) -> int:
    """Return how many weights parameters hold."""
    return sum(math.prod(trace.parameters[name]) for name in names)


def unread(trace: Trace) -> dict[str, int]:
    """Return the parameters that no computing operator reads, and how many weights each holds."""
    read = {
        weight
        for operator in trace.operators
        if operator.trained and not operator.view and operator.name not in COPIES
        for weight in operator.weights
    }
    return {name: math.prod(shape) for name, shape in trace.parameters.items() if name not in read}


def _idle(trace: Trace, names: Iterable[str], parts: Sequence[OperatorSegment], k: int) -> tuple[int, int]:
    """Return the unread parameters of layer `k` (those under its path, and for the last layer those under no path), and how
    many of them are frozen.
    """
    mine = set()
    for name in names:
        home = next((j for j, part in enumerate(parts) if part.path and name.startswith(part.path + ".")), len(parts) - 1)
        mine |= {name} if home == k else set()
    return _count(trace, mine), _count(trace, mine & trace.frozen)


def _name(trace: Trace, i: int, part: OperatorSegment) -> str:
    """Return the name of an operator inside its layer: the module's path in it, and the operator's own word."""
    module = trace.operators[i].module
    inner = module[len(part.path) :].lstrip(".") if module.startswith(part.path) else module
    word = trace.operators[i].name.strip("_").removeprefix("leaf:")
    return f"{inner}.{word}" if inner else word


def _with_exchange(trace: Trace, made: list[tuple[int, Operator]]) -> list[tuple[int, Operator]]:
    """Turn the gathering before the first product of experts into ``dispatch``, and the sum after the last into ``combine``."""
    grouped = [k for k, (_, operator) in enumerate(made) if operator.kind == "grouped_matmul"]
    changed = dict(enumerate(made))
    for module in dict.fromkeys(trace.operators[made[k][0]].module for k in grouped):
        mine = [k for k in grouped if trace.operators[made[k][0]].module == module]
        first, last = made[mine[0]][1], made[mine[-1]][1]
        tokens, top_k = first.size("sequence"), first.size("top_k")
        for k in range(mine[0] - 1, -1, -1):
            i, operator = made[k]
            rows = trace.operators[i].outputs[0].shape
            if trace.operators[i].name in ("index", "index_select", "gather") and rows[-1] == first.size("in"):
                dims = (("sequence", tokens), ("top_k", top_k), ("hidden", first.size("in")))
                changed[k] = (i, replace(operator, kind="dispatch", dims=dims, tensor_axis="", saved_axis="", moved_elements=0))
                break
        for k in range(mine[-1] + 1, len(made)):
            i, operator = made[k]
            traced = trace.operators[i]
            around = (module, module.rpartition(".")[0])
            if traced.name in ("sum", "index_add", "index_add_", "scatter_add") and traced.module in around:
                dims = (("sequence", tokens), ("top_k", top_k), ("hidden", last.size("out")))
                changed[k] = (i, replace(operator, kind="combine", dims=dims, tensor_axis="", saved_axis="", moved_elements=0))
                break
    return [changed[k] for k in range(len(made))]


def _with_attention(made: list[tuple[int, Operator]], found: attention.Attention) -> list[tuple[int, Operator]]:
    """Put both products of an attention that is not fused together, the soft maximum of its scores right behind them."""
    by_id = dict(made)
    scores, softmax, values = by_id[found.scores], by_id[found.softmax], by_id[found.values]
    sizes = dict(found.dims)
    split = scores.tensor_axis == values.tensor_axis == "heads"
    core = replace(
        scores, name=f"{scores.name.rpartition('.')[0]}.attention".lstrip("."), kind="attention", dims=found.dims,
        tensor_axis="heads" if split else scores.tensor_axis if scores.tensor_axis != "heads" else "",
        saved_elements=scores.saved_elements + values.saved_elements,
        saved_extra_bytes=scores.saved_extra_bytes + values.saved_extra_bytes,
        input_gradient=scores.input_gradient or values.input_gradient,
    )  # fmt: skip
    spread = (("sequence", sizes["sequence"]), ("hidden", sizes["heads"] * sizes["key_sequence"]))
    behind = [(found.scores, core), (found.softmax, replace(softmax, dims=spread))]
    changed: list[tuple[int, Operator]] = []
    for i, operator in made:
        if i == found.scores:
            changed += behind
        elif i not in (found.softmax, found.values):
            changed.append((i, operator))
    return changed


def _fused(trace: Trace, made: list[tuple[int, Operator]], part: OperatorSegment) -> tuple[Operator, ...]:
    """Put memory-bound operators of one module that follow each other together, as compilers do."""
    groups: list[list[tuple[int, Operator]]] = []
    for i, operator in made:
        fusible = operator.kind in MEMORY_BOUND and not operator.flops
        previous = groups[-1][-1] if groups else None
        joins = (
            fusible and previous is not None and previous[1].kind in MEMORY_BOUND and not previous[1].flops
            and trace.operators[previous[0]].module == trace.operators[i].module
        )  # fmt: skip
        if joins:
            groups[-1].append((i, operator))
        else:
            groups.append([(i, operator)])
    names: dict[str, int] = {}
    body = []
    for group in groups:
        operator = group[0][1] if len(group) == 1 else _together(trace, group, part)
        names[operator.name] = names.get(operator.name, 0) + 1
        number = names[operator.name]
        body.append(operator if number == 1 else replace(operator, name=f"{operator.name}_{number}"))
    return tuple(body)


def _together(trace: Trace, group: list[tuple[int, Operator]], part: OperatorSegment) -> Operator:
    """Return several memory-bound operators as one that reads what comes from outside and writes what it ends with."""
    ids = {i for i, _ in group}
    module = trace.operators[group[0][0]].module
    inner = module[len(part.path) :].lstrip(".") if module.startswith(part.path) else module
    is_norm = "Norm" in trace.classes.get(module, "")
    word = group[-1][1].name.rpartition(".")[2]
    largest = max(
        (operator for _, operator in group),
        key=lambda operator: math.prod(size for axis, size in operator.dims if axis != "inputs"),
    )
    sources: dict[tuple[int, int], int] = {}
    for i in ids:
        for tensor, source in trace.operators[i].activations:
            if source not in ids:
                sources[source, tensor.n_elements] = tensor.n_elements
    full = largest.size("sequence") * largest.size("hidden") * trace.batch
    n_inputs = max(1, sum(size >= full for size in sources.values()))
    axes = {operator.tensor_axis for _, operator in group}
    axis = next((word for word in ("hidden", "heads", "sequence") if word in axes), "")
    sizes = (("sequence", largest.size("sequence")), ("hidden", largest.size("hidden")))
    return Operator(
        inner if is_norm else f"{inner}.{word}".lstrip("."),
        "norm" if is_norm else "elementwise",
        sizes if is_norm else (*sizes, ("inputs", n_inputs)),
        axis,
        sum(operator.n_parameters for _, operator in group),
        saved_elements=sum(operator.saved_elements for _, operator in group),
        saved_extra_bytes=sum(operator.saved_extra_bytes for _, operator in group),
        saved_axis={"": "", "sequence": "sequence"}.get(axis, "tensor"),
        n_frozen_parameters=sum(operator.n_frozen_parameters for _, operator in group),
        input_gradient=any(operator.input_gradient for _, operator in group),
    )


def _kind(part: OperatorSegment, body: tuple[Operator, ...]) -> str:
    """Return the word for the class of a layer."""
    kinds = {operator.kind for operator in body}
    if part.name == "head":
        return "head"
    if "grouped_matmul" in kinds:
        return "moe"
    if kinds & {"attention", "causal_attention"}:
        return "attention_mlp"
    if "embedding" in kinds and not kinds & {"matmul", "convolution"}:
        return "embedding"
    return next((kind for kind in ("convolution", "matmul") if kind in kinds), body[0].kind if body else "other")


def _single(trace: Trace, made: list[tuple[int, Operator]], idle: int, frozen: int) -> list[CapturedLayer]:
    """Return every operator as a layer; like ones carry the same name inside."""
    layers = []
    for k, (i, operator) in enumerate(made):
        traced = trace.operators[i]
        word = traced.name.strip("_").removeprefix("leaf:")
        extra, still = (idle, frozen) if k == len(made) - 1 else (0, 0)
        inside = replace(
            operator,
            name=word,
            n_parameters=operator.n_parameters + extra,
            n_frozen_parameters=operator.n_frozen_parameters + still,
        )
        layers.append(CapturedLayer(f"{traced.module}.{word}".lstrip("."), operator.kind, (inside,), (i,)))
    return layers


def _unique(layers: list[CapturedLayer]) -> list[CapturedLayer]:
    """Number names that occur several times."""
    seen: dict[str, int] = {}
    named = []
    for layer in layers:
        seen[layer.name] = seen.get(layer.name, 0) + 1
        named.append(layer if seen[layer.name] == 1 else replace(layer, name=f"{layer.name}_{seen[layer.name]}"))
    return named
