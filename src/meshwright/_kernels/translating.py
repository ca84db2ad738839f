"""What is done by Numba itself: kernels into machine code, and what has to be known to run that without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, typeof, types
from numba.core import ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from meshwright._kernels.kept import OPTIONS, Code

__all__ = ["compiled", "dispatcher", "kind_of"]


_NOT_NEEDED = (
    "WithLifting", "InlineClosureLikes", "RewriteSemanticConstants", "DeadBranchPrune", "RewriteDynamicRaises",
    "MakeFunctionToJitFunction", "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass", "InlineOverloads",
    "NopythonRewrites", "NoPythonSupportedFeatureValidation", "AnnotateTypes", "DumpParforDiagnostics",
)  # fmt: skip
"""Passes for what no kernel has: closures, comprehensions, ``with``, branches for what is None, errors with a text of the
moment, tuples of unlike things that are looped over, long expressions of whole arrays.
"""


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a part, which runs inside kernels only: it is turned into machine code with each of those, not alone."""

    def _optimize_final_module(self) -> None:
        """Leave that to kernels, which optimise all that they are made of."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):  # type: ignore[misc]
    """Numba's own way from types to LLVM's language, for functions that count references or need not."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        if not state.flags.nrt:
            _refuse_arrays_returned(state)
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(_KernelLowering):
    """The same, but for the library and that there is nothing to be called from Python."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        called = object()  # what kernels know it by; Numba's own is its function for Python
        state.targetctx.insert_user_function(called, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=called)
        return True


class _KernelCompiler(Compiler):  # type: ignore[misc]
    """Numba's own passes without those for what kernels have not."""

    lowering: type = _KernelLowering

    def define_pipelines(self) -> list[Any]:
        made = super().define_pipelines()
        for one in made:
            kept = [(each, why) for each, why in one.passes if each.__name__ not in _NOT_NEEDED]
            one.passes = [(self.lowering if each is NativeLowering else each, why) for each, why in kept]
            one.finalize()
        return list(made)


class _PartCompiler(_KernelCompiler):
    """The same with `_PartLowering`."""

    lowering = _PartLowering


def _refuse_arrays_returned(state: Any) -> None:
    """Raise `TypeError` where a function that counts no references returns arrays, or is given some by a part."""
    calls = [one for one in state.calltypes if isinstance(one, ir.Expr) and one.op == "call"]
    parts = [one for one in calls if isinstance(state.typemap[one.func.name], types.Dispatcher)]
    models = state.targetctx.data_model_manager
    for kind in (state.return_type, *(state.calltypes[one].return_type for one in parts)):
        if models[kind].contains_nrt_meminfo():
            raise TypeError(f"{state.func_id.func_qualname} hands on arrays that a function made: it needs allocates=True")


def dispatcher(function: Callable[..., Any], *, from_python: bool, **more: str | bool) -> Any:
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
    own = {"pipeline_class": _KernelCompiler} if from_python else {"no_cpython_wrapper": True, "pipeline_class": _PartCompiler}
    made = njit(**dict(OPTIONS) | more, **own)(function)
    template_of = made.get_call_template
    made.get_call_template = lambda arguments, names: template_of([types.unliteral(kind) for kind in arguments], names)
    if not from_python:  # Numba would keep its entry for Python, which it has not
        made.add_overload = lambda one: made.overloads.update({tuple(one.signature.args): one})
    return made


def kind_of(made: Any) -> Any:
    """Return the type that Numba gives to what it compiles a function by."""
    return types.Dispatcher(made)


def compiled(made: Any, arguments: tuple[object, ...]) -> Code:
    """Compile a kernel for arguments like these.

    Parameters
    ----------
    made : Dispatcher
        Of the kernel.
    arguments : tuple
        As it is called.

    Returns
    -------
    Code
        The kernel for such arguments, for `loading.linked`: what Numba itself would run lacks what belongs to parts.
    """
    kinds = tuple(types.unliteral(typeof(argument)) for argument in arguments)
    made.compile(kinds)
    result = made.overloads[kinds]
    _, _, (machine_code, _) = result.library.serialize_using_object_code()
    module, described = result.library._final_module, result.fndesc
    named = [*module.functions, *module.global_variables]
    environments = {each.env_name: tuple(each.consts) for each in (*result._find_referenced_environments(), result.environment)}
    return Code(
        described.llvm_cpython_wrapper_name,
        described.env_name,
        tuple(environments.items()),
        tuple(sorted(each.name for each in named if each.is_declaration and not each.name.startswith("llvm."))),
        machine_code,
    )
