"""Graphs that ``meshwright capture`` wrote from PyTorch modules: format ``meshwright/graph/1``."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source

__all__ = ["FORMAT", "read", "recognises"]

FORMAT = "meshwright/graph/1"
"""The format's name, in every file."""

_LARGEST = 10**18
_TOP = (
    "format", "name", "source", "level", "batch", "element_bytes", "sequence_length", "tokens_name", "n_parameters",
    "n_shared_parameters", "n_active_parameters", "totals", "notes", "bodies", "ops", "edges",
)  # fmt: skip
_FROZEN = ("n_frozen_parameters", "n_shared_frozen_parameters")
_FIGURES = (
    "forward_flops", "backward_flops", "parameter_bytes", "output_bytes", "saved_bytes", "n_forward", "n_backward",
)  # fmt: skip
_LAYER = ("name", "kind", "body", *_FIGURES)
_KINDS = (
    "matmul", "grouped_matmul", "attention", "causal_attention", "norm", "elementwise", "embedding", "cross_entropy", "softmax",
    "convolution", "pooling", "dispatch", "combine", "other",
)  # fmt: skip
_AXES = ("", "out", "in", "heads", "vocabulary", "hidden", "sequence")
_SAVED_AXES = ("", "tensor", "sequence")


def recognises(source: Source) -> bool:
    """Return whether the file is a JSON object that names this format."""
    return isinstance(source.json, dict) and source.json.get("format") == FORMAT


def read(source: Source) -> ModelSpec:
    """Read a captured graph.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    ModelSpec
        The graph; costs ``analytic``; search ``best`` for layers, ``pase`` is at home with single operators as well.

    Raises
    ------
    InputError
        When a field is missing, unknown or wrong, or another sequence length is asked for: capture again with that.
    """
    place = str(source.path)
    content = fields.entry(fields.of_format(source.json, place, FORMAT, "a captured graph"), place, (*_TOP, *_FROZEN), _TOP)
    sequence = _count(content, "sequence_length", place, minimum=1)
    if source.sequence_length not in (0, sequence):
        raise InputError(
            f"{place}: --sequence-length {source.sequence_length}: the graph was captured with {sequence}; "
            "capture it again with "
            "--sequence-length"
        )
    listed = {key: fields.items(content[key], f"{place}: {key}") for key in ("bodies", "ops", "edges", "notes")}
    bodies = [_body(entry, f"{place}: bodies[{i}]") for i, entry in enumerate(listed["bodies"])]
    ops = _ops(listed["ops"], bodies, place)
    edges = tuple(_edge(entry, f"{place}: edges[{i}]") for i, entry in enumerate(listed["edges"]))
    shared, active = (_count(content, key, place) for key in ("n_shared_parameters", "n_active_parameters"))
    try:
        name, tokens = (fields.text(content[key], f"{place}: {key}") for key in ("name", "tokens_name"))
        shared_frozen = _count(content, _FROZEN[1], place) if _FROZEN[1] in content else 0
        graph = Graph(name, ops, edges, sequence, shared, active, tokens, shared_frozen)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    if graph.n_parameters != _count(content, "n_parameters", place):
        raise InputError(
            f"{place}: n_parameters is {content['n_parameters']}, but the operators hold {graph.n_parameters}; "
            "the file was changed"
        )
    if graph.n_frozen_parameters != (_count(content, _FROZEN[0], place) if _FROZEN[0] in content else 0):
        raise InputError(
            f"{place}: n_frozen_parameters is {content.get(_FROZEN[0], 0)}, but {graph.n_frozen_parameters} weights of "
            "operators are frozen; the file was changed"
        )
    notes = tuple(str(note) for note in listed["notes"])
    return ModelSpec(graph.name, "captured_json", source.spec, graph, notes=notes)


def _ops(entries: list[Any], bodies: list[tuple[Operator, ...]], place: str) -> tuple[Op, ...]:
    """Return the layers; those with the same body point to the first of them."""
    if not entries:
        raise InputError(f"{place}: 'ops' is empty; there is nothing to train")
    first: dict[int, int] = {}
    ops: list[Op] = []
    for i, entry in enumerate(entries):
        at = f"{place}: ops[{i}]"
        fields.entry(entry, at, _LAYER, _LAYER)
        body = _count(entry, "body", at)
        if body >= len(bodies):
            raise InputError(f"{at}: body is {body}; there are {len(bodies)} bodies, counted from 0")
        like = first.setdefault(body, i)
        name, kind = (fields.text(entry[key], f"{at}: {key}") for key in ("name", "kind"))
        ops.append(Op(name, kind, bodies[body], like))
    return tuple(ops)


def _body(entries: Any, place: str) -> tuple[Operator, ...]:
    """Return the operators of one body."""
    return tuple(_operator(entry, f"{place}[{i}]") for i, entry in enumerate(fields.items(entries, place, of="operators")))


def _operator(entry: Any, place: str) -> Operator:
    """Return one operator; fields that are absent have their default."""
    known = [field.name for field in dataclasses.fields(Operator)]
    fields.entry(entry, place, known, ("name", "kind", "dims"))
    dims = fields.entry(entry["dims"], f"{place}: dims")
    values: dict[str, Any] = {
        "name": fields.text(entry["name"], f"{place}: name"),
        "dims": tuple((axis, _count(dims, axis, f"{place}: dims", minimum=1)) for axis in dims),
    }
    for name, allowed in (("kind", _KINDS), ("tensor_axis", _AXES), ("saved_axis", _SAVED_AXES)):
        if name in entry:
            values[name] = fields.text(entry[name], f"{place}: {name}", choices=allowed)
    for name in ("expert", "selective", "input_gradient"):
        if name in entry:
            values[name] = fields.flag(entry[name], f"{place}: {name}")
    for name in ("n_parameters", "saved_elements", "saved_extra_bytes", "moved_elements", "n_frozen_parameters"):
        if name in entry:
            values[name] = _count(entry, name, place)
    if "frozen_weight_bytes" in entry:
        values["frozen_weight_bytes"] = fields.number(entry["frozen_weight_bytes"], f"{place}: frozen_weight_bytes", minimum=0)
    if values.get("n_frozen_parameters", 0) > values.get("n_parameters", 0):
        raise InputError(f"{place}: n_frozen_parameters is {values['n_frozen_parameters']}; that is more than its n_parameters")
    if "flops" in entry:
        values["flops"] = fields.number(entry["flops"], f"{place}: flops", minimum=0)
    return Operator(**values)


def _edge(entry: Any, place: str) -> Edge:
    """Return one edge: source, target, elements per sample."""
    if len(fields.items(entry, place)) != 3:
        raise InputError(f"{place} is {fields.show(entry)}; it must be [source, target, elements]")
    return Edge(*(fields.whole(value, f"{place}[{i}]", minimum=0) for i, value in enumerate(entry)))


def _count(entry: dict[str, Any], key: str, place: str, minimum: int = 0) -> int:
    """Return a whole number that fits into 64 bits with room for products."""
    return fields.whole(entry[key], f"{place}: {key}", minimum=minimum, maximum=_LARGEST)
