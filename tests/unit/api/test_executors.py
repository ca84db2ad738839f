"""Clusters that do not start or answer are told in a line; Ctrl-C keeps what calls returned before it and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from meshwright.api import executors
from meshwright.api.executors import _started
from meshwright.base.errors import InputError


def _fails() -> None:
    raise OSError("Timed out trying to connect\nto tcp://nowhere:1")


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [("nowhere:1", "--scheduler nowhere:1: no dask cluster answers there"), ("", "--backend dask: it does not start")],
)
def test_a_cluster_that_does_not_answer_is_one_line(scheduler: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        _started("dask", scheduler, _fails)
    told = str(caught.value)
    assert told.startswith(said) and "Timed out trying to connect" in told and "\n" not in told and "--backend loky" in told
    assert _started("dask", scheduler, lambda: 3) == 3


def _pressed(n_before: int) -> Iterator[int]:
    yield from range(n_before)
    raise KeyboardInterrupt


def test_what_calls_returned_before_ctrl_c_is_kept_where_that_is_asked_for() -> None:
    counts: list[int] = []
    with executors.workers(1, "loky", done=lambda n, _: counts.append(n), keep=True) as run:
        calls = _pressed(2)
        assert run(lambda: next(calls), [()] * 4) == [0, 1, None, None] and counts == [1, 2]
        with pytest.raises(KeyboardInterrupt):  # nothing to keep
            run(lambda: next(_pressed(0)), [()])
    with executors.workers(1, "loky") as run, pytest.raises(KeyboardInterrupt):
        calls = _pressed(1)
        run(lambda: next(calls), [()] * 2)


WORKERS = """
import signal, sys, time
from meshwright.api import executors

def answer(i):
    time.sleep(600 * i)
    return i

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs behind them without it
with executors.workers(2, "loky", done=lambda n, _: print("one is there", flush=True), keep=True) as run:
    print(run(answer, [(1,), (0,)]))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes here")
def test_ctrl_c_at_a_terminal_keeps_a_later_row_that_has_ended_and_no_worker_says_or_does_anything_more() -> None:
    words = [sys.executable, "-c", WORKERS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        assert program.stdout is not None and program.stdout.readline() == "one is there\n"
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to the workers too
        out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == ("[None, 0]\n", "", 0)
    for _ in range(100):
        try:
            os.killpg(program.pid, 0)
        except ProcessLookupError:
            return
        states = [_state(pid) for pid in _group(program.pid)]
        if set(states) <= {"Z"}:  # ended, and not yet collected by whoever is the parent now
            return
        time.sleep(0.05)
    raise AssertionError("workers are left")


def test_calls_cut_short_between_two_results_are_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    """Ctrl-C may come while nothing is waited for: joblib would warn of calls that it cancels."""

    def interrupted(n_through: int, n_calls: int) -> None:
        raise KeyboardInterrupt

    with executors.workers(2, "loky", done=interrupted, keep=True) as run:
        found = run(time.sleep, [(0.0,), (3.0,), (3.0,)])
    assert found == [None] * 3 and not recwarn.list


def _group(number: int) -> list[int]:
    """Return the processes of a group."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _field(int(name), 2) == str(number)]


def _state(pid: int) -> str:
    return _field(pid, 0) or "Z"


def _field(pid: int, i: int) -> str:
    """Return a field of a process behind its name; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[i]
    except OSError:
        return ""
