"""Building blocks of topologies: wires in both directions, device kinds from data files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.base import fields, files, units
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.clusters.device_fields import DeviceFile, Figure
from meshwright.core.cluster import Device, Links

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["DATA", "MOST_DEVICES", "Wires", "check_count", "count", "device", "device_names", "quantity"]

DATA = Path(__file__).parent / "data"
"""Where the figures of devices and cluster kinds lie."""

MOST_DEVICES = 1_000_000
"""The largest cluster that is built."""


class Wires:
    """Collects two-way wires of a network while it is being built; `links` gives them as two directed links each."""

    def __init__(self) -> None:
        self._blocks: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = []

    def join(self, a: ArrayLike, b: ArrayLike, bytes_per_second: ArrayLike, latency_seconds: ArrayLike) -> None:
        """Lay wires between `a` and `b` (broadcast against each other), the same figures in both directions.

        `bytes_per_second`: bandwidth of each direction.
        `latency_seconds`: time of the first byte.
        """
        import numpy as np

        first, second, rate, latency = np.broadcast_arrays(a, b, bytes_per_second, latency_seconds)
        self._blocks.append(
            (
                first.astype(np.int64).ravel(),
                second.astype(np.int64).ravel(),
                rate.astype(np.float64).ravel(),
                latency.astype(np.float64).ravel(),
            )
        )

    def links(self) -> Links:
        """Return the directed links: every wire forward, then every wire backward."""
        import numpy as np

        if not self._blocks:
            none = np.zeros(0)
            return Links(none.astype(np.int64), none.astype(np.int64), none, none)
        a, b, rate, latency = (np.concatenate(column) for column in zip(*self._blocks, strict=True))
        return Links(np.concatenate([a, b]), np.concatenate([b, a]), np.tile(rate, 2), np.tile(latency, 2))


def device_names() -> tuple[str, ...]:
    """Return the device kinds there are data files for, as typed by the user."""
    return tuple(sorted(path.stem.replace("_", "-") for path in (DATA / "devices").glob("*.toml")))


def device(name: str) -> Device:
    """Return one kind of device from its data file.

    `name`: ``"h100-sxm-80gb"``, or the beginning of one name only (``"tpu-v4"``); case and underscores do not matter.
    Raises `UnknownNameError` when there is no such data file.
    """
    wanted = name.lower().replace("_", "-")
    longer = [known for known in device_names() if known.startswith(f"{wanted}-")]
    if wanted not in device_names() and len(longer) == 1:
        wanted = longer[0]
    if wanted not in device_names():
        raise UnknownNameError("device", name, longer or device_names())
    path = DATA / "devices" / f"{wanted.replace('-', '_')}.toml"
    file = fields.record(DeviceFile, files.read_toml(path), path.name)
    memory, reached = file.memory, file.achieved
    figures = (
        *file.flops_per_second.values(), memory.size, memory.bandwidth, memory.reserved,
        reached.matmul, reached.attention, reached.memory, reached.fp8, reached.fp4,
    )  # fmt: skip
    return Device(
        name=file.name,
        flops_per_second=tuple(
            (key, units.parse(peak.value, "flops_per_second", place=f"{path.name}: {key}"))
            for key, peak in file.flops_per_second.items()
        ),
        memory_bytes=units.parse(memory.size.value, "bytes", place=f"{path.name}: size"),
        memory_bytes_per_second=units.parse(memory.bandwidth.value, "bytes_per_second", place=f"{path.name}: bandwidth"),
        launch_seconds=units.parse(file.kernel.launch.value, "seconds", place=f"{path.name}: launch"),
        reserved_bytes=units.parse(memory.reserved.value, "bytes", place=f"{path.name}: reserved"),
        source="; ".join(sorted({figure.source for figure in figures if figure is not None})),
        n_multiprocessors=int(file.kernel.multiprocessors.value),
        matmul_ratio=_share(reached.matmul, path.name),
        attention_ratio=_share(reached.attention, path.name),
        memory_ratio=_share(reached.memory, path.name),
        fp8_ratio=_share(reached.fp8, path.name),
        fp4_ratio=_share(reached.fp4, path.name),
        attention_of=tuple((key, _share(figure, path.name)) for key, figure in (file.attention or {}).items()),
    )


def _share(figure: Figure | None, place: str) -> float:
    """Return a share of a peak, 0 where the file has none."""
    return 0.0 if figure is None else fields.number(figure.value, f"{place}: achieved", minimum=0, maximum=1)


def quantity(table: Mapping[str, Any], key: str, dimension: str, place: str) -> float:
    """Return one figure ``{ value = "450 GB/s", source = "..." }`` of a data file in base units."""
    return units.parse(table[key]["value"], dimension, place=f"{place}: {key}")


def count(text: str, kind: str) -> int:
    """Return a number of devices typed by the user.

    Raises `InputError` when it is not a whole number from 1 to `MOST_DEVICES`.
    """
    try:
        number = int(text)
    except ValueError:
        raise InputError(f"{kind}: '{text}' is not a number of devices; write for example dgx-h100:64") from None
    return check_count(number, kind)


def check_count(number: int, kind: str) -> int:
    """Return `number` if a cluster can have so many devices (InputError otherwise)."""
    if not 1 <= number <= MOST_DEVICES:
        raise InputError(f"{kind}: {number} devices; must be between 1 and {MOST_DEVICES}")
    return number
