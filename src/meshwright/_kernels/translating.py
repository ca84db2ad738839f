"""What is done by Numba itself: kernels into machine code, and what has to be known to run that without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, typeof, types

from meshwright._kernels.kept import OPTIONS, Code

__all__ = ["compiled", "dispatcher", "kind_of"]


def dispatcher(function: Callable[..., Any], *, from_python: bool, **more: str) -> Any:
    """Return what Numba compiles a function by, once for numbers and not once more for each constant in a call.

    Parameters
    ----------
    function : callable
        The loops.
    from_python : bool
        Whether it gets an entry for Python.
    **more
        Options of ``njit``.

    Returns
    -------
    Dispatcher
        Nothing is compiled yet.
    """
    made = njit(**dict(OPTIONS), **more, no_cpython_wrapper=not from_python)(function)
    template_of = made.get_call_template
    made.get_call_template = lambda arguments, names: template_of([types.unliteral(kind) for kind in arguments], names)
    if not from_python:  # Numba would keep its entry for Python, which it has not
        made.add_overload = lambda one: made.overloads.update({tuple(one.signature.args): one})
    return made


def kind_of(made: Any) -> Any:
    """Return the type that Numba gives to what it compiles a function by."""
    return types.Dispatcher(made)


def compiled(made: Any, arguments: tuple[object, ...]) -> tuple[Callable[..., Any], Code]:
    """Compile a kernel for arguments like these.

    Parameters
    ----------
    made : Dispatcher
        Of the kernel.
    arguments : tuple
        As it is called.

    Returns
    -------
    (callable, Code)
        The kernel for such arguments, and what later runs need of it.
    """
    kinds = tuple(types.unliteral(typeof(argument)) for argument in arguments)
    made.compile(kinds)
    result = made.overloads[kinds]
    _, _, (machine_code, _) = result.library.serialize_using_object_code()
    module, described = result.library._final_module, result.fndesc
    named = [*module.functions, *module.global_variables]
    environments = {each.env_name: tuple(each.consts) for each in (*result._find_referenced_environments(), result.environment)}
    return result.entry_point, Code(
        described.llvm_cpython_wrapper_name,
        described.env_name,
        tuple(environments.items()),
        tuple(sorted(each.name for each in named if each.is_declaration and not each.name.startswith("llvm."))),
        machine_code,
    )
