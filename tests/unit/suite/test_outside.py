"""A command run apart: its end, its last words, its time and memory; at the limit nothing of it is left."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import pytest

from meshwright.base.errors import InputError
from meshwright.suite import outside


def run(program: str, limit_seconds: float = 30.0) -> outside.Ran:
    return outside.run((sys.executable, "-S", "-c", program), limit_seconds)


def gone(pid: int) -> bool:
    """Whether a process has ended, or is only still to be buried."""
    for _ in range(200):
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(("program", "code", "said"), [
    ("pass", 0, ""), ("import sys; sys.exit(3)", 3, ""), ("import os; os.kill(os.getpid(), 11)", -11, ""),
    ("import sys; sys.exit('first\\nlast \\x1b[31mwords\\n\\n')", 1, "last  [31mwords"),
    ("import sys; sys.stdout.write('x' * 10**6); sys.stderr.write('y\\n' * 10**6)", 0, "y"),
])  # fmt: skip
def test_the_end_and_the_last_words_of_a_command(program: str, code: int, said: str) -> None:
    ran = run(program)
    assert (ran.code, ran.said) == (code, said)
    assert ran.wall_seconds > 0.0 and ran.cpu_seconds >= 0.0


def test_a_command_and_its_children_are_killed_at_the_limit(tmp_path: pathlib.Path) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); child = os.fork()\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(60)"
    )
    ran = run(program, 1.5)
    assert ran.code is None and 1.5 <= ran.wall_seconds < 20.0
    found = [int(line) for line in pids.read_text().split()]
    assert len(found) == 2 and all(gone(pid) for pid in found)


def test_children_that_a_command_leaves_behind_are_killed_too(tmp_path: pathlib.Path) -> None:
    pids = tmp_path / "pid"
    child = f"open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    program = f"import os, time\nif os.fork() == 0:\n    {child}\ntime.sleep(0.5)"
    assert run(program).code == 0
    assert gone(int(pids.read_text()))


def test_an_interrupt_leaves_nothing_running(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pid"

    def interrupted(seconds: float) -> None:
        if pids.exists() and pids.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(outside.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    monkeypatch.undo()
    assert gone(int(pids.read_text()))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from Linux' /proc")
def test_memory_is_that_of_the_command_and_not_of_the_bench() -> None:
    here = bytearray(300_000_000)
    small, large = run("import time; time.sleep(0.3)"), run("import time; held = bytearray(200_000_000); time.sleep(0.3)")
    assert 0 < small.peak_bytes < 100e6 < 200e6 <= large.peak_bytes < 300e6 < len(here) + 1


def test_processor_time_is_counted() -> None:
    ran = run("sum(range(6_000_000))")
    assert ran.cpu_seconds > 0.03 and ran.cpu_seconds < run("sum(range(60_000_000))").cpu_seconds


@pytest.mark.parametrize("word", ["./no_such_program", "/", "a\0b"])
def test_a_program_that_cannot_be_run_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="cannot be run"):
        outside.run((word,), 1.0)
