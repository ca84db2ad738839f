"""The folder is the registry: a word stands once per room, none is lost by a move, and a planner goes by deleting its folder."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

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
    """A new word is added to the file by hand; one that is taken away is deprecated first."""
    assert json.loads(GOLDEN.read_text()) == {room: _ours(room) for room in registry.ROOMS}


ANSWERS = """
import contextlib, io, json, pathlib, pkgutil, sys, importlib
import meshwright
from meshwright import api
from meshwright.api import listing
from meshwright.base import registry
from meshwright.base.errors import MeshwrightError
from meshwright.core.problem import Batch

failed = []
for module in pkgutil.walk_packages(meshwright.__path__, "meshwright.", onerror=failed.append):
    if not module.name.startswith(("meshwright.runtime.", "meshwright.__main__")):  # what needs PyTorch is optional anyway
        importlib.import_module(module.name)
answers = {}
for search in json.loads(sys.argv[1]):
    try:
        answers[search] = repr(api.plan("gpt2", "dgx-h100:8", search=search, batch=Batch(8)).answer.plan)
    except MeshwrightError as error:
        answers[search] = str(error)
print(json.dumps({
    "failed": failed, "homes": {room: {name: registry.home(room, name) for name in registry.names(room)} for room in registry.ROOMS},
    "lists": {name: [word for word, _ in make()] for name, make in listing.rooms().items()}, "answers": answers,
}))
"""
SEARCHES = ("", "data_parallel", "ensemble", "one_weird_trick")


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


def _told(source: pathlib.Path) -> dict[str, dict[str, dict[str, str]]]:
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, json.dumps(SEARCHES)], capture_output=True, text=True, env=environment, cwd=source
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, dict[str, str]]] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def whole() -> dict[str, dict[str, dict[str, str]]]:
    return _told(PACKAGE.parent)


@pytest.mark.parametrize("gone", PLANNERS)
def test_without_a_planner_its_words_are_gone_and_all_else_is_as_before(
    gone: str, whole: dict[str, dict[str, dict[str, str]]], tmp_path: pathlib.Path
) -> None:
    told = _told(_without(tmp_path, gone))
    assert not told["failed"]
    lost = set()
    for room, homes in whole["homes"].items():
        here = f"meshwright.planners.{gone}."
        lost |= {name for name, home in homes.items() if home and home.startswith(here)}
        assert told["homes"][room] == {name: home for name, home in homes.items() if not (home and home.startswith(here))}
    for name, words in whole["lists"].items():
        assert [word for word in words if word.replace("-", "_") not in lost] == told["lists"][name]
    for search, before in whole["answers"].items():
        if told["answers"][search] != before:
            assert f"no search called '{search}'" in told["answers"][search] or any(
                f"no search called '{name}'" in told["answers"][search] for name in lost
            ), (search, told["answers"][search])
    assert lost
