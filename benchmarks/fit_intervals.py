"""Writes where measured runs lie around predictions, from every row of the built-in measured sets, each predicted as `plan` would.

    python benchmarks/fit_intervals.py [--write]

A row is predicted with the plan that it tells, the precision it names and the default program: no constant that a set's reader knows
of its program counts (`Point.planned_seconds`, `Point.planned_bytes`). Printed are the classes with their ends, how many rows of each
set lie inside the intervals that the other sets alone give and inside those of all rows but a fifth kept back, and the ratios of
measured to predicted peaks. ``--write`` writes
``core/data/intervals.toml`` and ``core/data/memory.toml``; no figure there is set by hand. How ends are found is said in
`meshwright.validation._intervals`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import dataclasses

from meshwright import validation
from meshwright.core import interval, peaks
from meshwright.validation import _intervals

HEAD = (
    "# Measured over predicted seconds of a step, by class: between `low_ratio` and `high_ratio` 80 % are expected, of further runs of a\n"  # noqa: E501
    "# framework on a kind of cluster, and of the runs of a further set in the wider classes.\n"
    "# Written by benchmarks/fit_intervals.py; no figure is set by hand.\n"
)
HEAD_OF_MEMORY = (
    "# Measured over predicted peak memory, by framework: 80 % lie between `low_ratio` and `high_ratio`, and below each of `below_ratio`\n"  # noqa: E501
    f"# the share at its place in {', '.join(f'{share:g}' for share in peaks.SHARES)}.\n"
    "# Written by benchmarks/fit_intervals.py; no figure is set by hand.\n"
)


def main() -> None:
    """Predict every set, print what was found, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the two data files")
    write = parser.parse_args().write
    sets = {name: validation.validate(name).points for name in validation.set_names()}
    classes, held = _intervals.ends(sets), _intervals.peak_ratios(sets)
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
    if write:
        tables = [f'["{name}"]\n{_fields(ends)}' for name, ends in classes.items()]
        (interval.DATA / "intervals.toml").write_text("\n".join([HEAD, *tables]), encoding="utf-8")
        tables = [f'["{name}"]\n{_fields(found)}' for name, found in held.items()]
        peaks.DATA.write_text("\n".join([HEAD_OF_MEMORY, *tables]), encoding="utf-8")


def _fields(record: interval.TimeInterval | peaks.PeakRoom) -> str:
    """Return the fields of a record as TOML."""
    found = dataclasses.asdict(record)
    return "".join(f"{name} = {_shown(value)}\n" for name, value in found.items() if name != "basis")


def _shown(value: float | int | tuple[float, ...]) -> str:
    """Return a figure as TOML: floats with three places."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
