"""The stages that a configuration of torchtitan says, or that torchtitan cuts itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.frameworks import _exact
from meshwright.frameworks.torchtitan.degrees import IN_A_V, SCHEDULES
from meshwright.frameworks.torchtitan.fields import Fields

__all__ = ["ranks", "stages", "words"]

_SINGLE = ("1f1b", "gpipe", "zb_h1")


def ranks(n_stages: int, n_ranks: int, schedule: str) -> list[int]:
    """Return the pipeline rank of every stage: dealt out in turn, or there and back."""
    if schedule in IN_A_V:
        return [*range(n_ranks), *range(n_ranks - 1, -1, -1)]
    return [i % n_ranks for i in range(n_stages)]


def stages(fields: Fields, graph: Graph, n_ranks: int) -> tuple[list[tuple[int, ...]], str]:
    """Return the layers of every stage, and the schedule.

    Raises
    ------
    InputError
        When a schedule is none of ours, or the parts of the model are not the model.
    """
    parallelism, path, last = fields.found["parallelism"], fields.path, len(graph.ops) - 1
    if n_ranks == 1:
        return [tuple(range(last + 1))], "1f1b"
    name = str(parallelism.get("pipeline_parallel_schedule", "1F1B"))
    schedule = next((word for word, said in SCHEDULES.items() if said.lower() == name.lower()), "")
    if not schedule:
        raise InputError(
            f"{path}: pipeline_parallel_schedule is {name!r}; known are {', '.join(dict.fromkeys(SCHEDULES.values()))}"
        )
    if parallelism.get("pipeline_parallel_schedule_csv"):
        if not fields.order or schedule not in ("1f1b", "zb_v"):
            raise InputError(f"{path}: pipeline_parallel_schedule_csv: an order of work that is none of our schedules")
        schedule = "zb_h1" if schedule == "1f1b" else schedule
    parts = parallelism.get("module_fqns_per_model_part") or _at_points(parallelism, last - 1, path)
    if not isinstance(parts, list | tuple) or not all(isinstance(part, list | tuple) for part in parts):
        raise InputError(f"{path}: module_fqns_per_model_part is {parts!r}; it must be a list of lists of names")
    parts = parts or _even(parallelism, last - 1, n_ranks, schedule, path)
    known = {"tok_embeddings": 0, "norm": last, "lm_head": last, **{f"layers.{i}": i + 1 for i in range(last - 1)}}
    flat = [fqn for part in parts for fqn in part]
    unknown = [fqn for fqn in flat if fqn not in known]
    lost = [fqn for fqn in known if fqn not in flat]
    if unknown or lost or len(flat) != len(known):
        named = f"names {unknown[0]}, which {graph.name} has not" if unknown else ""
        why = named or (f"leaves out {lost[0]}" if lost else "names one twice")
        raise InputError(f"{path}: module_fqns_per_model_part {why}; torchtitan would train another model without a word")
    if not any({"norm", "lm_head"} <= set(part) for part in parts):
        raise InputError(f"{path}: module_fqns_per_model_part: norm and lm_head lie apart; plans hold them together")
    n_parts = len(parts)
    if n_parts % n_ranks or (schedule in IN_A_V and n_parts != 2 * n_ranks) or (schedule in _SINGLE) != (n_parts == n_ranks):
        raise InputError(f"{path}: {n_parts} parts of the model for {n_ranks} pipeline ranks and schedule {name}")
    return [tuple(dict.fromkeys(known[fqn] for fqn in part)) for part in parts], schedule


def _even(parallelism: Mapping[str, Any], n_layers: int, n_ranks: int, schedule: str, path: str) -> list[list[str]]:
    """Return torchtitan's own split [1]_: ends count as so many layers, what is over goes to the first stages.

    References
    ----------
    .. [1] torchtitan 0.3.0, torchtitan/distributed/pipeline_parallel.py.
    """
    first, last = (
        _exact.whole(parallelism, f"pipeline_parallel_{end}_stage_less_layers", path, 1, least=0) for end in ("first", "last")
    )
    n_stages = n_ranks * (1 if schedule in _SINGLE else 2)
    if parallelism.get("pipeline_parallel_layers_per_stage"):
        size = _exact.whole(parallelism, "pipeline_parallel_layers_per_stage", path)
        n_stages = -(-(n_layers + first + last) // size)
    each, more = divmod(n_layers + first + last, n_stages)
    if each < max(first, last, 1):
        raise InputError(f"{path}: {n_layers} layers are too few for {n_stages} stages, whose ends count as {first} and {last}")
    counts = [each + (i < more) for i in range(n_stages)]
    counts[0], counts[-1] = counts[0] - first, counts[-1] - last
    layers = iter(range(n_layers))
    found = [[f"layers.{next(layers)}" for _ in range(count)] for count in counts]
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", "lm_head"]
    return found


def _at_points(parallelism: Mapping[str, Any], n_layers: int, path: str) -> list[list[str]]:
    """Return the parts of a model cut before the layers that ``pipeline_parallel_split_points`` names; none for none."""
    points = parallelism.get("pipeline_parallel_split_points") or []
    if not isinstance(points, list | tuple):
        raise InputError(f"{path}: pipeline_parallel_split_points is {points!r}; it must be a list of names")
    modules = ["tok_embeddings", *(f"layers.{i}" for i in range(n_layers)), "norm", "lm_head"]
    unknown = [point for point in points if point not in modules[1:-1]]
    if unknown:
        raise InputError(
            f"{path}: pipeline_parallel_split_points names {unknown[0]}; there are layers.0 to layers.{n_layers - 1}"
        )
    if not points:
        return []
    cuts = [0, *sorted(modules.index(point) for point in points), len(modules)]
    return [modules[begin:end] for begin, end in itertools.pairwise(cuts)]


def words(fields: Fields, graph: Graph, cut: list[tuple[int, ...]], on: list[int], word: str) -> list[tuple[str, ...]]:
    """Return what the layers of every stage recompute: one setting for all, or all of every so many-th layer of a rank [1]_.

    References
    ----------
    .. [1] torchtitan before 0.3, ``activation_checkpoint.selective_ac_option``: layers are counted from 1 on as a process
       wraps them.
    """
    every = _exact.layer_words(graph, word)
    if fields.every_nth_layer <= 0 or not fields.checkpointing or word == "full":
        return [tuple(every[op] for op in ops) for ops in cut]
    counted: dict[int, int] = {}
    found = []
    for ops, rank in zip(cut, on, strict=True):
        own = []
        for op in ops:
            inner = graph.ops[op].kind not in _exact.ENDS
            counted[rank] = counted.get(rank, 0) + inner
            own.append("full" if inner and counted[rank] % fields.every_nth_layer == 0 else "none")
        found.append(tuple(own))
    return found
