"""The folder is the registry: a word stands once per room, none is lost by a move, and a planner goes by deleting its folder."""  # noqa: E501

from __future__ import annotations

import ast
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import meshwright
from meshwright.base import registry

PACKAGE = pathlib.Path(meshwright.__file__).parent
GOLDEN = pathlib.Path(__file__).parent / "words.json"
PLANNERS = sorted(path.name for path in (PACKAGE / "planners").iterdir() if (path / "__init__.py").is_file())


def _files(room: str) -> list[pathlib.Path]:
    """Return the files and packages of a room, found without the registry."""
    folders = [folder for folder in PACKAGE.rglob(room) if folder.is_dir() and "_kernels" not in folder.parts]
    found = [
        path for folder in folders for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    ]
    return [path for path in found if not path.name.startswith("_")]


def _ours(room: str) -> list[str]:
    return [name for name in registry.names(room) if registry.home(room, name) is not None]


@pytest.mark.parametrize("room", registry.ROOMS)
def test_a_word_stands_once_and_the_registry_finds_every_file(room: str) -> None:
    assert sorted(path.stem for path in _files(room)) == _ours(room)


@pytest.mark.parametrize("room", registry.ROOMS)
def test_the_home_of_a_word_is_the_module_that_is_loaded(room: str) -> None:
    for name in _ours(room):
        assert registry.load(room, name, "plug-in").__name__ == registry.home(room, name)
        assert registry.package(room, name) == ""


def test_no_word_is_lost_by_a_move() -> None:
    """The file holds what was released; new words are added with a release, one that goes is deprecated first."""
    released = json.loads(GOLDEN.read_text())
    assert list(released) == list(registry.ROOMS) and all(released.values())
    assert {room: sorted(set(words) - set(_ours(room))) for room, words in released.items()} == {room: [] for room in released}


def _imported_at_once(tree: ast.Module) -> Iterator[str]:
    """Yield what importing a module imports: not what functions import when called, nor what types alone need."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += ast.iter_child_nodes(node)


@pytest.mark.parametrize("planner", PLANNERS)
def test_no_module_outside_a_planner_needs_it_to_be_imported(planner: str) -> None:
    inside = (f"meshwright.planners.{planner}", f"meshwright._kernels.{planner}")
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("meshwright", *path.relative_to(PACKAGE).parts))
        if not name.startswith(inside):
            needed = [
                module
                for module in _imported_at_once(_tree(path))
                if f"{module}.".startswith(tuple(f"{one}." for one in inside))
            ]
            assert not needed, (name, needed)


@cache
def _tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


ANSWERS = """
import json, sys
from meshwright import api
from meshwright.api import listing
from meshwright.base import registry
from meshwright.base.errors import MeshwrightError
from meshwright.core.problem import Batch

answers = {}
for search in json.loads(sys.argv[1]):
    try:
        answers[search] = repr(api.plan("gpt2", "dgx-h100:8", search=search, batch=Batch(8)).answer.plan)
    except MeshwrightError as error:
        answers[search] = str(error)
print(json.dumps({
    "homes": {room: {name: registry.home(room, name) for name in registry.names(room)} for room in registry.ROOMS},
    "lists": {name: [word for word, _ in make()] for name, make in listing.rooms().items() if name not in ("clusters", "measured")}, "answers": answers,
    "defaults": {"searches": registry.load("search", "ensemble", "search").Params().searches},
}))
"""  # noqa: E501
SEARCHES = ("", "data_parallel")


def _without(folder: pathlib.Path, gone: str) -> pathlib.Path:
    """Return a folder with the package in it as links to its files, but for one planner and its kernels."""
    for path in PACKAGE.rglob("*"):
        inside = path.relative_to(PACKAGE)
        if inside.parts[:2] in (("planners", gone), ("_kernels", gone)) or "__pycache__" in inside.parts[:-1]:
            continue
        linked = folder / "meshwright" / inside
        if path.is_file() or path.name == "__pycache__":
            linked.parent.mkdir(parents=True, exist_ok=True)
            linked.symlink_to(path)
    return folder


def _told(source: pathlib.Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, json.dumps(SEARCHES)], capture_output=True, text=True, env=environment, cwd=source
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return _told(PACKAGE.parent)


@pytest.mark.parametrize("gone", PLANNERS)
def test_without_a_planner_its_words_are_gone_and_all_else_is_as_before(
    gone: str, whole: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    told = _told(_without(tmp_path, gone))
    lost = set()
    for room, homes in whole["homes"].items():
        here = f"meshwright.planners.{gone}."
        lost |= {name for name, home in homes.items() if home and home.startswith(here)}
        assert told["homes"][room] == {name: home for name, home in homes.items() if not (home and home.startswith(here))}
    for name, words in whole["lists"].items():
        assert [word for word in words if word.replace("-", "_") not in lost] == told["lists"][name]
    for search, before in whole["answers"].items():
        if told["answers"][search] != before:
            assert any(f"no search called '{name}'" in told["answers"][search] for name in lost), told["answers"][search]
    kept = [name for name in whole["defaults"]["searches"] if name not in lost]
    assert told["defaults"]["searches"] == kept
    assert lost
