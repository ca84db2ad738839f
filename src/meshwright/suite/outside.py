"""A planner's command in a process of its own: killed with all its children at the time limit, memory and time counted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from meshwright.base import files
from meshwright.base.errors import InputError

__all__ = ["Ran", "run"]

_LAST_BYTES = 4096
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command.

    `code`: exit code; negative for the signal that ended it; None where the limit did.
    `said`: the last line on standard error.
    `wall_seconds`, `cpu_seconds`: of the command and the children that it waited for.
    `peak_bytes`: the most that its largest process was seen to hold, looked at a hundred times a second; 0 where the system
    does not say.
    """

    code: int | None
    said: str
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(words: Sequence[str], limit_seconds: float) -> Ran:
    """Run a command to its end or to the limit.

    Parameters
    ----------
    words : sequence of str
        Program and arguments.
    limit_seconds : float
        Wall time after which the command's process group is killed.

    Returns
    -------
    Ran
        What came of it. Standard output goes nowhere.

    Raises
    ------
    InputError
        When there is no such program, or it cannot be run.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise InputError(f"--planner {words[0]}: cannot be run: {getattr(error, 'strerror', None) or error}") from None
    with contextlib.closing(_Tail(process.stderr)) as said, _ended(process):
        status, usage = None, None
        peak_bytes = 0
        while time.monotonic() - started < limit_seconds:
            peak_bytes = max(peak_bytes, _held_bytes(process.pid))
            pid, found, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                status, usage = found, used
                break
            time.sleep(_POLL_SECONDS)
        wall = time.monotonic() - started
        if status is None:
            _kill(process)
            _, _, usage = os.wait4(process.pid, 0)
        process.returncode = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        _kill(process)  # children that the command left behind
    assert usage is not None
    code = None if status is None else process.returncode
    return Ran(code, said.line(), wall, usage.ru_utime + usage.ru_stime, peak_bytes)


def _held_bytes(pid: int) -> int:
    """Return the most that a process has held so far, or one of its descendants that still run; 0 where Linux' /proc is not.

    What the system counts of an ended child (``ru_maxrss``) begins with the size of this process, which it was copied from.
    """
    most = 0
    with contextlib.suppress(OSError, InputError, ValueError):
        about = files.read_text(f"/proc/{pid}/status")
        most = next((int(line.split()[1]) * 1024 for line in about.splitlines() if line.startswith("VmHWM:")), 0)
        for child in files.read_text(f"/proc/{pid}/task/{pid}/children").split():
            most = max(most, _held_bytes(int(child)))
    return most


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process group whatever ends the block, Ctrl-C too, so that nothing is left running."""
    try:
        yield
    except BaseException:
        _kill(process)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGKILL
        raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Tail:
    """The last bytes of a stream, read by a thread as they come, however many there are."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream, self._held = stream, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while part := os.read(self._stream.fileno(), 65536):
                self._held = (self._held + part)[-_LAST_BYTES:]

    def close(self) -> None:
        """Wait a moment for the stream's end, and close it."""
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._stream.close()

    def line(self) -> str:
        """Return the last line that holds anything."""
        lines = [line.strip() for line in self._held.decode("utf-8", "replace").splitlines() if line.strip()]
        return "".join(letter if letter.isprintable() else " " for letter in lines[-1])[:300] if lines else ""
