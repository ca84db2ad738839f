"""What can go wrong on the user's side, as one small tree of exceptions.

::

    MeshwrightError
    ├── InputError (ValueError)          a wrong input: what, where, the value given, what is allowed, what to do
    │   └── UnknownNameError             a name that is not in the list of known ones
    ├── MissingExtraError (ImportError)  an optional package is needed and absent
    ├── PluginError                      a plug-in that cannot be loaded or lacks what its room asks for
    └── ExportError                      the target format cannot say what the plan says

`PluginWarning` says that a plug-in nobody named was left out, `InputWarning` that a part of a file was passed over. A problem
in which nothing fits is an answer, not an error: see `meshwright.core.result.Answer`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ExportError",
    "InputError",
    "InputWarning",
    "MeshwrightError",
    "MissingExtraError",
    "PluginError",
    "PluginWarning",
    "UnknownNameError",
]


class MeshwrightError(Exception):
    """Root of everything this package raises on purpose."""


class InputError(MeshwrightError, ValueError):
    """A wrong input, told in one sentence that names place, value, what is allowed and what to do."""


class InputWarning(MeshwrightError, UserWarning):
    """A part of a file was passed over: a field that this release does not know."""


class UnknownNameError(InputError, LookupError):
    """A name that is not known, answered by the closest one and the list of those that are.

    `kind`: the kind of thing named, in words: ``"search"``, ``"field of node 3"``.
    `name`: the name given.
    `known`: the names that would have been right.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = [known for known in names if known.endswith(f"-{name}")] or difflib.get_close_matches(name, names, n=1)
        close = close or [known for known in names if len(name) > 1 and name in known]
        hint = f"; did you mean '{close[0]}'?" if close else ""
        super().__init__(f"no {kind} called '{name}'{hint} (there are: {', '.join(names)})")


class MissingExtraError(MeshwrightError, ImportError):
    """An optional package is needed for what was asked.

    `purpose`: what was asked for, in words.
    `extra`: the extra of this package that brings it: ``pip install 'meshwright[extra]'``.
    """

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional package: pip install 'meshwright[{extra}]'")


class PluginError(MeshwrightError):
    """A plug-in cannot be loaded, or lacks what every plug-in of its room has."""


class PluginWarning(MeshwrightError, UserWarning):
    """A plug-in was left out: it is broken, or its name is taken."""


class ExportError(MeshwrightError):
    """The target format has no way to say what the plan says."""
