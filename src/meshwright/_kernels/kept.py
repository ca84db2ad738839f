"""Where the machine code of kernels is kept, and under which names.

Numba keeps what it compiles beside the source and checks that one file only: code with an older function of another file in it,
or for an older class of arguments, is found again. Here a file's name says all that its code was made from, it is written in
one piece and begins with a digest of the rest: one that was damaged since counts as none, as its code might end the process
or count wrongly.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import platform
import re
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["OPTIONS", "Code", "KernelCacheWarning", "digest_of", "file_of", "places", "read", "save", "settings"]

OPTIONS = (("nogil", True), ("no_cfunc_wrapper", True), ("_nrt", False))
"""How Numba compiles every kernel: without the interpreter's lock, with nothing that C could call and, unless the kernel says
otherwise, without counting references to arrays."""

_IMPORT = re.compile(r"^\s*(?:from|import) (meshwright\._kernels[\w.]*)(?: import ([\w, ]+|\([^)]*\)))?", re.M)

_NO_CODE = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY")
"""Settings that change no machine code of a kernel on one thread; joblib, Dask and Ray set the number for their workers."""

_DIGEST_BYTES = hashlib.sha256().digest_size
"""At the beginning of a file."""

_OURS = ("compilation", "compiling", "kept", "loading", "translating")
"""Files that no kernel's code is made from; what they do to it stands in `OPTIONS`."""


class KernelCacheWarning(UserWarning):
    """No folder can be written: kernels are compiled anew in every process."""


class Code(NamedTuple):
    """A kernel's machine code for some types of arguments, and what has to be known to run it."""

    entry: str  # its function for Python
    environment: str  # the name of its own environment
    environments: tuple[tuple[str, tuple[object, ...]], ...]  # names, and the objects of Python that the code holds
    needs: tuple[str, ...]  # functions and values outside the code that it uses
    machine_code: bytes


@cache
def settings() -> Mapping[str, str]:
    """Return Numba's settings, from the environment and from its file in the present folder, as Numba reads them.

    Returns
    -------
    mapping of str to str
        ``NUMBA_...``; looked up once, as Numba does where it is imported.
    """
    found: dict[str, str] = {}
    file = Path(".numba_config.yaml")
    if file.is_file():
        import yaml

        found = {f"NUMBA_{name.upper()}": str(value) for name, value in (yaml.safe_load(file.read_text()) or {}).items()}
    return MappingProxyType(found | {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")})


def save(name: str, code: Code) -> None:
    """Keep code in the first folder that can be written, and warn where there is none.

    Parameters
    ----------
    name : str
        Its file.
    code : Code
        What was compiled.
    """
    for place in places():
        try:
            _write(place / name, _with_digest(pickle.dumps(tuple(code))))
        except OSError:
            continue
        return
    _warn(tuple(str(place) for place in places()))


def read(path: Path) -> Code:
    """Return the code in a file.

    Parameters
    ----------
    path : Path
        In one of `places`.

    Returns
    -------
    Code
        As it was kept, to the last bit.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    ValueError
        When the file is not as it was written.
    """
    found = path.read_bytes()
    pickled = found[_DIGEST_BYTES:]
    if found != _with_digest(pickled):
        raise ValueError(f"{path} is damaged")
    return Code(*pickle.loads(pickled))


def file_of(module: str, function: str, kinds: tuple[object, ...]) -> str:
    """Return the name of the file of a kernel: of its sources and all that the types of its arguments are made of.

    Parameters
    ----------
    module, function : str
        The kernel.
    kinds : tuple
        Types of the arguments, as `compiling.spelled`.

    Returns
    -------
    str
        Without a folder.
    """
    return f"{module.removeprefix('meshwright._kernels.')}.{function}-{_digest((_sources(module), kinds))}.kernel"


@cache
def places() -> tuple[Path, ...]:
    """Return the folders in which compiled kernels are looked for; they are kept in the first that can be written.

    Returns
    -------
    tuple of Path
        Numba's ``NUMBA_CACHE_DIR`` alone where it is set; else the user's cache folder, the package itself and the folder of
        temporary files, where that is the user's own. In each a folder for these versions, this processor and these settings.
    """
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    processor = (sys.platform, platform.machine(), binding.get_host_cpu_name(), features)
    versions = (sys.implementation.cache_tag, *(version(name) for name in ("numba", "llvmlite", "numpy")))
    set_ = sorted((name, value) for name, value in settings().items() if name not in _NO_CODE)
    here = _digest((Code._fields, _DIGEST_BYTES, processor, versions, OPTIONS, set_))
    return tuple(folder / here for folder in _folders())


def version(package: str) -> str:
    """Return the release of a package, without importing it.

    Parameters
    ----------
    package : str
        An installed one, whose name for `import` is that for `pip`.

    Returns
    -------
    str
        As the folder beside it says, which is quicker to find than to load `importlib.metadata`.
    """
    spec = importlib.util.find_spec(package)
    root = Path(spec.origin).parents[1] if spec is not None and spec.origin else None
    found = [] if root is None else [path.name for path in root.glob(f"{package}-*.dist-info")]
    if len(found) == 1:
        return found[0].removeprefix(f"{package}-").removesuffix(".dist-info")
    from importlib import metadata

    return metadata.version(package)


def _folders() -> Iterator[Path]:
    """Yield the folders that may hold kernels of any version and processor, best first."""
    if settings().get("NUMBA_CACHE_DIR"):
        yield Path(settings()["NUMBA_CACHE_DIR"]) / "meshwright"
        return
    home = _cache_of_the_user()
    if home.is_absolute():  # without a home it is "~/.cache", spelled so
        yield home / "meshwright" / "kernels"
    yield Path(__file__).parent / "__pycache__"
    yield from _own_temporary_folder()


def _cache_of_the_user() -> Path:
    """Return the folder for what programs of this user keep, as each system has it."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local"))
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _own_temporary_folder() -> Iterator[Path]:
    """Yield a folder for temporary files that no other user can have laid code into."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    try:
        folder = Path(tempfile.gettempdir()) / f"meshwright-kernels-{user}"  # raises where none can be written
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


def _with_digest(pickled: bytes) -> bytes:
    return hashlib.sha256(pickled).digest() + pickled


def _digest(made_from: object) -> str:
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:20]


@cache
def _sources(module: str) -> tuple[tuple[str, str], ...]:
    """Return name and digest of a kernels' file and of all files that it imports, and so on."""
    found: dict[str, str] = {}
    left = [module]
    while left:
        name = left.pop()
        if name in found or name.split(".")[2:3] in ([word] for word in _OURS):
            continue
        found[name], imported = digest_of(name)
        left += imported
    return tuple(sorted(found.items()))


@cache
def digest_of(module: str) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a kernels' file and what it imports, modules and names in them; both empty for no file.

    Parameters
    ----------
    module : str
        Its dotted path.

    Returns
    -------
    (str, tuple of str)
        As it was when first asked for.
    """
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
def _warn(tried: tuple[str, ...]) -> None:
    said = f"none of these folders can be written: {', '.join(tried)}; kernels are compiled anew in every process"
    warnings.warn(f"{said}; NUMBA_CACHE_DIR names another folder", KernelCacheWarning, stacklevel=2)
