"""Writers: a plan for another program, or for the eye. One file per target; the file name is the word after ``--to``.

Promises of a writer module:

* ``write(result, path)`` writes a `Result` that has a plan to the file ``path``, whole or not at all, and returns None, or a
  tuple of sentences: what the format cannot say, and what the file says instead;
* `ExportError` where the format has no way to say what the plan says, `InputError` where the file cannot be written.
"""
