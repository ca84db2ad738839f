"""A folder of checkpoints is written to by one run at a time: two would write over and delete one another's."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from meshwright.base.errors import InputError

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["claim"]

_NAME = ".lock"


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
        file = os.open(Path(folder) / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
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
