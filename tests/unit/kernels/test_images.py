"""Machine code that is laid out and put into memory: the same as LLVM links, and left to LLVM where it is of another kind."""

from __future__ import annotations

import gc
import pathlib
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from meshwright._kernels import compiling, images, kept

ON_LINUX = sys.platform == "linux" and kept.platform.machine() == "x86_64"
PLAIN = not isinstance(compiling.kernel(lambda: 0), compiling.Kernel)
pytestmark = [
    pytest.mark.skipif(PLAIN or not ON_LINUX, reason="nothing is laid out"),
    pytest.mark.xdist_group("compiling"),
]


class Halves(NamedTuple):
    """What the kernel below returns."""

    rows: np.ndarray
    mean: float


@compiling.kernel
def halves(rows, by):  # type: ignore[no-untyped-def]
    """Use a table of constants, memory, a function of the C library, an error, and a named tuple."""
    made = np.empty((len(rows), 3))
    for i, offset in enumerate((0.5, 0.25, 0.125)):
        for j in range(len(rows)):
            made[j, i] = np.exp(rows[j] * offset) // by
    return Halves(made, made.mean())


def object_file() -> bytes:
    """The kernel as LLVM makes it."""
    from meshwright._kernels import translating

    made, seen = [], images.laid_out
    images.laid_out = lambda code: made.append(code)  # type: ignore[assignment, func-returns-value]
    try:
        translating.compiled(halves.dispatcher(), (np.ones(2), 1.0))
    finally:
        images.laid_out = seen
    return made[0]


@pytest.fixture(scope="module")
def codes() -> tuple[kept.Code, kept.Code]:
    """The kernel laid out, and as LLVM links it."""
    from meshwright._kernels import translating

    code = translating.compiled(halves.dispatcher(), (np.ones(2), 1.0))
    return code, code._replace(machine_code=object_file(), image=None, unpickle=None)


def tried(function: Callable[..., Any], *arguments: object) -> object:
    try:
        rows, mean = function(*arguments)
    except ZeroDivisionError as error:
        return repr(error)
    return rows.tolist(), repr(mean)


def test_code_that_is_laid_out_does_what_llvm_links(codes: tuple[kept.Code, kept.Code]) -> None:
    from meshwright._kernels import loading

    assert codes[0].image is not None and not codes[0].machine_code and codes[1].image is None
    placed, linked = (loading.linked(code, sys.modules[__name__]) for code in codes)
    for arguments in ((np.linspace(0.0, 9.0, 7), 0.5), (np.zeros(0), 2.0), (np.ones(3), 0.0)):
        assert tried(placed, *arguments) == tried(linked, *arguments)
    assert type(placed(np.ones(1), 1.0)) is Halves


ALONE = """
import sys
import numpy as np
from meshwright._kernels.network import paths, trees
none = np.zeros(0, dtype=np.int64)
net = paths.ForwardingNodes(*(np.zeros(2, dtype=np.int64), none) * 2, none, none, none, np.zeros(0), np.array([False]))
print(trees.rooted(net), [name for name in ("numba", "llvmlite") if name in sys.modules])
"""


def test_what_is_kept_runs_without_numba_and_llvm() -> None:
    done = [subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True) for _ in range(2)]
    first, second = (one.stdout.strip() for one in done)  # the first may have to compile it
    assert second.endswith("[]") and second.startswith("(ForwardingTree(") and first.startswith(second.removesuffix("[]"))


def test_code_lives_as_long_as_its_function(codes: tuple[kept.Code, kept.Code]) -> None:
    from meshwright._kernels import loading

    made = [loading.linked(codes[0], sys.modules[__name__]) for _ in range(20)]
    results = [one(np.ones(2), 0.5) for one in made]
    del made
    gc.collect()
    assert all(one.rows.tolist() == results[0].rows.tolist() and one.mean == results[0].mean for one in results)


def test_what_is_written_lies_apart_from_what_runs(codes: tuple[kept.Code, kept.Code]) -> None:
    image = codes[0].image
    assert image is not None and image.n_written > 0
    written = [target for _, target in image.names if target >= len(image.code)]
    assert written and all(target % 8 == 0 and target >= -(-len(image.code) // 4096) * 4096 for target in written)
    found = images.placed(image, lambda name: 2**47 + 16)
    base = found.addresses[codes[0].entry] - dict(image.names)[codes[0].entry]
    lines = [line.split() for line in pathlib.Path("/proc/self/maps").read_text().splitlines()]
    (rights,) = {line[1] for line in lines if int(line[0].partition("-")[0], 16) == base}
    assert rights.startswith("r-x")
    places = bytes(found.memory[0])
    assert {struct.unpack_from("<Q", places, at)[0] - added for _, at, added in image.outer} == {2**47 + 16}
    assert all(struct.unpack_from("<Q", places, at)[0] == base + target for at, target in image.inner)


def test_what_it_needs_and_is_nowhere_is_told_before_it_runs(codes: tuple[kept.Code, kept.Code]) -> None:
    from meshwright._kernels import loading

    image = codes[0].image
    assert image is not None
    (_, place, added), *others = image.outer
    lacking = codes[0]._replace(image=image._replace(outer=(("a_function_that_nobody_has", place, added), *others)))
    with pytest.raises(ImportError, match="a_function_that_nobody_has, which is not there"):
        loading.linked(lacking, sys.modules[__name__])


def changed(code: bytes, at: int, layout: str, value: int) -> bytes:
    made = bytearray(code)
    struct.pack_into(layout, made, at, value)
    return bytes(made)


def sections(code: bytes) -> list[tuple[int, images._Section]]:
    """Where each section's header stands, and the header."""
    start, n = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    return [(at, images._Section(*struct.unpack_from("<IIQQQQIIQQ", code, at))) for at in range(start, start + 64 * n, 64)]


def test_other_files_are_left_to_llvm(codes: tuple[kept.Code, kept.Code]) -> None:
    code = codes[1].machine_code
    assert images.laid_out(code) == codes[0].image
    own = [(at, one) for at, one in sections(code) if one.flags & 2 and one.kind == 1 and one.n_bytes]
    places = next(one for _, one in sections(code) if one.kind == 4 and one.of in [
        i for i, (_, target) in enumerate(sections(code)) if (target.flags & 4 and target.n_bytes)])  # fmt: skip
    broken = {
        "another processor": changed(code, 18, "<H", 183),
        "no object file": changed(code, 16, "<H", 3),
        "of 32 bits": changed(code, 4, "<B", 1),
        "a section that is written": changed(code, own[0][0] + 8, "<Q", own[0][1].flags | 1),
        "a section of a thread": changed(code, own[0][0] + 8, "<Q", own[0][1].flags | 0x400),
        "zeroes": changed(code, own[0][0] + 4, "<I", 8),
        "an address relative to its place": changed(code, places.at + 8, "<I", 2),
        "Mach-O": b"\xcf\xfa\xed\xfe" + code[4:],
        "nothing": b"",
    }
    assert [name for name, text in broken.items() if images.laid_out(text) is not None] == []


@pytest.mark.parametrize("alignment", [16, 64, 1024])
def test_a_section_begins_where_its_alignment_asks_for(codes: tuple[kept.Code, kept.Code], alignment: int) -> None:
    code = codes[1].machine_code
    at, last = [(at, one) for at, one in sections(code) if one.flags & 2 and one.kind == 1 and one.n_bytes][-1]
    image = images.laid_out(changed(code, at + 48, "<Q", alignment))
    assert image is not None
    assert len(image.code) - last.n_bytes > 0 and (len(image.code) - last.n_bytes) % alignment == 0
