"""Processes that end with the one that started them, whatever ends it."""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["hold"]


def hold() -> None:
    """End this process once its standard input closes, which its launcher holds open; leave Ctrl-C to the launcher.

    A launcher that is killed cannot end anybody, but the system closes what it held. User code finds an empty input.
    """
    held = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        os.read(held, 1)  # returns at the end of the input only: nothing is ever written to it
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
