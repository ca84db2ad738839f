"""PaSE as its author released it: ``--planner pase:FOLDER`` runs ``scheduler.py`` of a checkout and reads what it prints.

Format: the released program at commit 32aa761 (its README and what it prints). Between two lines of ``=====`` it prints one
line for each vertex: its number, and into how many parts each axis is split.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.base.errors import InputError
from meshwright.suite.adapting import PlannerFailed, ask, plan_entry

__all__ = ["answer"]

_LINE = re.compile(r"(\d+)\s+\(([\d,\s]+)\)")


def answer(asked: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the strategy of the released program for one of its graphs.

    Parameters
    ----------
    asked : mapping
        The problem file of the bench.
    place : str
        Folder with ``scheduler.py``, run by the Python that runs meshwright; or ``PYTHON,FOLDER`` for one with its packages.

    Raises
    ------
    InputError
        When the problem is no graph of PaSE's, or there is no such program.
    PlannerFailed
        When it ends with an error or prints no strategy for every operator.
    """
    if asked["family"] != "pase":
        raise InputError("PaSE's program plans its own graphs only (family pase)")
    python, _, folder = place.rpartition(",")
    program = Path(folder) / "scheduler.py"
    if not program.is_file():
        raise InputError(f"--planner pase:{place}: there is no scheduler.py in {folder!r}; name a checkout of PaSE")
    graph, p = asked["model"]["spec"].removeprefix("pase:"), int(asked["settings"]["n_processors"])
    said = ask((python or sys.executable, program.name, "-g", graph, "-p", str(p), "-b", "128"), str(program.parent))
    layers = asked["layers"]
    parts = _strategy(said)
    if sorted(parts) != list(range(len(layers))):
        raise PlannerFailed(f"scheduler.py: printed the splits of {len(parts)} of {len(layers)} operators")
    names = [layer["name"] for layer in layers]
    stage = {"ops": names, "devices": list(range(p)), "data": p, "tensor": 1, "recompute": ["none"] * len(names)}
    schedule = {"name": "1f1b", "n_microbatches": 1, "micro_batch": max(1, 128 // p), "global_batch": 128}
    return plan_entry(asked, [stage], schedule) | {"shardings": {name: parts[i] for i, name in enumerate(names)}}


def _strategy(said: str) -> dict[int, list[int]]:
    """Return the parts of every axis by vertex, as printed between the last two lines of equals signs."""
    blocks = re.split(r"^=+\s*$", said, flags=re.MULTILINE)
    if len(blocks) < 3:
        raise PlannerFailed("scheduler.py: printed no strategy")
    found = (_LINE.fullmatch(line.strip()) for line in blocks[-2].splitlines())
    return {int(one[1]): [int(part) for part in one[2].split(",") if part.strip()] for one in found if one}
