"""`python -m meshwright` is the same program as `meshwright`: this is where both start."""

from __future__ import annotations

import signal
import sys
from types import FrameType

__all__ = ["main"]


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Take SIGTERM, by which schedulers end programs, as Ctrl-C: the best so far is told, and no process stays behind."""
    heed = signal.getsignal(signal.SIGINT)
    if not callable(heed):  # as of a job in the background
        raise KeyboardInterrupt
    heed(number, frame)


def main() -> None:
    """Run the command line and exit, with one line where Ctrl-C comes while it still starts.

    Raises `SystemExit`: always.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        from meshwright import cli

        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("meshwright: interrupted; nothing was written\n")
        sys.exit(130)  # as `cli` says after Ctrl-C
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: it could only break what Python does at its end
        exec("")  # Python remembers a Ctrl-C that came in text it ran, as of a class being made, and would end by the signal


if __name__ == "__main__":
    main()
