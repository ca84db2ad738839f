"""The folder is the registry: a plug-in is a file or package in a folder called like its room, its name the word the user types."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from meshwright.base.errors import UnknownNameError

__all__ = ["beside", "home", "load", "names"]

_PACKAGE = Path(__file__).parent.parent


def names(room: str) -> tuple[str, ...]:
    """Return the plug-ins of a room, sorted: its files without a leading underscore, and entry points of other packages.

    Parameters
    ----------
    room : str
        The folder's name: ``search``, ``topologies``, ... It may lie at the top of the package or up to two folders down
        (``planners/piper/search``).

    Returns
    -------
    tuple of str
        Names as typed by the user: underscores of the file name are kept.
    """
    return tuple(sorted({*_homes(room), *(point.name for point in _entry_points(room))}))


def home(room: str, name: str) -> str | None:
    """Return the dotted path of one of our own plug-ins, without importing it; None where another package brings it.

    Parameters
    ----------
    room : str
        The folder's name.
    name : str
        One of `names`.
    """
    return _homes(room).get(name)


def load(room: str, name: str, what: str) -> ModuleType:
    """Import one plug-in of a room.

    Parameters
    ----------
    room : str
        The folder's name.
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
    path = _homes(room).get(wanted)
    if path is not None:
        return sys.modules.get(path) or importlib.import_module(path)
    for point in _entry_points(room):
        if point.name == wanted:
            module: ModuleType = point.load()
            return module
    raise UnknownNameError(what, name, names(room))


def beside(name: str) -> dict[str, str]:
    """Return the dotted path of every module of this name in our packages, by the package that it lies in.

    Parameters
    ----------
    name : str
        A module that packages may have: ``precompile``.

    Returns
    -------
    dict of str to str
        Sorted by package; packages by their last word: ``{"piper": "meshwright.planners.piper.precompile", ...}``.
    """
    found = {}
    for file in (*_PACKAGE.glob(f"*/{name}.py"), *_PACKAGE.glob(f"*/*/{name}.py")):
        parts = file.parent.relative_to(_PACKAGE).parts
        found[parts[-1]] = ".".join(("meshwright", *parts, name))
    return dict(sorted(found.items()))


@cache
def _homes(room: str) -> dict[str, str]:
    """Return the dotted path of each of our own plug-ins of a room; looked up once, folders do not change while the program runs."""
    found: dict[str, str] = {}
    for depth in ("", "*/", "*/*/"):
        for folder in sorted(_PACKAGE.glob(depth + room)):
            parts = folder.relative_to(_PACKAGE).parts
            if not folder.is_dir() or any(part.startswith("_") for part in parts):
                continue
            for module in pkgutil.iter_modules([str(folder)]):
                if not module.name.startswith("_"):
                    found[module.name] = ".".join(("meshwright", *parts, module.name))
    return found


@cache
def _entry_points(room: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return what other installed packages add to a room; looked up once, it does not change while the program runs."""
    return tuple(importlib.metadata.entry_points(group=f"meshwright.{room}"))
