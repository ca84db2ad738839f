"""Compiles a kernel when it is first called, and keeps the machine code for later runs: `kernel`, in place of ``njit``.

Numba keeps what it compiles beside the source and checks that one file only: code with an older function of another file in it,
or for an older class of arguments, is found again. Here a file's name says all that its code was made from, it is written in
one piece, and a file that cannot be read counts as none.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import platform
import re
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba import config, njit, types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

__all__ = ["KernelCache", "KernelCacheWarning", "kernel", "part", "places"]

_OPTIONS = (("nogil", True), ("no_cfunc_wrapper", True))
"""How Numba compiles every kernel: without the interpreter's lock, and with nothing that C could call."""

_IMPORT = re.compile(r"^\s*(?:from|import) (meshwright\._kernels[\w.]*)(?: import ([\w, ]+|\([^)]*\)))?", re.M)


class KernelCacheWarning(UserWarning):
    """No folder can be written: kernels are compiled anew in every process."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function by Numba, without the interpreter's lock, for each types of arguments that it is called with.

    Parameters
    ----------
    function : callable
        Arrays and numbers in, arrays and numbers out.

    Returns
    -------
    Dispatcher
        The function as it is where Numba is switched off.
    """
    compiled = _compiled(function)
    if compiled is not function:
        compiled._cache = KernelCache(function)
    return compiled


def part(function: Callable[..., Any]) -> Any:
    """Compile a function into every kernel that calls it: it cannot be called from Python and is not kept by itself.

    Parameters
    ----------
    function : callable
        Like a kernel.

    Returns
    -------
    Dispatcher
        The function as it is where Numba is switched off.
    """
    compiled = _compiled(function, no_cpython_wrapper=True)
    if compiled is not function:  # without its wrapper a call from Python would end the process
        compiled._compile_for_args = partial(_refuse, function.__qualname__)
        compiled.add_overload = lambda made: compiled.overloads.update({tuple(made.signature.args): made})
    return compiled


def _refuse(name: str, *arguments: object, **named: object) -> None:
    raise TypeError(f"{name} is a part of kernels and cannot be called from Python: call a kernel that has it")


def _compiled(function: Callable[..., Any], **more: bool) -> Any:
    """Return the function for Numba to compile, once for numbers and not once more for each constant in a call."""
    _digest_of(function.__module__)  # now, while the file is the one that was imported
    compiled = njit(**dict(_OPTIONS), **more)(function)
    if compiled is not function:
        template_of = compiled.get_call_template
        compiled.get_call_template = lambda arguments, names: template_of([types.unliteral(kind) for kind in arguments], names)
    return compiled


class KernelCache(NullCache):  # type: ignore[misc]  # Numba has no types
    """Machine code of one kernel, in one file for each types of its arguments.

    Parameters
    ----------
    function : callable
        The kernel.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def load_overload(self, sig: tuple[Any, ...], target_context: Any) -> Any:
        """Return the code for these types of arguments, None where it has to be compiled.

        Parameters
        ----------
        sig : tuple of numba.types.Type
            Types of the arguments.
        target_context : numba.core.base.BaseContext
            What the code is for.

        Returns
        -------
        CompileResult or None
        """
        name = self._file(sig)
        rtsys.initialize(target_context)  # all that finished code needs; what compiling needs takes Numba 0.6 s to load
        for place in places():
            try:
                return CompileResult._rebuild(target_context, *pickle.loads((place / name).read_bytes()))
            except FileNotFoundError:
                continue
            except Exception:  # damaged, or of no use here: whatever reading it raises, compiling it anew replaces it
                continue
        target_context.refresh()
        _announce(self._function.__module__.split(".")[2])
        return None

    def save_overload(self, sig: tuple[Any, ...], data: Any) -> None:
        """Keep code for these types of arguments.

        Parameters
        ----------
        sig : tuple of numba.types.Type
            Types of the arguments.
        data : CompileResult
            What was compiled for them.
        """
        code = dumps(data._reduce())
        for place in places():
            try:
                _write(place / self._file(sig), code)
            except OSError:
                continue
            return
        _warn(tuple(str(place) for place in places()))

    def _file(self, sig: tuple[Any, ...]) -> str:
        """Return the name of the file for these types: of the kernel, its sources and all that its types are made of."""
        module = self._function.__module__
        made_from = (_sources(module), [_spelled(argument) for argument in sig])
        name = f"{module.removeprefix('meshwright._kernels.')}.{self._function.__qualname__}"
        return f"{name}-{_digest(made_from)}.kernel"


@cache
def places() -> tuple[Path, ...]:
    """Return the folders in which compiled kernels are looked for; they are kept in the first that can be written.

    Returns
    -------
    tuple of Path
        Numba's ``NUMBA_CACHE_DIR`` alone where it is set; else the user's cache folder, the package itself and the folder of
        temporary files, where that is the user's own. In each a folder for these versions, this processor and these settings.
    """
    features = llvmlite.binding.get_host_cpu_features().flatten()
    processor = (sys.platform, platform.machine(), llvmlite.binding.get_host_cpu_name(), features)
    versions = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
    names = ("OPT", "BOUNDSCHECK", "CPU_NAME", "CPU_FEATURES", "LOOP_VECTORIZE", "SLP_VECTORIZE")
    here = _digest((processor, versions, _OPTIONS, [str(getattr(config, name)) for name in names]))
    return tuple(folder / here for folder in _folders())


def _folders() -> Iterator[Path]:
    """Yield the folders that may hold kernels of any version and processor, best first."""
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR) / "meshwright"
        return
    home = Path(AppDirs("meshwright", appauthor=False).user_cache_dir)
    if home.is_absolute():  # without a home it is "~/.cache", spelled so
        yield home / "kernels"
    yield Path(__file__).parent / "__pycache__"
    yield from _own_temporary_folder()


def _own_temporary_folder() -> Iterator[Path]:
    """Yield a folder for temporary files that no other user can have laid code into."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"meshwright-kernels-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
    except OSError:
        return
    if found.st_uid == user and not found.st_mode & 0o022:
        yield folder


def _write(path: Path, code: bytes) -> None:
    """Write a file in one piece: other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(code)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _digest(made_from: object) -> str:
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:20]


def _spelled(kind: Any) -> object:
    """Return a type's name, with the fields of the named tuples in it, which their names do not say."""
    inner = [_spelled(part) for part in kind.types] if isinstance(kind, types.BaseTuple) else []
    return str(kind), getattr(getattr(kind, "instance_class", None), "_fields", ()), inner


@cache
def _sources(module: str) -> tuple[tuple[str, str], ...]:
    """Return name and digest of a kernels' file and of all files that it imports, and so on."""
    found: dict[str, str] = {}
    left = [module]
    while left:
        name = left.pop()
        if name in found or name == __name__:  # what this file does to kernels stands in `_OPTIONS`
            continue
        found[name], imported = _digest_of(name)
        left += imported
    return tuple(sorted(found.items()))


@cache
def _digest_of(module: str) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a kernels' file and what it imports, modules and names in them; both empty for no file."""
    path = Path(__file__).parent.joinpath(*module.split(".")[2:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.exists():
            text = file.read_text()
            imported = [
                (package, *(f"{package}.{word}" for word in re.findall(r"\w+", words)))
                for package, words in _IMPORT.findall(text)
            ]
            return _digest(text), tuple(name for names in imported for name in names)
    return "", ()


@cache
def _announce(group: str) -> None:
    """Say what is compiled and why, once for each folder of kernels."""
    logging.getLogger(__name__).warning("meshwright: compiling kernels of %s for their first use (kept for later runs)", group)


@cache
def _warn(tried: tuple[str, ...]) -> None:
    said = f"none of these folders can be written: {', '.join(tried)}; kernels are compiled anew in every process"
    warnings.warn(f"{said}; NUMBA_CACHE_DIR names another folder", KernelCacheWarning, stacklevel=2)
