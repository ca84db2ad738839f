"""Loads of stages as short texts, which recorded figures keep."""

from __future__ import annotations

import dataclasses

from meshwright.core.stage_cost import StageCost
from recorded import told_fields

__all__ = ["short"]


def short(value: object) -> object:
    """Return a value with numbers to eight digits: a load as one line of its numbers, and a line for each collective."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, StageCost):
        numbers = " ".join(
            f"{getattr(value, name):.8g}" for name in told_fields(value) if isinstance(getattr(value, name), (int, float))
        )
        causes = [
            [f"{cause} {seconds:.8g}" for cause, seconds in way]
            for way in (value.forward_communication, value.backward_communication)
        ]
        used = [
            f"{it.part} {it.kind} {it.size}/{it.stride} {it.n_bytes:.7g} {it.n_times:.7g} {it.seconds:.7g}"
            for it in value.collectives
        ]
        return [numbers, *causes, ";".join(used)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return " ".join(str(short(getattr(value, name))) for name in told_fields(value))
    if isinstance(value, (tuple, list)):
        return [short(of) for of in value]
    return value
