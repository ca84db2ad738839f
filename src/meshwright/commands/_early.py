"""How a search is stopped before its end: after a time, or by Ctrl-C, with the best plan so far."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING

from meshwright.base.errors import InputError

if TYPE_CHECKING:
    from meshwright.core.problem import Problem

__all__ = ["WRITING", "TimeUp", "ended_by", "interruptible", "limited", "seconds_of", "share_of", "stops_early"]

WRITING = "the answer is there and is being written"
"""What is told of Ctrl-C that comes too late to stop anything."""

_AGAIN_SECONDS = 1e-4  # after which an alarm that came on the way in or out rings again
_BEST_SO_FAR = "stopping; the best plan so far, if there is one, is the answer"


class TimeUp(KeyboardInterrupt):
    """What ``--time-limit`` raises in work that asks nobody whether to go on: it ends what Ctrl-C ends, in the same way."""


def ended_by(stopped: KeyboardInterrupt) -> str:
    """Return what ended something, in words."""
    return "time was up" if isinstance(stopped, TimeUp) else "interrupted"


def limited(text: str) -> AbstractContextManager[None]:
    """Raise `TimeUp` after the time of ``--time-limit``, for work that asks nobody whether to go on; empty for no limit.

    Raises
    ------
    InputError
        When it is no positive time, the system has no timer of signals (Windows), or nothing inside keeps what there is.
    """
    seconds = seconds_of(text)
    if not seconds or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    if not hasattr(signal, "setitimer"):
        raise InputError(f"--time-limit {text}: this system has no timer that could stop this command; leave it out")
    return _Limit(text, seconds)


class _Limit:
    """An alarm that rings inside a `with` statement only: on the way in or out nobody would keep what there is."""

    def __init__(self, text: str, seconds: float) -> None:
        self.text, self.seconds, self.is_over = text, seconds, False

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self.before)
        if isinstance(error, TimeUp):
            raise InputError(f"--time-limit {self.text}: time was up before the end; there is no answer") from None

    def _ring(self, number: int, frame: FrameType | None) -> None:
        """Raise `TimeUp`; a moment later where the statement is just entered or left."""
        if self.is_over:
            return
        while frame is not None:
            if frame.f_code in (_Limit.__enter__.__code__, _Limit.__exit__.__code__):
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
                return
            frame = frame.f_back
        raise TimeUp


def seconds_of(text: str) -> float:
    """Return the seconds of ``--time-limit``; 0 for none.

    Raises `InputError` when it is no positive time.
    """
    from meshwright.base import units

    try:
        return units.parse(text, "seconds", place="--time-limit", exclusive=True) if text else 0.0
    except InputError:
        raise InputError(f"--time-limit {text}: must be a time above 0, for example 30s or 5 min") from None


def share_of(text: str, option: str, most: float = 1.0) -> float:
    """Return a share written as ``1%`` or ``0.01``.

    Raises `InputError` when it is no number, or not between 0 and `most`.
    """
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100.0 if number != text.strip() else 1.0)
    except ValueError:
        raise InputError(f"{option} {text}: write a share, for example 1% or 0.01") from None
    if not 0.0 <= share <= most:
        raise InputError(f"{option} {text}: must be between 0 and {most:.0%}")
    return share


def stops_early(problem: Problem, search: str) -> bool:
    """Return whether the search that will answer a problem can be stopped early."""
    from meshwright.base import registry

    name = (search or problem.model_spec.search).replace("-", "_")
    if name == "best" and problem.model_spec.search != "best" and problem.costs not in ("analytic", "sharded", "profiled"):
        name = problem.model_spec.search
    return bool(getattr(registry.load("search", name, "search"), "STOPS_EARLY", False))


@contextmanager
def interruptible(wanted: bool, said: str = _BEST_SO_FAR) -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C a question that a search asks, and the second one what it is elsewhere.

    `wanted`: whether the search asks; else Ctrl-C ends the program as usual.
    `said`: what is told then.
    Yields: whether Ctrl-C was pressed.
    """
    pressed = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def press(number: int, frame: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        print(f"meshwright: {said}; Ctrl-C again ends at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
