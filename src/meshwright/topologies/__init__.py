"""Topologies: from parameters to a `Cluster`. One file per topology; the word before the colon in ``torus:4x4x4``.

Promises of a topology module, checked by ``tests/contract/test_topologies.py``:

* ``build(...) -> Cluster``: all devices reach each other, every link has its opposite, figures carry their source.
"""
