"""The folder is the registry: a plug-in is a file or package in a folder called like its room, its name the word the user
types.

Other packages add plug-ins by entry points of the group ``meshwright.ROOM``. One that is broken troubles nobody but those who
name it: named, it is a `PluginError` in one sentence; met while looking through its room, it is left out with one
`PluginWarning`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import pkgutil
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType

from meshwright.base.errors import PluginError, PluginWarning, UnknownNameError

__all__ = ["ROOMS", "beside", "checked", "each", "home", "load", "names", "package", "warn"]

ROOMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "commands": ("register(app)",),
        "costs": ("stage_costs(problem, plan)",),
        "frameworks": ("FRAMEWORK", "refusals(plan, problem)"),
        "launchers": ("SUFFIX", "text(job)"),
        "readers": ("recognises(source)", "read(source)"),
        "schedules": (
            "order(n_ranks, n_chunks, n_microbatches, times)",
            "placement(n_ranks, n_chunks)",
            "in_flight(n_ranks, n_chunks, n_microbatches)",
        ),
        "search": ("Params", "search(problem, params, *, seed, stop)"),
        "topologies": ("Params", "EXAMPLE", "build(params, name)"),
        "validation": ("COLUMNS", "points(rows)"),
        "writers": ("write(result, path)",),
    }
)
"""What every plug-in of a room has: functions as they are called, `Params` (a dataclass), and other names."""

_PACKAGE = Path(__file__).parent.parent


def names(room: str) -> tuple[str, ...]:
    """Return the plug-ins of a room, sorted: its files without a leading underscore, and entry points of other packages.

    `room`: the folder's name: ``search``, ``topologies``, ... It may lie at the top of the package or up to two folders
    down (``planners/piper/search``).
    Returns: names as typed by the user: underscores of the file name are kept.
    """
    return tuple(sorted({*_homes(room), *_others(room)}))


def home(room: str, name: str) -> str | None:
    """Return the dotted path of one of our own plug-ins, without importing it; None where another package brings it.

    `name`: one of `names`.
    """
    return _homes(room).get(name)


def package(room: str, name: str) -> str:
    """Return the package that brings a plug-in, with its version, without importing it; empty for our own and for no such
    name.
    """
    point = None if name in _homes(room) else _others(room).get(name)
    return "" if point is None else _package(point)


def load(room: str, name: str, kind: str) -> ModuleType:
    """Import one plug-in of a room.

    `room`: the folder's name.
    `name`: the plug-in; dashes are read as underscores.
    `kind`: what a plug-in of this room is called in messages: ``"search"``.
    Returns: the plug-in.
    Raises `UnknownNameError` when the room has no such plug-in.
    Raises `PluginError` when it cannot be imported, or lacks what `ROOMS` asks for.
    """
    wanted = name.replace("-", "_")
    if wanted not in _others(room) and wanted not in _homes(room):
        raise UnknownNameError(kind, name, names(room))
    return _loaded(room, wanted, kind)


def each(room: str, kind: str) -> Iterator[tuple[str, ModuleType]]:
    """Import the plug-ins of a room one by one, ours before those of other packages, each sorted by name.

    `room`, `kind`: as in `load`.
    Yields (str, module): name and plug-in. A broken one is left out with a `PluginWarning`.
    """
    for name in (*sorted(_homes(room)), *sorted(_others(room))):
        try:
            module = load(room, name, kind)
        except PluginError as error:
            warn(f"{error}; it is left out")
            continue
        yield name, module


def checked(made: object, kind: type, room: str, name: str) -> None:
    """Refuse what a plug-in returned where it is not what its room promises.

    Raises `PluginError` when `made` is no `kind`.
    """
    if not isinstance(made, kind):
        raise PluginError(f"{_title(room, name)} returned {type(made).__name__}; it must return {kind.__name__}")


def beside(name: str) -> dict[str, str]:
    """Return the dotted path of every module of this name in our packages, by the package that it lies in.

    `name`: a module that packages may have: ``precompile``.
    Returns: sorted by package; packages by their last word: ``{"piper": "meshwright.planners.piper.precompile", ...}``.
    """
    found = {}
    for file in (*_PACKAGE.glob(f"*/{name}.py"), *_PACKAGE.glob(f"*/*/{name}.py")):
        parts = file.parent.relative_to(_PACKAGE).parts
        found[parts[-1]] = ".".join(("meshwright", *parts, name))
    return dict(sorted(found.items()))


@cache
def warn(message: str) -> None:
    """Warn of a plug-in; the same sentence once only, whatever is done to the filters of warnings in between."""
    warnings.warn(message, PluginWarning, stacklevel=3)


@cache
def _loaded(room: str, name: str, kind: str) -> ModuleType:
    """Import a plug-in and check it against its room; done once, whoever asks."""
    path = _homes(room).get(name)
    try:
        module: ModuleType = _others(room)[name].load() if path is None else importlib.import_module(path)
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise PluginError(f"{_title(room, name, kind)} cannot be loaded: {type(error).__name__}: {said}") from error
    wrong = [text for text in (_lacking(module, need) for need in ROOMS.get(room, ())) if text]
    if wrong:
        raise PluginError(f"{_title(room, name, kind)} {wrong[0]}")
    return module


def _lacking(module: ModuleType, need: str) -> str:
    """Return what a plug-in lacks of one entry of `ROOMS`, in words; empty for nothing."""
    name, is_function, called = need.rstrip(")").partition("(")
    found = getattr(module, name, None)
    if found is None:
        return f"has no {need}"
    if not is_function:
        return "" if name != "Params" or dataclasses.is_dataclass(found) else "has a Params that is no dataclass"
    by_position, _, by_name = called.partition("*")
    try:
        inspect.signature(found).bind(*_words(by_position), **dict.fromkeys(_words(by_name)))
    except (TypeError, ValueError):
        return f"cannot be called as {need}"
    return ""


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _title(room: str, name: str, kind: str = "") -> str:
    """Return how messages call a plug-in, with its package where that is not ours."""
    name = name.replace("-", "_")
    brought_by = package(room, name)
    return f"{kind or room} {name}" + (f" of package {brought_by}" if brought_by else "")


@cache
def _homes(room: str) -> Mapping[str, str]:
    """Return the dotted path of each of our own plug-ins of a room; looked up once, folders do not change while the program
    runs.
    """
    found: dict[str, str] = {}
    for depth in ("", "*/", "*/*/"):
        for folder in sorted(_PACKAGE.glob(depth + room)):
            parts = folder.relative_to(_PACKAGE).parts
            if not folder.is_dir() or any(part.startswith("_") for part in parts):
                continue
            for module in pkgutil.iter_modules([str(folder)]):
                if not module.name.startswith("_"):
                    found[module.name] = ".".join(("meshwright", *parts, module.name))
    return MappingProxyType(found)


@cache
def _others(room: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Return what other packages add to a room; one with a name that is taken is left out with a warning."""
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for point in _entry_points().get(room, ()):
        name = point.name.replace("-", "_")
        if name not in _homes(room) and name not in found:
            found[name] = point
            continue
        taken_by = f"package {_package(found[name])}" if name in found else "meshwright itself"
        warn(f"{room} {point.name} of package {_package(point)} is left out: {taken_by} has one of that name")
    return MappingProxyType(found)


@cache
def _entry_points() -> Mapping[str, list[importlib.metadata.EntryPoint]]:
    """Return the entry points of all installed packages by room, sorted by name and package; the look takes milliseconds."""
    found = importlib.metadata.entry_points()
    groups = {room: found.select(group=f"meshwright.{room}") for room in ROOMS}
    return MappingProxyType(
        {room: sorted(points, key=lambda point: (point.name, _package(point))) for room, points in groups.items()}
    )


def _package(point: importlib.metadata.EntryPoint) -> str:
    """Return name and version of the package of an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
