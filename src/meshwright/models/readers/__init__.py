"""Readers: from a file, or a name, to a `ModelSpec`. One file per format; the file name is the format.

Promises of a reader module, checked by ``tests/contract/test_readers.py``:

* ``recognises(source) -> bool`` looks at the content of a `meshwright.core.source.Source` (never only at the file's ending) and
  never raises;
* ``read(source) -> ModelSpec`` raises `InputError` with file, place, value and what is allowed for anything wrong: a field
  that is missing, of the wrong kind, out of range, or not listed by the format;
* a published format's own numbers are kept in ``ModelSpec.instance``, unscaled, in the file's own units.
"""
