"""Built-in kinds of cluster: their names and their data files, read without building anything."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.base import files
from meshwright.clusters.wires import DATA

__all__ = ["figures", "stems"]


def stems() -> dict[str, str]:
    """Return the built-in cluster kinds and their aliases: name as typed to the stem of its data file, sorted by name."""
    return dict(_stems(DATA / "clusters"))


@lru_cache(maxsize=2)
def _stems(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return what `stems` does of the data files of a folder, which do not change while we run."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        found[path.stem.replace("_", "-")] = path.stem
        named = next((line for line in files.read_text(path).splitlines() if line.startswith("aliases = ")), "")
        for alias in re.findall('"(.+?)"', named):  # parsing whole files takes longer than building a cluster
            found[alias] = path.stem
    return tuple(sorted(found.items()))


def figures(stem: str) -> dict[str, Any]:
    """Return the content of a cluster kind's data file."""
    return files.read_toml(DATA / "clusters" / f"{stem}.toml")
