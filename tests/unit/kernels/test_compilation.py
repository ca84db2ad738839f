"""What is said while a kernel is compiled, and for how long kernels have been, by a clock that only the test moves."""

from __future__ import annotations

import pytest

from meshwright._kernels import compilation
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
