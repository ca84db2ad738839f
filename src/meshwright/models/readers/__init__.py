"""Readers: from a file, or a name, to a `ModelSpec`. One file per format; the file name is the format.

Promises of a reader module, checked by ``tests/contract/test_readers.py``:

* ``recognises(source) -> bool`` looks at the content (never only at the file's ending), never raises, and takes no sample of
  another reader;
* ``read(source) -> ModelSpec`` reads the samples alike each time, and answers anything wrong with an `InputError` of one line;
  fields that the format does not list are errors, unless the module says ``OTHER_FIELDS = True`` (its files hold what others
  read);
* a sample of a few lines lies in ``tests/data/readers/NAME.*``; a reader of names, or of another package, says what to type in
  ``EXAMPLE``;
* one whose files are whole training steps may offer ``play(model_spec, cluster, seed) -> PlayedGraph``, which ``simulate``
  calls; without a cluster it plays on the network of the file.

A published format's own numbers are kept in ``ModelSpec.instance``, unscaled, in the file's own units. Readers are asked in the
order of their names, those of other packages last.
"""
