"""The answer of ``size``: the front, what is not on it, and what it all rests on."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from meshwright.base import amounts
from meshwright.sizing.failures import FailureRates
from meshwright.sizing.goodput import Upkeep
from meshwright.sizing.kinds import ClusterKind
from meshwright.sizing.points import NOT_PLANNED, LeftOut, SizePoint
from meshwright.sizing.tariffs import Tariff

__all__ = ["FORMAT", "Sizing"]

FORMAT = "meshwright/size/1"


@dataclass(frozen=True, slots=True)
class Sizing:
    """Which sizes of which clusters are worth having for a training run.

    Parameters
    ----------
    model : str
        As asked.
    n_tokens : int
        Of the whole run.
    sequence_length, global_batch, n_steps : int
        Tokens of a sequence, samples of a step on every size, steps of the run.
    front : tuple of SizePoint
        Within the limits and not dominated, the quickest first; empty where nothing is within them.
    others : tuple of SizePoint
        Planned, but dominated or beyond a limit.
    left_out : tuple of LeftOut
        Sizes that were not planned or have no plan, each with its reason.
    nearest : SizePoint or None
        Without a front: the size that is beyond the limits by least, of those planned.
    within_seconds, budget_value : float
        The limits; infinite for none.
    kinds, tariffs : tuple
        The kinds of cluster, and money and energy of their devices.
    upkeep : Upkeep
        Failures and recovery.
    notes : tuple of str
        Sentences the user should read.
    seed : int
        Of everything random.
    settings : tuple of (str, str)
        Options of the search.
    planning_seconds : float
        Wall time.
    n_sequences : int
        Sequences of a sample: two where it is a pair.
    """

    model: str
    n_tokens: int
    sequence_length: int
    global_batch: int
    n_steps: int
    front: tuple[SizePoint, ...]
    others: tuple[SizePoint, ...]
    left_out: tuple[LeftOut, ...]
    nearest: SizePoint | None
    within_seconds: float
    budget_value: float
    kinds: tuple[ClusterKind, ...]
    tariffs: tuple[Tariff, ...]
    upkeep: Upkeep
    notes: tuple[str, ...]
    seed: int
    settings: tuple[tuple[str, str], ...]
    planning_seconds: float
    n_sequences: int = 1

    @property
    def sample(self) -> str:
        """What a sample is, in words: ``4096 tokens``, ``2 sequences of 4096 tokens``."""
        return f"{self.n_sequences} sequences of " * (self.n_sequences > 1) + f"{self.sequence_length} tokens"

    @property
    def feasible(self) -> bool:
        """Whether any size is within the limits."""
        return bool(self.front)

    @property
    def complete(self) -> bool:
        """Whether every size was planned that is not left out for good; else Ctrl-C came before."""
        return all(entry.reason != NOT_PLANNED for entry in self.left_out)

    def __repr__(self) -> str:
        if not self.front:
            near = "" if self.nearest is None else f"; nearest {self.nearest.cluster}: {self.nearest.days:.3g} days"
            return f"<Sizing of {self.model}: {'' if self.complete else 'stopped, '}nothing within the limits{near}>"
        rows = []
        for point in self.front[:8]:
            money = "price unknown" if point.money is None else amounts.money_text(point.money)
            rows.append(f"  {point.cluster}: {point.days:.3g} days, {money}, goodput {point.goodput.effective_ratio:.1%}")
        more = f"\n  and {len(self.front) - 8} more" if len(self.front) > 8 else ""
        return f"<Sizing of {self.model}, {self.n_tokens:.4g} tokens\n" + "\n".join(rows) + f"{more}>"

    def _repr_html_(self) -> str:
        if not self.front:
            return f"<p>{escape(repr(self)[1:-1])}</p>"
        heads = ("cluster", "days", "money", "MWh", "goodput", "plan")
        rows = [
            (
                point.cluster,
                f"{point.days:.3g}",
                "unknown" if point.money is None else amounts.money_text(point.money),
                "unknown" if point.outlay.kilowatt_hours is None else f"{point.outlay.kilowatt_hours / 1e3:.4g}",
                f"{point.goodput.effective_ratio:.1%}",
                point.description,
            )
            for point in self.front
        ]
        cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        head = "".join(f"<th>{name}</th>" for name in heads)
        return f"<div><p>{escape(repr(self).splitlines()[0][1:])}</p><table><tr>{head}</tr>{cells}</table></div>"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as the JSON object of ``meshwright size --json``."""
        never = float("inf")
        return {
            "format": FORMAT,
            "model": self.model,
            "n_tokens": self.n_tokens,
            "sequence_length": self.sequence_length,
            **({"n_sequences": self.n_sequences} if self.n_sequences > 1 else {}),
            "global_batch": self.global_batch,
            "n_steps": self.n_steps,
            "within_days": None if self.within_seconds == never else self.within_seconds / 86400.0,
            "budget": None if self.budget_value == never else self.budget_value,
            "currency": "USD",
            "feasible": self.feasible,
            "complete": self.complete,
            "front": [point.to_dict() for point in self.front],
            "others": [point.to_dict() for point in self.others],
            "left_out": [{"cluster": entry.cluster, "reason": entry.reason} for entry in self.left_out],
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
            "kinds": [_kind_json(kind, tariff) for kind, tariff in zip(self.kinds, self.tariffs, strict=True)],
            "failures": _rates_json(self.upkeep.rates),
            "recovery": _recovery_json(self.upkeep),
            "seed": self.seed,
            "settings": dict(self.settings),
            "planning_seconds": self.planning_seconds,
            "notes": list(self.notes),
        }


def _kind_json(kind: ClusterKind, tariff: Tariff) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "devices_per_node": kind.devices_per_node,
        "dollars_per_device_hour": tariff.dollars_per_hour,
        "price_source": tariff.price_source or None,
        "device_watts": tariff.device_watts,
        "device_and_node_watts": tariff.watts,
        "power_source": tariff.power_source or None,
        "pue_ratio": tariff.pue_ratio,
    }


def _rates_json(rates: FailureRates) -> dict[str, Any]:
    parts = ("device", "node", "switch", "software")
    times = {f"{part}_mtbf_hours": getattr(rates, f"{part}_seconds") / 3600.0 for part in parts}
    finite = {name: None if hours == float("inf") else hours for name, hours in times.items()}
    return finite | {"devices_per_switch": rates.devices_per_switch, "source": rates.source}


def _recovery_json(upkeep: Upkeep) -> dict[str, Any]:
    found = upkeep.recovery
    storage = "storage_bytes_per_second_and_device" if upkeep.storage_per_device else "storage_bytes_per_second"
    return {
        "restart_seconds": found.restart_seconds,
        storage: found.storage_bytes_per_second,
        "copy_bytes_per_second": found.copy_bytes_per_second,
        "checkpoint": "async" if found.asynchronous else "blocking",
        "repair_seconds": found.repair_seconds or None,
        "replan_seconds": None if found.replan_seconds < 0.0 else found.replan_seconds,
    }
