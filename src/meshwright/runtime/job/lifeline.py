"""Processes that end with the one that started them, whatever ends it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress

__all__ = ["end_with_agent", "hold"]

_PR_SET_PDEATHSIG = 1


def hold() -> None:
    """End this process once its standard input closes, which its launcher holds open; leave Ctrl-C to the launcher.

    A launcher that is killed cannot end anybody, but the system closes what it held. User code finds an empty input. Linux is
    also asked to kill this process with its parent: one that was stopped, or never comes back from a call, reads nothing.
    """
    _die_with_parent()
    held = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        os.read(held, 1)  # returns at the end of the input only: nothing is ever written to it
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_with_agent() -> None:
    """End this process with the agent of torchrun that started it, if one did: torchrun leaves that to nobody where it is
    killed, and its workers would train on.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _die_with_parent()


def _die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies, which may be a program between the launcher and us (`ip netns exec`)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before we had asked
        os._exit(1)
