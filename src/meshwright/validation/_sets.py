"""Measured sets that are part of the package, named by their files: ``data/vtrain_a100.csv`` is ``vtrain_a100``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshwright.base.errors import UnknownNameError
from meshwright.validation import _table

__all__ = ["MeasuredSet", "describe_set", "is_built_in", "set_file", "set_names"]

FOLDER = Path(__file__).parent / "data"
"""Its README says what every file is; `told` inside holds runs told with their whole plan, in the columns of runs of one's
own.
"""


@dataclass(frozen=True, slots=True)
class MeasuredSet:
    """What there is to say about a built-in set without predicting it.

    Parameters
    ----------
    name : str
        As on the command line.
    kind : str
        The set's module, recognised by the columns.
    n_rows : int
        Measured runs.
    sources : tuple of str
        Where they were published.
    """

    name: str
    kind: str
    n_rows: int
    sources: tuple[str, ...]


def set_names() -> tuple[str, ...]:
    """Return the names of the built-in sets, sorted."""
    return tuple(sorted(_files()))


def _files() -> dict[str, Path]:
    """Return the file of every built-in set by its name."""
    return {path.stem: path for folder in (FOLDER, FOLDER / "told") for path in folder.glob("*.csv")}


def set_file(word: str | Path) -> Path:
    """Return the file that a word means: one of that path, else the built-in set of that name.

    `word`: a path or a name. A word with an ending or a folder is a path, whether there is such a file or not.
    Raises `UnknownNameError` when a plain word is neither a file nor a built-in set.
    """
    path, name = Path(word), str(word)
    if path.is_file() or path.suffix or path.name != name:
        return path
    known = _files()
    if name not in known:
        raise UnknownNameError("file or measured set", name, set_names())
    return known[name]


def is_built_in(path: Path) -> bool:
    """Return whether a file is one of the package's sets."""
    return path in _files().values()


def describe_set(name: str) -> MeasuredSet:
    """Return kind, size and sources of a built-in set.

    `name`: one of `set_names`.
    """
    measured = _table.read(_files()[name])
    sources = dict.fromkeys(_origin(row["source"]) for row in measured.rows)
    return MeasuredSet(name, measured.kind, len(measured.rows), tuple(sources))


def _origin(source: str) -> str:
    """Return the repository or paper that a row's source names, without the place in it."""
    return source.split(" ")[0] if source.startswith("github:") else source.partition(" (")[0]
