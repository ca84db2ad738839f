"""Writers: a plan for another program, or for the eye. One file per target.

Promises of a writer module, checked by ``tests/contract/test_writers.py``:

* ``write(result, path)`` writes a plan; the first argument's name says what is written: ``result`` (a `Result`, the only kind
  that ``meshwright export`` takes), ``design`` (a co-design), else what the reader of the same name keeps as
  ``ModelSpec.instance``. It returns in sentences what the format cannot say and what was written instead, where there is any;
* what it cannot say at all is refused with an `ExportError` or `InputError` of one line, and then nothing is written, not even
  in part;
* the same plan gives the same bytes; a folder that is not there is an `InputError`;
* where a reader has the same name, it reads what was written.
"""
