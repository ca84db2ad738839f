"""A quick look at what is installed: a few files, where `importlib.metadata` takes longer to load than many a command."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["may_have_group"]


def may_have_group(places: Iterable[str], start: str) -> bool:
    """Return whether any installed package may have a group of entry points whose name starts so.

    Parameters
    ----------
    places : iterable of str
        As in ``sys.path``.
    start : str
        Start of a group's name: ``"meshwright."``.

    Returns
    -------
    bool
        True, too, where a place is no folder or packages are found in another way than by folders.
    """
    for finder in sys.meta_path:
        known = finder is importlib.machinery.PathFinder or getattr(finder, "__module__", "").startswith("_distutils_hack")
        if not known and hasattr(finder, "find_distributions"):
            return True
    for place in places:
        try:
            inside = list(Path(place or ".").iterdir())
        except NotADirectoryError:
            return True
        except OSError:  # a place that is not there is usual
            continue
        for entry in inside:
            if entry.suffix == ".egg" or (entry.suffix == ".egg-info" and not entry.is_dir()):
                return True
            if entry.suffix not in (".dist-info", ".egg-info"):
                continue
            with contextlib.suppress(OSError):
                if f"[{start}" in (entry / "entry_points.txt").read_text(encoding="utf-8", errors="replace"):
                    return True
    return False
