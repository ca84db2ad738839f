"""What lengths that vary make of a plan, as text: a row for each way of making samples, and a sentence on which to take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rich import box
from rich.table import Table

from meshwright.base.units import format_count, format_seconds
from meshwright.report import text
from meshwright.sizing.batching import SAME_RATIO

__all__ = ["advice", "lengths_lines"]

_NAMES = (
    ("pad", "pad: a document a sample"),
    ("bucket", "bucket: like lengths together"),
    ("pack", "pack: filled, seen across"),
    ("mask", "mask: filled, seen inside"),
    ("mask_dealt", "mask, dealt by sum of squares"),
)
_DO = MappingProxyType(
    {
        "pad": "pad documents to the sequence length",
        "bucket": "sort documents into buckets of like lengths",
        "pack": "pack documents",
        "mask": "pack documents under a document mask (variable-length attention)",
        "mask_dealt": "pack documents under a document mask and deal samples to replicas by their sum of squared lengths",
    }
)


def lengths_lines(varied: Mapping[str, Any], *, columns: int = 0) -> str:
    """Return the table, what it rests on and the advice, as ``plan --lengths`` shows them.

    Parameters
    ----------
    varied : mapping
        The field ``lengths`` of the plan's JSON.
    columns : int
        Of the terminal; 0 for as many as tables need.

    Returns
    -------
    str
        Lines for a terminal.
    """
    length, n, n_cut = varied["sequence_length"], varied["n_documents"], varied["n_cut"]
    table = Table(
        title=f"documents of {varied['source']} in samples of {length:,} tokens, on this plan", title_justify="left",
        title_style="", box=box.SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    table.add_column("samples", overflow="fold")
    for column in ("real tokens/s", "step", "padding", "waiting"):
        table.add_column(column, justify="right")
    for name, words in _NAMES:
        row = varied["ways"][name]
        mark = " *" if name == varied["batching"] else ""
        table.add_row(
            words + mark, format_count(row["real_tokens_per_second"]), format_seconds(row["step_seconds"]),
            f"{row['padding_ratio']:.1%}", f"{row['waiting_ratio']:.1%}",
        )  # fmt: skip
    cut = f"{n_cut:,} of {n:,} documents are longer than a sample and are cut" if n_cut else "none is longer than a sample"
    lines = [
        f"* as planned; mean length {varied['mean_tokens']:,.0f}, {cut}; {varied['pairs_ratio']:.1%} of the pairs of "
        "tokens of a packed sample lie in one document",
        f"waiting: share of the step in which micro-batches of unlike length keep others waiting, the mean of "
        f"{varied['n_steps_drawn']} drawn steps",
        advice(varied),
    ]
    return text.render(table, *lines, *(f"note: {note}" for note in varied["notes"]), columns=columns)


def advice(varied: Mapping[str, Any]) -> str:
    """Return one sentence on the way to take, and what it gains over the one that was planned.

    Parameters
    ----------
    varied : mapping
        As of `lengths_lines`.
    """
    rows, best, now = varied["ways"], varied["recommended"], varied["batching"]
    gain = rows[best]["real_tokens_per_second"] / rows[now]["real_tokens_per_second"] - 1.0
    if best == now or gain < SAME_RATIO:
        return f"Recommended: {_DO[best]}" + (
            ", as planned." if best == now else "; no other way is quicker by more than half a per cent."
        )
    if gain > 1.0:
        return f"Recommended: {_DO[best]}: {1.0 + gain:.3g} times the real tokens/s of {now} on this plan."
    return f"Recommended: {_DO[best]}: {gain:+.1%} real tokens/s over {now} on this plan."
