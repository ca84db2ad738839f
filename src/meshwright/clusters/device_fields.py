"""The fields of a device's data file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["AchievedFigures", "DeviceFile", "Figure", "KernelFigures", "MemoryFigures"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a data file, and where it is from."""

    value: str | float
    source: str = field(metadata={"at_least": 1})


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """A device's memory: its size, what it moves in a second, and what a training process takes before it begins."""

    size: Figure
    bandwidth: Figure
    reserved: Figure


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """How operators start on a device."""

    launch: Figure
    multiprocessors: Figure


@dataclass(frozen=True, slots=True)
class AchievedFigures:
    """What operators reach of a device's peaks."""

    matmul: Figure
    attention: Figure
    memory: Figure
    fp8: Figure | None = None
    fp4: Figure | None = None


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A data file of a kind of device; peaks by type of number, attention by software."""

    name: str
    flops_per_second: Mapping[str, Figure]
    memory: MemoryFigures
    kernel: KernelFigures
    achieved: AchievedFigures
    attention: Mapping[str, Figure] | None = None
