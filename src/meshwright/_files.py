"""Files are written whole or not at all: to a temporary file beside the target, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from meshwright.errors import InputError

__all__ = ["check_target", "write"]


def check_target(path: str | Path, option: str) -> Path:
    """Return the path if a file can be written there; called before long work, so that nobody waits for an error.

    Raises
    ------
    InputError
        When the folder does not exist or cannot be written to, or the path is a folder.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{option} {path}: is a folder; name a file")
    if not target.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {target.parent} does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{option} {path}: the folder {target.parent} cannot be written to")
    return target


def write(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    InputError
        When it cannot be written.
    """
    target = check_target(path, "output")
    data = content.encode("utf-8") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
