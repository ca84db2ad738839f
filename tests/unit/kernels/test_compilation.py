"""What is said while a kernel is compiled, and for how long kernels have been, by a clock that only the test moves."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext

import pytest

from meshwright._kernels import compilation, compiling
from meshwright._kernels.compilation import Compilation
from meshwright.report import progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_kernel_at_work_is_named_with_how_many_were_before_it_and_all_seconds_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    found = Compilation(clock)
    assert found.words == "" and found.seconds == 0.0
    monkeypatch.setattr(progress, "COMPILATION", found)
    told = progress.Progress()
    told.tell(lambda: "halfway")
    with found.of("play"):
        clock.now += 3.0
        assert found.words == "compiling kernel play (once; kept for later runs) for 3 s" and found.seconds == 3.0
        assert "compiling kernel play" in told.line("planning") and "halfway" not in told.line("planning")
        with found.of("inner"):  # of another thread, or of this one: its time is counted already
            clock.now += 1.0
        assert found.seconds == 4.0 and found.n_done == 0
    clock.now += 50.0
    assert found.words == "" and found.seconds == 4.0 and "halfway" in told.line("planning")
    with pytest.raises(ValueError), found.of("wrong"):
        clock.now += 2.0
        raise ValueError
    with found.of("last"):
        assert found.words.endswith("for 0 s, 2 before it in 6 s")


def test_this_process_has_one_count() -> None:
    assert progress.COMPILATION is compilation.COMPILATION


@pytest.mark.parametrize("shown", [False, True], ids=["alone", "beside progress"])
def test_a_kernel_is_told_of_while_it_is_compiled_where_no_progress_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shown: bool
) -> None:
    found, before = Compilation(Clock()), threading.active_count()
    monkeypatch.setattr(compiling, "COMPILATION", found)
    monkeypatch.setattr(progress, "COMPILATION", found)
    monkeypatch.setattr(compiling, "_TOLD_SECONDS", 0.01)
    with progress.progress("writing") if shown else nullcontext(), found.of("play"), compiling._told():
        assert found.n_tellers == shown
        ends = time.monotonic() + (0.2 if shown else 20.0)
        while time.monotonic() < ends and len(caplog.messages) < 2:
            time.sleep(0.01)
    said = list(caplog.messages)
    assert found.n_tellers == 0 and len(said) >= 2 * (not shown) and bool(said) != shown
    assert set(said) <= {"meshwright: compiling kernel play (once; kept for later runs) for 0 s ..."}
    ends = time.monotonic() + 20.0
    while time.monotonic() < ends and threading.active_count() > before:
        time.sleep(0.01)
    assert threading.active_count() == before and len(caplog.messages) <= len(said) + 1  # nothing is said once it is through
