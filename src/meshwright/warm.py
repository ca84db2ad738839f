"""Small problems that touch every kernel once, so that all of them are compiled and kept: what ``meshwright compile`` runs."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["tasks"]


def tasks() -> list[tuple[str, Callable[[], object]]]:
    """Return names and functions; each runs a small problem through one part of the package.

    Returns
    -------
    list of (str, callable)
        In the order in which they should run.
    """
    return [("joint search and simulator", _joint), ("shardings of operators", _shardings)]


def _joint() -> object:
    from meshwright import api
    from meshwright.problem import Batch

    return api.plan("gpt2", "dgx-h100:8", batch=Batch(global_batch=16), settings={"evaluations": "4"})


def _shardings() -> object:
    from meshwright import api

    return api.plan("pase:alexnet")
