"""Topologies: from parameters to a `Cluster`. One file per topology; the word before the colon in ``torus:4x4x4``.

Promises of a topology module, checked by ``tests/contract/test_topologies.py``:

* ``Params`` is a frozen dataclass; its first field is what stands after the colon, the others are ``key=value`` after commas
  (the key is the field's name, or its metadata ``word``); a first field of several numbers, ``tuple[int, ...]``, is written
  with an x between them (``2x4``); its docstring, or that of the class it extends, explains each
  (``name : type``, the meaning on the next line); ``EXAMPLE`` is what may stand after the colon;
* ``build(params, name) -> Cluster``: all devices reach each other, every link has its opposite, figures carry their source;
  where the first field is a number of devices, any number may be given from the smallest possible on;
* every parameter changes what is built, in some values at least;
* a wrong parameter is an `InputError` of one line, and so are more devices than `clusters.wires.MOST_DEVICES`;
  `Wires` and `check_count` of that file and `generated` of `clusters.shared_options` keep most of these promises.

The built-in kinds of bought nodes (``dgx-h100:64``) are data files of ``meshwright/clusters/data/clusters``, built by
`meshwright.clusters.nodes`.
"""
