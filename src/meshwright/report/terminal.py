"""How wide the terminal is that an answer is printed on."""

from __future__ import annotations

import os
import sys

__all__ = ["columns"]

_LEAST = 40


def columns() -> int:
    """Return the characters of a line of the terminal; 0 where output goes elsewhere, which takes lines of any length."""
    try:
        return max(_LEAST, os.get_terminal_size(sys.stdout.fileno()).columns) if sys.stdout.isatty() else 0
    except (AttributeError, OSError, ValueError):  # no output, or one without a file behind it
        return 0
