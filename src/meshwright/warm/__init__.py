"""Small problems that touch every kernel once, so that all are compiled and kept. One file each; ``run()`` is its one function."""

from __future__ import annotations

from collections.abc import Callable

from meshwright import _plugins

__all__ = ["tasks"]


def tasks() -> list[tuple[str, Callable[[], object]]]:
    """Return names and functions; each runs a small problem through one part of the package.

    Returns
    -------
    list of (str, callable)
        Sorted by name.
    """
    return [(name.replace("_", " "), _plugins.load("warm", name, "warm-up").run) for name in _plugins.names("warm")]
