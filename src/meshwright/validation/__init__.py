"""Predictions against measured training runs. One file per published set, and one for runs of one's own; the columns tell
which.

Promises of a set's module, checked by ``tests/contract/test_measured_sets.py``:

* ``COLUMNS``: columns that no other set has together; ``OPTIONAL``, if any: columns that may be there besides; ``PATHS``, if
  any: columns with paths, which are read from where the file lies;
* a file of the kind lies in ``data``, unless ``BUILT_IN = False`` says that it is for runs that others have;
* ``points(rows) -> list[Point | Skipped]``: one entry per row of the file, in its order, none left out; a row whose plan the
  set does not tell, or that the model cannot say, is a `Skipped` with the reason.

Sets that come with the package lie in ``data`` and are named by their files (`set_names`).
"""

from __future__ import annotations

from meshwright.validation._calibration import Calibration, calibrate
from meshwright.validation._calibration import write as write_calibration
from meshwright.validation._logs import MeasuredRun, alike, is_log, measured_run, measured_runs
from meshwright.validation._logs.against import check_log
from meshwright.validation._logs.traces import TraceCauses, beside, is_trace, trace_causes
from meshwright.validation._page import page
from meshwright.validation._page import write as write_page
from meshwright.validation._points import Point, Skipped
from meshwright.validation._report import Report, as_json, explain, validate
from meshwright.validation._sets import MeasuredSet, describe_set, set_file, set_names
from meshwright.validation._worst import explain as explain_worst

__all__ = [
    "Calibration",
    "MeasuredRun",
    "MeasuredSet",
    "Point",
    "Report",
    "Skipped",
    "TraceCauses",
    "alike",
    "as_json",
    "beside",
    "calibrate",
    "check_log",
    "describe_set",
    "explain",
    "explain_worst",
    "is_log",
    "is_trace",
    "measured_run",
    "measured_runs",
    "page",
    "set_file",
    "set_names",
    "trace_causes",
    "validate",
    "write_calibration",
    "write_page",
]
