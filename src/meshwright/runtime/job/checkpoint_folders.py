"""Which checkpoints a folder holds, what is said about them, whether they are as they were written and of this model, and which
run may write there: two would write over and delete one another's.
"""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.runtime.job.holdings import ModelNames
from meshwright.runtime.job.slices import metadata_of

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = [
    "FORMAT",
    "check",
    "check_format",
    "check_model",
    "claim",
    "content_of",
    "damage",
    "is_as_written",
    "last",
    "left_in",
    "newest_first",
    "nothing",
    "step_of",
    "sum_of",
    "sum_of_description",
]

FORMAT = "meshwright/checkpoint/2"
METADATA = ".metadata"
_LOCK = ".lock"


def last(folder: str) -> Path | None:
    """Return the newest complete checkpoint of a folder, or None."""
    return next(iter(newest_first(folder)), None)


def left_in(folder: str) -> str:
    """Say what a run that ended before its time leaves in its folder, which is empty where it has none."""
    newest = last(folder) if folder else None
    if newest is not None:
        return f"--resume goes on from {newest}"
    return "there is no checkpoint" if folder else "nothing was saved: no --save"


def newest_first(folder: str) -> list[Path]:
    """Return the complete checkpoints of a folder; what else lies there, as a copy ``step-4.old``, is none."""
    named = [path for path in Path(folder).glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted((path for path in named if (path / "done.json").is_file()), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Return after how many steps a checkpoint was written."""
    return int(path.name.removeprefix("step-"))


def sum_of(path: Path) -> list[int]:
    """Return length and CRC-32 of a file."""
    length, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            length, crc = length + len(block), zlib.crc32(block, crc)
    return [length, crc]


def sum_of_description(content: dict[str, Any]) -> int:
    """Return the CRC-32 of what is written about a checkpoint, but for this number itself."""
    told = {key: value for key, value in content.items() if key != "sum"}
    return zlib.crc32(json.dumps(told, sort_keys=True).encode())


def is_as_written(path: Path, wanted: list[int]) -> bool:
    """Whether a file has the length and CRC-32 told."""
    try:
        return sum_of(path) == wanted
    except OSError:
        return False


def check(folder: str, names: ModelNames) -> tuple[Path, dict[str, Any]]:
    """Return the newest checkpoint of a folder, and what is written about it.

    `names`: of the model's weights and buffers.
    Raises `InputError` when there is none, it is damaged, or it holds another model.
    """
    path = last(folder)
    if path is None:
        raise InputError(nothing(folder))
    content = content_of(path)
    check_format(path, content)
    place = path / METADATA
    if not is_as_written(place, content["files"].get(METADATA, [])):
        raise InputError(damage(place))
    check_model(path, metadata_of(path), names)
    return path, content


def nothing(folder: str) -> str:
    """Say that a folder has nothing to go on from."""
    return f"--resume: {folder or 'no folder (give --save)'} holds no complete checkpoint; run without --resume to begin"


def damage(place: Path) -> str:
    """Say that a file of a checkpoint is damaged."""
    return f"--resume: {place} is not what was written (cut off or changed); --resume auto takes an older checkpoint"


def content_of(path: Path) -> dict[str, Any]:
    """Return what is written about a checkpoint.

    Raises `InputError` when it cannot be read, is no such description, or was changed since.
    """
    content = files.read_json(path / "done.json", "resume from another checkpoint")
    if not isinstance(content, dict) or not _is_description(content):
        raise InputError(f"{path / 'done.json'}: is not what a checkpoint holds; resume from another one")
    if content.get("format") == FORMAT and content.get("sum", sum_of_description(content)) != sum_of_description(content):
        raise InputError(damage(path / "done.json"))
    return content


def _is_description(content: dict[str, Any]) -> bool:
    """Whether a file says what a checkpoint must."""
    kinds = {"step": int, "plan": list, "files": dict}
    if content.get("format") == FORMAT:
        kinds |= {"n_ranks": int, "global_batch": int, "optimizer": str, "numbers": dict}
    return all(isinstance(content.get(key, {} if key == "files" else None), kind) for key, kind in kinds.items())


def check_format(path: Path, content: dict[str, Any]) -> None:
    """Refuse what earlier and later versions wrote."""
    wrote = content.get("format")
    if wrote != FORMAT:
        what = "of an earlier version, whose names belong to one plan" if wrote is None else f"of the format '{wrote}'"
        raise InputError(
            f"--resume: {path} is {what}; this version reads '{FORMAT}': finish that run with the version that began it, or "
            "begin anew with another folder"
        )


def check_model(path: Path, metadata: Metadata, names: ModelNames) -> None:
    """Refuse a checkpoint whose weights and buffers are not those of this model."""
    stored, paths = metadata.state_dict_metadata, metadata.planner_data or {}
    entries = [(name, stored.get(name)) for name, words in paths.items() if len(words) == 1]
    weights = {name: tuple(entry.size) for name, entry in entries if isinstance(entry, TensorStorageMetadata)}
    wanted = {name: shape for name, shape in names.shapes.items() if math.prod(shape)}
    other = next((name for name, shape in wanted.items() if weights.get(name) != shape), "")
    more = "" if other else next((name for name in weights if name not in wanted and name not in names.aliases), "")
    if other or more:
        what = "is not in this one" if more else "is not in it"
        if other in weights:
            what = f"has shape {weights[other]} there and {wanted[other]} here"
        raise InputError(
            f"--resume: {path} holds another model: '{other or more}' {what}; resume with the model that was saved"
        )


def claim(trainer: Trainer, folder: str) -> None:
    """Let this run alone write to a folder, which is made if it does not exist; called in every process at once.

    It is given back when process 0 ends, however that ends.

    Raises
    ------
    InputError
        In every process, when another run has it, or it cannot be written to.
    """
    place = os.path.realpath(folder)
    if place in trainer.claims:
        return
    refused = [""]
    if trainer.rank == 0:
        try:
            _lock(folder)
        except InputError as error:
            refused = [str(error)]
    dist.broadcast_object_list(refused, src=0)
    if refused[0]:
        raise InputError(refused[0])
    trainer.claims |= {place}


def _lock(folder: str) -> None:
    """Lock a file of the folder for this process, which keeps it open until it ends: the system gives the lock back then.

    Raises `InputError` as `claim` does.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = os.open(Path(folder) / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"--save: {folder} cannot be written to: {error.strerror}; name another folder") from None
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # a system without such locks
        return
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without such locks
            return
        who = os.read(file, 200).decode(errors="replace").strip() or "another one"
        os.close(file)
        raise InputError(
            f"--save: another run writes its checkpoints to {folder} ({who}); end that one, or name another folder"
        ) from None
    with suppress(OSError):  # where the disk is full nobody reads who it is
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
