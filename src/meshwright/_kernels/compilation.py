"""Which kernels this process has compiled, for how long, and which one it compiles now: for whoever says what takes so long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["COMPILATION", "Compilation"]


class Compilation:
    """Kernels that were compiled.

    Parameters
    ----------
    clock : callable
        Says what the time is, in seconds.

    Attributes
    ----------
    n_done : int
        How many are through.
    n_tellers : int
        How many say by themselves what is compiled, as what shows progress does.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent_seconds = 0.0
        self._now: tuple[str, float] | None = None
        self._lock = threading.Lock()
        self.n_done = self.n_tellers = 0

    @property
    def seconds(self) -> float:
        """For how long kernels have been compiled, with what the present one has taken so far."""
        now = self._now
        return self._spent_seconds + (0.0 if now is None else self._clock() - now[1])

    @property
    def words(self) -> str:
        """What is said while a kernel is compiled; empty while none is."""
        now = self._now
        if now is None:
            return ""
        before = f", {self.n_done} before it in {self._spent_seconds:.0f} s" if self.n_done else ""
        return f"compiling kernel {now[0]} (once; kept for later runs) for {self._clock() - now[1]:.0f} s{before}"

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count what is done inside as the compilation of a kernel; one that another thread compiles meanwhile is not counted.

        Parameters
        ----------
        name : str
            The kernel.
        """
        if not self._lock.acquire(blocking=False):
            yield
            return
        started = self._clock()
        self._now = name, started
        try:
            yield
        finally:
            self._now = None
            self._spent_seconds += self._clock() - started
            self.n_done += 1
            self._lock.release()


COMPILATION = Compilation()
"""Those of this process."""
