"""The folder is the registry: a plug-in is one file in a room, its file name the word the user types."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from functools import cache
from types import ModuleType

from meshwright.errors import UnknownNameError

__all__ = ["load", "names"]


def names(room: str) -> tuple[str, ...]:
    """Return the plug-ins of a room, sorted: its files without a leading underscore, and entry points of other packages.

    Parameters
    ----------
    room : str
        ``searches`` live in ``search``, topologies in ``topologies``, and so on: the folder's name.

    Returns
    -------
    tuple of str
        Names as typed by the user: underscores of the file name are kept.
    """
    package = importlib.import_module(f"meshwright.{room}")
    here = {module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")}
    here |= {point.name for point in _entry_points(room)}
    return tuple(sorted(here))


def load(room: str, name: str, what: str) -> ModuleType:
    """Import one plug-in of a room.

    Parameters
    ----------
    room : str
        The folder.
    name : str
        The plug-in; dashes are read as underscores.
    what : str
        What a plug-in of this room is called in messages: ``"search"``.

    Returns
    -------
    module
        The plug-in.

    Raises
    ------
    UnknownNameError
        When the room has no such plug-in.
    """
    wanted = name.replace("-", "_")
    # Our own files first: looking through the entry points of all installed packages takes milliseconds.
    own = wanted.isidentifier() and not wanted.startswith("_")
    if own and importlib.util.find_spec(f"meshwright.{room}.{wanted}") is not None:
        return importlib.import_module(f"meshwright.{room}.{wanted}")
    if wanted not in names(room):
        raise UnknownNameError(what, name, names(room))
    for point in _entry_points(room):
        if point.name == wanted:
            module: ModuleType = point.load()
            return module
    return importlib.import_module(f"meshwright.{room}.{wanted}")


@cache
def _entry_points(room: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return what other installed packages add to a room; looked up once, it does not change while the program runs."""
    return tuple(importlib.metadata.entry_points(group=f"meshwright.{room}"))
