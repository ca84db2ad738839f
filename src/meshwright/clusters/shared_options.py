"""Fields that the parameters of several generated topologies share, and the cluster made of generated wires."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import InputError
from meshwright.clusters.wires import Wires, check_count, device
from meshwright.core.cluster import Cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DeviceOptions", "GridOptions", "bandwidth", "generated", "kind", "latency", "launch", "ratio", "sizes", "whole"]

SOURCE = "generated: figures as given, or the defaults of the topology (documented, not measured)"


def bandwidth(value: float, word: str = "bandwidth") -> Any:
    """Return a field for the bandwidth of one direction of a link."""
    return dataclasses.field(default=value, metadata={"unit": "bytes_per_second", "word": word, "minimum": 1e-6})


def latency(value: float, word: str = "latency") -> Any:
    """Return a field for the latency of a link."""
    return dataclasses.field(default=value, metadata={"unit": "seconds", "word": word})


def launch() -> Any:
    """Return a field for the time before a collective begins."""
    return latency(0.0, "launch")


def ratio(word: str) -> Any:
    """Return a field for a ratio of at least 1."""
    return dataclasses.field(default=1.0, metadata={"word": word, "minimum": 1.0})


def whole(value: int, minimum: int = 1) -> Any:
    """Return a field for a whole number."""
    return dataclasses.field(default=value, metadata={"minimum": minimum})


def kind() -> Any:
    """Return a field for the kind of device."""
    return dataclasses.field(default="h100-sxm-80gb")


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Parameters of a topology of so many devices, with one kind of device and of link; topologies add their own.

    Parameters
    ----------
    n_devices : int
        Number of devices.
    device : str
        Kind of device.
    bytes_per_second : float
        Bandwidth of one direction of a link (``bandwidth=``).
    latency_seconds : float
        Latency of a link (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    n_devices: int
    device: str = kind()
    bytes_per_second: float = bandwidth(50e9)
    latency_seconds: float = latency(1e-6)
    launch_seconds: float = launch()


@dataclass(frozen=True, slots=True)
class GridOptions:
    """The same of a grid of devices.

    Parameters
    ----------
    shape : tuple of int
        Two or three sizes: ``4x4x4``.
    device : str
        Kind of device.
    bytes_per_second : float
        Bandwidth of one direction of a link (``bandwidth=``).
    latency_seconds : float
        Latency of a link (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    shape: tuple[int, ...]
    device: str = kind()
    bytes_per_second: float = bandwidth(50e9)
    latency_seconds: float = latency(1e-6)
    launch_seconds: float = launch()


def sizes(shape: tuple[int, ...], n_dims: tuple[int, ...], name: str) -> int:
    """Return the number of devices of a grid if its sizes are right (InputError otherwise)."""
    if len(shape) not in n_dims or any(size < 1 for size in shape):
        allowed = " or ".join(str(n) for n in n_dims)
        given = "x".join(str(size) for size in shape)
        raise InputError(f"cluster {name}: shape {given}: must be {allowed} sizes of at least 1, for example 4x4x4")
    total = 1
    for size in shape:
        total *= size
    return check_count(total, f"cluster {name}")


def generated(
    name: str,
    wires: Wires,
    n_devices: int,
    n_switches: int,
    params: Any,
    groups: NDArray[np.int64] | None = None,
    *,
    forwards: bool,
) -> Cluster:
    """Return the cluster of one kind of device and generated wires; without groups every device is its own node."""
    import numpy as np

    return Cluster(
        name=name,
        kinds=(device(params.device),),
        kind_of_device=np.zeros(n_devices, dtype=np.int64),
        n_switches=n_switches,
        links=wires.links(),
        groups=np.arange(n_devices)[None] if groups is None else groups,
        forwards=forwards,
        source=SOURCE,
        launch_seconds=params.launch_seconds,
    )
