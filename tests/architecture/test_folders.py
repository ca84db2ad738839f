"""How the package is laid out: few things at the top, folders one can read, no family of files told apart by a prefix."""

from __future__ import annotations

import collections
import pathlib

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src" / "meshwright"
FOLDERS = sorted({path.parent for path in SOURCE.rglob("*.py")})
ROOMS = ("search", "costs", "readers", "writers", "topologies", "schedules", "commands", "validation", "frameworks")
"""Folders whose files are words that users type: their names follow the thing named, not its neighbours."""
LARGEST_FOLDER = 20
LARGEST_ROOM = 30


def _modules(folder: pathlib.Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def test_at_most_eight_files_stand_at_the_top() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_a_folder_has_a_size_that_one_can_read() -> None:
    for folder in FOLDERS:
        limit = LARGEST_ROOM if folder.name in ROOMS else LARGEST_FOLDER
        assert len(_modules(folder)) <= limit, f"{folder.relative_to(SOURCE)} has {len(_modules(folder))} files"


def test_three_files_that_share_a_first_word_are_a_folder() -> None:
    for folder in FOLDERS:
        if folder.name in ROOMS:
            continue
        families = collections.Counter(name.strip("_").split("_")[0] for name in _modules(folder) if "_" in name.strip("_"))
        for word, n in families.items():
            assert n < 3, f"{folder.relative_to(SOURCE)}: {n} files are called {word}_*"
