"""Graphs of one's own in PaSE's cost model: a JSON file of operators, each of a kind that the published graphs are made of."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.planners.pase.operators import NetworkBuilder, PaseGraph, Tensor

__all__ = ["FORMAT", "KINDS", "build"]

FORMAT = "meshwright/pase_graph/1"

BATCH = "b"
"""The word that stands for the samples of a step in shapes."""

_Read = Callable[[Any, str], Any]


def _whole(least: int) -> _Read:
    return lambda value, place: fields.whole(value, place, minimum=least)


def _wholes(least: int, n: int = 0) -> _Read:
    """Return what reads whole numbers, exactly `n` of them where that is not 0."""

    def read(value: Any, place: str) -> tuple[int, ...]:
        found = tuple(
            fields.whole(one, f"{place}[{i}]", minimum=least) for i, one in enumerate(fields.items(value, place, at_least=1))
        )
        if n and len(found) != n:
            raise InputError(f"{place}: has {len(found)} numbers; must have {n}")
        return found

    return read


def _word(value: Any, place: str) -> str:
    return fields.text(value, place)


KINDS: Mapping[str, tuple[int, Mapping[str, tuple[_Read, Any]]]] = MappingProxyType({
    "convolution": (1, {
        "n_filters": (_whole(1), None), "window": (_wholes(1, 2), None), "stride": (_whole(1), 1),
        "padding": (_wholes(0, 2), (0, 0)), "pointwise": (_whole(0), 0),
    }),
    "pooling": (1, {"window": (_whole(1), None), "stride": (_whole(1), None), "padding": (_whole(0), 0)}),
    "norm": (1, {"axis": (_whole(0), None)}),
    "elementwise": (2, {"pointwise": (_whole(0), 0)}),
    "concatenation": (0, {}),
    "mean": (1, {"axes": (_wholes(0), None)}),
    "fully_connected": (1, {"n_out": (_whole(1), None), "pointwise": (_whole(0), 0)}),
    "reshape": (1, {"shape": (lambda value, place: value, None)}),
    "einsum": (0, {"equation": (_word, None), "weight": (_wholes(1), ()), "pointwise": (_whole(0), 0)}),
    "embedding": (1, {"vocabulary": (_whole(1), None), "width": (_whole(1), None)}),
    "stack": (0, {}),
    "unstack": (1, {}),
    "softmax": (1, {"axis": (_whole(0), None)}),
    "cross_entropy": (1, {}),
    "lstm": (1, {"n_units": (_whole(1), None), "n_layers": (_whole(1), None)}),
})  # fmt: skip
"""Of every kind: how many tensors it reads (0: one or more), and its fields with their defaults (None: must be given)."""

RANKS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"convolution": (4,), "pooling": (4,), "concatenation": (4,), "embedding": (2,), "lstm": (3,), "fully_connected": (2, 3)}
)
"""Dimensions that the tensors read by a kind may have; any where it is not listed."""


def build(written: str, place: str, batch: int = 128) -> PaseGraph:
    """Return the graph of a file.

    Parameters
    ----------
    written : str
        Its content.
    place : str
        The file, for messages.
    batch : int
        Samples of a step: what ``"b"`` stands for in shapes.

    Returns
    -------
    PaseGraph
        Operators in the order of the file; a reshape is two.

    Raises
    ------
    InputError
        When a field is missing, unknown or of the wrong kind, an operator reads what is not there or not of its shape.
    UnknownNameError
        When there is no such kind of operator.
    """
    content = fields.of_format(json.loads(written), place, FORMAT, "a PaSE graph")
    fields.entry(content, place, ("format", "name", "cutoff", "inputs", "operators"), ("format", "name", "inputs", "operators"))
    name = fields.text(content["name"], f"{place}: name")
    net = NetworkBuilder(fields.whole(content.get("cutoff", 4), f"{place}: cutoff", minimum=1))
    tensors: dict[str, tuple[Tensor, ...]] = {}
    for word, shape in fields.entry(content["inputs"], f"{place}: inputs").items():
        tensors[word] = (Tensor(-1, _shape(shape, f"{place}: inputs: {word}", batch)),)
    for i, entry in enumerate(fields.items(content["operators"], f"{place}: operators", at_least=1)):
        _add(net, tensors, entry, f"{place}: operators[{i}]", batch)
    if all(not operator.uses for operator in net.operators[1:]) and len(net.operators) > 1:
        raise InputError(f"{place}: no operator reads the output of another; there is nothing to choose together")
    return PaseGraph(name, tuple(net.operators))


def _shape(value: Any, place: str, batch: int) -> tuple[int, ...]:
    """Return a shape whose ``"b"`` is the batch."""
    sizes = fields.items(value, place, at_least=1)
    return tuple(batch if size == BATCH else fields.whole(size, f"{place}[{i}]", minimum=1) for i, size in enumerate(sizes))


def _add(net: NetworkBuilder, tensors: dict[str, tuple[Tensor, ...]], value: Any, place: str, batch: int) -> None:
    """Add an operator of the file, and its outputs under its name."""
    entry = fields.entry(value, place, None, ("name", "kind", "of"))
    name, kind = fields.text(entry["name"], f"{place}: name"), fields.text(entry["kind"], f"{place}: kind")
    if kind not in KINDS:
        raise UnknownNameError(f"kind of operator ({place})", kind, KINDS)
    if name in tensors:
        raise InputError(f"{place}: there is a tensor {name} already; give every operator a name of its own")
    n_read, known = KINDS[kind]
    fields.entry(
        entry, place, ("name", "kind", "of", *known), tuple(word for word, (_, default) in known.items() if default is None)
    )
    told = {
        word: read(entry[word], f"{place}: {word}") if word in entry else default for word, (read, default) in known.items()
    }
    words = [entry["of"]] if isinstance(entry["of"], str) else fields.items(entry["of"], f"{place}: of", at_least=1)
    read = [_tensor(tensors, word, f"{place}: of") for word in words]
    if n_read and len(read) != n_read:
        raise InputError(f"{place}: a {kind} reads {n_read} tensors, not {len(read)}")
    for tensor in read:
        if len(tensor.shape) not in RANKS.get(kind, (len(tensor.shape),)):
            ranks = " or ".join(map(str, RANKS[kind]))
            raise InputError(f"{place}: a {kind} reads tensors of {ranks} dimensions, not of shape {list(tensor.shape)}")
    first = len(net.operators)
    made = _made(net, kind, read, told, place, batch)
    if min(min(tensor.shape, default=0) for tensor in made) < 1:
        raise InputError(f"{place}: the output has the shape {list(made[0].shape)}; every size must be at least 1")
    tensors[name] = made
    for i in range(first, len(net.operators)):
        last = i == len(net.operators) - 1
        net.operators[i] = replace(net.operators[i], name=name if last else f"{name}.{net.operators[i].kind.lower()}")


def _tensor(tensors: Mapping[str, tuple[Tensor, ...]], word: Any, place: str) -> Tensor:
    """Return the tensor of a name; of an unstack ``name[2]`` is the third."""
    text = fields.text(word, place)
    name, bracket, number = text.partition("[")
    if name not in tensors:
        raise InputError(f"{place}: {text}: no input and no operator before is called so")
    found = tensors[name]
    at = number.removesuffix("]") if bracket else "0"
    if not at.isdecimal() or int(at) >= len(found) or (len(found) > 1 and not bracket):
        raise InputError(f"{place}: {text}: {name} gives {len(found)} tensors; write {name}[0] to {name}[{len(found) - 1}]")
    return found[int(at)]


def _made(
    net: NetworkBuilder, kind: str, read: list[Tensor], told: dict[str, Any], place: str, batch: int
) -> tuple[Tensor, ...]:  # fmt: skip
    """Add one operator to the network and return its outputs."""
    x = read[0]
    for axis in (*told.get("axes", ()), *([told["axis"]] if "axis" in told else ())):
        if axis >= len(x.shape):
            raise InputError(f"{place}: axis {axis} of a tensor of shape {list(x.shape)}; axes are 0 to {len(x.shape) - 1}")
    if kind == "mean" and len(set(told["axes"])) >= len(x.shape):
        raise InputError(f"{place}: a mean over all axes leaves no tensor")
    if kind in ("elementwise", "stack", "concatenation"):
        free = 1 if kind == "concatenation" else -1  # the axis along which tensors may differ
        kept = {tuple(size for axis, size in enumerate(tensor.shape) if axis != free) for tensor in read}
        if len(kept) > 1:
            raise InputError(
                f"{place}: a {kind} of shapes {', '.join(str(list(tensor.shape)) for tensor in read)}; must be alike"
            )
    if kind in ("concatenation", "stack"):
        return (getattr(net, kind)(tuple(read)),)
    if kind == "reshape":
        shape = _shape(told["shape"], f"{place}: shape", batch)
        if math.prod(shape) != math.prod(x.shape):
            raise InputError(f"{place}: {list(x.shape)} has {math.prod(x.shape)} elements, {list(shape)} {math.prod(shape)}")
        return (net.reshape(x, shape),)
    if kind == "embedding":
        samples, length = x.shape
        return (net.embedding(samples, length, told["vocabulary"], told["width"]),)
    if kind == "einsum":
        return (_einsum(net, read, told, place),)
    if kind == "unstack":
        return net.unstack(x)
    made: Tensor = getattr(net, kind)(*read, **told)
    return (made,)


def _einsum(net: NetworkBuilder, read: list[Tensor], told: dict[str, Any], place: str) -> Tensor:
    """Add a tensor product of two tensors, or of one and a weight."""
    both = [*read, Tensor(-1, told["weight"])] if told["weight"] else read
    left, arrow, out = told["equation"].replace(" ", "").partition("->")
    words = left.split(",")
    sizes: dict[str, int] = {}
    good = bool(arrow) and len(words) == len(both) == 2
    for word, tensor in zip(words, both, strict=False):
        good = good and len(word) == len(tensor.shape) == len(set(word))
        for label, size in zip(word, tensor.shape, strict=False):
            good = good and sizes.setdefault(label, size) == size
    good = good and len(set(out)) == len(out) and set(out) <= set(sizes) and BATCH in out and "".join(sizes).isalpha()
    good = good and all(set(one) - set(other) for one, other in (words, words[::-1]))
    if not good:
        shapes = " and ".join(str(list(tensor.shape)) for tensor in both)
        raise InputError(
            f'{place}: equation {told["equation"]!r} of {shapes}: must be like "ble,ef->blf": two tensors (or one and '
            '"weight"), a letter for each of their axes, b for the batch in the output, and in each a letter that the other '
            "has not"
        )
    return net.einsum(f"{left}->{out}", both[0], both[1], pointwise=told["pointwise"])
