"""The shape of the package is tested like its behaviour: layers, sizes, units, state and surface."""

from __future__ import annotations

import ast
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "meshwright"
FILES = sorted(SOURCE.rglob("*.py"))
LARGEST_FILE = 400
LARGEST_FUNCTION = 60
LARGEST_KERNEL = 120
UNITS = ("_seconds", "_bytes", "_flops", "_per_second", "_ratio", "_flop", "_exponent", "_cost", "_value", "_per_byte", "_risk")


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_is_one_idea_of_bounded_size(path: pathlib.Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LARGEST_FILE
    tree = ast.parse(text)
    limit = LARGEST_KERNEL if "_kernels" in path.parts else LARGEST_FUNCTION
    for function in _functions(tree):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if not body:
            continue
        n_lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
        assert n_lines <= limit, f"{function.name} has {n_lines} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_opens_with_a_sentence_and_holds_no_state(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the first line of every module says what it is"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), "no global state"
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Dict, ast.Set)):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            assert names == ["__all__"], f"module-level mutable state: {names}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_public_functions_and_classes_are_documented(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_dataclasses_are_frozen(path: pathlib.Path) -> None:
    for line in re.findall(r"^@dataclass.*$", path.read_text(), re.M):
        assert "frozen=True" in line


STANDS_OFTEN = {"Params": "options of a plug-in: its room asks for them under this name"}


def test_one_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    twice = {name: place for name, place in places.items() if len(place) > 1}
    assert set(STANDS_OFTEN) <= set(twice), "an exception that is not needed any more"
    assert set(twice) == set(STANDS_OFTEN), {name: twice[name] for name in set(twice) - set(STANDS_OFTEN)}


MUTABLE = {
    "bytearray", "Counter", "defaultdict", "deque", "dict", "list", "MutableMapping", "MutableSequence", "MutableSet",
    "OrderedDict", "set",
}  # fmt: skip


def _frozen_classes(tree: ast.AST) -> list[ast.ClassDef]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(
            "dataclass" in ast.unparse(decorator) and "frozen=True" in ast.unparse(decorator)
            for decorator in node.decorator_list
        )
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_frozen_class_holds_nothing_that_changes(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text())
    for noun in _frozen_classes(tree):
        for field in noun.body:
            if isinstance(field, ast.AnnAssign):
                words = set(re.findall(r"\w+", ast.unparse(field.annotation)))
                assert not words & MUTABLE, (
                    f"{noun.name}.{ast.unparse(field.target)}: a tuple, a Mapping, or an honest class that is not frozen"
                )
    inside = {id(node) for function in _functions(tree) if function.name == "__post_init__" for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "object.__setattr__":
            assert id(node) in inside, f"line {node.lineno}: what is frozen is written to in __post_init__ only"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_float_field_carries_its_unit_in_its_name(path: pathlib.Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        # options of a recipe keep the words that users type; `_params` reads their units from the field's metadata
        if isinstance(node, ast.ClassDef) and node.name == "Params":
            continue
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list):
            for field in node.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.annotation, ast.Name)
                    and field.annotation.id == "float"
                ):
                    assert isinstance(field.target, ast.Name)
                    name = field.target.id
                    whole = name in ("seconds", "flops", "value", "cost", "bandwidth", "memory", "bytes")
                    assert whole or name.startswith("n_") or name.endswith(UNITS), f"{node.name}.{name}: which unit?"


def test_only_the_runtime_and_kept_kernels_read_the_environment_and_only_the_runtime_and_the_command_line_print() -> None:
    for path in FILES:
        place = path.relative_to(SOURCE).as_posix()
        text = path.read_text()
        if not place.startswith("runtime/") and place != "_kernels/kept.py":  # which reads Numba's settings without Numba
            assert "os.environ" not in text and "getenv" not in text, place
        if place != "cli.py" and not place.startswith(("commands/", "runtime/", "report")):
            assert not re.search(r"(?<![\w.])print\(", text), place


def test_numba_and_torch_stay_behind_their_walls() -> None:
    for path in FILES:
        place = path.relative_to(SOURCE).as_posix()
        text = path.read_text()
        if not place.startswith("_kernels/"):
            assert not re.search(r"^\s*(import|from) numba", text, re.M), place
        if not place.startswith("runtime/") and "torch_" not in place:
            assert not re.search(r"^\s*(import|from) torch\b", text, re.M), place


def test_rooms_import_only_what_lies_below() -> None:
    program = shutil.which("lint-imports", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("lint-imports")
    if program is None:
        pytest.skip("import-linter is not installed: pip install 'meshwright[test]'")
    done = subprocess.run(
        [program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_help_and_reading_touch_no_kernel() -> None:
    code = (
        "import sys, meshwright.cli, meshwright.api, meshwright.models; sys.exit('numba' in sys.modules or 'scipy' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}).returncode == 0


def test_the_public_surface_is_complete_and_sorted() -> None:
    import meshwright

    assert list(meshwright.__all__) == sorted(meshwright.__all__)
    for name in meshwright.__all__:
        assert getattr(meshwright, name) is not None
