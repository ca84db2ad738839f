"""Models and plans of the folder above serve here too."""

from __future__ import annotations

import pathlib
import sys

_ABOVE = str(pathlib.Path(__file__).resolve().parents[1])
if _ABOVE not in sys.path:
    sys.path.insert(0, _ABOVE)
