"""A strategy that Galvatron's search wrote: ``--planner galvatron:FILE.json`` (or a folder with one file for each problem).

Format: Galvatron 2.4 (Hetu-Galvatron, PyPI hetu-galvatron 2.4.0): degrees by layer as texts of numbers. Its search wants
profiles made on the machine, so it is not run here: planning seconds and memory in the table are those of reading its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.suite.adapting import PlannerFailed, plan_entry

__all__ = ["answer"]

_SHARD = {"ddp": 0, "zero2": 2, "zero3": 3}.get
_NEEDED = ("pp_deg", "tp_sizes_enc", "dp_types_enc", "global_bsz", "chunks", "pp_division")


def answer(asked: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return Galvatron's strategy as a plan file.

    Parameters
    ----------
    asked : mapping
        The problem file of the bench.
    place : str
        The file that its search wrote; or a folder that holds one called like the problem, ``MODEL@CLUSTER.json`` (a colon may
        be an underscore).

    Raises
    ------
    InputError
        When the problem is none of ``models``, or there is no such file.
    PlannerFailed
        When the file says something that no plan of ours can say, or that does not fit the problem.
    """
    if asked["family"] != "models":
        raise InputError("Galvatron plans transformers on clusters only (family models)")
    path = Path(place)
    if path.is_dir():
        word = asked["problem"].partition("/")[2]
        found = [path / f"{name}.json" for name in (word, word.replace(":", "_")) if (path / f"{name}.json").is_file()]
        if not found:
            raise InputError(f"--planner galvatron:{place}: the folder has no file {word}.json")
        path = found[0]
    told = files.read_json(str(path))
    if not isinstance(told, dict) or any(key not in told for key in _NEEDED):
        raise PlannerFailed(f"{path.name}: is no strategy of Galvatron's; it must have {', '.join(_NEEDED)}")
    return _plan(asked, told, path.name)


def _numbers(told: Mapping[str, Any], key: str, n: int, default: int) -> list[int]:
    """Return the numbers of a field: a text with commas, a list, or one number for all layers."""
    held = told.get(key, default)
    parts = held.split(",") if isinstance(held, str) else held if isinstance(held, list) else [held] * n
    try:
        return [int(part) for part in parts]
    except (TypeError, ValueError):
        raise PlannerFailed(f"field {key}: {held!r} are no whole numbers") from None


def _plan(asked: Mapping[str, Any], told: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the plan file of a strategy."""
    layers = [layer["name"] for layer in asked["layers"]]
    division = _numbers(told, "pp_division", 1, 0)
    n = sum(division)
    n_stages, batch, chunks = (_numbers(told, key, 1, 1)[0] for key in ("pp_deg", "global_bsz", "chunks"))
    if n != len(layers) - 2 or len(division) != n_stages:
        raise PlannerFailed(
            f"{name}: divides {n} layers over {len(division)} of {n_stages} stages; the model has {len(layers) - 2}"
        )
    tensor, sharded, spread = (_numbers(told, key, n, 0) for key in ("tp_sizes_enc", "dp_types_enc", "use_sp"))
    context, redone = _numbers(told, "cp_sizes_enc", n, 1), _numbers(told, "checkpoint", n, 0)
    default = _SHARD(str(told.get("default_dp_type", "ddp")))
    if default is None or any(len(column) != n for column in (tensor, sharded, spread, context, redone)):
        raise PlannerFailed(f"{name}: fields by layer must have {n} numbers, and default_dp_type must be ddp, zero2 or zero3")
    if any(spread):
        raise PlannerFailed(
            f"{name}: use_sp (sequences exchanged in place of tensor parallelism) has no counterpart in a plan file"
        )
    devices = asked["n_devices"] // n_stages
    stages, first = [], 0
    for i, count in enumerate(division):
        mine = range(first, first + count)
        ways = {(tensor[layer], context[layer], 3 if sharded[layer] else default) for layer in mine}
        if len(ways) != 1:
            raise PlannerFailed(f"{name}: stage {i} splits its layers in {len(ways)} ways; a stage of a plan file has one")
        t, c, shard = ways.pop()
        ops = [
            *([layers[0]] if i == 0 else []),
            *layers[1 + first : 1 + first + count],
            *([layers[-1]] if i + 1 == n_stages else []),
        ]
        full = {layers[1 + layer] for layer in mine if redone[layer]}
        data = devices // max(t * c, 1)
        stages.append({
            "ops": ops, "devices": list(range(i * devices, (i + 1) * devices)), "data": data, "tensor": t, "context": c,
            "sequence_parallel": t > 1, "shard": shard if data * c > 1 else 0,
            "recompute": ["full" if op in full else "none" for op in ops],
        })  # fmt: skip
        first += count
    widest = max(stage["data"] for stage in stages)
    schedule = {
        "name": "gpipe" if told.get("pipeline_type") == "gpipe" else "1f1b", "n_microbatches": chunks,
        "micro_batch": max(1, batch // max(chunks * widest, 1)), "global_batch": batch,
    }  # fmt: skip
    return plan_entry(asked, stages, schedule)
