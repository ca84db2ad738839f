"""Files are written whole or not at all (to a temporary file beside the target, then renamed);
they are read up to a limit, JSON with no key lost.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from meshwright.base.errors import InputError

__all__ = [
    "check_target",
    "check_targets",
    "drafts",
    "load_json",
    "read_bytes",
    "read_json",
    "read_text",
    "read_toml",
    "temporary_folder",
    "write",
    "written",
]

_DRAFTS: ContextVar[dict[str, str | bytes] | None] = ContextVar("drafts", default=None)
_WRITTEN: ContextVar[list[str] | None] = ContextVar("written", default=None)

_MOST_BYTES = 2**30  # more than any file that a person means, and less than what fills a memory

_MOST_DIGITS = 300  # a float has room for 308


def read_bytes(path: str | Path, hint: str = "") -> bytes:
    """Return what a file holds; whatever a user names is read here, so that nothing endless or huge is.

    `hint`: what to do where it cannot be read, to end the message: ``"name a file written by 'meshwright plan --out'"``.
    Raises `InputError` when it cannot be read, is no file (a folder, a pipe, a device), or holds more than a gibibyte.
    """
    ending = f"; {hint}" if hint else ""
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            what = "a folder" if stat.S_ISDIR(about.st_mode) else "a device or a pipe"
            raise InputError(f"{path}: cannot be read: is {what}; name a file")
        with open(path, "rb") as file:  # the size of some files (in /proc) is 0 until they are read
            content = file.read(_MOST_BYTES + 1) if about.st_size <= _MOST_BYTES else None
    except FileNotFoundError:
        raise InputError(f"{path}: cannot be read: no such file{ending}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}{ending}") from None
    if content is None or len(content) > _MOST_BYTES:
        raise InputError(f"{path}: cannot be read: holds more than a gibibyte, the most that is read{ending}")
    return content


def read_text(path: str | Path, hint: str = "") -> str:
    """Return the text of a file in UTF-8, with every end of a line as one newline.

    `hint`: as of `read_bytes`.
    Raises `InputError` as `read_bytes`, and when it is no such text.
    """
    try:
        text = read_bytes(path, hint).decode("utf-8-sig")  # without the mark of byte order that some editors put first
    except UnicodeDecodeError:
        raise InputError(f"{path}: cannot be read: is no text in UTF-8 (a binary file?){f'; {hint}' if hint else ''}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises `InputError` as `read_text`, and when it is no TOML.
    """
    import tomllib  # what reads no TOML starts without it

    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is no TOML: {error}") from None


def load_json(text: str) -> tuple[Any, str]:
    """Return what JSON text holds (a byte order mark before it is passed over), and which key stands twice in one object, of
    which one value would be lost.

    Raises `ValueError` or `RecursionError` when the text is no JSON, or nested too deep.

    Returns `content`: of a key that stands twice, the last value; `repeated`: the first such key with its object, to follow a
    file's name in a message; empty for none.
    """
    repeated: list[str] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry = dict(pairs)
        if len(entry) < len(pairs) and not repeated:
            keys = [key for key, _ in pairs]
            key = next(key for at, key in enumerate(keys) if key in keys[:at])
            others = ", ".join(f"{other}: {json.dumps(entry[other])[:30]}" for other in entry if other != key)[:90]
            place = f"the object with {others}" if others else "an object with no other key"
            repeated.append(f"the key '{key}' stands twice in {place}; keep one of the two")
        return entry

    content = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=made, parse_int=_whole_number)
    return content, repeated[0] if repeated else ""


def _whole_number(digits: str) -> int | float:
    """Return a whole number, or infinity where no float holds it: whoever reads it refuses that like 1e400."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def read_json(path: str | Path, hint: str = "") -> Any:
    """Return what a JSON file holds.

    `hint`: as of `read_bytes`.
    Raises `InputError` as `read_bytes`, and when it is no JSON, or a key stands twice in one object.
    """
    held = read_bytes(path, hint)
    try:
        content, repeated = load_json(held.decode("utf-8"))
    except (ValueError, RecursionError):
        ending = f"; {hint}" if hint else ""
        raise InputError(f"{path}: is not valid JSON (cut off, or a binary file?){ending}") from None
    if repeated:
        raise InputError(f"{path}: {repeated}")
    return content


def check_target(path: str | Path, option: str) -> Path:
    """Return the path if a file can be written there; called before long work, so that nobody waits for an error.

    Raises `InputError` when the folder does not exist or cannot be written to, or the path is a folder.
    """
    target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # what a link points to is written
    try:
        mode = os.stat(path).st_mode  # not of the target: /dev/stdout links to a pipe, which has no path
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{option} {path}: is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{option} {path}: is a device or a pipe; name a file")
    if not target.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {target.parent} does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{option} {path}: the folder {target.parent} cannot be written to")
    return target


def check_targets(outputs: Sequence[tuple[str, str]], inputs: Sequence[str] = ()) -> None:
    """Check several files to be written: each as `check_target` does, and that no two are the same.

    `outputs`: option and path of each; an empty path is none.
    `inputs`: names that may be paths of files that are read, and must stay; of a folder, its ``config.json``.
    Raises `InputError` when one cannot be written, two options name the same file, or one names a file that is read.
    """
    seen: dict[Path, str] = {}
    read = [path for name in inputs for path in (name, os.path.join(name, "config.json")) if name and os.path.isfile(path)]
    kept = {Path(path).resolve() for path in read}
    for option, path in outputs:
        if not path:
            continue
        target = check_target(path, option).resolve()
        if target in kept:
            raise InputError(f"{option} {path}: this file is read, and would be written over; name another one")
        if target in seen:
            raise InputError(f"{seen[target]} and {option}: both name {path}; give each its own file")
        seen[target] = option


@contextmanager
def drafts() -> Iterator[dict[str, str | bytes]]:
    """Let `write` keep in memory, by path, what it is given: to see what a writer says of a plan without a disk."""
    kept: dict[str, str | bytes] = {}
    before = _DRAFTS.set(kept)
    try:
        yield kept
    finally:
        _DRAFTS.reset(before)


@contextmanager
def written() -> Iterator[list[str]]:
    """List the paths of files that `write` writes inside, in their order: what there is where the work is interrupted."""
    paths: list[str] = []
    before = _WRITTEN.set(paths)
    try:
        yield paths
    finally:
        _WRITTEN.reset(before)


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for what processes tell each other.

    Raises `InputError` when none can be made.
    """
    try:
        return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(
            f"no temporary folder can be made: {error.strerror}; make room, or name another place: TMPDIR"
        ) from None


def write(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises `InputError` when it cannot be written.
    """
    kept = _DRAFTS.get()
    if kept is not None:
        kept[str(path)] = content
        return
    target = check_target(path, "output")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".meshwright-")
    except OSError as error:
        raise InputError(f"output {path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
        paths = _WRITTEN.get()
        if paths is not None:
            paths.append(str(path))
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"output {path}: cannot be written: {error.strerror}") from None
        raise
