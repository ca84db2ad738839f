"""Compiled kernels that are kept: never those of another source, class or version, and a word where none can be kept."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from meshwright._kernels import compiling

pytestmark = pytest.mark.skipif(bool(compiling.config.DISABLE_JIT), reason="nothing is compiled")

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
COMPILING = "compiling kernels of toy"


@pytest.fixture
def package(tmp_path: pathlib.Path) -> pathlib.Path:
    """A package of two kernels, of which one calls the other from another file."""
    kernels = tmp_path / "copy" / "meshwright" / "_kernels"
    (kernels / "toy").mkdir(parents=True)
    for folder in (kernels.parent, kernels, kernels / "toy"):
        (folder / "__init__.py").write_text("")
    shutil.copy(compiling.__file__, kernels / "compiling.py")
    (kernels / "toy" / "add.py").write_text(ADD.format(factor=1))
    (kernels / "toy" / "twice.py").write_text(TWICE)
    return kernels


def start(package: pathlib.Path, call: str = "add.Pair(1, 2)", **environment: str) -> subprocess.Popen[str]:
    program = f"from meshwright._kernels.toy import add, twice; print(twice.twice({call}))"
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


def test_a_kernel_is_compiled_once_and_a_word_is_said_of_it(package: pathlib.Path) -> None:
    assert said(start(package))[1].count(COMPILING) == 1
    files = kept(package / "kept")
    assert len(files) == 2 and all(path.suffix == ".kernel" for path in files)
    assert said(start(package)) == ("6", "")
    assert kept(package / "kept") == files


def test_a_kernel_is_not_that_of_an_older_source_of_what_it_calls(package: pathlib.Path) -> None:
    said(start(package))
    (package / "toy" / "add.py").write_text(ADD.format(factor=10))
    assert said(start(package))[0] == "42"


@pytest.mark.parametrize(
    "change", [("Pair", "Couple"), ("left: int\n    right", "right: int\n    left")], ids=["class", "fields"]
)
def test_a_class_may_change_its_name_and_fields(package: pathlib.Path, change: tuple[str, str]) -> None:
    (package / "toy" / "add.py").write_text(ADD.format(factor=10))
    said(start(package))
    (package / "toy" / "add.py").write_text(ADD.format(factor=10).replace(*change))
    out, err = said(start(package, "add.Couple(1, 2)" if "Couple" in change else "add.Pair(1, 2)"))
    assert (out, COMPILING in err) == ("42" if "Couple" in change else "24", True)


def test_a_damaged_file_is_replaced(package: pathlib.Path) -> None:
    said(start(package))
    files = kept(package / "kept")
    for path, rubbish in zip(files, (b"", b"cno\nsuch\n."), strict=True):
        path.write_bytes(rubbish)
    out, err = said(start(package))
    assert out == "6" and COMPILING in err
    assert said(start(package)) == ("6", "")


def test_two_processes_at_once_leave_both_their_kernels(package: pathlib.Path) -> None:
    calls = ("add.Pair(1, 2)", "add.Pair(1, 2)", "add.Pair(1.5, 2)", "add.Pair(1, 2.5)")
    for process in [start(package, call) for call in calls]:
        said(process)
    assert [said(start(package, call)) for call in calls] == [("6", ""), ("6", ""), ("7.0", ""), ("7.0", "")]


def test_kernels_of_an_image_are_used_where_nothing_can_be_written(package: pathlib.Path, tmp_path: pathlib.Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    elsewhere = {"XDG_CACHE_HOME": str(nowhere / "cache"), "TMPDIR": str(tmp_path)}
    out, err = said(start(package, **elsewhere))
    assert out == "6" and COMPILING in err
    assert all(path.suffix == ".kernel" for path in kept(package / "__pycache__")) and kept(package / "__pycache__")
    assert said(start(package, **elsewhere)) == ("6", "")


def test_where_nothing_can_be_kept_it_works_and_one_line_says_so(package: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        out, err = said(start(package, NUMBA_CACHE_DIR=str(tmp_path / "file" / "kept")))
        assert out == "6"
        assert COMPILING in err and err.count("kernels are compiled anew in every process") == 1
        assert str(tmp_path / "file" / "kept") in err


def test_no_folder_is_made_below_the_present_one_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def nobody(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiling.config, "CACHE_DIR", "")
    found = compiling.places.__wrapped__()
    assert found and all(place.is_absolute() for place in found)


def test_code_in_a_temporary_folder_that_others_can_write_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(compiling.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(compiling.config, "CACHE_DIR", "")
    own = [place for place in compiling.places.__wrapped__() if tmp_path in place.parents]
    assert len(own) == 1
    own[0].parent.chmod(0o777)
    assert not [place for place in compiling.places.__wrapped__() if tmp_path in place.parents]


@pytest.mark.parametrize("module", ["numba", "llvmlite", "np"])
def test_every_version_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    before = compiling.places.__wrapped__()
    monkeypatch.setattr(getattr(compiling, module), "__version__", "0.0.1")
    assert not set(before) & set(compiling.places.__wrapped__())


def test_every_processor_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiling.places.__wrapped__()
    monkeypatch.setattr(compiling.llvmlite.binding, "get_host_cpu_name", lambda: "another")
    assert not set(before) & set(compiling.places.__wrapped__())


def test_a_part_refuses_calls_from_python_before_and_after_a_kernel_used_it() -> None:
    from meshwright._kernels import compiling
    from meshwright._kernels.arrays import total

    if not hasattr(total, "py_func"):
        pytest.skip("kernels run as plain Python")
    summed = compiling._compiled(lambda values: total(values))
    for _ in range(2):
        with pytest.raises(TypeError, match="total is a part of kernels and cannot be called from Python"):
            total(np.ones(3))
        assert summed(np.ones(3)) == 3.0
