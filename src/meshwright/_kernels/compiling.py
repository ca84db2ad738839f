"""Marks loops for Numba: `kernel`, `part` and `inlined`, in place of ``njit``; their machine code is kept for later runs.

A kernel is compiled when it is first called with arguments of some types. Its code is kept (`kept`), and later runs link and
call it without Numba (`loading`), whose import alone takes longer than most plans: only what is not kept yet loads Numba
(`translating`).
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright._kernels import kept
from meshwright._kernels.compilation import COMPILATION

__all__ = ["Kernel", "KernelPart", "inlined", "kernel", "part"]

_C_ORDER, _ANY_ORDER = 0x501, 0x503
"""Flags of an array that its type depends on: whether it is aligned, can be written and, unless in C order, its order."""

_SCALARS = MappingProxyType({bool: "|b1", float: np.dtype(float).str, type(None): "none"})
"""How the types of numbers are spelled, those of NumPy's numbers being ``dtype.str``."""

_LOGGER = logging.getLogger(__name__)

_TOLD_SECONDS = 4.0
"""Between two lines about a kernel that is compiled, as between two of what shows progress."""

_INTEGERS = (np.dtype(np.int64).str, np.dtype(np.uint64).str)


def kernel(function: Callable[..., Any] | None = None, *, allocates: bool = False) -> Any:
    """Compile a function by Numba, without the interpreter's lock, for each types of arguments that it is called with.

    Parameters
    ----------
    function : callable
        Arrays and numbers in, numbers out.
    allocates : bool
        Whether it makes arrays, or returns some. Otherwise it counts no references to any, which is most of what a function has
        to be compiled for that takes arrays by the dozen.

    Returns
    -------
    Kernel
        The function as it is where Numba is switched off.
    """
    if function is None:
        return functools.partial(kernel, allocates=allocates)
    return _marked(functools.partial(Kernel, _nrt=allocates), function)


def part(function: Callable[..., Any] | None = None, *, allocates: bool = False) -> Any:
    """Compile a function into every kernel that calls it: it cannot be called from Python and is not kept by itself.

    Parameters
    ----------
    function : callable
        Like a kernel.
    allocates : bool
        The same; a kernel need not say it of itself because of what makes arrays inside and returns none.

    Returns
    -------
    KernelPart
        The function as it is where Numba is switched off.
    """
    if function is None:
        return functools.partial(part, allocates=allocates)
    return _marked(functools.partial(KernelPart, _nrt=allocates), function)


def inlined(function: Callable[..., Any]) -> Any:
    """Write the lines of a function into every kernel that calls it, before Numba looks at types; else as `part`.

    Parameters
    ----------
    function : callable
        Like a kernel.

    Returns
    -------
    KernelPart
        The function as it is where Numba is switched off.
    """
    return _marked(functools.partial(KernelPart, inline="always"), function)


def _marked(made: Callable[[Callable[..., Any]], Any], function: Callable[..., Any]) -> Any:
    """Return a kernel or part, or the function itself where Numba is switched off."""
    if kept.settings().get("NUMBA_DISABLE_JIT", "0") not in ("0", ""):
        return function
    kept.digest_of(function.__module__)  # now, while the file is the one that was imported
    return made(function)


class KernelPart:
    """A function that Numba compiles into others.

    Parameters
    ----------
    function : callable
        The loops.
    **more
        Options of ``njit``.

    Attributes
    ----------
    py_func : callable
        The function as plain Python.
    targetoptions : mapping of str to str or bool
        What Numba looks up in what a kernel calls: whether to inline it.
    """

    def __init__(self, function: Callable[..., Any], **more: str | bool) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.targetoptions: Mapping[str, str | bool] = MappingProxyType(more)
        self._dispatcher: Any = None

    def dispatcher(self) -> Any:
        """Return what Numba compiles this by; loads Numba.

        Returns
        -------
        Dispatcher
            The same at every call.
        """
        if self._dispatcher is None:
            from meshwright._kernels import translating

            self._dispatcher = translating.dispatcher(self.py_func, from_python=isinstance(self, Kernel), **self.targetoptions)
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes this for, where a kernel names it."""
        from meshwright._kernels import translating

        return translating.kind_of(self.dispatcher())

    def __reduce__(self) -> str:
        """Pickle this by its name, like a function."""
        return self.py_func.__qualname__

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Refuse: it has no entry for Python.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            f"{self.py_func.__qualname__} is a part of kernels and cannot be called from Python: call a kernel that has it"
        )


class Kernel(KernelPart):
    """A function that Numba compiles for each types of arguments that it is called with, once for all runs."""

    def __init__(self, function: Callable[..., Any], **more: str | bool) -> None:
        super().__init__(function, **more)
        self._n_arguments = function.__code__.co_argcount
        self._codes: dict[object, Callable[..., Any]] = {}  # by what is quickly told of arguments, then by how they are spelled
        self._of_kinds: dict[object, Callable[..., Any]] = {}

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Run the machine code for arguments of these types, compiling it where it is not kept.

        Raises
        ------
        TypeError
            When an argument is missing, too many, or no array, number or tuple of them.
        """
        if named or len(arguments) != self._n_arguments:
            bound = inspect.signature(self.py_func).bind(*arguments, **named)
            bound.apply_defaults()
            arguments = bound.args
        key = tuple([_key(argument) for argument in arguments])
        code = self._codes.get(key)
        if code is None:
            kinds = tuple([spelled(argument) for argument in arguments])
            if kinds not in self._of_kinds:
                self._of_kinds[kinds] = self._code(kinds, arguments)
            code = self._codes[key] = self._of_kinds[kinds]
        try:
            return code(*arguments)
        except SystemError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):  # came while the code made a named tuple of what it returns
                raise error.__cause__ from None
            raise

    def _code(self, kinds: tuple[object, ...], arguments: tuple[object, ...]) -> Callable[..., Any]:
        """Return machine code for arguments of some types: as it was kept, or made and kept now."""
        from meshwright._kernels import loading

        module = self.py_func.__module__
        name = kept.file_of(module, self.py_func.__qualname__, kinds)
        found = loading.load(name, module)
        if found is not None:
            return found
        _announce(module.split(".")[2])
        from meshwright._kernels import translating

        with COMPILATION.of(self.py_func.__name__.lstrip("_")), _told(), _uncollected():
            code = translating.compiled(self.dispatcher(), arguments)
        kept.save(name, code)
        return loading.linked(code, sys.modules[module])


def _key(value: Any) -> object:
    """Return what tells types of arguments apart in this process, found quicker than how they are spelled (`spelled`).

    Several may be of one type: arrays of one row or column are in both orders.
    """
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype, value.ndim, value.flags.num & _ANY_ORDER
    if kind is int:
        return value >= 2**63
    if isinstance(value, tuple):  # of arrays mostly: a call for each would take longer than the rest
        return kind, tuple(
            [
                (inner.dtype, inner.ndim, inner.flags.num & _ANY_ORDER) if type(inner) is np.ndarray else _key(inner)
                for inner in value
            ]
        )
    return kind


def spelled(value: object) -> object:
    """Return the type of an argument as Numba sees it, and how it is spelled where it is a named tuple.

    Parameters
    ----------
    value : array, number, None, generator of random numbers, or tuple of such
        An argument of a kernel.

    Returns
    -------
    str or tuple
        Equal for arguments that the same machine code is for.

    Raises
    ------
    TypeError
        When it is none of these.
    """
    kind = type(value)
    if kind is np.ndarray:
        flags = value.flags.num  # type: ignore[attr-defined]
        return value.dtype.str, value.ndim, flags & (_C_ORDER if flags & 1 else _ANY_ORDER)  # type: ignore[attr-defined]
    if kind is int:
        return _INTEGERS[value >= 2**63]  # type: ignore[operator]
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(value, tuple):
        return kind.__qualname__, getattr(kind, "_fields", ()), tuple([spelled(inner) for inner in value])
    if isinstance(value, np.generic):
        return value.dtype.str
    if "numpy.random" in sys.modules and kind is np.random.Generator:  # there are none before it is loaded, which takes time
        return "generator"
    raise TypeError(f"kernels take arrays, numbers and tuples of them, not {kind.__module__}.{kind.__qualname__}")


@contextmanager
def _told() -> Iterator[None]:
    """Say every few seconds that a kernel is still being compiled, where nobody else does."""
    if COMPILATION.n_tellers:
        yield
        return
    done = threading.Event()

    def tell() -> None:
        while not done.wait(_TOLD_SECONDS):
            if words := COMPILATION.words:
                _LOGGER.warning("meshwright: %s ...", words)

    thread = threading.Thread(target=tell, daemon=True)
    try:
        thread.start()
        yield
    finally:
        done.set()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Do without Python's search for circles of dead objects, which takes a twelfth of all seconds and finds few here."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def _announce(group: str) -> None:
    """Say what is compiled and why, once for each folder of kernels."""
    _LOGGER.warning("meshwright: compiling kernels of %s for their first use (kept for later runs)", group)
