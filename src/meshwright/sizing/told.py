"""Failures and recovery as typed after options: ``--mtbf 50000h``, ``--storage "200 GB/s"``, ``--spares 4``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.base import amounts, units
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.sizing.failures import rates
from meshwright.sizing.goodput import Upkeep

__all__ = ["RECOVERY", "upkeep"]

RECOVERY = ("restart", "storage", "checkpoint", "repair", "spares", "replan")
"""What can be told of recovery."""

_MOST_SPARES = 100_000


def upkeep(mtbf: str = "", told: Mapping[str, str] | None = None) -> Upkeep:
    """Return failures and recovery: the published figures, but for what is told.

    Parameters
    ----------
    mtbf : str
        As of `meshwright.sizing.failures.rates`.
    told : mapping of str to str or None
        By the names of `RECOVERY`: ``restart``, ``repair`` and ``replan`` are times, ``storage`` is what all devices together
        write to, ``checkpoint`` is ``blocking`` or ``async``, ``spares`` a number of nodes; empty for what is not told.

    Raises
    ------
    InputError
        When a value is wrong, or spares or re-planning are told without for how long a broken node is away.
    UnknownNameError
        When there is no such name.
    """
    given = {name: str(text) for name, text in (told or {}).items() if text != ""}
    for name in given:
        if name not in RECOVERY:
            raise UnknownNameError("figure of recovery", name, RECOVERY)
    usual = Upkeep.usual(rates(mtbf))
    changes: dict[str, Any] = {}
    for name in ("restart", "repair", "replan"):
        if name in given:
            changes[f"{name}_seconds"] = amounts.duration(given[name], f"--{name}")
    if "storage" in given:
        if re.fullmatch(r"[-+0-9.eE\s]+", given["storage"]):
            raise InputError(f"--storage {given['storage']}: is a number without its unit; write for example '200 GB/s'")
        changes["storage_bytes_per_second"] = units.parse(
            given["storage"], "bytes_per_second", place="--storage", exclusive=True
        )
    if "checkpoint" in given:
        if given["checkpoint"] not in ("blocking", "async"):
            raise InputError(f"--checkpoint {given['checkpoint']}: must be blocking or async")
        changes["asynchronous"] = given["checkpoint"] == "async"
    changes["spare_nodes"] = _spares(given)
    return replace(usual, recovery=replace(usual.recovery, **changes), storage_per_device="storage" not in given)


def _spares(given: Mapping[str, str]) -> int:
    """Return the spare nodes: -1 for as many as it takes; 0 where broken nodes are never away."""
    if "repair" not in given:
        for name in ("spares", "replan"):
            if name in given:
                raise InputError(
                    f"--{name} {given[name]}: say for how long a broken node is away, for example --repair 24h; without it, "
                    "nodes are taken to be replaced within the restart"
                )
        return 0
    found = units.parse_count(given["spares"], place="--spares") if "spares" in given else -1
    if found > _MOST_SPARES:
        raise InputError(f"--spares {given['spares']}: must be at most {_MOST_SPARES}")
    return found
