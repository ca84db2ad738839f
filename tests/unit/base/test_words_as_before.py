"""Quantities, amounts and bytes of traces as they were read and written when this was written: words at every edge."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from meshwright.base import amounts, chakra_nodes, units
from meshwright.base.errors import InputError
from recorded import Recorded

NUMBERS = ("0", "1", "1.5", "-2", ".25", "1e3", "1_000", "999.5", "x", "", "1e400", "nan", "7.0000000001", "12 34")
UNITS = (
    "", "s", "ms", "us", "µs", "ns", "min", "h", "B", "KiB", "kB", "GB", "TiB", "EB", "bit", "Gbit", "GB/s", "Gbps", "Mbit/s",
    "FLOP", "TFLOPs", "PFLOP/s", "TFLOPs/s", "d", "day", "weeks", "w", "hr", "hours", "sec", "minutes", "m", "k", "K", "M", "G",
    "b", "T", "t", "Ki", "Mi", "W", "kW", "MW", "$", "M$", "USD", "EUR", "parsecs",
)  # fmt: skip
SIZES = (0.0, 1e-10, 9.99e-7, 1e-6, 9.996e-4, 1e-3, 0.5, 0.9999, 1.0, 59.0, 119.9, 120.0, 999.0, 999.4, 999.5, 1000.0, 1023.0,
         1024.0, 7199.0, 7200.0, 172799.0, 172800.0, 999499.0, 1e6, 1048576.0, 1e9, 3.7e12, 1e15, 2.0**50, 2.0**60, 1e18, -5.0,
         -2048.0, -1e7)  # fmt: skip


def told(function: Callable[..., Any], *values: Any, **options: Any) -> Any:
    try:
        return function(*values, **options)
    except InputError as error:
        return str(error)


def test_words_are_read_as_before(recorded: Recorded) -> None:
    readers: dict[str, Callable[[str], Any]] = {
        "tokens of a run": lambda text: amounts.total_tokens(text, "--tokens"),
        "duration": lambda text: amounts.duration(text, "--within"),
        "money": lambda text: amounts.money(text, "--budget"),
        "watts": lambda text: amounts.watts(text, "--power"),
        "samples": units.samples,
        "tokens": units.tokens,
    }
    words = [number + unit for number, unit in itertools.product(("3", "1.5"), UNITS)] + [*NUMBERS, "-7", "-1.5", "$2M", "$5$"]
    words += ["2 M$", "1 500", "1e29 T", "1.0000000001k", "0.3T", "2.5 kW", "0 d", "1e-400 s"]
    for name, reader in readers.items():
        accepted = {word: value for word in words if not isinstance(value := told(reader, word), str)}
        refused = sorted(
            {str(told(reader, word)).replace(f" {word}:", " _:") for word in words if word and word not in accepted}
        )
        recorded([accepted, refused], name)
    found = {}
    for dimension in ("seconds", "bytes", "flops", "bytes_per_second", "flops_per_second"):
        for unit in UNITS:
            if not isinstance(value := told(units.parse, f"1.5 {unit}", dimension, place="p"), str):
                found[f"{unit} {dimension}"] = value
    recorded(found, "units")


def test_quantities_are_refused_as_before(recorded: Recorded) -> None:
    odd = (*NUMBERS, True, 3, 2.5, float("inf"), -1.0, "5 GB", "5 zz")
    recorded([told(units.parse, word, "seconds", place="a: b") for word in odd])
    edges = [(0.0, 0.0, False), (0.0, 0.0, True), (2.0, 2.0, False), (2.0, 2.0, True), (1.9, 2.0, False), (-3.0, -4.0, False)]
    recorded([told(units.parse, n, "bytes", place="p", minimum=least, exclusive=more) for n, least, more in edges], "edges")
    words = ("4k", "1.5M", "2Ki", "1.0005k", "x", "7", "3G", "1T", ".5K", "1Ti", "0")
    counts = [told(units.parse_count, word, place="--n", binary=two) for word in words for two in (False, True)]
    recorded(counts, "counts")


def test_quantities_are_written_as_before(recorded: Recorded) -> None:
    writers = (units.format_seconds, units.format_bytes, units.format_count, amounts.money_text, amounts.duration_text)
    recorded({writer.__name__: [writer(size) for size in SIZES] for writer in writers})
    assert [units.format_seconds(n) for n in (9.994e-7, 9.9951e-7, 9.996e-4, 0.99949, 0.9996)] == [
        "999 ns", "1 us", "1 ms", "999 ms", "1 s",
    ]  # fmt: skip
    assert amounts.duration_text(float("inf")) == "never"


def test_nodes_of_a_chakra_trace_are_these_bytes(recorded: Recorded) -> None:
    groups = chakra_nodes.Groups()
    numbers = [groups.number(members) for members in ((0, 1), (2, 3), (0, 1), (1, 0), (2,))]
    assert numbers == [0, 1, 0, 2, 3]
    assert groups.text() == '{"0": [0, 1], "1": [2, 3], "2": [1, 0], "3": [2]}\n'
    nodes = [chakra_nodes.beginning()]
    for identity, before, micros in ((0, (), 0), (1, (0,), 1), (127, (0, 128), 127), (128, (300,), 128), (16384, (), 10**7)):
        nodes.append(chakra_nodes.compute(identity, "a", before, micros))
    for sent in (True, False):
        nodes.append(chakra_nodes.message(5, "send", (4,), (1, 200), 12345678, 3, sent=sent))
    nodes += [chakra_nodes.collective(6, "c", (5, 4), kind, 99, 7) for kind in chakra_nodes.COLLECTIVES]
    recorded([node.hex() for node in nodes])
