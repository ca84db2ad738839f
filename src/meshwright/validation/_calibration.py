"""A framework fitted to a few runs of one's own: how many times longer operators take, shrunk towards the built-in figures.

References
----------
.. [1] James, Stein, "Estimation with Quadratic Loss", Berkeley Symposium 1961 (the positive-part estimate of a mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.validation import _sets, _table, own_runs
from meshwright.validation._logs import is_log
from meshwright.validation._points import CellError, Point, Skipped
from meshwright.validation.own_runs import OwnRun

__all__ = ["GRID", "SPREAD", "Calibration", "calibrate", "errors", "fitted", "write"]

SPREAD = 0.09
"""Standard deviation of log(measured / predicted) inside a set, root of the mean square over the built-in sets
(``benchmarks/fit_intervals.py`` prints it): of few runs, what their own spread cannot tell."""

GRID = (0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.2, 3.0)
"""Ratios at which runs are predicted; between them the logarithm of seconds is interpolated over that of the ratio."""

FARTHEST = 5.0
"""A run that took so many times longer or shorter than predicted is another run than the one described: of the built-in sets'
1,297 runs none took less than 0.67 or more than 1.95 times as long."""

OUTLIER, FEWEST_FOR_OUTLIERS = 1.5, 4
"""A run that is so many times off the median of so many runs at least, each measured over predicted, is said."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What runs of one's own say of the framework that trained them.

    Parameters
    ----------
    framework : str
        Which one they start from, as after ``--for``.
    file : str
        Where the runs stand: files with commas between them.
    n_runs : int
        Runs that were timed and predicted.
    n_left : int
        Rows that say nothing: failed for memory, or not predicted.
    compute_ratio : float
        `Framework.compute_ratio` that was found.
    before_ratio, after_ratio : float
        Mean absolute error of the runs with the built-in figures, and with those found.
    left_out_ratio : float or None
        The same of each run with what the others say; None for one run.
    notes : tuple of str
        What was assumed of runs, or left out of their logs.
    devices : tuple of str
        Kinds of device that the runs were on, by `Device.name`, sorted.
    """

    framework: str
    file: str
    n_runs: int
    n_left: int
    compute_ratio: float
    before_ratio: float
    after_ratio: float
    left_out_ratio: float | None
    notes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What was found, in a sentence."""
        left = "" if self.left_out_ratio is None else f", {self.left_out_ratio:.1%} on each with what the others say"
        names = ", ".join(Path(name).name for name in self.file.split(", "))
        runs = f"{self.n_runs} run{'s' * (self.n_runs != 1)} of {names}"
        return f"{runs}: mean error {self.before_ratio:.1%} before, {self.after_ratio:.1%} after{left}"


def calibrate(
    paths: str | Path | Sequence[str | Path], *, framework: str = "", model: str = "", cluster: str = "", config: str = ""
) -> Calibration:
    """Return what runs of one's own say of the framework that trained them.

    Parameters
    ----------
    paths : str or Path, or a sequence of them
        CSV files of runs of one's own (`meshwright.validation.own_runs`), and logs of runs (`measured_run`).
    framework : str
        The framework that trained, as after ``--for``, of rows that do not name one; of logs, instead of who wrote them.
    model, cluster : str
        What the logs' runs trained, and where, as on the command line.
    config : str
        Configuration of the framework, or plan file of ours, of the logs' runs; empty where they tell their plan themselves.

    Returns
    -------
    Calibration
        With the ratio that makes the mean residual what is left of it after shrinking.

    Raises
    ------
    InputError
        When a file is no such file, rows do not name one framework of the built-in ones, none was timed and predicted, or a
        run took `FARTHEST` times longer or shorter than predicted: another unit, model, batch or cluster.

    Notes
    -----
    Of n runs whose log(measured / predicted) has mean m and variance s^2 (`SPREAD` at least), the share
    ``max(0, 1 - s^2 / (n m^2))`` of m is believed [1]: one run that is 5 % off says nothing, five that are 20 % off nearly all.
    Where each run is predicted no better with what the others say, nothing is believed.
    """
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    given = list({Path(path).resolve(): path for path in reversed(named)}.values())[::-1]
    told: list[OwnRun | Skipped] = []
    places: list[str] = []
    for path in given:
        found = _of_log(path, framework, model, cluster, config) if is_log(path) else _of_table(path, framework)
        told += found
        places += [str(path) if is_log(path) else f"{path}: row {own.row}, column step_seconds" for own in found]
    runs, notes = _distinct(told, places)
    if len(given) < len(named):
        notes.append(f"{len(named) - len(given)} of {len(named)} files are named again, counted once")
    names = ", ".join(str(path) for path in given)
    word = _framework(list(runs.values()), names, notes)
    seconds, timed, unknown = _predicted({place: own for place, own in runs.items() if math.isfinite(own.measured_seconds)})
    if not len(timed):
        reasons = [*unknown, *(own.reason for own in told if isinstance(own, Skipped))][:1]
        raise InputError(f"{names}: no row was timed and predicted; {'; '.join(reasons) or 'they failed for memory'}")
    ratio, left_out = fitted(seconds, timed)
    notes += _outliers(list(runs), np.log(timed) - _at(seconds, 1.0)) if len(timed) == len(runs) else []
    notes += [f"row {own.row} is left out: {own.reason}" for own in told if isinstance(own, Skipped)]
    devices = tuple(sorted({kind.name for own in runs.values() for kind in own.run.cluster.kinds}))
    if len(devices) > 1:
        notes.append(f"runs on {' and '.join(devices)}: one figure is found for all of them")
    before = float(errors(seconds, timed, 1.0).mean())
    if not GRID[0] * 1.001 < ratio < GRID[-1] / 1.001:
        notes.append(f"the runs ask for more than can be told by one figure: {ratio:g} is the end of its range")
    if ratio == 1.0 and len(left_out) and left_out.mean() > before:
        notes.append("what the others say predicts each run no better: one figure does not tell what is off, none is taken")
    n_failed = sum(not math.isfinite(own.measured_seconds) for own in runs.values())
    n_left = n_failed + len(unknown) + sum(isinstance(own, Skipped) for own in told)
    return Calibration(
        word, names, len(timed), n_left, ratio, before,
        float(errors(seconds, timed, ratio).mean()), float(left_out.mean()) if len(left_out) else None,
        (*dict.fromkeys(own.note for own in runs.values() if own.note), *notes), devices,
    )  # fmt: skip


def write(found: Calibration, path: str) -> None:
    """Write the framework as a file that ``--for`` takes; `InputError` when it cannot be written."""
    text = content(found.framework, found.compute_ratio, found.words, f"calibrated to {found.words}", found.devices)
    files.write(path, text)


def content(framework: str, compute_ratio: float, source: str, title: str, devices: Sequence[str] = ()) -> str:
    """Return the file of a framework whose operators take longer; `devices`: kinds that the runs were on."""
    quoted = [word.replace("\\", "/").replace('"', "'") for word in (title, source)]
    where = f"calibrated_on = [{', '.join(chr(34) + name + chr(34) for name in devices)}]\n" if devices else ""
    return (
        f'title = "{framework}, {quoted[0]}"\nbase = "{framework}"\n{where}\n[how]\n'
        f'compute_ratio = {{ value = {compute_ratio:.6g}, source = "meshwright calibrate: {quoted[1]}" }}\n'
    )


def _of_table(path: str | Path, framework: str) -> list[OwnRun | Skipped]:
    """Return the rows of a CSV file."""
    if framework.endswith(".toml"):
        raise InputError(f"--for {framework}: is a file; calibrate starts from a built-in one")
    file = _sets.set_file(path)
    measured = _table.read(file)
    if measured.kind != "own_runs":
        raise InputError(f"{file}: has the columns of {measured.kind}; calibrate takes runs of your own, see validate")
    rows = [
        {**row, "framework": own_runs.named(row) or framework} for row in _table.located(file, measured.rows, own_runs.PATHS)
    ]
    for word in (row["framework"] for row in rows if row["framework"].endswith(".toml")):
        raise InputError(f"{file}: framework {word} is a file; calibrate starts from a built-in one")
    try:
        return own_runs.told(rows)
    except CellError as error:
        raise InputError(f"{file}: row {error.row}, column {error.column}: {error}") from None


def _of_log(path: str | Path, framework: str, model: str, cluster: str, config: str) -> list[OwnRun | Skipped]:
    """Return the run of a log."""
    if framework.endswith(".toml"):
        raise InputError(f"--for {framework}: is a file; calibrate starts from a built-in one")
    if not Path(path).exists():
        files.read_bytes(path)  # says so
    if not model or not cluster:
        raise InputError(f"{path}: a log does not say which model was trained on which cluster: add --model and --cluster")
    row = {"model": model, "cluster": cluster, "config": config, "log": str(path), "framework": framework}
    try:
        (own,) = own_runs.told([row])
    except CellError as error:
        hint = "" if config or not str(error).endswith("is not given") else (
            "; the log does not tell it: add --config FILE, or write a CSV row with the log in its column `log`"
        )  # fmt: skip
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}{hint}") from None
    if isinstance(own, Skipped):
        raise InputError(f"{path}: {own.reason.removeprefix(f'{path}: ')}")
    return [own]


def _distinct(told: Sequence[OwnRun | Skipped], places: Sequence[str]) -> tuple[dict[str, OwnRun], list[str]]:
    """Return the runs by their places, those that repeat another to the last digit once, and what is to be said of them."""
    kept: dict[str, OwnRun] = {}
    seen: dict[tuple[object, ...], str] = {}
    plans = set()
    notes, repeats = [], []
    for place, own in zip(places, told, strict=True):
        if not isinstance(own, OwnRun):
            continue
        run = own.run
        plan = (
            own.group, own.framework, run.plan, run.strategies, run.pipeline, run.virtual, run.micro_batch, run.global_batch,
            run.layers_per_stage, run.recompute, run.recompute_of_stage, run.schedule, run.training,
        )  # fmt: skip
        first = seen.setdefault((*plan, own.measured_seconds, own.held_bytes), place)
        if first != place and math.isfinite(own.measured_seconds):
            repeats.append(f"{place.partition(', column')[0]} repeats {first.partition(', column')[0]}")
            continue
        plans.add(plan)
        kept[place] = own
    if repeats:
        notes.append(f"{len(repeats)} of {len(told)} runs repeat another to the last digit, counted once: {repeats[0]}")
    if len(plans) == 1 and len(kept) > 1:
        notes.append(f"all {len(kept)} runs are of one plan: they say how it repeats, not how far this holds for others")
    return kept, notes


def _outliers(places: Sequence[str], residuals: Floats) -> list[str]:
    """Say which run is far from the others: one of few runs moves the figure that is found for all.

    `residuals`: logarithms of measured over predicted seconds, in the order of `places`.
    """
    if len(residuals) < FEWEST_FOR_OUTLIERS:
        return []
    usual = float(np.median(residuals))
    return [
        f"{place.partition(', column')[0]} took {np.exp(own):.3g} times as long as predicted, the runs in the middle "
        f"{np.exp(usual):.3g}: is it a run like them? it counts as the others do"
        for place, own in zip(places, residuals, strict=True)
        if abs(own - usual) > np.log(OUTLIER)
    ]


def _framework(runs: Sequence[OwnRun], files: str, notes: list[str]) -> str:
    """Return the one framework that all runs name; without its variants, and a note, where configurations start several."""
    named = {own.framework for own in runs}
    if named == {""}:
        raise InputError(f"{files}: no row says which framework trained; give it with --for NAME or in a column `framework`")
    plain = {word.partition(":")[0] for word in named}
    if len(plain) > 1:
        words = ", ".join(sorted(word or "none" for word in named))
        raise InputError(f"{files}: rows name several frameworks ({words}); calibrate one at a time")
    if len(named) > 1:
        notes.append(
            f"runs of {', '.join(sorted(named))}: what was found is for all of them, and --for starts from {min(plain)}"
        )
    return min(named if len(named) == 1 else plain, default="")


def _predicted(runs: Mapping[str, OwnRun]) -> tuple[Floats, Floats, list[str]]:
    """Return the seconds of every timed run at each ratio of `GRID`, shape (n_runs, n_ratios), the measured ones, and why the
    others are not predicted.

    `runs`: by where they stand, which is said of one that took `FARTHEST` times longer or shorter than predicted.
    """
    seconds, measured, unknown = [], [], list[str]()
    for place, own in runs.items():
        found: list[Point | Skipped] = []
        for ratio in GRID:
            framework = replace(own.run.framework, compute_ratio=ratio)
            found.append(own_runs.predicted(replace(own, run=replace(own.run, framework=framework))))
        if all(isinstance(point, Point) for point in found):
            seconds.append([point.planned_seconds for point in found if isinstance(point, Point)])
            usual = seconds[-1][GRID.index(1.0)]
            if not usual / FARTHEST < own.measured_seconds < usual * FARTHEST:
                raise InputError(
                    f"{place}: the step took {own.measured_seconds:.4g} s, {usual:.4g} s are predicted with built-in figures: "
                    "is it in seconds (not milliseconds), of this model, batch, length and cluster?"
                )
            measured.append(own.measured_seconds)
        unknown += [point.reason for point in found[:1] if isinstance(point, Skipped)]
    return np.array(seconds).reshape(-1, len(GRID)), np.array(measured), unknown


def fitted(seconds: Floats, measured: Floats) -> tuple[float, Floats]:
    """Return the ratio that runs ask for, and the error of each with what the others say, shape (n_runs,); none for one run.

    Parameters
    ----------
    seconds : ndarray
        Predicted at each ratio of `GRID`, shape (n_runs, n_ratios).
    measured : ndarray
        Shape (n_runs,).

    Notes
    -----
    A ratio with which runs that it was not fitted to are predicted no better than with 1 is not taken.
    """
    if len(measured) == 1:
        return _ratio(seconds, measured), np.zeros(0)
    others = [np.arange(len(measured)) != i for i in range(len(measured))]
    left_out = np.array([
        errors(seconds[i : i + 1], measured[i : i + 1], _ratio(seconds[other], measured[other]))[0]
        for i, other in enumerate(others)
    ])  # fmt: skip
    better = left_out.mean() < errors(seconds, measured, 1.0).mean()
    return _ratio(seconds, measured) if better else 1.0, left_out


def _at(seconds: Floats, ratio: float) -> Floats:
    """Return the logarithm of the seconds of every row at a ratio."""
    return np.array([np.interp(np.log(ratio), np.log(GRID), row) for row in np.log(seconds)])


def errors(seconds: Floats, measured: Floats, ratio: float) -> Floats:
    """Return the absolute error of every row at a ratio, shape (n_runs,); `seconds`, `measured`: as of `fitted`."""
    return np.asarray(np.abs(np.exp(_at(seconds, ratio)) / measured - 1.0))


def _ratio(seconds: Floats, measured: Floats) -> float:
    """Return the ratio of `GRID`'s range at which the mean residual is what shrinking leaves of it."""
    residuals = np.log(measured) - _at(seconds, 1.0)
    mean, spread = float(residuals.mean()), max(SPREAD, float(residuals.std(ddof=1)) if len(residuals) > 1 else 0.0)
    believed = max(0.0, 1.0 - spread**2 / (len(residuals) * mean**2)) if mean else 0.0
    tried = np.linspace(np.log(GRID[0]), np.log(GRID[-1]), 513)
    predicted = np.array([np.interp(tried, np.log(GRID), row) for row in np.log(seconds)])
    found = np.log(measured).mean() - predicted.mean(axis=0)
    return 1.0 if believed == 0.0 else float(np.exp(tried[np.abs(found - (1.0 - believed) * mean).argmin()]))
