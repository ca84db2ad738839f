"""How often a job is interrupted: mean times between failures of its parts, from published counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.base import amounts, files
from meshwright.base.errors import InputError, UnknownNameError

__all__ = ["DATA", "PARTS", "FailureRates", "figure", "published", "rates"]

DATA = Path(__file__).parent / "data"
"""Where the figures lie, each with its source and date."""

PARTS = ("device", "node", "switch", "software")
"""What fails; software fails once for so many devices that run it."""


@dataclass(frozen=True, slots=True)
class FailureRates:
    """Mean seconds between failures of one of each part; infinite for parts that never fail.

    Parameters
    ----------
    device_seconds, node_seconds, switch_seconds : float
        Of one device, one node and one switch at the devices.
    software_seconds : float
        Of the program, for each device that runs it.
    devices_per_switch : int
        How many devices a switch that fails belongs to.
    source : str
        Where the figures are from, in words.
    """

    device_seconds: float
    node_seconds: float = math.inf
    switch_seconds: float = math.inf
    software_seconds: float = math.inf
    devices_per_switch: int = 16
    source: str = ""

    @property
    def nothing_fails(self) -> bool:
        """Whether no part ever fails."""
        times = (self.device_seconds, self.node_seconds, self.switch_seconds, self.software_seconds)
        return all(seconds == math.inf for seconds in times)

    def per_second(self, n_devices: int, devices_per_node: int) -> float:
        """Return the interruptions per second of a job on so many devices: parts fail independently, so rates add up.

        Parameters
        ----------
        n_devices : int
            Devices of the job.
        devices_per_node : int
            Devices of a node.
        """
        n_switches = math.ceil(n_devices / self.devices_per_switch)
        return (
            self.hardware_per_second(n_devices, devices_per_node)
            + n_switches / self.switch_seconds
            + n_devices / self.software_seconds
        )

    def hardware_per_second(self, n_devices: int, devices_per_node: int) -> float:
        """Return how many of those interruptions per second take a node away until it is repaired.

        Parameters
        ----------
        n_devices, devices_per_node : int
            As of `per_second`.
        """
        return n_devices / self.device_seconds + math.ceil(n_devices / devices_per_node) / self.node_seconds


def figure(table: Mapping[str, Any], name: str, place: str) -> Any:
    """Return the value of a figure, which must have a source and a date.

    Parameters
    ----------
    table : mapping
        A table of a data file.
    name : str
        The figure.
    place : str
        The table, for messages.

    Raises
    ------
    InputError
        When it has none.
    """
    entry = table[name]
    for key in ("value", "source", "date"):
        if not entry.get(key):
            raise InputError(f"{place}: {name} has no {key}; every figure has value, source and date")
    return entry["value"]


def published() -> FailureRates:
    """Return the rates of the published run that the data file holds.

    Returns
    -------
    FailureRates
        Hours of all devices (nodes, switches) of the run by what interrupted it.

    References
    ----------
    .. [1] "The Llama 3 Herd of Models", arXiv 2407.21783, sec. 3.3.4 and table 5.
    """
    content = files.read_toml(DATA / "reliability.toml")
    run, found = content["run"], content["interruptions"]
    n_devices, days, per_node, per_switch = (
        figure(run, name, "reliability.toml: run") for name in ("n_devices", "n_days", "devices_per_node", "devices_per_switch")
    )
    counts = {part: sum(entry["count"] for entry in found["counts"] if entry["part"] == part) for part in PARTS}
    seconds = 86400.0 * days
    parts = {"device": n_devices, "node": n_devices / per_node, "switch": n_devices / per_switch, "software": n_devices}
    times = {f"{part}_seconds": seconds * parts[part] / counts[part] for part in PARTS}
    source = f"{run['title']}: {sum(counts.values())} interruptions ({found['source']}, {found['date']})"
    return FailureRates(**times, devices_per_switch=per_switch, source=source)


def rates(text: str) -> FailureRates:
    """Return failure rates as typed after ``--mtbf``.

    Parameters
    ----------
    text : str
        ``50000h``: one device, whatever interrupts it; ``device=80000h,node=50000h``: these parts, the others as published
        (`PARTS`); ``none``: nothing fails; empty: as published.

    Raises
    ------
    InputError
        When a time is none, or not above 0.
    UnknownNameError
        When there is no such part.
    """
    if not text:
        return published()
    if text.strip().lower() == "none":
        return FailureRates(math.inf, source="told: nothing fails")
    if "=" not in text:
        return FailureRates(amounts.duration(text, "--mtbf"), source=f"told: {text.strip()} between failures of one device")
    told: dict[str, float] = {}
    for entry in text.split(","):
        part, equals, value = (word.strip() for word in entry.partition("="))
        if not equals or not value:
            raise InputError(f"--mtbf {entry.strip()}: write PART=TIME, for example device=80000h,node=50000h")
        if part not in PARTS:
            raise UnknownNameError("part of --mtbf", part, PARTS)
        if f"{part}_seconds" in told:
            raise InputError(f"--mtbf {part}: given twice")
        told[f"{part}_seconds"] = math.inf if value == "none" else amounts.duration(value, f"--mtbf {part}")
    known = published()
    return replace(known, **told, source=f"told: {text.strip()}; others: {known.source}")  # type: ignore[arg-type]
