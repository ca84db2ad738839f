"""What `meshwright calibrate` makes of five runs: the error on the other runs of their set, before and after.

    python benchmarks/calibration.py

Of every built-in set up to 36 rows are drawn, and from these 60 times five. The last but one column is the least error that one ratio
for all of them leaves, the last one how many of the fives make the others' error more than half a point larger. Rows are predicted as `plan --for` their framework would, at every ratio of `meshwright.validation._calibration.GRID`; it
takes about two minutes.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright import validation
from meshwright.base import registry
from meshwright.core.plan import Plan
from meshwright.validation import Point, _calibration, _runs, _sets, _table

N_ROWS, N_DRAWS, N_RUNS = 36, 60, 5


def main() -> None:
    """Print a line for every set, and the mean over sets."""
    means = []
    for name in validation.set_names():
        seconds, measured = of_set(name)
        if len(measured) < N_RUNS + 3:
            continue
        random, errors = np.random.default_rng(1), []
        for _ in range(N_DRAWS):
            order = random.permutation(len(measured))
            some, others = order[:N_RUNS], order[N_RUNS:]
            ratio, _ = _calibration.fitted(seconds[some], measured[some])
            errors.append([_calibration.errors(seconds[others], measured[others], own).mean() for own in (1.0, ratio)])
        before, after = np.mean(errors, axis=0)
        grid = np.geomspace(_calibration.GRID[0], _calibration.GRID[-1], 201)
        least = min(_calibration.errors(seconds, measured, float(own)).mean() for own in grid)
        worse = np.mean([after > before + 0.005 for before, after in errors])
        print(f"| `{name}` | {100 * before:.1f} % | {100 * after:.1f} % | {100 * least:.1f} % | {100 * worse:.0f} % |")
        means.append((before, after))
    print("mean: " + " ".join(f"{100 * mean:.1f} %" for mean in np.mean(means, axis=0)))


def of_set(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted seconds of rows of a set, shape (n_rows, n_ratios), and the measured ones."""
    file = _sets.set_file(name)
    table = _table.read(file)
    plugin = registry.load("validation", table.kind, "measured set")
    rows = list(_table.located(file, table.rows, getattr(plugin, "PATHS", ())))
    if len(rows) > 2 * N_ROWS and table.kind in ("vtrain", "own_runs"):  # rows that are read one by one
        rows = [rows[i] for i in sorted(np.random.default_rng(0).choice(len(rows), 2 * N_ROWS, replace=False))]
    found: dict[int, list[float]] = {}
    took: dict[int, float] = {}
    for ratio in _calibration.GRID:
        for point in at_ratio(plugin, rows, ratio):
            found.setdefault(point.row, []).append(point.planned_seconds)
            took[point.row] = point.measured_seconds
    whole = [row for row, seconds in found.items() if len(seconds) == len(_calibration.GRID)]
    if len(whole) > N_ROWS:
        whole = [whole[i] for i in np.random.default_rng(0).choice(len(whole), N_ROWS, replace=False)]
    return np.array([found[row] for row in whole]), np.array([took[row] for row in whole])


def at_ratio(plugin, rows, ratio: float) -> list[Point]:  # type: ignore[no-untyped-def]
    """Return timed rows of plans, predicted as if operators took so many times longer."""
    predicted = _runs._predicted

    def slower(run: _runs.Run, plan: Plan, change):  # type: ignore[no-untyped-def]
        own = run.framework
        return predicted(replace(run, framework=replace(own, compute_ratio=ratio * own.compute_ratio)), plan, change)

    _runs._predicted = slower
    try:
        points = plugin.points(rows)
    finally:
        _runs._predicted = predicted
    return [one for one in points if isinstance(one, Point) and one.kind and one.ran and one.measured_seconds > 0.0]


if __name__ == "__main__":
    main()
