"""The folder is the registry: a plug-in is a file or package in a folder called like its room, its name the word the user
types.

Other packages add plug-ins by entry points of the group ``meshwright.ROOM``. One that is broken troubles nobody but those who
name it: named, it is a `PluginError` in one sentence; met while looking through its room, it is left out with one
`PluginWarning`. That holds for what its functions do as well: `load` returns the plug-ins of other packages behind a guard,
which turns whatever they raise into an error with their name, and keeps what they print off standard output. What our own
raise stays as it is: that is a bug of ours, with its traceback.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from meshwright.base import installed, kinds, promises
from meshwright.base.errors import MeshwrightError, PluginError, PluginWarning, UnknownNameError
from meshwright.base.promises import one_line

if TYPE_CHECKING:
    import importlib.metadata

__all__ = [
    "ROOMS",
    "asked",
    "beside",
    "blamed",
    "checked",
    "each",
    "home",
    "load",
    "names",
    "one_line",
    "package",
    "tell_left_out",
    "title",
    "warn",
]

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

_ANSWERS = ("in_flight", "placement", "recognises", "refusals")
"""Functions that answer a question and may not refuse it: whatever they raise is a bug of the plug-in."""


def names(room: str, taken: Container[str] = ()) -> tuple[str, ...]:
    """Return the plug-ins of a room, sorted: its files without a leading underscore, and entry points of other packages.

    `room`: the folder's name: ``search``, ``topologies``, ... It may lie at the top of the package or up to two folders
    down (``planners/piper/search``).
    `taken`: words that mean something else in this room: a plug-in of another package called so is left out with a warning.
    Returns: names as typed by the user: underscores of the file name are kept.
    """
    found = []
    for name in sorted({*_homes(room), *_others(room)}):
        if name in taken and name not in _homes(room):
            warn(f"{title(room, name)} is left out: meshwright itself means something else by '{name}'")
        else:
            found.append(name)
    return tuple(found)


def home(room: str, name: str) -> str | None:
    """Return the dotted path of one of our own plug-ins, without importing it; None where another package brings it.

    `name`: one of `names`.
    """
    return _homes(room).get(_word(name))


def package(room: str, name: str) -> str:
    """Return the package that brings a plug-in, with its version, without importing it; empty for our own and for no such
    name.
    """
    name = _word(name)
    point = None if name in _homes(room) else _others(room).get(name)
    return "" if point is None else _package(point)


def load(room: str, name: str, kind: str) -> ModuleType:
    """Import one plug-in of a room.

    `room`: the folder's name.
    `name`: the plug-in; dashes are read as underscores, capitals as small letters.
    `kind`: what a plug-in of this room is called in messages: ``"search"``.
    Returns: the plug-in; that of another package behind a guard, see above.
    Raises `UnknownNameError` when the room has no such plug-in.
    Raises `PluginError` when it cannot be imported, or lacks what `ROOMS` asks for.
    """
    wanted = _word(name)
    if wanted not in _others(room) and wanted not in _homes(room):
        raise UnknownNameError(kind, name, names(room))
    tell_left_out(room, wanted)
    return _loaded(room, wanted, kind)


def tell_left_out(room: str, name: str = "") -> None:
    """Warn of the plug-ins of other packages that are left out of a room for their names: taken, or such as nobody can type.

    `name`: the one that is asked for; empty for all, where the room is listed.
    """
    for point in _entry_points().get(room, ()):
        word = _word(point.name)
        if name and word != _word(name):
            continue
        said = f"{room} {point.name} of package {_package(point)} is left out"
        if not re.fullmatch("[a-z0-9_]+", word):
            warn(f"{said}: a name has letters, digits and dashes only")
        elif _others(room).get(word) is not point:
            taken_by = "meshwright itself" if word in _homes(room) else f"package {_package(_others(room)[word])}"
            warn(f"{said}: {taken_by} has one of that name")


def each(room: str, kind: str, but: Container[str] = ()) -> Iterator[tuple[str, ModuleType]]:
    """Import the plug-ins of a room one by one, ours before those of other packages, each sorted by name.

    `room`, `kind`: as in `load`.
    `but`: those to leave alone.
    Yields (str, module): name and plug-in. A broken one is left out with a `PluginWarning`.
    """
    for name in (*sorted(_homes(room)), *sorted(_others(room))):
        if name in but:
            continue
        try:
            module = _loaded(room, name, kind)
        except PluginError as error:
            warn(f"{error}; it is left out")
            continue
        yield name, module


def asked(room: str, kind: str, question: Callable[[ModuleType], Any]) -> Iterator[tuple[str, ModuleType, Any]]:
    """Ask every plug-in of a room the same, one by one.

    `room`, `kind`: as in `load`.
    `question`: what is asked: a function of the plug-in.
    Yields (str, module, answer): name, plug-in and what it answered. One that breaks is left out with a `PluginWarning`.
    """
    for name, module in each(room, kind):
        try:
            answer = question(module)
        except PluginError as error:
            warn(f"{error}; it is left out")
            continue
        yield name, module, answer


def checked(made: object, kind: type, room: str, name: str) -> None:
    """Refuse what a plug-in returned where it is not what its room promises: the kind, and the kinds of all it holds.

    Raises `PluginError` when `made` is no `kind`; where another package brings the plug-in, also when a field of it holds what
    its annotation does not allow.
    """
    if not isinstance(made, kind):
        raise PluginError(f"{title(room, name)} returned {type(made).__name__}; it must return {kind.__name__}")
    wrong = kinds.mismatch(made, kind, kind.__name__) if package(room, name) else ""
    if wrong:
        raise PluginError(f"{title(room, name)} returned {wrong}")


def blamed(room: str, name: str, kind: str = "") -> contextlib.AbstractContextManager[None]:
    """Return a context for looking at what a plug-in returned: errors inside it get the name of a plug-in of another package.

    `room`, `name`, `kind`: as in `title`. Errors that are none of ours become a `PluginError`; nothing is changed for our own.
    """
    if not package(room, name):
        return contextlib.nullcontext()
    return _blamed(_word(name), title(room, name, kind), "returned what cannot be used")


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
        if path is not None:
            module = importlib.import_module(path)
        else:
            with contextlib.redirect_stdout(sys.stderr):
                module = _guarded(_others(room)[name].load(), name, title(room, name, kind))
    except MemoryError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and not promises.is_raised_by_a_statement(error):
            raise  # the user's
        raise PluginError(f"{title(room, name, kind)} cannot be loaded: {one_line(error)}") from error
    wrong = promises.broken(module, ROOMS.get(room, ()), needs_defaults=room != "topologies")
    if wrong:
        raise PluginError(f"{title(room, name, kind)} {wrong}")
    return module


def _guarded(module: ModuleType, name: str, called: str) -> ModuleType:
    """Return a plug-in of another package; where its functions break, they do so with its name, and they print to stderr."""
    guarded = ModuleType(getattr(module, "__name__", name), module.__doc__)

    def look(word: str) -> Any:
        found = getattr(module, word)
        return _guard(found, name, called) if inspect.isroutine(found) else found

    vars(guarded)["__getattr__"] = look  # asked for what a module lacks (PEP 562), which is everything here
    return guarded


def _guard(function: Callable[..., Any], name: str, called: str) -> Callable[..., Any]:
    """Return a plug-in's function that raises nothing but errors of ours, with the plug-in's name, and interrupts.

    `name`, `called`: the plug-in, alone and with its package. Errors of ours keep their kind: callers wait for them.
    """

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with contextlib.redirect_stdout(sys.stderr), _blamed(name, called, f"breaks in {function.__name__}"):
            return function(*args, **kwargs)

    return guarded


@contextlib.contextmanager
def _blamed(name: str, called: str, what: str) -> Iterator[None]:
    """Turn what is raised inside into errors with a plug-in's name; interrupts and a full memory pass."""
    try:
        yield
    except (MemoryError, PluginError):
        raise
    except MeshwrightError as error:
        said = " ".join(str(error).split())
        if what.removeprefix("breaks in ") in _ANSWERS:
            raise PluginError(f"{called} {what}: {said}") from error
        error.args = (said if name in said.replace("-", "_") else f"{called}: {said}",)
        if isinstance(error, ImportError):
            error.msg = error.args[0]  # which is what it says of itself
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{called} {what}: {one_line(error)}") from error


def _word(name: str) -> str:
    """Return the one spelling of a name: users and entry points may write dashes and capitals."""
    return name.strip().lower().replace("-", "_")


def title(room: str, name: str, kind: str = "") -> str:
    """Return how messages call a plug-in, with its package where that is not ours.

    `kind`: what a plug-in of the room is called; empty for the room's name.
    """
    name = _word(name)
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
                path = ".".join(("meshwright", *parts, module.name))
                if module.name.startswith("_"):
                    continue
                if module.name in found:
                    warn(f"{room} {module.name} stands twice: {found[module.name]} is taken, {path} is left out; rename one")
                found.setdefault(module.name, path)
    return MappingProxyType(found)


@cache
def _others(room: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Return what other packages add to a room; one with a name that is taken, or that nobody can type, is left out."""
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for point in _entry_points().get(room, ()):
        name = _word(point.name)
        if re.fullmatch("[a-z0-9_]+", name) and name not in _homes(room):
            found.setdefault(name, point)
    return MappingProxyType(found)


@cache
def _entry_points() -> Mapping[str, list[importlib.metadata.EntryPoint]]:
    """Return the entry points of all installed packages by room, sorted by name and package."""
    if not installed.may_have_group(sys.path, "meshwright."):
        return MappingProxyType({room: [] for room in ROOMS})
    import importlib.metadata

    found = importlib.metadata.entry_points()
    groups = {room: found.select(group=f"meshwright.{room}") for room in ROOMS}
    return MappingProxyType(
        {room: sorted(points, key=lambda point: (point.name, _package(point))) for room, points in groups.items()}
    )


def _package(point: importlib.metadata.EntryPoint) -> str:
    """Return name and version of the package of an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
