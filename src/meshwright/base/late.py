"""Packages that are loaded when something of them is first used, wherever in our modules they are imported."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

__all__ = ["load_when_used"]


class _Late(ModuleType):
    """A module before it is loaded; it becomes the module itself."""

    def __getattr__(self, name: str) -> object:
        """Load the module for the first name that is asked of it; only names that are not there yet come here."""
        spec = self.__spec__
        if (name.startswith("__") and name != "__path__") or spec is None or spec.loader is None:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}' before it is loaded")
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = list(spec.submodule_search_locations or ())
        try:
            spec.loader.exec_module(self)
        except BaseException:  # as after an import that failed or was interrupted: the next one tries again
            sys.modules.pop(self.__name__, None)
            raise
        return getattr(self, name)


def load_when_used(name: str) -> None:
    """Let ``import NAME`` cost nothing until something of the package is used; where it is loaded, or is not there, nothing
    changes.

    Parameters
    ----------
    name : str
        A package at the top: ``"numpy"``.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.loader is not None:
        late = _Late(name, None)
        late.__spec__, late.__loader__, late.__file__ = spec, spec.loader, spec.origin
        sys.modules[name] = late
