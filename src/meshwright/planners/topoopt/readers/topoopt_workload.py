"""Workloads of TopoOpt: one of a JSON file (``workloads.json#dlrm16``), or built from parameters
(``topoopt:dlrm,tables=16``)."""

from __future__ import annotations

from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.planners.topoopt.workloads.workload import DATA, KINDS, Operation, Workload, graph_of

__all__ = ["Operation", "Workload", "read", "reading_of", "recognises"]

_PREFIX = "topoopt:"
_COMMON = ("id", "type", "key", "inputs", "out_shape_per_sample", "weight_elems")
_EXTRA = ("bag", "aggr", "heads", "kernel", "stride", "pad", "kind")


def recognises(source: Source) -> bool:
    """Return whether the content is a mapping of names to workloads, or the name starts with ``topoopt:``."""
    if source.spec.startswith(_PREFIX):
        return True
    try:
        content = source.json
    except InputError:
        return False
    if not isinstance(content, dict) or not content:
        return False
    return all(isinstance(entry, dict) and "ops" in entry and "global_batch" in entry for entry in content.values())


def read(source: Source) -> ModelSpec:
    """Return the workload named after ``#`` (or the only one of the file), or built from parameters.

    Raises
    ------
    UnknownNameError
        When the file, or this program, has no such workload.
    InputError
        When a field is missing, unknown or of the wrong kind.
    """
    if source.spec.startswith(_PREFIX):
        from meshwright.planners.topoopt.workloads import families

        return reading_of(families.build(source.spec.removeprefix(_PREFIX), source.spec), source.spec)
    content = source.json
    fields.entry(content, source.spec)
    name = source.fragment
    if not name and len(content) == 1:
        name = next(iter(content))
    if not name:
        raise InputError(f"{source.spec}: holds {len(content)} workloads; pick one: {source.spec}#{next(iter(content))}")
    if name not in content:
        raise UnknownNameError(f"workload in {source.path}", name, content)
    return reading_of(_workload(name, content[name], f"{source.path}#{name}"), source.spec)


def reading_of(workload: Workload, spec: str) -> ModelSpec:
    """Return a workload as what a reader returns."""
    return ModelSpec(
        name=workload.name, format="topoopt_workload", spec=spec, graph=graph_of(workload), instance=workload,
        notes=("sizes are of fp32 elements; search network and plan together with 'meshwright codesign'",),
    )  # fmt: skip


def _workload(name: str, entry: Any, place: str) -> Workload:
    """Check one workload of a file."""
    fields.entry(entry, place, ("global_batch", "note", "params", "ops"), ("global_batch", "ops"))
    batch = fields.whole(entry["global_batch"], f"{place}: global_batch", minimum=1)
    listed = fields.items(entry["ops"], f"{place}: ops", at_least=1)
    operations = tuple(_operation(i, op, f"{place}: ops[{i}]") for i, op in enumerate(listed))
    workload = Workload(name, batch, operations)
    if "params" in entry and fields.whole(entry["params"], f"{place}: params") != workload.n_parameters:
        raise InputError(
            f"{place}: params is {entry['params']}, but the weights of its operators are "
            f"{workload.n_parameters}; correct one of them"
        )
    return workload


def _operation(i: int, entry: Any, place: str) -> Operation:
    """Check one operator of a workload."""
    fields.entry(entry, place, _COMMON + _EXTRA, _COMMON)
    if entry["id"] != i:
        raise InputError(f"{place}: id is {entry['id']}; ids must count up from 0")
    kind = fields.text(entry["type"], f"{place}: type", choices=KINDS)
    inputs = _inputs(i, entry["inputs"], place)
    key = fields.text(entry["key"], f"{place}: key", at_least=1)
    shape = _sizes(entry["out_shape_per_sample"], f"{place}: out_shape_per_sample", 1)
    weights = _sizes(entry["weight_elems"], f"{place}: weight_elems", 0)
    bag = fields.whole(entry.get("bag", 0), f"{place}: bag", minimum=0)
    if kind in ("linear", "conv2d", "mha", "embedding") and not weights:
        raise InputError(f"{place}: a {kind} needs at least one entry in weight_elems")
    return Operation(f"{kind}.{i}", kind, key, inputs, shape, weights, bag)


def _inputs(i: int, producers: Any, place: str) -> tuple[int, ...]:
    """Check the producers of an operator; null is training data."""
    for producer in fields.items(producers, f"{place}: inputs", at_least=1, of="ids, null for training data,"):
        if producer is not None and fields.whole(producer, f"{place}: inputs", minimum=0) >= i:
            raise InputError(f"{place}: inputs: {producer} is not before operator {i}; operators must be in topological order")
    return tuple(DATA if producer is None else producer for producer in producers)


def _sizes(value: Any, place: str, minimum_length: int) -> tuple[int, ...]:
    """Return a list of positive whole numbers (InputError otherwise)."""
    sizes = fields.items(value, place, at_least=minimum_length, of="whole numbers")
    return tuple(fields.whole(size, f"{place}[{i}]", minimum=1) for i, size in enumerate(sizes))
