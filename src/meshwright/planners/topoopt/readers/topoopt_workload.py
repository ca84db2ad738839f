"""Workloads of TopoOpt: one of a JSON file (``workloads.json#dlrm16``),
or built from parameters (``topoopt:dlrm,tables=16``).
"""

from __future__ import annotations

from typing import Any

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

    Raises `UnknownNameError` when the file, or this program, has no such workload.
    """
    if source.spec.startswith(_PREFIX):
        from meshwright.planners.topoopt.workloads import families

        return reading_of(families.build(source.spec.removeprefix(_PREFIX), source.spec), source.spec)
    content = source.json
    if not isinstance(content, dict):
        raise InputError(f"{source.spec}: must hold a mapping of names to workloads")
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


def _workload(name: str, entry: Any, where: str) -> Workload:
    """Check one workload of a file."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: must be a mapping, is {type(entry).__name__}")
    unknown = set(entry) - {"global_batch", "note", "params", "ops"}
    if unknown:
        raise UnknownNameError(f"field of {where}", sorted(unknown)[0], ("global_batch", "note", "params", "ops"))
    for needed in ("global_batch", "ops"):
        if needed not in entry:
            raise InputError(f"{where}: has no field '{needed}'")
    batch = _whole(entry["global_batch"], f"{where}: global_batch", 1)
    if not isinstance(entry["ops"], list) or not entry["ops"]:
        raise InputError(f"{where}: ops: must be a list with at least one operator")
    operations = tuple(_operation(i, op, f"{where}: operator {i}") for i, op in enumerate(entry["ops"]))
    workload = Workload(name, batch, operations)
    if "params" in entry and _whole(entry["params"], f"{where}: params", 0) != workload.n_parameters:
        raise InputError(
            f"{where}: params is {entry['params']}, but the weights of its operators are {workload.n_parameters}; correct one "
            "of them"
        )
    return workload


def _operation(i: int, entry: Any, where: str) -> Operation:
    """Check one operator of a workload."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: must be a mapping, is {type(entry).__name__}")
    for field in _COMMON:
        if field not in entry:
            raise InputError(f"{where}: has no field '{field}'; needed are {', '.join(_COMMON)}")
    for field in entry:
        if field not in _COMMON + _EXTRA:
            raise UnknownNameError(f"field of {where}", field, _COMMON + _EXTRA)
    if entry["id"] != i:
        raise InputError(f"{where}: id is {entry['id']}; ids must count up from 0")
    kind = entry["type"]
    if kind not in KINDS:
        raise UnknownNameError(f"operator type of {where}", str(kind), KINDS)
    inputs = _inputs(i, entry["inputs"], where)
    if not isinstance(entry["key"], str) or not entry["key"]:
        raise InputError(f"{where}: key: must be a word, is {entry['key']!r}")
    shape = _sizes(entry["out_shape_per_sample"], f"{where}: out_shape_per_sample", 1)
    weights = _sizes(entry["weight_elems"], f"{where}: weight_elems", 0)
    bag = _whole(entry.get("bag", 0), f"{where}: bag", 0)
    if kind in ("linear", "conv2d", "mha", "embedding") and not weights:
        raise InputError(f"{where}: a {kind} needs at least one entry in weight_elems")
    return Operation(f"{kind}.{i}", kind, entry["key"], inputs, shape, weights, bag)


def _inputs(i: int, producers: Any, where: str) -> tuple[int, ...]:
    """Check the producers of an operator; null is training data."""
    if not isinstance(producers, list) or not producers:
        raise InputError(f"{where}: inputs: must be a list of ids, null for training data")
    for producer in producers:
        if producer is not None and _whole(producer, f"{where}: inputs", 0) >= i:
            raise InputError(f"{where}: inputs: {producer} is not before operator {i}; operators must be in topological order")
    return tuple(DATA if producer is None else producer for producer in producers)


def _whole(value: Any, where: str, minimum: int) -> int:
    """Return a whole number of at least `minimum` (InputError otherwise)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{where}: is {value!r}; must be a whole number of at least {minimum}")
    return value


def _sizes(value: Any, where: str, minimum_length: int) -> tuple[int, ...]:
    """Return a list of positive whole numbers (InputError otherwise)."""
    if not isinstance(value, list) or len(value) < minimum_length:
        raise InputError(f"{where}: is {value!r}; must be a list of whole numbers")
    return tuple(_whole(size, where, 1) for size in value)
