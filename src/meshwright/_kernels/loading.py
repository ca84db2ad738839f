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
import contextlib
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

import llvmlite.binding as llvm

from meshwright._kernels import kept

__all__ = ["linked", "load"]

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
    functions = _functions()
    missing = [name for name in code.needs if not llvm.address_of_symbol(name) and not hasattr(ctypes.pythonapi, name)]
    if missing:  # the linker would end the process
        raise ImportError(f"{code.entry} calls {', '.join(missing)}, which is not there")
    engine = _engine(code.machine_code)
    own: Any = None
    for name, values in code.environments:
        environment = functions.Environment(module.__dict__)
        environment.consts.extend(values)
        own = environment if name == code.environment else own
        address = engine.get_global_value_address(name)
        if address:
            _kept_alive().append(environment)
            ctypes.c_void_p.from_address(address).value = id(environment)
    entry = engine.get_function_address(code.entry)
    if not entry or own is None:
        raise ImportError(f"{code.entry} is not in its file")
    made: Callable[..., Any] = functions.make_function(module, code.entry, "", entry, own, (engine,))
    return made


def _engine(machine_code: bytes) -> Any:
    """Return what holds machine code that can be called."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    return engine


def _machine() -> Any:
    """Return what makes code for this processor."""
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)


@cache
def _kept_alive() -> list[Any]:
    """Return what machine code points to: for as long as the process runs, as the code itself."""
    return []


@cache
def _functions() -> Any:
    """Make the functions known that machine code calls; return the module that makes functions of Python."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if "numba" in sys.modules:
        importlib.import_module("numba.core.registry").cpu_target.target_context.refresh()
    memory, helpers, functions = (_c_module(name) for name in _MODULES)
    for name, address in memory.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    for name, address in (*helpers.c_helpers.items(), *functions.c_helpers.items()):
        llvm.add_symbol(f"numba_{name}", address)
    llvm.add_symbol("_Py_NoneStruct", id(None))
    for name in ("PyBytes_FromStringAndSize", "PyObject_CallFunctionObjArgs", "Py_DecRef"):
        llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
    for kind in vars(builtins).values():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            llvm.add_symbol(f"PyExc_{kind.__name__}", id(kind))
    unpickle = _unpickle()  # here too if Numba's own is used: runs that cannot write to the folder find it then
    if "numba" not in sys.modules:  # Numba's own imports Numba
        llvm.add_symbol("pickle_loads", id(pickle.loads))
        engine = _engine(unpickle)
        _kept_alive().append(engine)
        llvm.add_symbol("numba_unpickle", engine.get_function_address("unpickle"))
    return functions


def _unpickle() -> bytes:
    """Return `_UNPICKLE` as machine code: kept too, as making it reads a tenth of LLVM into memory, for nothing else."""
    name = kept.file_of(__name__, "unpickle", (_UNPICKLE,))
    for place in kept.places():
        with contextlib.suppress(Exception):  # not there or damaged: it is made anew
            return kept.read(place / name).machine_code
    made: bytes = _machine().emit_object(llvm.parse_assembly(_UNPICKLE))
    kept.save(name, kept.Code("unpickle", "", (), (), made))
    return made


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
