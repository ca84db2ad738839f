"""What is said on stderr while something takes its time; apart from the tables, whose drawing takes longer to import."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from meshwright._kernels.compilation import COMPILATION

__all__ = ["Progress", "progress"]


class Progress:
    """How far some work has come: what was told last, how many of its parts are done, and whether it has ended."""

    def __init__(self) -> None:
        self.ended = False
        self._so_far: Callable[[], str] | None = None
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """For how long it has gone on."""
        return time.monotonic() - self._started

    def tell(self, so_far: Callable[[], str]) -> None:
        """Take a function that says in a few words how far the work has come; `Stop.told`."""
        self._so_far = so_far

    def count(self, n_done: int, n_parts: int, what: str, done_ratio: float = 0.0) -> None:
        """Take how many of the parts of the work are done, from which follows about how long the others take.

        `done_ratio`: which share of the work they are; 0 where all parts count alike.
        """
        at = self.seconds
        share = done_ratio or n_done / max(n_parts, 1)
        next_share = 1.0 if done_ratio else (n_done + 1) / max(n_parts, 1)

        def so_far() -> str:
            if not 0 < n_done < n_parts:
                return f"{n_done} of {n_parts} {what}"
            now = self.seconds
            left = max(at / share, now / next_share) - now  # the part at work may take longer than those before it
            return f"{n_done} of {n_parts} {what}, about {max(left, 0.0):.0f} s more if the others take as long"

        self._so_far = so_far

    def line(self, kind: str) -> str:
        """Return what is said now."""
        told = COMPILATION.words
        if self._so_far is not None and not told:
            with suppress(Exception):  # the work goes on meanwhile in another thread: what cannot be told now is left out
                told = self._so_far()
        return f"{kind}: {self.seconds:.0f} s{', ' if told else ''}{told} ..."


@contextmanager
def progress(kind: str) -> Iterator[Progress]:
    """Say on stderr that work goes on and how far it has come, once it has lasted two seconds, and every four seconds after.

    `kind`: what is being done: ``"planning llama-3.1-70b"``.
    Yields: what takes how far it has come.
    """
    done, told = threading.Event(), Progress()

    def tell() -> None:
        wait = 2.0
        while not done.wait(wait) and not told.ended:
            print(told.line(kind), file=sys.stderr, flush=True)
            wait = 4.0

    thread = threading.Thread(target=tell, daemon=True)
    COMPILATION.n_tellers += 1
    try:
        thread.start()  # inside: an interrupt may come while it starts, and it would talk on after this call
        yield told
    finally:
        COMPILATION.n_tellers -= 1
        told.ended = True  # no call, so that no interrupt comes before it
        done.set()
        if thread.ident is not None:
            thread.join()
