"""Programs that trained the measured runs, from their data file: how each carries out what a plan says."""

from __future__ import annotations

import tomllib
from pathlib import Path

from meshwright.base import units
from meshwright.core.problem import Framework

__all__ = ["DATA", "framework"]

DATA = Path(__file__).parent.parent / "frameworks" / "data"
"""Folder of the data file."""


def framework(name: str) -> Framework:
    """Return a program by the name of its table in ``frameworks/data/programs.toml``.

    `name`: ``"megatron_deepspeed"``.
    """
    entry = tomllib.loads((DATA / "programs.toml").read_text(encoding="utf-8"))[name]

    def quantity(key: str, dimension: str) -> float:
        return units.parse(entry[key]["value"], dimension, place=f"programs.toml: {name}.{key}") if key in entry else 0.0

    def number(key: str, default: float) -> float:
        return float(entry[key]["value"]) if key in entry else default

    return Framework(
        issue_seconds=quantity("issue", "seconds"),
        expert_issue_seconds=quantity("expert_issue", "seconds"),
        memory_passes_ratio=number("memory_passes", 1.0),
        ring_imbalance_ratio=number("ring_imbalance", 0.0),
        tensor_overlap_ratio=number("tensor_overlap", 0.0),
        shard_bytes_per_second=quantity("shard", "bytes_per_second"),
        overlaps_scatter=bool(number("overlaps_scatter", 1.0)),
        dispatches_once=bool(number("dispatches_once", 0.0)),
        splits_transfers=bool(number("splits_transfers", 0.0)),
        keeps_casts=bool(number("keeps_casts", 0.0)),
    )
