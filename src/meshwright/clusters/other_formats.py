"""Clusters described by other programs: ASTRA-sim's network YAML, the matrix of ``nvidia-smi topo -m``, NCCL's topology XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as Xml
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base import files, units, yaml_text
from meshwright.base.errors import InputError
from meshwright.clusters.wires import Wires, check_count, device
from meshwright.core.cluster import Cluster, Device

__all__ = ["read"]

NVLINK_BYTES_PER_SECOND = 25e9
"""One NVLink of the second to fourth generation (V100, A100, H100), one direction."""

NVLINK_5_BYTES_PER_SECOND = 50e9
"""One NVLink of the fifth generation, one direction: the 18 of a B200 carry 900 GB/s."""

FIRST_WITH_NVLINK_5 = 100
"""Compute capability from which on devices have it."""

PCIE_SECONDS = 1e-6
MATRIX_SPEEDS = (("PIX", 24e9), ("PXB", 20e9), ("PHB", 16e9), ("NODE", 12e9), ("SYS", 10e9))
"""What pairs that are joined over PCIe reach, one direction: estimates for PCIe 4 x16, less with every bridge passed."""

GENERATION = (("2.5", 0.25e9), ("5.0", 0.5e9), ("8.0", 0.985e9), ("16.0", 1.969e9), ("32.0", 3.938e9), ("64.0", 7.563e9))
"""Bytes per second of one PCIe lane by transfer rate in GT/s."""

COMPUTE_CAPABILITY = (
    ("70", "v100-sxm2-32gb"),
    ("75", "t4-16gb"),
    ("80", "a100-sxm-80gb"),
    ("89", "l4-24gb"),
    ("90", "h100-sxm-80gb"),
    ("100", "b200-sxm-180gb"),
)
"""The kind of device assumed for a compute capability: the one that servers with several of them mostly have."""


def read(path: Path, spec: str) -> Cluster | None:
    """Return the cluster of a file of another program; None when it is none of the three.

    Parameters
    ----------
    path : Path
        The file.
    spec : str
        As the user typed it.

    Raises
    ------
    InputError
        When the file is one of them, but wrong.
    """
    text = files.read_text(path, "a cluster is YAML, NCCL's XML or the output of 'nvidia-smi topo -m'")
    if text.lstrip().startswith("<"):
        return _nccl(text, path, spec)
    if re.search(r"^\s*npus_count\s*:", text, re.M):
        return _astra(text, path, spec)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    if re.search(r"^[ \t]+GPU0\s", plain, re.M):
        return _matrix(plain, path, spec)
    return None


def _made(
    spec: str, wires: Wires, kind: Device, n: int, n_switches: int, groups: Any, source: str, *, forwards: bool
) -> Cluster:
    return Cluster(
        name=spec, kinds=(kind,), kind_of_device=np.zeros(n, dtype=np.int64), n_switches=n_switches, links=wires.links(),
        groups=groups, forwards=forwards, source=source,
    )  # fmt: skip


def _astra(text: str, path: Path, spec: str) -> Cluster:
    """Return an ASTRA-sim network: one topology for each dimension, innermost first; GB/s and nanoseconds."""
    try:
        data = yaml_text.load(text, str(path))
        lists = {key: list(data[key]) for key in ("topology", "npus_count", "bandwidth", "latency")}
        sizes = [int(size) for size in lists["npus_count"]]
        rates = [
            units.parse(float(v) * 1e9, "bytes_per_second", place=f"{path}: bandwidth", exclusive=True)
            for v in lists["bandwidth"]
        ]
        delays = [units.parse(float(v) * 1e-9, "seconds", place=f"{path}: latency") for v in lists["latency"]]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: an ASTRA-sim network needs the lists topology, npus_count, bandwidth and latency: {error!r}"
        ) from None
    kinds = [str(kind) for kind in lists["topology"]]
    if len({len(kinds), len(sizes), len(rates), len(delays)}) != 1 or not kinds:
        raise InputError(f"{path}: topology, npus_count, bandwidth and latency must have one entry for each dimension")
    if min(sizes) < 1:
        raise InputError(f"{path}: npus_count: must be at least 1 in every dimension")
    n = check_count(int(np.prod(sizes)), str(path))
    wires, n_switches, stride = Wires(), 0, 1
    for kind, size, rate, delay in zip(kinds, sizes, rates, delays, strict=True):
        at = np.arange(n) // stride % size
        base = np.arange(n) - at * stride
        if kind == "Switch":
            starts = np.unique(base, return_inverse=True)[1]
            wires.join(np.arange(n), n + n_switches + starts, rate, delay)
            n_switches += int(starts.max()) + 1
        elif kind == "Ring" and size > 1:
            last = size if size > 2 else 1
            own = np.flatnonzero(at < last)
            wires.join(own, base[own] + (at[own] + 1) % size * stride, rate, delay)
        elif kind == "FullyConnected" and size > 1:
            for step in range(1, size):
                own = np.flatnonzero(at + step < size)
                wires.join(own, own + step * stride, rate / (size - 1), delay)
        elif kind not in ("Ring", "FullyConnected"):
            raise InputError(f"{path}: topology {kind} is not known; there are Switch, Ring and FullyConnected")
        stride *= size
    strides = np.cumprod(sizes)[:-1]
    groups = np.stack([np.arange(n) // s for s in strides]) if len(strides) else np.arange(n)[None]
    source = f"{path}: ASTRA-sim network; the kind of device is assumed"
    return _made(spec, wires, device("h100-sxm-80gb"), n, n_switches, groups, source, forwards=True)


def _matrix(text: str, path: Path, spec: str) -> Cluster:
    """Return one server from the connection matrix that ``nvidia-smi topo -m`` prints."""
    lines = [line for line in text.splitlines() if line.strip()]
    start = next(i for i, line in enumerate(lines) if re.match(r"[ \t]+GPU0\s", line))
    header = lines[start].split()
    n = sum(1 for word in header if re.fullmatch(r"GPU\d+", word))
    check_count(n, str(path))
    rows: dict[int, list[str]] = {}
    for line in lines[start + 1 :]:
        words = line.split()
        if words and re.fullmatch(r"GPU\d+", words[0]):
            rows[int(words[0][3:])] = words[1 : 1 + n]
    if sorted(rows) != list(range(n)) or any(len(row) != n for row in rows.values()):
        raise InputError(f"{path}: the matrix names {n} GPUs, but not every one has a row of {n} entries; is it cut off?")
    speeds = dict(MATRIX_SPEEDS)
    wires, seen = Wires(), set()
    for a in range(n):
        for b in range(a + 1, n):
            word = rows[a][b]
            links = re.fullmatch(r"NV(\d+)", word)
            if links is None and word not in speeds:
                raise InputError(f"{path}: GPU{a} - GPU{b}: '{word}' is not known; there are NV# and {', '.join(speeds)}")
            if word != rows[b][a]:
                raise InputError(f"{path}: GPU{a} - GPU{b} is {word}, but GPU{b} - GPU{a} is {rows[b][a]}")
            seen.add(word)
            wires.join(a, b, int(links[1]) * NVLINK_BYTES_PER_SECOND if links else speeds[word], PCIE_SECONDS)
    if len(seen) == 1 and (links := re.fullmatch(r"NV(\d+)", next(iter(seen)))):
        # every pair has all links of a device: they lead into a switch, and are not there once for every pair
        wires = Wires()
        wires.join(np.arange(n), n, int(links[1]) * NVLINK_BYTES_PER_SECOND, PCIE_SECONDS)
        switched = n > 2
        if not switched:
            wires = Wires()
            wires.join(0, 1, int(links[1]) * NVLINK_BYTES_PER_SECOND, PCIE_SECONDS)
        return _matrix_made(spec, path, wires, n, int(switched))
    return _matrix_made(spec, path, wires, n, 0)


def _matrix_made(spec: str, path: Path, wires: Wires, n: int, n_switches: int) -> Cluster:
    source = f"{path}: nvidia-smi topo -m; speeds of NVLink by count, of PCIe and the kind of device assumed"
    kind = device("a100-sxm-80gb")
    return _made(spec, wires, kind, n, n_switches, np.zeros((1, n), dtype=np.int64), source, forwards=False)


def _nccl(text: str, path: Path, spec: str) -> Cluster:
    """Return one server from NCCL's topology dump: GPUs under PCI bridges under CPUs, NVLinks between."""
    try:
        tree = Xml.fromstring(text)
    except Xml.ParseError as error:
        raise InputError(f"{path}: is not valid XML ({error}); is it cut off?") from None
    if tree.tag != "system":
        raise InputError(f"{path}: the root is <{tree.tag}>; NCCL's topology begins with <system>")
    gpus, parents, cpus = _pci_tree(tree)
    if not gpus:
        raise InputError(f"{path}: holds no <gpu>")
    n = len(gpus)
    number = {name: index for name, (index, _) in gpus.items()}
    for name in [*cpus, *(above for _, above, _ in parents)]:
        number.setdefault(name, len(number))
    wires = Wires()
    for name, above, rate in parents:
        if name in number:
            wires.join(number[name], number[above], rate, PCIE_SECONDS)
    for a, b in pairwise(cpus):
        wires.join(number[a], number[b], dict(MATRIX_SPEEDS)["SYS"], PCIE_SECONDS)
    switch = len(number)
    capability, kind, told = _device(gpus, path)
    per_link = NVLINK_5_BYTES_PER_SECOND if capability >= FIRST_WITH_NVLINK_5 else NVLINK_BYTES_PER_SECOND
    uses_switch = _nvlinks(gpus, wires, switch, per_link, path)
    n_switches = len(number) - n + int(uses_switch)
    source = f"{path}: NCCL topology; {told}"
    return _made(spec, wires, kind, n, n_switches, np.zeros((1, n), dtype=np.int64), source, forwards=False)


def _device(gpus: dict[str, tuple[int, Xml.Element]], path: Path) -> tuple[int, Device, str]:
    """Return compute capability (0 where it is not said) and kind of the GPUs, and in words how the kind is known."""
    found = sorted({str(gpu.get("sm", "")).strip() for _, gpu in gpus.values()})
    known = dict(COMPUTE_CAPABILITY)
    if found == [""]:
        kind = device("a100-sxm-80gb")
        return 0, kind, f"it says no compute capability (sm), {kind.name} is assumed"
    if len(found) > 1:
        raise InputError(f"{path}: GPUs of several compute capabilities (sm: {', '.join(found)}); write the cluster as YAML")
    if found[0] not in known:
        raise InputError(
            f'{path}: sm="{found[0]}": no one kind of device has this compute capability (known: {", ".join(known)}); write '
            "the cluster as YAML with its kind of device"
        )
    kind = device(known[found[0]])
    return int(found[0]), kind, f"{kind.name} is assumed from compute capability {found[0]}, which others have too"


def _pci_tree(tree: Xml.Element) -> tuple[dict[str, tuple[int, Xml.Element]], list[tuple[str, str, float]], list[str]]:
    """Return the GPUs by bus id, the PCI links upwards with their speeds, and the CPUs."""
    gpus: dict[str, tuple[int, Xml.Element]] = {}
    parents: list[tuple[str, str, float]] = []
    cpus: list[str] = []

    def walk(element: Xml.Element, above: str) -> None:
        for child in element:
            if child.tag not in ("cpu", "pci"):
                continue
            name = (
                f"cpu{child.get('numaid', len(cpus))}" if child.tag == "cpu" else str(child.get("busid", f"pci{len(parents)}"))
            )
            if child.tag == "cpu":
                cpus.append(name)
            gpu = child.find("gpu")
            if gpu is not None:
                gpus[name] = (len(gpus), gpu)
            if above:
                parents.append((name, above, _pcie(child)))
            walk(child, name)

    walk(tree, "")
    return gpus, parents, cpus


def _pcie(element: Xml.Element) -> float:
    """Return the speed of a PCI link from its attributes; that of 16 lanes at 16 GT/s where they do not say."""
    rates = dict(GENERATION)
    match = re.match(r"([0-9.]+)", str(element.get("link_speed", "")))
    lane = rates.get(match[1] if match else "", rates["16.0"])
    width = str(element.get("link_width", "16"))
    return lane * (int(width) if width.isdigit() and int(width) else 16)


def _nvlinks(gpus: dict[str, tuple[int, Xml.Element]], wires: Wires, switch: int, per_link: float, path: Path) -> bool:
    """Lay the NVLinks, each of a rate; return whether some lead into a switch."""
    switched = False
    for index, gpu in gpus.values():
        for link in gpu.findall("nvlink"):
            target, said = str(link.get("target", "")), str(link.get("count", "1"))
            if not re.fullmatch("[1-9][0-9]{0,3}", said):
                raise InputError(f'{path}: nvlink count="{said}" of GPU {index}: must be a whole number of at least 1')
            rate = int(said) * per_link
            if target in gpus:
                if index < gpus[target][0]:
                    wires.join(index, gpus[target][0], rate, PCIE_SECONDS)
            else:
                wires.join(index, switch, rate, PCIE_SECONDS)
                switched = True
    return switched
