"""Where it runs: devices, switches and directed links, in one graph underneath every topology."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.base.errors import InputError
from meshwright.base.identity import read_only

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Cluster", "Device", "Host", "Links"]

_LONGEST_SECONDS = 3600.0  # that a link may delay what it carries: sums of far longer ones are no numbers any more


@dataclass(frozen=True, slots=True)
class Host:
    """What one device has of its host while all devices of the host use it at once.

    Parameters
    ----------
    link_bytes_per_second : float
        What large copies from and to pinned memory reach, each way (PCIe, NVLink-C2C).
    memory_bytes_per_second : float
        Its share of the peak bandwidth of the host's memory.
    memory_bytes : float
        Its share of the host's memory.
    source : str
        Where the figures are from.
    """

    link_bytes_per_second: float
    memory_bytes_per_second: float
    memory_bytes: float
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_second", "memory_bytes_per_second", "memory_bytes"):
            _check_number(getattr(self, name), f"host: {name}", above=True)


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device.

    Parameters
    ----------
    name : str
        ``"H100-SXM-80GB"``.
    flops_per_second : tuple of (str, float)
        Dense matrix peak by precision: ``bf16``, ``fp16``, ``fp8``, ``fp32`` (and ``tf32`` where the part has it).
    memory_bytes : float
        Memory of the device.
    memory_bytes_per_second : float
        Bandwidth of that memory.
    launch_seconds : float
        Time that starting and draining one operator adds to its work.
    reserved_bytes : float
        Memory that the training process cannot use: context, communication buffers, fragmentation.
    source : str
        Where the figures are from.
    n_multiprocessors : int
        Units that matrix tiles are dealt to (streaming multiprocessors); 0 where work is not quantised so (TPUs).
    matmul_ratio : float
        Share of the peak that a large, well-shaped matrix product reaches.
    attention_ratio : float
        Share of the peak that fused attention reaches forward at head size 128.
    memory_ratio : float
        Share of the memory bandwidth that a large streaming kernel reaches.
    fp8_ratio : float
        The share that fp8 products reach of their own peak; 0 for `matmul_ratio`.
    fp4_ratio : float
        The share that fp4 products reach of their own peak; 0 for `fp8_ratio`.
    attention_of : tuple of (str, float)
        The same share for fused attention of other software than the best there is, by its name (`Framework.attention`).
    issue_seconds : float
        Time that the training program on the host takes to issue one operator: where a layer's work is shorter than that of all
        its operators, the device waits.
    host : Host or None
        What it has of its host; None where that is not known.
    """

    name: str
    flops_per_second: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_bytes_per_second: float
    launch_seconds: float = 5e-6
    reserved_bytes: float = 0.0
    source: str = ""
    n_multiprocessors: int = 0
    matmul_ratio: float = 0.8
    attention_ratio: float = 0.5
    memory_ratio: float = 0.85
    fp8_ratio: float = 0.0
    issue_seconds: float = 0.0
    fp4_ratio: float = 0.0
    attention_of: tuple[tuple[str, float], ...] = ()
    host: Host | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"a device has the name {self.name!r}; it must be a text, as in H100-SXM-80GB")
        place = f"device {self.name}"
        for precision, flops in self.flops_per_second:
            _check_number(flops, f"{place}: flops_per_second of {precision}", above=True)
        computes = bool(self.flops_per_second)  # published instances bring times instead, and no figures
        for name in ("memory_bytes", "memory_bytes_per_second"):
            _check_number(getattr(self, name), f"{place}: {name}", above=computes)
        for name in ("launch_seconds", "reserved_bytes", "issue_seconds", "n_multiprocessors"):
            _check_number(getattr(self, name), f"{place}: {name}")
        for name in ("matmul_ratio", "attention_ratio", "memory_ratio"):
            _check_number(getattr(self, name), f"{place}: {name}", above=True, most=1.0)
        for name in ("fp8_ratio", "fp4_ratio"):
            _check_number(getattr(self, name), f"{place}: {name}", most=1.0)
        for software, ratio in self.attention_of:
            _check_number(ratio, f"{place}: attention_of {software}", above=True, most=1.0)

    def attention(self, software: str = "") -> float:
        """Return the share of its peak that fused attention reaches by some software: the best there is where none is told, or
        it is not known for this device.
        """
        return dict(self.attention_of).get(software, self.attention_ratio)

    def achieved(self, precision: str) -> float:
        """Return the share of its peak that a large product of `precision` reaches."""
        if precision == "fp4":
            return self.fp4_ratio or self.fp8_ratio or self.matmul_ratio
        return self.fp8_ratio or self.matmul_ratio if precision in ("fp8", "mxfp8") else self.matmul_ratio

    def peak(self, precision: str) -> float:
        """Return the dense matrix peak of `precision` in FLOP/s.

        Raises
        ------
        InputError
            When the device has no such precision.
        """
        for name, flops_per_second in self.flops_per_second:
            if name == precision or (name == "fp8" and precision == "mxfp8" and not self.name.startswith(_SCALED_BY_TENSOR)):
                return flops_per_second
        raise InputError(
            f"device {self.name} has no {precision} matrix unit; it has {', '.join(name for name, _ in self.flops_per_second)}"
        )


_SCALED_BY_TENSOR = ("H100", "H200", "H800", "H20", "GH200", "L4", "L40", "RTX")
"""Devices with units for fp8 that take one scale a tensor, none a block: Transformer Engine's mxfp8 stops before Blackwell."""


def _check_number(value: object, place: str, *, above: bool = False, most: float = math.inf) -> None:
    """Refuse what is no finite number of at least 0 (`above`: above 0) and at most `most`."""
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if math.isfinite(number) and (number > 0 if above else number >= 0) and number <= most:
        return
    up_to = "" if most == math.inf else f" and at most {most:g}"
    raise InputError(f"{place} is {value!r}; it must be a finite number {'above' if above else 'of at least'} 0{up_to}")


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Directed links as arrays; ids from `n_devices` on are switches.

    Parameters
    ----------
    source, target : ndarray, shape (n_links,), int64
        Ends of each link.
    bytes_per_second : ndarray, shape (n_links,), float64
        Bandwidth of one direction.
    latency_seconds : ndarray, shape (n_links,), float64
        Time of the first byte.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    bytes_per_second: NDArray[np.float64]
    latency_seconds: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, dtype in (
            ("source", int),
            ("target", int),
            ("bytes_per_second", float),
            ("latency_seconds", float),
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), dtype))

    def __len__(self) -> int:
        return len(self.source)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Links, (self.source, self.target, self.bytes_per_second, self.latency_seconds)  # copies are read-only too


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Devices 0..n_devices-1, switches from n_devices on, and the links between.

    Never changes: what is worked out for a cluster is kept where it is worked out (`meshwright.network.Network`).

    Parameters
    ----------
    name : str
        As the user names it: ``"dgx-h100:64"``.
    kinds : tuple of Device
        Kinds of device in it.
    kind_of_device : ndarray, shape (n_devices,), int64
        Which kind each device is.
    n_switches : int
        Number of switches.
    links : Links
        Directed links between devices and switches.
    groups : ndarray, shape (n_levels, n_devices), int64
        Physical grouping, innermost first: row 0 is the node (or NVLink domain) of each device, row 1 the rack or pod, ...;
        what placement aligns meshes with. At least one row; flat clusters give every device its own group.
    forwards : bool
        Whether devices pass on traffic of others (a torus of accelerators, a server-centric fabric).
    reconfiguration_seconds : float
        Time to change an optical circuit switch; 0 for fixed wires.
    source : str
        Where the figures are from.
    launch_seconds : float
        Time before the first byte of a collective or a transfer moves: launch, handshake, synchronisation of the ranks.
    reduces_in_switch : bool
        Whether switches add up what passes (SHARP, NVLink SHARP) and collectives may use it.
    algorithms : tuple of str
        Algorithms that the communication library of this cluster has for collectives (``ring``, ``tree``, ``direct``, ...: the
        names of `meshwright.network`); empty for all.
    periods : tuple of int
        Lengths of blocks of device ids that are wired alike, each a multiple of the one before: a node, a pod. Traffic inside
        one block slows no block beside it. Empty where nothing is known to repeat.
    devices_per_host : int
        How many devices of a node one operating system has, where an NVLink domain spans several hosts (a rack of compute
        trays); 0: all of a node.

    Raises
    ------
    InputError
        When there are no devices, one has no kind or no group, a link has an unknown end or a bandwidth that is not positive, a
        time is negative or not finite, or when devices cannot all reach each other.
    """

    name: str
    kinds: tuple[Device, ...]
    kind_of_device: NDArray[np.int64]
    n_switches: int
    links: Links
    groups: NDArray[np.int64]
    forwards: bool = True
    reconfiguration_seconds: float = 0.0
    source: str = ""
    launch_seconds: float = 0.0
    reduces_in_switch: bool = False
    algorithms: tuple[str, ...] = ()
    periods: tuple[int, ...] = ()
    devices_per_host: int = 0

    def __post_init__(self) -> None:
        for name in ("kind_of_device", "groups"):
            object.__setattr__(self, name, read_only(getattr(self, name), int))
        self._check_devices()
        for name in ("launch_seconds", "reconfiguration_seconds", "n_switches"):
            _check_number(getattr(self, name), f"cluster {self.name}: {name}")
        from meshwright.core import connected

        n_nodes = self.n_devices + self.n_switches
        links = self.links
        bad = (links.source < 0) | (links.source >= n_nodes) | (links.target < 0) | (links.target >= n_nodes)
        for i in bad.nonzero()[0][:1]:
            raise InputError(
                f"cluster {self.name}: link {i}: {links.source[i]} -> {links.target[i]}: ends must be 0..{n_nodes - 1}"
            )
        bad = ~((links.bytes_per_second > 0) & (links.bytes_per_second < math.inf))
        for i in bad.nonzero()[0][:1]:
            raise InputError(
                f"cluster {self.name}: link {links.source[i]} -> {links.target[i]}: bytes_per_second is "
                f"{links.bytes_per_second[i]}; must be > 0"
            )
        bad = ~((links.latency_seconds >= 0) & (links.latency_seconds <= _LONGEST_SECONDS))
        for i in bad.nonzero()[0][:1]:
            raise InputError(
                f"cluster {self.name}: link {links.source[i]} -> {links.target[i]}: latency_seconds is "
                f"{links.latency_seconds[i]}; must be from 0 to {_LONGEST_SECONDS:g}"
            )
        wrong = connected.fault((links.source, links.target), self.n_devices, self.n_switches, forwards=self.forwards)
        if wrong:
            raise InputError(f"cluster {self.name}: {wrong}")

    def _check_devices(self) -> None:
        """Refuse a cluster without devices, and devices without a kind or a group."""
        n, kind = self.n_devices, self.kind_of_device
        if not n or kind.shape != (n,):
            raise InputError(
                f"cluster {self.name}: kind_of_device has shape {kind.shape}; it must name the kind of 1 device or more"
            )
        for i in ((kind < 0) | (kind >= len(self.kinds))).nonzero()[0][:1]:
            raise InputError(
                f"cluster {self.name}: device {i} is of kind {kind[i]}; there are {len(self.kinds)} kinds, from 0 on"
            )
        if self.groups.ndim != 2 or not len(self.groups) or self.groups.shape[1] != n:
            raise InputError(
                f"cluster {self.name}: groups has shape {self.groups.shape}; it must be (levels, {n}), with one level or more"
            )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Cluster, tuple(getattr(self, name) for name in self.__dataclass_fields__)  # copies are read-only too

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.kind_of_device)

    def device(self, i: int) -> Device:
        """Return the kind of device `i`."""
        return self.kinds[int(self.kind_of_device[i])]

    @property
    def homogeneous(self) -> bool:
        """Whether all devices are of one kind."""
        return bool((self.kind_of_device == self.kind_of_device[0]).all())

    @property
    def node_of_device(self) -> NDArray[np.int64]:
        """Node (innermost group) of each device; shape (n_devices,), int64."""
        node: NDArray[np.int64] = self.groups[0]
        return node
