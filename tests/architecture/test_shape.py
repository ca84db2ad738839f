"""The shape of the package is tested like its behaviour: layers, sizes, units, state and surface."""

from __future__ import annotations

import ast
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

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


def _larger_than_a_file_or_function_is(path: pathlib.Path, text: str, tree: ast.Module) -> Iterator[str]:
    n_file_lines = len(text.splitlines())
    if n_file_lines > LARGEST_FILE:
        yield f"{n_file_lines} lines, at most {LARGEST_FILE}"
    limit = LARGEST_KERNEL if "_kernels" in path.parts else LARGEST_FUNCTION
    for function in _functions(tree):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        n_lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
        if n_lines > limit:
            yield f"{function.name} has {n_lines} lines, at most {limit}"


def _unsaid(_: pathlib.Path, __: str, tree: ast.Module) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "the first line of every module says what it is"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_") and not ast.get_docstring(node):
            yield f"{node.name} has no docstring"


def _state_of_a_module(_: pathlib.Path, __: str, tree: ast.Module) -> Iterator[str]:
    if any(isinstance(node, ast.Global) for node in ast.walk(tree)):
        yield "no global state"
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Dict, ast.Set)):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names != ["__all__"]:
                yield f"module-level mutable state: {names}"


def _dataclasses_that_are_not_frozen(_: pathlib.Path, text: str, __: ast.Module) -> Iterator[str]:
    for line in re.findall(r"^@dataclass.*$", text, re.M):
        if "frozen=True" not in line:
            yield line


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


def _frozen_classes_that_change(_: pathlib.Path, __: str, tree: ast.Module) -> Iterator[str]:
    for noun in _frozen_classes(tree):
        for field in noun.body:
            if isinstance(field, ast.AnnAssign) and set(re.findall(r"\w+", ast.unparse(field.annotation))) & MUTABLE:
                where = f"{noun.name}.{ast.unparse(field.target)}"
                yield f"{where}: a tuple, a Mapping, or an honest class that is not frozen"
    inside = {id(node) for function in _functions(tree) if function.name == "__post_init__" for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "__setattr__" and id(node) not in inside:
            yield f"line {node.lineno}: what is frozen is written to in __post_init__ only"


def _floats_without_a_unit(_: pathlib.Path, __: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        # options of a recipe keep the words that users type; `_params` reads their units from the field's metadata
        if not isinstance(node, ast.ClassDef) or node.name == "Params":
            continue
        if not any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.annotation, ast.Name) and field.annotation.id == "float":
                name = ast.unparse(field.target)
                whole = name in ("seconds", "flops", "value", "cost", "bandwidth", "memory", "bytes")
                if not (whole or name.startswith("n_") or name.endswith(UNITS)):
                    yield f"{node.name}.{name}: which unit?"


RULES = (
    _larger_than_a_file_or_function_is, _unsaid, _state_of_a_module, _dataclasses_that_are_not_frozen,
    _frozen_classes_that_change, _floats_without_a_unit,
)  # fmt: skip


def test_a_file_is_one_documented_idea_of_bounded_size_without_state() -> None:
    found = []
    for path in FILES:
        text = path.read_text()
        tree = ast.parse(text)
        found += [f"{path.relative_to(SOURCE)}: {said}" for rule in RULES for said in rule(path, text, tree)]
    assert found == []


def test_every_rule_of_shape_finds_what_breaks_it() -> None:
    long = "def long():\n" + "    x = 1\n" * (LARGEST_FUNCTION + 1)
    broken = {
        _larger_than_a_file_or_function_is: (long, "\n" * (LARGEST_FILE + 1)),
        _unsaid: ("", '"""Said."""\n\n\ndef plan():\n    return 1\n', '"""Said."""\n\n\nclass Plan:\n    pass\n'),
        _state_of_a_module: ("KNOWN = {}\n", "def f():\n    global x\n"),
        _dataclasses_that_are_not_frozen: ("@dataclass\nclass A:\n    pass\n",),
        _frozen_classes_that_change: (
            "@dataclass(frozen=True)\nclass A:\n    x: list[int]\n",
            "def f(a):\n    object.__setattr__(a, 'x', 1)\n",
        ),
        _floats_without_a_unit: ("@dataclass(frozen=True)\nclass A:\n    time: float\n",),
    }
    assert set(broken) == set(RULES)
    for rule, texts in broken.items():
        for text in texts:
            assert list(rule(SOURCE / "core" / "a.py", text, ast.parse(text))), (rule.__name__, text)


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
