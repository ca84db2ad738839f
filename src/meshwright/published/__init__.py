"""Inputs and answers of the five published systems, one folder a system: ``data/README.md`` says where every file is from.

Nothing here is used when planning, and no constant of the package is fitted to it. `meshwright papers` compares with the
answers, `meshwright bench` asks the inputs; tests find the files by the same names in ``tests/reference``.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from meshwright.base import files
from meshwright.base.errors import InputError

__all__ = ["path", "rows"]


def path(name: str) -> str:
    """Return where a file lies.

    Parameters
    ----------
    name : str
        Folder and file: ``"piper/bert32a100.json"``.

    Returns
    -------
    str
        Its path.

    Raises
    ------
    InputError
        When the package was installed without it.
    """
    found = Path(__file__).resolve().parent / "data" / name
    if not found.is_file():
        raise InputError(f"the package holds no {name}: it was installed without its data; install it again")
    return str(found)


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table, each as cells by column.

    Parameters
    ----------
    name : str
        As of `path`: ``"piper/piper.csv"``.

    Returns
    -------
    list of dict
        In the file's order.

    Raises
    ------
    InputError
        As `path`.
    """
    return list(csv.DictReader(io.StringIO(files.read_text(path(name)))))
