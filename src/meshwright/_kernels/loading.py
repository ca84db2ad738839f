"""Links kept machine code and calls it as Numba does, with Numba's own C modules but without importing Numba.

Machine code of a kernel calls functions of three C modules of Numba (its memory, its entry for Python) and of the Python
that runs. They stand in files of their own, which can be loaded without the package around them; the folder of kept code
is that of one release of Numba, llvmlite, NumPy and Python, so the code meets what it was made for. Numba can be imported at
any time before or after. Each kernel has a linker of its own: names in it cannot meet those of another.

References
----------
Numba, ``numba/core/base.py`` and ``numba/core/runtime/nrt.py``: which names it gives to these functions;
``CompileResult._rebuild`` in ``numba/core/compiler.py``: what it does with code from its own cache.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import importlib.machinery
import importlib.util
import pickle
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from meshwright._kernels import images, kept

__all__ = ["linked", "load", "unpickle_image"]

_UNPICKLE = """
declare i8* @PyBytes_FromStringAndSize(i8*, i64)
declare i8* @PyObject_CallFunctionObjArgs(i8*, ...)
declare void @Py_DecRef(i8*)
@pickle_loads = external global i8
define i8* @unpickle(i8* %data, i32 %size, i8* %digest) {
  %wide = sext i32 %size to i64
  %pickled = call i8* @PyBytes_FromStringAndSize(i8* %data, i64 %wide)
  %found = call i8* (i8*, ...) @PyObject_CallFunctionObjArgs(i8* @pickle_loads, i8* %pickled, i8* null)
  call void @Py_DecRef(i8* %pickled)
  ret i8* %found
}
"""
"""What machine code calls for what it holds pickled: a class of named tuples that it returns, an error that it raises.

No function of Python, in which Ctrl-C could be raised: machine code would go on without what it asked for and end the process.
"""

_MODULES = ("numba.core.runtime._nrt_python", "numba._helperlib", "numba._dynfunc")


def load(name: str, module: str) -> Callable[..., Any] | None:
    """Return kept code as a function.

    Parameters
    ----------
    name : str
        Its file.
    module : str
        Where the kernel stands.

    Returns
    -------
    callable or None
        None where none is kept, or none that can be used.
    """
    for place in kept.places():
        try:
            return linked(kept.read(place / name), sys.modules[module])
        except FileNotFoundError:
            continue
        except Exception:  # damaged, or of no use here: whatever reading it raises, compiling it anew replaces it
            continue
    return None


def linked(code: kept.Code, module: ModuleType) -> Callable[..., Any]:
    """Return the entry for Python of machine code.

    Parameters
    ----------
    code : Code
        Of a kernel.
    module : module
        Where the kernel stands.

    Returns
    -------
    callable
        The kernel.

    Raises
    ------
    ImportError
        When the code calls what is not there.
    """
    functions, known = _functions()
    address_in, held = _placed(code, known) if code.image else _linked_by_llvm(code, known)
    own: Any = None
    for name, values in code.environments:
        environment = functions.Environment(module.__dict__)
        environment.consts.extend(values)
        own = environment if name == code.environment else own
        address = address_in(name)
        if address:
            _kept_alive().append(environment)
            ctypes.c_void_p.from_address(address).value = id(environment)
    entry = address_in(code.entry)
    if not entry or own is None:
        raise ImportError(f"{code.entry} is not in its file")
    made: Callable[..., Any] = functions.make_function(module, code.entry, "", entry, own, (held,))
    return made


def unpickle_image() -> images.Image | None:
    """Return the machine code that stands for Numba's function which unpickles, laid out; None where code is not."""
    import llvmlite.binding as llvm

    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(codemodel="large", jit=True)
    return images.laid_out(machine.emit_object(llvm.parse_assembly(_UNPICKLE)))


_Linked = tuple[Callable[[str], int | None], Any]
"""What says where in the code a name lies, and what keeps the code."""


def _placed(code: kept.Code, known: dict[str, int]) -> _Linked:
    """Put machine code that is laid out into memory."""

    def address_of(name: str) -> int:
        if name not in known and name == "numba_unpickle" and code.unpickle is not None:
            unpickle = images.placed(code.unpickle, address_of)
            _kept_alive().append(unpickle)
            known[name] = unpickle.addresses["unpickle"]
        if name not in known:
            function = getattr(ctypes.pythonapi, name, None)
            if function is None:
                raise ImportError(f"{code.entry} calls {name}, which is not there")
            known[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
        return known[name]

    assert code.image is not None
    found = images.placed(code.image, address_of)
    return found.addresses.get, found.memory


def _linked_by_llvm(code: kept.Code, known: dict[str, int]) -> _Linked:
    """Let LLVM put machine code into memory, as Numba does."""
    import llvmlite.binding as llvm

    _tell_llvm(tuple(known.items()))
    missing = [name for name in code.needs if not llvm.address_of_symbol(name) and not hasattr(ctypes.pythonapi, name)]
    if missing:  # the linker would end the process
        raise ImportError(f"{code.entry} calls {', '.join(missing)}, which is not there")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.machine_code))
    engine.finalize_object()
    address_in: Callable[[str], int] = engine.get_global_value_address
    return (lambda name: engine.get_function_address(name) if name == code.entry else address_in(name)), engine


@cache
def _tell_llvm(known: tuple[tuple[str, int], ...]) -> None:
    """Make functions known to LLVM; without Numba, whose own imports Numba, also the one that unpickles."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if "numba" in sys.modules:
        importlib.import_module("numba.core.registry").cpu_target.target_context.refresh()
    for name, address in known:
        llvm.add_symbol(name, address)
    for name in ("PyBytes_FromStringAndSize", "PyObject_CallFunctionObjArgs", "Py_DecRef"):
        llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
    if "numba_unpickle" not in dict(known):
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_UNPICKLE), _machine())
        engine.finalize_object()
        _kept_alive().append(engine)
        llvm.add_symbol("numba_unpickle", engine.get_function_address("unpickle"))


def _machine() -> Any:
    """Return what makes code for this processor."""
    import llvmlite.binding as llvm

    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)


@cache
def _kept_alive() -> list[Any]:
    """Return what machine code points to: for as long as the process runs, as the code itself."""
    return []


@cache
def _functions() -> tuple[Any, dict[str, int]]:
    """Return the module that makes functions of Python, and where that lies which machine code calls, by name."""
    memory, helpers, functions = (_c_module(name) for name in _MODULES)
    known = {name if name.startswith("_") else f"NRT_{name}": address for name, address in memory.c_helpers.items()}
    known |= {f"numba_{name}": address for name, address in (*helpers.c_helpers.items(), *functions.c_helpers.items())}
    known |= {
        f"PyExc_{kind.__name__}": id(kind)
        for kind in vars(builtins).values()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    known |= {"_Py_NoneStruct": id(None), "pickle_loads": id(pickle.loads)}
    if "numba" not in sys.modules:
        known.pop("numba_unpickle", None)  # that of Numba imports Numba
    return functions, known


def _c_module(name: str) -> ModuleType:
    """Return a C module of Numba: Numba's own where that is imported, else loaded by itself."""
    if "numba" in sys.modules:
        return importlib.import_module(name)
    package = importlib.util.find_spec("numba")
    roots = [] if package is None else list(package.submodule_search_locations or ())
    inside = name.split(".")[1:-1]
    found = importlib.machinery.PathFinder.find_spec(name, ["/".join((root, *inside)) for root in roots])
    if found is None or found.loader is None:
        return importlib.import_module(name)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    sys.modules.pop(name, None)  # where the loader of C modules puts it; an import of Numba finds it in its own way
    return module
