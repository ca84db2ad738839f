"""Small integer programs, solved by HiGHS as SciPy brings it, without the rest of ``scipy.optimize``.

Importing ``scipy.optimize`` takes longer than most of the programs that are solved here, and 50 MB. The solver is one C module,
which can be loaded without the package around it; where SciPy has none that is known here, `scipy.optimize.milp` is called.
Both run the same solver with the same settings: answers are the same to the last bit.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ProgramAnswer", "ProgramRow", "least_values", "solve"]

_SOLVER = "scipy.optimize._highspy._core"
_PARTS = ("_Highs", "HighsLp", "HighsModelStatus", "HighsOptions", "HighsStatus", "HighsVarType", "MatrixFormat", "kHighsInf")


class ProgramRow(NamedTuple):
    """One row of a program: `low` <= values @ variables[columns] <= `high`; columns stand once."""

    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    low: float
    high: float


class ProgramAnswer(NamedTuple):
    """What is proven: that nothing keeps all rows, or a lower bound on the cost; None where the solver ended without one."""

    infeasible: bool
    bound: float | None


def solve(
    cost: NDArray[np.float64], whole: NDArray[np.bool_], upper: ArrayLike, rows: list[ProgramRow], *, most_nodes: int
) -> ProgramAnswer:
    """Return what is proven of the least cost of variables from 0 on that keep all rows.

    Parameters
    ----------
    cost : ndarray, shape (n_variables,), float64
        Of one of each variable.
    whole : ndarray, shape (n_variables,), bool
        Which variables are whole numbers.
    upper : array-like, shape (n_variables,) or a number, float64
        The most that each variable may be.
    rows : list of ProgramRow
        At least one.
    most_nodes : int
        Of the branch and bound, which otherwise goes on until the gap is closed.

    Returns
    -------
    ProgramAnswer
        The bound is that of the solver: true up to its tolerances (1e-6 of rows and whole numbers).
    """
    return _solved(cost, whole, upper, rows, most_nodes)[0]


def least_values(cost: NDArray[np.float64], rows: list[ProgramRow]) -> NDArray[np.float64] | None:
    """Return the variables of a linear program, from 0 on, where they cost the least; None where the solver has none.

    Parameters
    ----------
    cost : ndarray, shape (n_variables,), float64
        Of one of each variable.
    rows : list of ProgramRow
        At least one.

    Returns
    -------
    ndarray, shape (n_variables,), float64, or None
        They keep the rows up to the solver's tolerance (1e-6): whoever proves something by them counts it anew.
    """
    values = _solved(cost, np.zeros(len(cost), dtype=np.bool_), np.inf, rows, 1)[1]
    return None if values is None or len(values) != len(cost) else values


def _solved(
    cost: NDArray[np.float64], whole: NDArray[np.bool_], upper: ArrayLike, rows: list[ProgramRow], most_nodes: int
) -> tuple[ProgramAnswer, NDArray[np.float64] | None]:
    """Return `solve`, and the variables of the best answer found."""
    highs = _solver()
    by_row = np.repeat(np.arange(len(rows)), [len(row.columns) for row in rows])
    column = np.concatenate([row.columns for row in rows])
    value = np.concatenate([row.values for row in rows]).astype(np.float64)
    most = np.broadcast_to(np.asarray(upper, dtype=np.float64), cost.shape)
    low, high = (np.array(side, dtype=np.float64) for side in zip(*((row.low, row.high) for row in rows), strict=True))
    if highs is None:
        return _by_scipy(cost, whole, most, (value, by_row, column), low, high, most_nodes)
    order = np.argsort(column, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(column, minlength=len(cost)))))
    program = highs.HighsLp()
    program.num_col_ = program.a_matrix_.num_col_ = len(cost)
    program.num_row_ = program.a_matrix_.num_row_ = len(rows)
    program.a_matrix_.format_ = highs.MatrixFormat.kColwise
    program.col_cost_, program.col_lower_, program.col_upper_ = cost, np.zeros(len(cost)), most
    program.row_lower_, program.row_upper_ = low, high
    program.a_matrix_.start_, program.a_matrix_.index_ = starts.astype(np.int32), by_row[order].astype(np.int32)
    program.a_matrix_.value_ = value[order]
    program.integrality_ = [highs.HighsVarType(int(one)) for one in whole]
    return _run(highs, program, most_nodes)


def _run(highs: Any, program: Any, most_nodes: int) -> tuple[ProgramAnswer, NDArray[np.float64] | None]:
    """Run the solver as `scipy.optimize.milp` does."""
    run, options = highs._Highs(), highs.HighsOptions()
    options.log_to_console, options.mip_max_nodes, options.mip_rel_gap = False, most_nodes, 0.0
    if hasattr(options, "mip_heuristic_run_feasibility_jump"):  # half of all seconds, for answers where the bound is wanted
        options.mip_heuristic_run_feasibility_jump = False
    run.passOptions(options)
    status = highs.HighsModelStatus
    if run.passModel(program) == highs.HighsStatus.kError:
        return ProgramAnswer(True, None), None
    if run.run() == highs.HighsStatus.kError:
        return ProgramAnswer(run.getModelStatus() in (status.kInfeasible, status.kModelError), None), None
    found, told = run.getModelStatus(), run.getInfo()
    stopped = found in (status.kTimeLimit, status.kIterationLimit, status.kSolutionLimit)
    if found == status.kOptimal or (stopped and told.objective_function_value != highs.kHighsInf):
        return ProgramAnswer(False, float(told.mip_dual_bound)), np.array(run.getSolution().col_value)
    return ProgramAnswer(found in (status.kInfeasible, status.kModelError), None), None


def _by_scipy(
    cost: NDArray[np.float64],
    whole: NDArray[np.bool_],
    upper: NDArray[np.float64],
    table: tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    most_nodes: int,
) -> tuple[ProgramAnswer, NDArray[np.float64] | None]:
    """Return the same by SciPy's own door; `table`: values, rows and columns."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    values, by_row, column = table
    rows = csr_array((values, (by_row, column)), shape=(len(low), len(cost)))
    found = milp(
        cost,
        integrality=whole,
        bounds=Bounds(0.0, upper),
        constraints=LinearConstraint(rows, low, high),
        options={"node_limit": most_nodes, "mip_rel_gap": 0.0},
    )
    bound = None if found.mip_dual_bound is None else float(found.mip_dual_bound)
    return ProgramAnswer(found.status == 2, bound), None if found.x is None else np.asarray(found.x)


@cache
def _solver() -> ModuleType | None:
    """Return SciPy's module of HiGHS; None where there is none with the parts that are used here."""
    try:
        found = _loaded()
    except ImportError:
        return None
    return found if found is not None and all(hasattr(found, part) for part in _PARTS) else None


def _loaded() -> ModuleType | None:
    """Return the module, alone where SciPy's package is not imported: that finds it in its place when it is."""
    if _SOLVER in sys.modules or "scipy.optimize" in sys.modules:
        return importlib.import_module(_SOLVER)
    package = importlib.util.find_spec("scipy")
    roots = [] if package is None else list(package.submodule_search_locations or ())
    inside = _SOLVER.split(".")[1:-1]
    spec = importlib.machinery.PathFinder.find_spec(_SOLVER, [str(Path(root, *inside)) for root in roots])
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_SOLVER] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_SOLVER]
        raise
    return module
