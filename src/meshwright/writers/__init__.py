"""Writers: a plan for another program, or for the eye. One file per target.

Promises of a writer module, checked by ``tests/contract/test_writers.py``:

* ``write(result, path)`` writes a plan; the first argument's name says what is written: ``result`` (a `Result`, the only kind
  that ``meshwright export`` takes), ``design`` (a co-design), else what the reader of the same name keeps as
  ``ModelSpec.instance``. It returns in sentences what the format cannot say and what was written instead, where there is any;
* what it cannot say at all is refused with an `ExportError` or `InputError` of one line, and then nothing is written, not even
  in part;
* the same plan gives the same bytes; a folder that is not there is an `InputError`;
* where a reader has the same name, it reads what was written;
* ``FROZEN`` is true where what is written stays right when weights are frozen: it counts no gradients or optimizer state, or
  those of trained weights only, as the plan's optimizer keeps them; where it is missing, plans of models with frozen weights
  and of other optimizers than Adam are refused;
* ``RINGS`` is true where what is written holds the order of gradient rings, or needs none; where it is missing, a plan that has
  one is written with a note that the order is left out;
* ``SEVERAL`` is true where it writes several files whose names begin with the path, and none of that name: the first sentence
  of what it returns says which.

A writer of another package writes into a folder of its own: what it leaves is put in place once it has returned, and nothing
where it breaks. One that leaves no file of the name given is an error.
"""
