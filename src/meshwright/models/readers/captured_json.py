"""Graphs that ``meshwright capture`` wrote from PyTorch modules: format ``meshwright/graph/1``."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from meshwright.base.errors import InputError, UnknownNameError
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
_FIGURES = (
    "forward_flops", "backward_flops", "parameter_bytes", "output_bytes", "saved_bytes", "n_forward", "n_backward",
)  # fmt: skip
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

    Costs ``analytic``; search ``best`` for layers, ``pase`` is at home with single operators as well.
    Raises `InputError` when a field is missing, unknown or wrong, or another sequence length is asked for: capture again with
    that.
    """
    content = source.json
    where = str(source.path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{where}: is no captured graph; its field 'format' must be '{FORMAT}'")
    _fields(content, _TOP, where)
    _fields(content["totals"], _FIGURES, f"{where}: totals")
    sequence = _count(content, "sequence_length", where, minimum=1)
    if source.sequence_length not in (0, sequence):
        raise InputError(
            f"{where}: --sequence-length {source.sequence_length}: the graph was captured with {sequence}; capture it again "
            "with "
            "--sequence-length"
        )
    bodies = [_body(entry, f"{where}: bodies[{i}]") for i, entry in enumerate(_list(content, "bodies", where))]
    ops = _ops(_list(content, "ops", where), bodies, where)
    edges = tuple(_edge(entry, f"{where}: edges[{i}]") for i, entry in enumerate(_list(content, "edges", where)))
    shared, active = (_count(content, key, where) for key in ("n_shared_parameters", "n_active_parameters"))
    try:
        graph = Graph(_text(content, "name", where), ops, edges, sequence, shared, active, _text(content, "tokens_name", where))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if graph.n_parameters != _count(content, "n_parameters", where):
        raise InputError(
            f"{where}: n_parameters is {content['n_parameters']}, but the operators hold {graph.n_parameters}; the file was "
            "changed"
        )
    notes = tuple(str(note) for note in _list(content, "notes", where))
    return ModelSpec(graph.name, "captured_json", source.spec, graph, notes=notes)


def _ops(entries: list[Any], bodies: list[tuple[Operator, ...]], where: str) -> tuple[Op, ...]:
    """Return the layers; those with the same body point to the first of them."""
    if not entries:
        raise InputError(f"{where}: 'ops' is empty; there is nothing to train")
    first: dict[int, int] = {}
    ops: list[Op] = []
    for i, entry in enumerate(entries):
        at = f"{where}: ops[{i}]"
        _fields(entry, ("name", "kind", "body", *_FIGURES), at)
        body = _count(entry, "body", at)
        if body >= len(bodies):
            raise InputError(f"{at}: body is {body}; there are {len(bodies)} bodies, counted from 0")
        like = first.setdefault(body, i)
        ops.append(Op(_text(entry, "name", at), _text(entry, "kind", at), bodies[body], like))
    return tuple(ops)


def _body(entries: Any, where: str) -> tuple[Operator, ...]:
    """Return the operators of one body."""
    if not isinstance(entries, list):
        raise InputError(f"{where}: must be a list of operators")
    return tuple(_operator(entry, f"{where}[{i}]") for i, entry in enumerate(entries))


def _operator(entry: Any, where: str) -> Operator:
    """Return one operator; fields that are absent have their default."""
    known = {field.name: field for field in fields(Operator)}
    _fields(entry, tuple(known), where, needed=("name", "kind", "dims"))
    if not isinstance(entry["dims"], dict):
        raise InputError(f"{where}: dims is {entry['dims']!r}; must be an object of axes and sizes")
    values: dict[str, Any] = {
        "name": _text(entry, "name", where),
        "kind": _word(entry, "kind", _KINDS, where),
        "dims": tuple((axis, _count(entry["dims"], axis, f"{where}: dims", minimum=1)) for axis in entry["dims"]),
    }
    for name, allowed in (("tensor_axis", _AXES), ("saved_axis", _SAVED_AXES)):
        if name in entry:
            values[name] = _word(entry, name, allowed, where)
    for name in ("expert", "selective"):
        if name in entry:
            if not isinstance(entry[name], bool):
                raise InputError(f"{where}: {name} is {entry[name]!r}; must be true or false")
            values[name] = entry[name]
    for name in ("n_parameters", "saved_elements", "saved_extra_bytes", "moved_elements"):
        if name in entry:
            values[name] = _count(entry, name, where)
    if "flops" in entry:
        flops = entry["flops"]
        if isinstance(flops, bool) or not isinstance(flops, (int, float)) or not math.isfinite(flops) or flops < 0:
            raise InputError(f"{where}: flops is {flops!r}; must be a finite number >= 0")
        values["flops"] = float(flops)
    return Operator(**values)


def _edge(entry: Any, where: str) -> Edge:
    """Return one edge: source, target, elements per sample."""
    if not isinstance(entry, list) or len(entry) != 3 or any(type(value) is not int or value < 0 for value in entry):
        raise InputError(f"{where}: is {entry!r}; must be [source, target, elements], whole numbers >= 0")
    return Edge(*entry)


def _fields(entry: Any, known: tuple[str, ...], where: str, needed: tuple[str, ...] | None = None) -> None:
    """Refuse what is no object, lacks a field or has an unknown one."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: is {entry!r}; must be an object")
    for key in entry:
        if key not in known:
            raise UnknownNameError(f"field (of {where})", key, known)
    for key in known if needed is None else needed:
        if key not in entry:
            raise InputError(f"{where}: the field '{key}' is missing")


def _list(content: dict[str, Any], key: str, where: str) -> list[Any]:
    value = content[key]
    if not isinstance(value, list):
        raise InputError(f"{where}: '{key}' must be a list")
    return value


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry[key]
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} is {value!r}; must be text")
    return value


def _word(entry: dict[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    value = _text(entry, key, where)
    if value not in allowed:
        raise UnknownNameError(f"{key} (of {where})", value, allowed)
    return value


def _count(entry: dict[str, Any], key: str, where: str, minimum: int = 0) -> int:
    value = entry[key]
    if type(value) is not int or not minimum <= value <= _LARGEST:
        raise InputError(f"{where}: {key} is {value!r}; must be a whole number between {minimum} and {_LARGEST}")
    return value
