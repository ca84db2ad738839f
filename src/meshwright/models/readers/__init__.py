"""Readers: from a file, or a name, to a `ModelSpec`. One file per format; the file name is the format.

Promises of a reader module, checked by ``tests/contract/test_readers.py``:

* ``recognises(source) -> bool`` looks at the content (never only at the file's ending) and never raises;
* ``read(source) -> ModelSpec`` raises `InputError` with file, place, value and what is allowed for anything wrong; fields that
  the format does not list are errors;
* a published format's own numbers are kept in ``ModelSpec.instance``, unscaled, in the file's own units.
"""
