"""What is said on stderr while something takes its time; apart from the tables, whose drawing takes longer to import."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(kind: str) -> Iterator[Callable[[str], None]]:
    """Say on stderr that work goes on, once it has lasted two seconds, and every four seconds after: nobody waits for five.

    `kind`: what is being done: ``"planning llama-3.1-70b"``. What is lent says what is done from then on.
    """
    done, said = threading.Event(), [kind]
    started = time.monotonic()

    def tell() -> None:
        wait = 2.0
        while not done.wait(wait):
            print(f"{said[-1]}: {time.monotonic() - started:.0f} s ...", file=sys.stderr, flush=True)
            wait = 4.0

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield said.append
    finally:
        done.set()
        thread.join()
