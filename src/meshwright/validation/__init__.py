"""Predictions against measured training runs. One file per published set, and one for runs of one's own; the columns tell which.

Promises of a set's module, checked by ``tests/unit/test_validation.py``:

* ``COLUMNS``: columns that no other set has together; ``OPTIONAL``, if any: columns that may be there;
* ``points(rows) -> list[Point | Skipped]``: one entry per row of the file, in its order, none left out; a row whose plan the set
  does not tell, or that the model cannot say, is a `Skipped` with the reason.
"""

from __future__ import annotations

from meshwright.validation._page import page
from meshwright.validation._page import write as write_page
from meshwright.validation._points import Point, Skipped
from meshwright.validation._report import Report, as_json, explain, validate
from meshwright.validation._worst import explain as explain_worst

__all__ = ["Point", "Report", "Skipped", "as_json", "explain", "explain_worst", "page", "validate", "write_page"]
