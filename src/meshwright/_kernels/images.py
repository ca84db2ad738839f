"""Machine code laid out as it lies in memory: it runs without LLVM, whose loading takes 60 MB and longer than a small plan.

A compiler's object file is laid out once, where the kernel is compiled: what runs and what it reads in one piece, then what it
writes, and a list of the places that hold an address. Putting it into memory is a copy and an addition for each of them.
Numba compiles for whole addresses (LLVM's large code model), so on Linux and x86-64 there is one kind of place; files with any
other are left to LLVM.

References
----------
System V Application Binary Interface, AMD64 Architecture Processor Supplement, version 1.0, section 4.4 (R_X86_64_64);
Executable and Linking Format, version 1.2, part 1 (headers, sections, symbols).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

__all__ = ["Image", "Placed", "laid_out", "placed"]

_HEADER = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_SECTION, _SYMBOL, _PLACE = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 4, 8, 0x70000001
_WRITE, _ALLOC, _TLS = 0x1, 0x2, 0x400
_UNDEFINED, _COMMON, _FIRST_RESERVED = 0, 0xFFF2, 0xFF00
_WHOLE_ADDRESS = 1
_PAGE_BYTES = mmap.PAGESIZE
_ADDRESS = struct.Struct("<Q")


class Image(NamedTuple):
    """Machine code from its first byte on."""

    code: bytes  # what runs and what it reads
    n_written: int  # bytes after it, from the next page on, that it writes; zero at first
    names: tuple[tuple[str, int], ...]  # of what it defines: where each begins
    inner: tuple[tuple[int, int], ...]  # places, and where in the image each points to
    outer: tuple[tuple[str, int, int], ...]  # what it needs from elsewhere: name, place, what is added


class Placed(NamedTuple):
    """Machine code in memory, for as long as `memory` is held."""

    addresses: dict[str, int]
    memory: Any


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    at: int
    n_bytes: int
    link: int
    of: int
    alignment: int
    entry_bytes: int


def laid_out(machine_code: bytes) -> Image | None:
    """Lay out an object file.

    Parameters
    ----------
    machine_code : bytes
        As LLVM makes it.

    Returns
    -------
    Image or None
        None for another system's, and for one with what is not laid out here.
    """
    kind, machine = struct.unpack_from("<HH", machine_code, 16) if machine_code[:7] == _HEADER else (0, 0)
    if (kind, machine) != (_RELOCATABLE, _X86_64):
        return None
    start = _ADDRESS.unpack_from(machine_code, 40)[0]
    (n_sections,) = struct.unpack_from("<H", machine_code, 60)
    sections = [_Section(*_SECTION.unpack_from(machine_code, start + i * _SECTION.size)) for i in range(n_sections)]
    code, begins = bytearray(), {}
    for i, own in enumerate(sections):
        if not own.flags & _ALLOC or own.kind == _UNWIND or not own.n_bytes:  # nothing is raised through a kernel
            continue
        if own.kind != _PROGBITS or own.flags & (_WRITE | _TLS) or own.alignment > _PAGE_BYTES:
            return None
        code += bytes(-len(code) % max(own.alignment, 1))
        begins[i] = len(code)
        code += machine_code[own.at : own.at + own.n_bytes]
    symbols = _symbols(machine_code, sections, begins, len(code))
    return None if symbols is None else _with_places(machine_code, sections, begins, bytes(code), *symbols)


_Symbols = list[tuple[str, int | None]]  # names, and where each is defined; None for elsewhere


def _symbols(
    machine_code: bytes, sections: Sequence[_Section], begins: dict[int, int], n_bytes: int
) -> tuple[_Symbols, int] | None:
    """Return every symbol, and the bytes of those that are written; None where one is defined in what is left out."""
    found: _Symbols = []
    written = first = n_bytes + -n_bytes % _PAGE_BYTES
    table = next(own for own in sections if own.kind == _SYMTAB)
    texts = sections[table.link].at
    for at in range(table.at, table.at + table.n_bytes, _SYMBOL.size):
        text, _, _, section, value, size = _SYMBOL.unpack_from(machine_code, at)
        name = machine_code[texts + text : machine_code.index(b"\0", texts + text)].decode()
        if section == _UNDEFINED:
            found.append((name, None))
        elif section == _COMMON:  # whose value is its alignment
            written += -written % max(value, 1)
            found.append((name, written))
            written += size
        elif section in begins:
            found.append((name, begins[section] + value))
        else:  # the file's name, a section that is left out: `_with_places` refuses what points there
            found.append(("", None))
    return found, written - first


def _with_places(
    machine_code: bytes, sections: Sequence[_Section], begins: dict[int, int], code: bytes, symbols: _Symbols, n_written: int
) -> Image | None:
    """Return the image with every place that holds an address; None where one holds something else."""
    inner, outer = [], []
    for own in sections:
        if own.kind != _RELA or own.of not in begins:
            continue
        for at in range(own.at, own.at + own.n_bytes, _PLACE.size):
            offset, info, added = _PLACE.unpack_from(machine_code, at)
            name, target = symbols[info >> 32]
            if info & 0xFFFFFFFF != _WHOLE_ADDRESS or (target is None and not name):
                return None
            place = begins[own.of] + offset
            if target is None:
                outer.append((name, place, added))
            else:
                inner.append((place, target + added))
    names = tuple((name, target) for name, target in symbols if name and target is not None)
    return Image(code, n_written, names, tuple(inner), tuple(outer))


def placed(image: Image, address_of: Callable[[str], int]) -> Placed:
    """Put machine code into memory.

    Parameters
    ----------
    image : Image
        Made on a system and a processor like this one.
    address_of : callable
        Where what is called so lies; raises `ImportError` where that is nowhere.

    Returns
    -------
    Placed
        Ready to be called.

    Raises
    ------
    ImportError
        When what it needs is not there.
    OSError
        When the system gives no memory, or none that code may run in.
    """
    n_read = len(image.code) + -len(image.code) % _PAGE_BYTES
    memory = mmap.mmap(-1, n_read + image.n_written, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(image.code)] = image.code
    held = ctypes.c_char.from_buffer(memory)  # nobody can unmap it while this is held
    base = ctypes.addressof(held)
    for place, target in image.inner:
        _ADDRESS.pack_into(memory, place, base + target)
    for name, place, added in image.outer:
        _ADDRESS.pack_into(memory, place, (address_of(name) + added) % 2**64)
    if _system().mprotect(ctypes.c_void_p(base), ctypes.c_size_t(n_read), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory cannot be made one that code runs in")
    return Placed({name: base + target for name, target in image.names}, (memory, held))


@cache
def _system() -> Any:
    """Return the functions of the C library."""
    return ctypes.CDLL(None, use_errno=True)
