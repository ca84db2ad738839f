"""Compiled kernels that are kept: never those of another source, class or version, and a word where none can be kept."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from meshwright._kernels import compiling
from meshwright._kernels import kept as keeping

PLAIN = not isinstance(compiling.kernel(lambda: 0), compiling.Kernel)
pytestmark = pytest.mark.skipif(PLAIN, reason="nothing is compiled")

ADD = """
from typing import NamedTuple
from meshwright._kernels.compiling import kernel

class Pair(NamedTuple):
    left: int
    right: int

@kernel
def add(pair):
    return pair.left + {factor} * pair.right
"""
TWICE = """
from meshwright._kernels.compiling import kernel
from meshwright._kernels.toy.add import add

@kernel
def twice(pair):
    return 2 * add(pair)
"""
RETURNS = """
from typing import NamedTuple
import numpy as np
from meshwright._kernels.compiling import inlined, kernel, part

class Made(NamedTuple):
    rows: np.ndarray
    n: int
    done: bool

@inlined
def _row(rows, at):
    return rows[at]

@part(allocates=True)
def _raised(rows, by, first):
    for i in range(first, rows.shape[0]):
        rows[i] += i // by

@kernel(allocates=True)
def made(values, by, first=0):
    rows = values.copy()
    if len(rows):
        _row(rows, 0)[0] += 0.0
    _raised(rows, by, first)
    return Made(rows, rows.size, True), -by

def twice(value):
    return value
"""
TRIED = """
import numpy as np
def tried(function, *arguments, **named):
    try:
        return repr(function(*arguments, **named)).replace("\\n      ", "")
    except Exception as error:
        return repr(error)
"""
CALLS = (
    "np.arange(3.0).reshape(1, 3), 1", "np.zeros((2, 3)), by=1, first=1", "np.ones((2, 3)), 0",
    "np.ones((0, 3)), 1",
)  # fmt: skip
COMPILING = "compiling kernels of toy"


def written(folder: pathlib.Path) -> pathlib.Path:
    """Write a package of two kernels, of which one calls the other from another file."""
    kernels = folder / "copy" / "meshwright" / "_kernels"
    (kernels / "toy").mkdir(parents=True)
    for folder in (kernels.parent, kernels, kernels / "toy"):
        (folder / "__init__.py").write_text("")
    for file in pathlib.Path(compiling.__file__).parent.glob("*.py"):
        if file.name != "__init__.py":
            shutil.copy(file, kernels)
    (kernels / "toy" / "add.py").write_text(ADD.format(factor=10))
    (kernels / "toy" / "twice.py").write_text(TWICE)
    return kernels


@pytest.fixture
def package(tmp_path: pathlib.Path) -> pathlib.Path:
    """The package, nothing of it compiled."""
    return written(tmp_path)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """The package after one process has used it, and what that process said; for all who need a kernel that is kept."""
    kernels = written(tmp_path_factory.mktemp("once"))
    out, err = said(start(kernels))
    assert out == "42"
    return kernels, err


@pytest.fixture
def compiled(once: tuple[pathlib.Path, str], tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of it with what is kept: the name of a kernel's file is that of its sources, wherever they lie."""
    shutil.copytree(once[0].parents[1], tmp_path / "copy")
    return tmp_path / "copy" / "meshwright" / "_kernels"


def start(package: pathlib.Path, call: str = "add.Pair(1, 2)", then: str = "", **environment: str) -> subprocess.Popen[str]:
    program = f"from meshwright._kernels.toy import add, twice; print(twice.twice({call})){then}"
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "default", "-c", program],
        env=given | (environment or {"NUMBA_CACHE_DIR": str(package / "kept")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip(), err


def kept(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_kernel_is_compiled_once_and_a_word_is_said_of_it(once: tuple[pathlib.Path, str], compiled: pathlib.Path) -> None:
    assert once[1].count(COMPILING) == 1
    files = kept(compiled / "kept")
    assert [path.name.partition("-")[0] for path in files] == ["loading.unpickle", "toy.twice.twice"]
    assert all(path.suffix == ".kernel" for path in files)
    assert said(start(compiled)) == ("42", "")
    assert kept(compiled / "kept") == files


def test_what_unpickles_for_kept_code_is_made_anew_where_it_is_gone_or_damaged(compiled: pathlib.Path) -> None:
    unpickle, _ = kept(compiled / "kept")
    whole = unpickle.read_bytes()
    unpickle.unlink()
    assert said(start(compiled)) == ("42", "")
    assert unpickle.read_bytes() == whole
    unpickle.write_bytes(_changed(whole, len(whole) // 2))
    assert said(start(compiled)) == ("42", "")
    assert unpickle.read_bytes() == whole


def test_a_kernel_is_not_that_of_an_older_source_of_what_it_calls(compiled: pathlib.Path) -> None:
    (compiled / "toy" / "add.py").write_text(ADD.format(factor=1))
    assert said(start(compiled))[0] == "6"


@pytest.mark.parametrize(
    "change", [("Pair", "Couple"), ("left: int\n    right", "right: int\n    left")], ids=["class", "fields"]
)
def test_a_class_may_change_its_name_and_fields(compiled: pathlib.Path, change: tuple[str, str]) -> None:
    (compiled / "toy" / "add.py").write_text(ADD.format(factor=10).replace(*change))
    out, err = said(start(compiled, "add.Couple(1, 2)" if "Couple" in change else "add.Pair(1, 2)"))
    assert (out, COMPILING in err) == ("42" if "Couple" in change else "24", True)


FRESH = """
import pathlib, sys
from meshwright._kernels.compilation import COMPILATION
from meshwright._kernels.compiling import Kernel
def fresh():
    before = COMPILATION.n_done
    found = Kernel(twice.twice.py_func)(add.Pair(1, 2))  # which knows nothing but what is kept
    return found, COMPILATION.n_done - before
path, *rubbish = map(pathlib.Path, {paths})
for file in rubbish:
    path.write_bytes(file.read_bytes())
    print(*fresh(), *fresh())
"""


def test_a_file_that_is_damaged_or_needs_what_is_not_there_is_replaced(compiled: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _, path = kept(compiled / "kept")
    whole = path.read_bytes()
    pickled = whole[32:].replace(b"PyArg_UnpackTuple", b"PyArg_NoSuchTuple")
    wrong = (
        b"", b"cno\nsuch\n.", whole[: len(whole) // 2], _changed(whole, 0), _changed(whole, len(whole) // 2),
        hashlib.sha256(pickled).digest() + pickled,
    )  # fmt: skip
    files = [tmp_path / f"wrong-{i}" for i in range(len(wrong))]
    for file, content in zip(files, wrong, strict=True):
        file.write_bytes(content)
    out, err = said(start(compiled, then=FRESH.format(paths=[str(path), *map(str, files)])))
    assert out.splitlines() == ["42", *["42 1 42 0"] * len(wrong)] and err.count(COMPILING) == 1


def _changed(whole: bytes, place: int) -> bytes:
    """One bit is another: code that would run, and end the process or count wrongly."""
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


def test_two_processes_at_once_leave_both_their_kernels(package: pathlib.Path) -> None:
    calls = ("add.Pair(1, 2)", "add.Pair(1, 2)", "add.Pair(1.5, 2)")
    for process in [start(package, call) for call in calls]:
        said(process)
    assert [said(start(package, call)) for call in calls[1:]] == [("42", ""), ("43.0", "")]


def test_kernels_of_an_image_are_used_where_nothing_can_be_written(package: pathlib.Path, tmp_path: pathlib.Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    elsewhere = {"XDG_CACHE_HOME": str(nowhere / "cache"), "TMPDIR": str(tmp_path)}
    out, err = said(start(package, **elsewhere))
    assert out == "42" and COMPILING in err
    assert all(path.suffix == ".kernel" for path in kept(package / "__pycache__")) and kept(package / "__pycache__")
    assert said(start(package, **elsewhere)) == ("42", "")


def test_where_nothing_can_be_kept_it_works_and_one_line_says_so(package: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        out, err = said(start(package, NUMBA_CACHE_DIR=str(tmp_path / "file" / "kept")))
        assert out == "42"
        assert COMPILING in err and err.count("kernels are compiled anew in every process") == 1
        assert str(tmp_path / "file" / "kept") in err


def test_no_folder_is_made_below_the_present_one_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def nobody(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(keeping, "settings", dict)
    found = keeping.places.__wrapped__()
    assert found and all(place.is_absolute() for place in found)


def test_code_in_a_temporary_folder_that_others_can_write_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(keeping.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(keeping, "settings", dict)
    own = [place for place in keeping.places.__wrapped__() if tmp_path in place.parents]
    assert len(own) == 1
    own[0].parent.chmod(0o777)
    assert not [place for place in keeping.places.__wrapped__() if tmp_path in place.parents]


def test_a_disk_without_any_folder_for_temporary_files_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_usable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(keeping.tempfile, "gettempdir", none_usable)
    monkeypatch.setattr(keeping, "settings", dict)
    assert keeping.places.__wrapped__()


@pytest.mark.parametrize("package", ["numba", "llvmlite", "numpy"])
def test_every_version_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    before, found = keeping.places.__wrapped__(), keeping.version
    monkeypatch.setattr(keeping, "version", lambda name: "0.0.1" if name == package else found(name))
    assert not set(before) & set(keeping.places.__wrapped__())


@pytest.mark.parametrize("setting", ["NUMBA_OPT", "NUMBA_BOUNDSCHECK", "NUMBA_CPU_NAME"])
def test_every_setting_of_numba_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    before, found = keeping.places.__wrapped__(), dict(keeping.settings())
    monkeypatch.setattr(keeping, "settings", lambda: found | {setting: "1"})
    assert not set(before) & set(keeping.places.__wrapped__())


def test_workers_that_are_told_a_number_of_threads_find_what_the_command_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """joblib sets NUMBA_NUM_THREADS in the processes it starts: sweeps compiled everything once more."""
    before, found = keeping.places.__wrapped__(), dict(keeping.settings())
    monkeypatch.setattr(keeping, "settings", lambda: found | {"NUMBA_NUM_THREADS": "1"})
    assert keeping.places.__wrapped__() == before


def test_every_processor_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    before = keeping.places.__wrapped__()
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "another")
    assert not set(before) & set(keeping.places.__wrapped__())


def test_settings_are_read_as_numba_reads_them(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        monkeypatch.delenv(name)
    assert keeping.settings.__wrapped__() == {}
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: /from/file\nopt: 1\n")
    monkeypatch.setenv("NUMBA_OPT", "2")
    assert keeping.settings.__wrapped__() == {"NUMBA_CACHE_DIR": "/from/file", "NUMBA_OPT": "2"}


def test_kept_code_runs_without_numba_and_numba_can_come_later(compiled: pathlib.Path) -> None:
    seen = "; import sys; print('numba' in sys.modules)"
    later = f"{seen}; print(twice.twice(add.Pair(1, 2.5))); print(twice.twice(add.Pair(2, 2)), 'numba' in sys.modules)"
    out, err = said(start(compiled, "add.Pair(1, 2)", later))
    assert (out, COMPILING in err) == ("42\nFalse\n52.0\n44 True", True)


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What a process says that compiles a kernel with more to return, and one that finds it kept."""
    package = written(tmp_path_factory.mktemp("returns"))
    (package / "toy" / "twice.py").write_text(RETURNS)
    lines = [*(f"print(tried(twice.made, {call}))" for call in CALLS), "import sys; print('numba' in sys.modules)"]
    calls = "\n".join((TRIED, *lines, GROWN))
    return [said(start(package, "1", calls))[0].splitlines() for _ in range(2)]


def test_kept_code_returns_and_raises_what_compiled_code_does(returned: list[list[str]]) -> None:
    first, second = (lines[:-1] for lines in returned)
    assert first[:-1] == second[:-1] and (first[-1], second[-1]) == ("True", "False")
    assert second[1:-1] == [
        "(Made(rows=array([[0., 1., 2.]]), n=3, done=True), -1)",
        "(Made(rows=array([[0., 0., 0.], [1., 1., 1.]]), n=6, done=True), -1)",
        "ZeroDivisionError('integer division by zero')",
        "(Made(rows=array([], shape=(0, 3), dtype=float64), n=0, done=True), -1)",
    ]  # fmt: skip


GROWN = """
import numpy as np, resource, sys
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = twice.made(np.ones((2, 3)), 1)[0].rows
kept = [twice.made(np.ones((200, 3)), 1)[0].rows for _ in range(10)]
before = most()
for _ in range(300):  # 144 MB, were it kept
    twice.made(np.ones((20000, 3)), 1)
scale = 1024 if sys.platform != 'darwin' else 1
print(rows.tolist(), all(each.sum() == 200 * 3.0 + 200 * 3 * 199 // 2 for each in kept), (most() - before) * scale < 2**26)
"""


def test_memory_of_what_kept_code_returns_lives_as_long_as_it_is_used(returned: list[list[str]]) -> None:
    for lines in returned:  # compiled, and kept
        assert lines[-1] == "[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]] True True"


def test_arguments_of_other_types_have_code_of_their_own() -> None:
    rows = np.ones((2, 3))
    read_only = np.ones((2, 3))
    read_only.flags.writeable = False
    shifted = np.frombuffer(bytes(4 + 48), dtype=np.uint8)[4:].view(np.float64).reshape(2, 3)
    unlike = (
        rows, rows.T, np.ones((2, 6))[:, ::2], read_only, shifted, rows[0], rows.astype(np.float32), rows.astype(">f8"),
        rows.astype(np.int64), 1, 1.0, True, None, 2**63, np.float32(1), (1, 2), (1, 2.0), ((1,), 2), np.random.default_rng(0),
    )  # fmt: skip
    assert len({compiling.spelled(value) for value in unlike}) == len(unlike)


def test_arguments_of_one_type_share_their_code() -> None:
    rows = np.ones((2, 3))
    for alike in [
        (rows, rows[:1], np.ones((1, 1)), rows[1:]),
        (1, -7, np.int64(3)),
        (1.5, np.float64(2)),
        (True, np.bool_(False)),
    ]:
        assert len({compiling.spelled(value) for value in alike}) == 1, alike


def test_an_argument_that_no_kernel_takes_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match=r"arrays, numbers and tuples of them, not builtins\.dict"):
        compiling.spelled({})


def test_a_part_refuses_calls_from_python_before_and_after_a_kernel_used_it() -> None:
    from meshwright._kernels.arrays import total

    summed = compiling.Kernel(lambda values: total(values)).dispatcher()
    for _ in range(2):
        with pytest.raises(TypeError, match="total is a part of kernels and cannot be called from Python"):
            total(np.ones(3))
        assert summed(np.ones(3)) == 3.0


def test_what_makes_arrays_or_hands_them_on_has_to_say_so() -> None:
    """Numba counts no references elsewhere: what is handed on would never be freed, or too early."""
    from numba.core.errors import NumbaError

    from meshwright._kernels import translating

    @compiling.part(allocates=True)
    def zeros(n):  # type: ignore[no-untyped-def]
        return np.zeros(n)

    def total(n):  # type: ignore[no-untyped-def]
        found = 0.0
        for value in zeros(n):
            found += value
        return found

    for refused, argument in ((total, 3), (lambda values: values, np.ones(3)), (lambda n: np.zeros(n)[0], 3)):
        with pytest.raises((TypeError, NumbaError)):
            translating.compiled(compiling.Kernel(refused, _nrt=False).dispatcher(), (argument,))
        translating.compiled(compiling.Kernel(refused, _nrt=True).dispatcher(), (argument,))


def test_a_part_has_machine_code_inside_kernels_only() -> None:
    from meshwright._kernels import loading, translating

    @compiling.part
    def square(number):  # type: ignore[no-untyped-def]
        return number * number

    @compiling.kernel
    def of_squares(number):  # type: ignore[no-untyped-def]
        return square(number) + square(number + 1)

    code = translating.compiled(of_squares.dispatcher(), (2,))
    assert loading.linked(code, sys.modules[__name__])(2) == 13
    (of_part,) = square.dispatcher().overloads.values()
    assert not callable(of_part.entry_point)


STOPPED = """
import signal, sys
import numpy as np

def ring(number, frame):
    raise KeyboardInterrupt

rows = np.zeros((1, 3))
twice.made(rows, 1)
assert "numba" not in sys.modules  # else it was compiled just now, and Numba's own code is called
signal.signal(signal.SIGALRM, ring)
n = 0
for i in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 20e-6 + i % 50 * 1e-6)
        while True:
            twice.made(rows, 1)
    except KeyboardInterrupt:
        n += 1
print(n)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer of signals here")
def test_kept_code_that_returns_named_tuples_is_stopped_without_ending_the_process(package: pathlib.Path) -> None:
    (package / "toy" / "twice.py").write_text(RETURNS)
    compiles = "\nimport numpy\nprint(twice.made(numpy.zeros((1, 3)), 1)[1])"
    assert said(start(package, "1", compiles))[0] == "1\n-1"
    assert said(start(package, "1", STOPPED)) == ("1\n3000", "")
