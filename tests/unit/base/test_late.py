"""Packages that are loaded when something of them is first used are then the package itself."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from meshwright.base import kinds, late
from meshwright.core.cluster import Cluster, Links
from meshwright.core.problem import ModelSpec
from meshwright.core.timeline import Timeline

PACKAGE = {
    "__init__.py": "from made_late_here import inner\nprint('loaded')\nvalue = inner.value\n",
    "inner.py": "value = 3\n",
}


@pytest.fixture
def package(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "made_late_here").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "made_late_here" / name).write_text(text)
    return tmp_path


def said(place: pathlib.Path, *lines: str) -> list[str]:
    """What a fresh process prints that loads the package late."""
    head = ("from meshwright.base import late", "late.load_when_used('made_late_here')", "import made_late_here as made")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((*head, *lines))],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{place}:{pathlib.Path(late.__file__).parents[2]}"},
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_an_import_loads_nothing_and_the_first_use_loads_it_once(package: pathlib.Path) -> None:
    uses = ("print('before')", "print(made.value)", "import made_late_here", "print(made_late_here is made, made.inner.value)")
    assert said(package, *uses) == ["before", "loaded", "3", "True", "3"]
    shapes = "import types, sys; print(type(made) is types.ModuleType, sys.modules['made_late_here'] is made, made.__name__)"
    assert said(package, "made.value", shapes) == ["loaded", "True", "True", "made_late_here"]


def test_a_module_inside_loads_the_package_first(package: pathlib.Path) -> None:
    assert said(package, "from made_late_here.inner import value", "print(value, made.value)") == ["loaded", "3", "3"]


def test_what_fails_to_load_is_tried_again(package: pathlib.Path) -> None:
    (package / "made_late_here" / "__init__.py").write_text("import a_package_that_nobody_has\n")
    tried = ("for n in range(2):", "    try: import made_late_here; made_late_here.value",
             "    except ModuleNotFoundError as error: print(error.name)")  # fmt: skip
    assert said(package, *tried) == ["a_package_that_nobody_has"] * 2


def test_what_is_loaded_and_what_is_not_there_stay_as_they_are() -> None:
    late.load_when_used("pathlib")
    assert sys.modules["pathlib"] is pathlib
    late.load_when_used("a_package_that_nobody_has")
    assert "a_package_that_nobody_has" not in sys.modules


def test_fields_of_nouns_that_hold_arrays_are_still_looked_at() -> None:
    for noun in (Cluster, Links, Timeline, ModelSpec):
        assert [name for name, _ in kinds._fields(noun)] == list(noun.__dataclass_fields__)
