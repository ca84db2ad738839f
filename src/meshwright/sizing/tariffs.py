"""What an hour of a device costs and draws: figures of the built-in kinds with source and date, or as told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.base import amounts, files
from meshwright.base.errors import InputError
from meshwright.sizing.failures import DATA
from meshwright.sizing.kinds import ClusterKind, kind

__all__ = ["CURRENCY", "PRICINGS", "Tariff", "priced_kinds", "tariffs", "told_of_kinds", "usual_pue"]

CURRENCY = "USD"

PRICINGS = ("on-demand", "reserved")


@dataclass(frozen=True, slots=True)
class Tariff:
    """Money and energy of one device of a kind.

    Parameters
    ----------
    dollars_per_hour : float or None
        For one device; None where it is not known.
    price_source : str
        Where that is from, with its date.
    device_watts : float or None
        Of the device alone.
    watts : float or None
        Of the device with its share of the node, before cooling; None where it is not known.
    power_source : str
        Where that is from, with its date.
    pue_ratio : float
        What the site draws for each watt of its machines.
    """

    dollars_per_hour: float | None = None
    price_source: str = ""
    device_watts: float | None = None
    watts: float | None = None
    power_source: str = ""
    pue_ratio: float = 1.0

    @property
    def kilowatts(self) -> float | None:
        """Kilowatts of one device with its share of node and site; None where they are not known."""
        return None if self.watts is None else self.watts * self.pue_ratio / 1000.0


def usual_pue() -> tuple[float, str]:
    """Return the power usage effectiveness that is assumed, and its source."""
    entry = files.read_toml(DATA / "power.toml")["pue"]
    return float(entry["value"]), f"{entry['source']}, {entry['date']}"


def priced_kinds(pricing: str) -> tuple[ClusterKind, ...]:
    """Return the built-in kinds whose price is known, by name.

    Parameters
    ----------
    pricing : str
        One of `PRICINGS`.
    """
    content = files.read_toml(DATA / "prices.toml")
    stems = sorted(stem for stem, entry in content.items() if isinstance(entry, dict) and pricing.replace("-", "_") in entry)
    return tuple(kind(stem, "prices.toml") for stem in stems)


def tariffs(
    chosen: Sequence[ClusterKind],
    *,
    pricing: str = "on-demand",
    prices: Mapping[str, float] | None = None,
    powers: Mapping[str, float] | None = None,
    pue_ratio: float = 0.0,
) -> tuple[Tariff, ...]:
    """Return what a device of each kind costs and draws.

    Parameters
    ----------
    chosen : sequence of ClusterKind
        The kinds.
    pricing : str
        One of `PRICINGS`.
    prices : mapping of str to float or None
        Dollars per device and hour as told, by name of kind.
    powers : mapping of str to float or None
        Watts of a device with its share of the node as told, by name of kind.
    pue_ratio : float
        As told; 0 for the usual one.

    Raises
    ------
    InputError
        When there is no such pricing.
    """
    if pricing not in PRICINGS:
        raise InputError(f"--pricing {pricing}: must be one of {', '.join(PRICINGS)}")
    known, drawn = files.read_toml(DATA / "prices.toml"), files.read_toml(DATA / "power.toml")
    pue = pue_ratio or usual_pue()[0]
    found = []
    for one in chosen:
        entry = known.get(one.stem, {}).get(pricing.replace("-", "_"))
        dollars = None if entry is None else entry["node"] / entry["devices"]
        source = "" if entry is None else f"{entry['source']}, {entry['date']}"
        power = drawn.get(one.stem)
        device = watts = None
        told = ""
        if power is not None:
            device, watts = float(power["device"]["watts"]), power["node"]["watts"] / one.devices_per_node
            told = "; ".join(f"{power[part]['source']}, {power[part]['date']}" for part in ("device", "node"))
        if prices and one.name in prices:
            dollars, source = prices[one.name], "told"
        if powers and one.name in powers:
            watts, told = powers[one.name], "told"
        found.append(Tariff(dollars, source, device, watts, told, pue))
    return tuple(found)


def told_of_kinds(entries: Sequence[str], option: str, chosen: Sequence[ClusterKind]) -> dict[str, float]:
    """Return amounts told for kinds: ``h100=2.49``; without a kind, for all of them.

    Parameters
    ----------
    entries : sequence of str
        As typed; commas separate several.
    option : str
        ``--price`` (dollars) or ``--power`` (watts).
    chosen : sequence of ClusterKind
        The kinds there are.

    Raises
    ------
    InputError
        When an amount is none, a kind is not among them, or is given twice.
    """
    found: dict[str, float] = {}
    for entry in ",".join(entries).split(",") if entries else ():
        word, equals, text = entry.rpartition("=")
        if not text.strip() or (equals and not word.strip()):
            raise InputError(
                f"{option} {entry}: write KIND=AMOUNT, for example h100={'2.49' if option == '--price' else '1.3kW'}"
            )
        value = (amounts.money if option == "--price" else amounts.watts)(text, f"{option} {word}=" if word else option)
        names = [one.name for one in chosen]
        if word:
            names = [kind(word, option).name]
            if names[0] not in [one.name for one in chosen]:
                raise InputError(
                    f"{option} {entry}: {names[0]} is none of the kinds asked for ({', '.join(o.name for o in chosen)})"
                )
        for name in names:
            if name in found:
                raise InputError(f"{option} {entry}: {name} has an amount already")
            found[name] = value
    return found
