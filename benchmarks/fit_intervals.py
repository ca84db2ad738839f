"""Writes where measured runs lie around predictions, from every row of the built-in measured sets, each predicted as `plan` would.

    python benchmarks/fit_intervals.py [--write]

A row is predicted with the plan that it tells, the precision it names and the framework that ran it: no constant that a set's reader knows
of its program counts (`Point.planned_seconds`, `Point.planned_bytes`). Printed are the classes with their ends, how many rows of each
set lie inside the intervals that the other sets alone give and inside those of all rows but a fifth kept back, and the ratios of
measured to predicted peaks. Then every family of devices is predicted once more as if no run on it were known, with another one's shares
of its peaks, which is what stands in the files of kinds that nobody measured. ``--write`` writes
``core/data/intervals.toml`` and ``core/data/memory.toml``; no figure there is set by hand. How ends are found is said in
`meshwright.validation._intervals`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import fit_costs

from meshwright import validation
from meshwright.clusters import wires
from meshwright.core import interval, peaks
from meshwright.validation import Point, _intervals

HEAD = (
    "# Measured over predicted seconds of a step, by class: between `low_ratio` and `high_ratio` 80 % are expected, of further runs of a\n"  # noqa: E501
    "# framework on a kind of cluster that are like one of `runs` (tokens, devices, seconds of a layer), and of the runs of a further set\n"  # noqa: E501
    "# in the wider classes; there between `further_low_ratio` and `further_high_ratio`.\n"
    "# Written by benchmarks/fit_intervals.py; no figure is set by hand.\n"
)
HEAD_OF_MEMORY = (
    "# Measured over predicted peak memory, by framework: 80 % lie between `low_ratio` and `high_ratio`, and below each of `below_ratio`\n"  # noqa: E501
    f"# the share at its place in {', '.join(f'{share:g}' for share in peaks.SHARES)}.\n"
    "# Written by benchmarks/fit_intervals.py; no figure is set by hand.\n"
)

FAMILIES = (
    ("a100_sxm_80gb", "a100_sxm_40gb", "a100_pcie_80gb", "a100_pcie_40gb"),
    ("h100_sxm_80gb", "h200_sxm_141gb", "gh200_96gb"),
    ("h100_sxm_96gb",),
    ("b200_sxm_180gb", "b300_sxm_270gb", "gb200_186gb", "gb300_279gb"),
    ("l4_24gb",),
)
"""Kinds of device with fitted figures; those that were fitted together or are nearly alike stand together."""

TAKEN_AS = "a100_sxm_80gb"
"""Whose shares stand in the files of kinds that nobody measured (``as A100``); its own family is taken as the next one."""

SHARES = (
    ("achieved.matmul", "achieved.matmul"), ("achieved.fp8", "achieved.matmul"), ("achieved.fp4", "achieved.matmul"),
    ("achieved.memory", "achieved.memory"), ("achieved.attention", "achieved.attention"),
    ("attention.flash1", "attention.flash1"), ("attention.flash2", "achieved.attention"),
)  # fmt: skip
"""Figures of a kind of device, and that of another one that stands for each."""


def main() -> None:
    """Predict every set, print what was found, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the two data files")
    write = parser.parse_args().write
    sets = {name: validation.validate(name).points for name in validation.set_names()}
    classes, held = _intervals.ends(sets), _intervals.peak_ratios(sets)
    if (beyond := _intervals.far(sets)) is not None:
        classes[interval.FAR] = beyond
    for name, ends in classes.items():
        print(f"{name:<72}{ends.low_ratio:7.3f} to {ends.high_ratio:.3f}, {ends.n_runs} runs of {ends.n_sets} sets")
    kept_back = _intervals.kept_back(sets)
    for name, (n_inside, n_rows) in _intervals.left_out(sets).items():
        print(
            f"{name:<28}{n_rows:>5} rows, inside by the other sets {n_inside:>4} ({n_inside / n_rows:.0%}), "
            f"kept back by fifths {kept_back[name][0]:>4} ({kept_back[name][0] / n_rows:.0%})"
        )
    for name, found in held.items():
        ratios = ", ".join(
            f"{share:.0%} below {ratio:.3f}" for share, ratio in zip(peaks.SHARES, found.below_ratio, strict=True)
        )
        print(f"memory, {name}: {found.n_runs} runs of {found.n_sets} sets: {ratios}")
    classes[interval.UNMEASURED] = ends = _intervals.of_families(as_if_unmeasured(sets))
    print(f"{interval.UNMEASURED:<72}{ends.low_ratio:7.3f} to {ends.high_ratio:.3f}, {ends.n_runs} runs of {ends.n_sets} sets")
    if write:
        tables = [f'["{name}"]\n{_fields(ends)}' for name, ends in classes.items()]
        (interval.DATA / "intervals.toml").write_text("\n".join([HEAD, *tables]), encoding="utf-8")
        tables = [f'["{name}"]\n{_fields(found)}' for name, found in held.items()]
        peaks.DATA.write_text("\n".join([HEAD_OF_MEMORY, *tables]), encoding="utf-8")


def as_if_unmeasured(sets: Mapping[str, Sequence[Point]]) -> dict[str, dict[str, list[Point]]]:
    """Return the rows of every family by set, predicted with another family's shares.

    `sets`: rows by set, as predicted with the figures of the files; they tell which sets have rows of a family.
    """
    found: dict[str, dict[str, list[Point]]] = {}
    for family in FAMILIES:
        names = {wires.device(stem).name for stem in family}
        other = TAKEN_AS if TAKEN_AS not in family else FAMILIES[1][0]
        with fit_costs.edited() as folder:
            for stem in family:
                _take(folder, stem, other)
            for name, points in sets.items():
                if any(point.device in names for point in points):
                    rows = [point for point in validation.validate(name).points if point.device in names]
                    found.setdefault(family[0], {})[name] = rows
        n_rows = sum(map(len, found.get(family[0], {}).values()))
        print(f"  {family[0]} with the shares of {other}: {n_rows} rows", flush=True)
    return found


def _take(folder: Path, stem: str, other: str) -> None:
    """Write another device's shares into a device's file, as far as it has them."""
    path = f"clusters/data/devices/{stem}.toml"
    for key, source in SHARES:
        try:
            fit_costs.get(folder, path, key)
        except SystemExit:  # the kind has no such figure
            continue
        value = fit_costs.get(fit_costs.DATA, f"clusters/data/devices/{other}.toml", source)
        fit_costs.put(folder, fit_costs.Constant(path, key, value, 1.0), value)


def _fields(record: interval.TimeInterval | peaks.PeakRoom) -> str:
    """Return the fields of a record as TOML."""
    found = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    plain: dict[str, object] = {"basis": getattr(record, "basis", None)}
    if isinstance(record, interval.TimeInterval):
        blank = interval.TimeInterval(0.0, 0.0, 0, 0)
        plain = {name: getattr(blank, name) for name in found}
        found["runs"] = _runs(record.runs)
    return "".join(f"{name} = {_shown(value)}\n" for name, value in found.items() if plain.get(name) != value)


def _runs(runs: Sequence[interval.NearRun]) -> object:
    """Return where runs lie, by framework and precision, as a table; nothing for none."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for run in runs:
        found.setdefault(f"{run.framework}, {run.precision}", []).append((run.n_tokens, run.n_devices, run.layer_seconds))
    return {word: tuple(places) for word, places in found.items()} or ()


def _shown(value: object) -> str:
    """Return a figure as TOML: floats with three places, short ones with three digits."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{word}" = {_shown(places)}' for word, places in value.items()) + " }"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return (f"{value:.3f}" if value >= 0.1 else f"{value:.3g}") if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
