"""A framework fitted to a few runs of one's own: how many times longer operators take, shrunk towards the built-in figures.

References
----------
.. [1] James, Stein, "Estimation with Quadratic Loss", Berkeley Symposium 1961 (the positive-part estimate of a mean).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.validation import _sets, _table, own_runs
from meshwright.validation._points import CellError, Point

__all__ = ["SPREAD", "Calibration", "calibrate", "write"]

SPREAD = 0.09
"""Standard deviation of log(measured / predicted) inside a set, root of the mean square over the built-in sets
(``benchmarks/fit_intervals.py`` prints it): of few runs, what their own spread cannot tell."""

GRID = (0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.2, 3.0)
"""Ratios at which runs are predicted; between them the logarithm of seconds is interpolated over that of the ratio."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What runs of one's own say of the framework that trained them.

    Parameters
    ----------
    framework : str
        Which one they start from, as after ``--for``.
    file : str
        Where the runs stand.
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
    """

    framework: str
    file: str
    n_runs: int
    n_left: int
    compute_ratio: float
    before_ratio: float
    after_ratio: float
    left_out_ratio: float | None

    @property
    def words(self) -> str:
        """What was found, in a sentence."""
        left = "" if self.left_out_ratio is None else f", {self.left_out_ratio:.1%} on each with what the others say"
        runs = f"{self.n_runs} run{'s' * (self.n_runs != 1)} of {Path(self.file).name}"
        return f"{runs}: mean error {self.before_ratio:.1%} before, {self.after_ratio:.1%} after{left}"


def calibrate(path: str | Path, *, framework: str = "") -> Calibration:
    """Return what runs of one's own say of the framework that trained them.

    Parameters
    ----------
    path : str or Path
        A CSV file of runs of one's own (`meshwright.validation.own_runs`).
    framework : str
        The framework that trained, as after ``--for``, of rows that do not name one.

    Returns
    -------
    Calibration
        With the ratio that makes the mean residual what is left of it after shrinking.

    Raises
    ------
    InputError
        When the file is no such file, its rows do not name one framework of the built-in ones, or none was timed and predicted.

    Notes
    -----
    Of n runs whose log(measured / predicted) has mean m and variance s^2 (`SPREAD` at least), the share
    ``max(0, 1 - s^2 / (n m^2))`` of m is believed [1]: one run that is 5 % off says nothing, five that are 20 % off nearly all.
    """
    file = _sets.set_file(path)
    measured = _table.read(file)
    if measured.kind != "own_runs":
        raise InputError(f"{file}: has the columns of {measured.kind}; calibrate takes runs of your own, see validate")
    rows = _table.located(file, measured.rows, own_runs.PATHS)
    word = _framework(rows, framework, str(file))
    seconds, timed = _predicted(rows, word, str(file))
    if not len(timed):
        raise InputError(f"{file}: no row was timed and predicted; 'meshwright validate {file}' says why")
    ratio = _ratio(seconds, timed)
    others = [np.arange(len(timed)) != i for i in range(len(timed))] if len(timed) > 1 else []
    left_out = [_errors(seconds[i : i + 1], timed[i : i + 1], _ratio(seconds[o], timed[o]))[0] for i, o in enumerate(others)]
    return Calibration(
        word, str(file), len(timed), len(rows) - len(timed), ratio, float(_errors(seconds, timed, 1.0).mean()),
        float(_errors(seconds, timed, ratio).mean()), float(np.mean(left_out)) if left_out else None,
    )  # fmt: skip


def write(found: Calibration, path: str) -> None:
    """Write the framework as a file that ``--for`` takes; `InputError` when it cannot be written."""
    files.write(path, content(found.framework, found.compute_ratio, found.words, f"calibrated to {found.words}"))


def content(framework: str, compute_ratio: float, source: str, title: str) -> str:
    """Return the file of a framework whose operators take longer."""
    quoted = [word.replace("\\", "/").replace('"', "'") for word in (title, source)]
    return (
        f'title = "{framework}, {quoted[0]}"\nbase = "{framework}"\n\n[how]\n'
        f'compute_ratio = {{ value = {compute_ratio:.6g}, source = "meshwright calibrate: {quoted[1]}" }}\n'
    )


def _framework(rows: Sequence[Mapping[str, str]], asked: str, file: str) -> str:
    """Return the one framework that all rows name."""
    named = {fields.get("framework", "").strip() or fields.get("program", "").strip() or asked for fields in rows}
    if named == {""}:
        raise InputError(f"{file}: no row says which framework trained; give it with --for NAME or in a column `framework`")
    if len(named) > 1:
        words = ", ".join(sorted(word or "none" for word in named))
        raise InputError(f"{file}: rows name several frameworks ({words}); calibrate one at a time")
    (word,) = named
    if word.endswith(".toml"):
        raise InputError(f"{file}: framework {word} is a file; calibrate starts from a built-in one")
    return word


def _predicted(rows: Sequence[Mapping[str, str]], word: str, file: str) -> tuple[Floats, Floats]:
    """Return the seconds of every timed row at each ratio of `GRID`, shape (n_runs, n_ratios), and the measured ones."""
    columns: list[dict[int, Point]] = []
    with tempfile.TemporaryDirectory() as folder:
        for ratio in GRID:
            path = Path(folder) / "framework.toml"
            path.write_text(content(word, ratio, "tried", "tried"), encoding="utf-8")
            try:
                found = own_runs.points([{**fields, "framework": str(path)} for fields in rows])
            except CellError as error:
                raise InputError(f"{file}: row {error.row}, column {error.column}: {error}") from None
            columns.append({point.row: point for point in found if isinstance(point, Point) and point.ran})
    kept = [row for row in columns[0] if all(row in column for column in columns)]
    seconds = np.array([[column[row].planned_seconds for column in columns] for row in kept]).reshape(-1, len(GRID))
    return seconds, np.array([columns[0][row].measured_seconds for row in kept])


def _at(seconds: Floats, ratio: float) -> Floats:
    """Return the logarithm of the seconds of every row at a ratio."""
    return np.array([np.interp(np.log(ratio), np.log(GRID), row) for row in np.log(seconds)])


def _errors(seconds: Floats, measured: Floats, ratio: float) -> Floats:
    """Return the absolute error of every row at a ratio."""
    return np.asarray(np.abs(np.exp(_at(seconds, ratio)) / measured - 1.0))


def _ratio(seconds: Floats, measured: Floats) -> float:
    """Return the ratio of `GRID`'s range at which the mean residual is what shrinking leaves of it."""
    residuals = np.log(measured) - _at(seconds, 1.0)
    mean, spread = float(residuals.mean()), max(SPREAD, float(residuals.std(ddof=1)) if len(residuals) > 1 else 0.0)
    believed = max(0.0, 1.0 - spread**2 / (len(residuals) * mean**2)) if mean else 0.0
    tried = np.linspace(np.log(GRID[0]), np.log(GRID[-1]), 513)
    found = np.array([(np.log(measured) - _at(seconds, float(np.exp(one)))).mean() for one in tried])
    return 1.0 if believed == 0.0 else float(np.exp(tried[np.abs(found - (1.0 - believed) * mean).argmin()]))
