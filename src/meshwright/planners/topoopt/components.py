"""What a network is built of and costs, so that topologies of equal cost can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshwright.base import fields, files

__all__ = ["PARTS", "Bill", "Prices", "bill", "equal_cost_bandwidth", "prices"]

PARTS = ("nic", "transceiver", "switch_port", "patch_panel_port", "optical_switch_port")
GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of ports: a fixed part and one for every Gbit/s.

    Parameters
    ----------
    per_port, per_gbit : tuple of float
        In the order of `PARTS`, in dollars.
    source : str
        Where they are from.
    """

    per_port: tuple[float, ...]
    per_gbit: tuple[float, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Bill:
    """Parts of a network.

    Parameters
    ----------
    counts : tuple of int
        Ports of each kind, in the order of `PARTS`.
    bytes_per_second : float
        Speed of a port.
    """

    counts: tuple[int, ...]
    bytes_per_second: float

    def cost(self, known: Prices) -> float:
        """Return what all parts cost, in dollars."""
        speed = self.bytes_per_second / GBIT
        rows = zip(self.counts, known.per_port, known.per_gbit, strict=True)
        return sum(count * (fixed + rate * speed) for count, fixed, rate in rows)


def prices(path: str = "") -> Prices:
    """Return prices from a file, or our round figures.

    `path`: a TOML file with a table for each part: ``per_port``, ``per_gbit`` and ``source``; empty for ours.
    Raises `InputError` when the file is missing or wrong.
    """
    file = Path(path) if path else Path(__file__).parent / "data" / "components.toml"
    data = files.read_toml(file)
    place = f"components {path}"
    fields.entry(data, place, needed=PARTS)
    tables = [fields.entry(data[part], f"{place}: {part}", needed=("per_port", "per_gbit")) for part in PARTS]
    fixed, rate = (
        tuple(
            fields.number(table[key], f"{place}: {part}: {key}", minimum=0) for part, table in zip(PARTS, tables, strict=True)
        )
        for key in ("per_port", "per_gbit")
    )
    return Prices(fixed, rate, str(data["nic"].get("source", "")))


def bill(topology: str, n: int, degree: int, n_links: int, n_switch_ports: int, bytes_per_second: float) -> Bill:
    """Return the parts of a topology.

    `topology`: its name; ``topoopt``, ``random`` and ``expander`` are wired over a patch panel, ``optical`` over an optical
    switch, the others fixed.
    `n`, `degree`: servers and interfaces of each.
    `n_links`: wires between servers, both directions one wire.
    `n_switch_ports`: ports of electrical switches, those to servers included.

    Notes
    -----
    Every end of a wire has a transceiver. Interfaces that carry no wire are bought too.
    """
    ends = 2 * n_links
    if topology == "optical":
        return Bill((n * degree, n * degree, 0, 0, n * degree), bytes_per_second)
    if n_switch_ports:
        return Bill((n * degree, n * degree + n_switch_ports, n_switch_ports, 0, 0), bytes_per_second)
    panel = ends if topology in ("topoopt", "random", "expander") else 0
    return Bill((max(n * degree, ends), ends, 0, panel, 0), bytes_per_second)


def equal_cost_bandwidth(parts: Bill, cost: float, known: Prices) -> float:
    """Return the speed of a port at which the parts cost so much (bytes per second);
    0 where the fixed part alone costs more.
    """
    fixed = sum(count * price for count, price in zip(parts.counts, known.per_port, strict=True))
    rate = sum(count * price for count, price in zip(parts.counts, known.per_gbit, strict=True))
    return max((cost - fixed) / rate, 0.0) * GBIT if rate else 0.0
