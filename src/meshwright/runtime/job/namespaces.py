"""A cluster's network emulated on this machine: a namespace for every device and switch, veth pairs with limited rates for
links.

Needs Linux, root (CAP_NET_ADMIN) and the programs ``ip`` and ``tc``. Rates are emulated, latencies are not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster

__all__ = ["clean", "emulated", "unavailable"]

_PREFIX = "mwns"
_FRAME_RATIO = 1514 / 1448
"""Bytes on the wire per byte of payload: a full Ethernet frame with the headers of IP and TCP (time stamps included)."""

_MOST_BYTES_PER_SECOND = 1.25e9
"""Links this fast or faster are left unlimited: one machine moves no more between its namespaces."""


def unavailable() -> str:
    """Return why this machine cannot emulate a network, or nothing where it can."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "the programs ip and tc (package iproute2) are not installed"
    name = f"{_PREFIX}{os.getpid()}probe"
    made = _command("ip", "netns", "add", name)
    try:
        if made.returncode:
            return f"network namespaces cannot be made: {made.stderr.strip() or 'ip netns add failed'}"
        shaped = _command("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", *_limit(1e6))
        return f"rates cannot be limited: {shaped.stderr.strip()}" if shaped.returncode else ""
    finally:
        _command("ip", "netns", "del", name)


@contextmanager
def emulated(cluster: Cluster) -> Iterator[list[list[str]]]:
    """Build the network, hand out the words that start a process inside each device, and take it down however the block ends.

    `cluster`: devices on a tree of switches; rates of both directions are taken from its links.
    Yields: one prefix per device, as `meshwright.runtime.job.launch.run` takes them.
    Raises `InputError` when the machine cannot, or the cluster is no tree of switches with devices as leaves.
    """
    rates = _rates(cluster)
    why = unavailable()
    if why:
        raise InputError(f"cannot emulate cluster {cluster.name}: {why}; this needs Linux and root")
    _clean_left_behind()
    prefix = f"{_PREFIX}{os.getpid()}x"
    try:
        _build(cluster, rates, prefix)
        yield [["ip", "netns", "exec", f"{prefix}{i}", "env", "GLOO_SOCKET_IFNAME=link0"] for i in range(cluster.n_devices)]
    finally:
        clean(prefix)


def _rates(cluster: Cluster) -> dict[tuple[int, int], float]:
    """Return the rate of every directed link, after checking that the network is a tree with devices as leaves.

    Raises `InputError` when it is not.
    """
    links = cluster.links
    rates: dict[tuple[int, int], float] = {}
    for source, target, rate in zip(links.source, links.target, links.bytes_per_second, strict=True):
        pair = (int(source), int(target))
        rates[pair] = rates.get(pair, 0.0) + float(rate)
    wires = {(min(pair), max(pair)) for pair in rates}
    degree = [sum(i in wire for wire in wires) for i in range(cluster.n_devices)]
    if len(wires) != cluster.n_devices + cluster.n_switches - 1 or any(d != 1 for d in degree):
        raise InputError(
            f"cluster {cluster.name}: only devices with one link each on a tree of switches can be emulated; this one has "
            f"{len(wires)} wires between {cluster.n_devices} devices and {cluster.n_switches} switches"
        )
    return {**{(b, a): rate for (a, b), rate in rates.items()}, **rates}


def _build(cluster: Cluster, rates: dict[tuple[int, int], float], prefix: str) -> None:
    """Make namespaces, bridges and links.

    Raises `InputError` when a command fails.
    """
    for node in range(cluster.n_devices + cluster.n_switches):
        _run("ip", "netns", "add", f"{prefix}{node}")
        _inside(prefix, node, "ip", "link", "set", "lo", "up")
        if node >= cluster.n_devices:
            _inside(prefix, node, "ip", "link", "add", "bridge0", "type", "bridge")
            _inside(prefix, node, "ip", "link", "set", "bridge0", "up")
    for a, b in sorted({(min(pair), max(pair)) for pair in rates}):
        ends = ((a, _interface(cluster, a, b), rates[a, b]), (b, _interface(cluster, b, a), rates[b, a]))
        (_, here, _), (_, there, _) = ends
        _run("ip", "link", "add", here, "netns", f"{prefix}{a}", "type", "veth", "peer", "name", there, "netns", f"{prefix}{b}")
        for node, name, rate in ends:
            if node < cluster.n_devices:
                _inside(prefix, node, "ip", "address", "add", f"10.77.{node // 250}.{node % 250 + 1}/16", "dev", name)
            else:
                _inside(prefix, node, "ip", "link", "set", name, "master", "bridge0")
            _inside(prefix, node, "ip", "link", "set", name, "up")
            if rate < _MOST_BYTES_PER_SECOND:
                _inside(prefix, node, "tc", "qdisc", "add", "dev", name, "root", *_limit(rate))


def _interface(cluster: Cluster, node: int, other: int) -> str:
    return "link0" if node < cluster.n_devices else f"to{other}"


def _limit(rate: float) -> list[str]:
    """Return the words of a token bucket for so many bytes of payload a second.

    The bucket holds two milliseconds: less, and the kernel's timers cannot keep up with fast links; more, and short messages
    pass for nothing.
    """
    wire = rate * _FRAME_RATIO
    return [
        "tbf",
        "rate",
        f"{int(wire * 8)}bit",
        "burst",
        str(max(8192, int(wire * 0.002))),
        "limit",
        str(max(400_000, int(wire * 0.03))),
    ]


def clean(prefix: str) -> None:
    """Delete every namespace whose name begins with `prefix`; links inside go with them."""
    for name in _namespaces():
        if name.startswith(prefix):
            _command("ip", "netns", "del", name)


def _clean_left_behind() -> None:
    """Delete what runs left that were killed before they could:
    namespaces that carry the number of a process no longer there.
    """
    for name in _namespaces():
        number = name.removeprefix(_PREFIX).partition("x")[0]
        if name.startswith(_PREFIX) and number.isdigit() and not os.path.exists(f"/proc/{number}"):
            _command("ip", "netns", "del", name)


def _namespaces() -> list[str]:
    listed = _command("ip", "netns", "list").stdout
    return [line.split()[0] for line in listed.splitlines() if line.strip()]


def _inside(prefix: str, node: int, *words: str) -> None:
    _run("ip", "netns", "exec", f"{prefix}{node}", *words)


def _run(*words: str) -> None:
    done = _command(*words)
    if done.returncode:
        raise InputError(f"emulating the network: '{' '.join(words)}' failed: {done.stderr.strip()}")


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)
