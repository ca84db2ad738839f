"""``meshwright`` in a fork of a process that has imported everything, and so its workers: most of a short run is imports.

All that is ours runs as it would, but for the start of a Python; `test_faults` starts real ones.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runtime_processes import begin, ended


class Child:
    """A process forked from this one, with what is asked of a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            child, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if child else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forked(Child):
    """A process as `subprocess.Popen` starts one with ``python -m MODULE ...``, but forked from this one.

    Its name in ``/proc`` is ``forked`` and the last part of the module's.
    """

    def __init__(self, command: list[str], env: Mapping[str, str], stdout: int | None, stdin: int) -> None:
        assert command[:2] == [sys.executable, "-m"] and stdin == subprocess.PIPE, command
        end, held = os.pipe()
        self.stdin = os.fdopen(held, "wb")
        super().__init__(os.fork())
        if not self.pid:
            self.stdin.close()
            os.dup2(end, 0)
            os.dup2(1 if stdout is None else stdout, 1)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = command[2:]
            with contextlib.suppress(OSError):
                pathlib.Path("/proc/self/comm").write_text(f"forked {command[2].rpartition('.')[2]}"[:15])
            _end(importlib.import_module(command[2]).main)
        os.close(end)


def _end(main: Callable[[], Any]) -> None:
    """Run a program in this forked process, and end with its status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    code: Any = 1
    try:
        code = main() or 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


@contextlib.contextmanager
def started(*words: str, timeout_seconds: int = 200) -> Iterator[tuple[int, Callable[[], subprocess.CompletedProcess[str]]]]:
    """Start the program; yield its process, and what waits for its end. What it prints goes by way of files."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "told.json").write_text(json.dumps({"words": words, "timeout": timeout_seconds}))
        (pid,) = begin(run_forked, 1, folder)
        codes: list[int] = []

        def wait() -> subprocess.CompletedProcess[str]:
            codes.extend(ended())
            out, err = ((folder / file).read_text() for file in ("out", "err"))
            assert codes[0] != -signal.SIGALRM, err
            return subprocess.CompletedProcess(words, codes[0], out, err)

        try:
            yield pid, wait
        finally:
            if not codes:  # a test has failed meanwhile
                os.kill(pid, signal.SIGKILL)
                ended()


def meshwright(*words: str, timeout_seconds: int = 200) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    with started(*words, timeout_seconds=timeout_seconds) as (_, wait):
        return wait()


def run_forked(_rank: int, _n_ranks: int, folder: pathlib.Path) -> None:
    """Be the program in this forked process, and end with its status; its workers are forked too."""
    from meshwright import cli
    from meshwright.runtime.job import launch

    told = json.loads((folder / "told.json").read_text())
    signal.alarm(told["timeout"])
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    launch.subprocess.Popen = Forked  # type: ignore[misc, assignment]
    sys.argv = ["meshwright", *told["words"]]
    _end(cli.main)
