"""Every writer keeps the promises of its room: whole files, the same each time, read back where a reader has its name."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib
import re
from functools import cache
from typing import Any

import pytest
import samples

from meshwright import api, models
from meshwright.api import plan_files
from meshwright.base import registry
from meshwright.base.errors import ExportError, InputError
from meshwright.core.problem import Batch
from meshwright.core.result import Result

NAMES = registry.names("writers")
DESIGN = "topoopt:dlrm,tables=2,rows=100,width=8,bottom=16-8,top=8-1,batch=16"


@cache
def _results() -> tuple[Any, ...]:
    """Return what the searches of the samples answer, as they are and on four devices."""
    found = []
    for spec in (spec for name in registry.names("readers") for spec in samples.of_reader(name)):
        for devices in (0, 2):
            try:
                result = api.plan(samples.read(spec), f"flat:{devices}" if devices else None, batch=Batch(8 * devices))
            except InputError:
                continue
            found.append(result)
    # a plan for a framework, which the default answer need not be
    hub = samples.of_reader("huggingface")[0]
    found.append(api.plan(samples.read(hub), "flat:2", batch=Batch(16), framework="megatron"))
    return tuple(found)


@cache
def _designs() -> tuple[Any, ...]:
    names = ("topoopt", "fat-tree")
    return (api.codesign(DESIGN, servers=4, degree=2, link_bandwidth="1 Gbit/s", topologies=names, budget=5),)


def _written(name: str) -> tuple[Any, ...]:
    """Return what a writer takes: its first argument says which."""
    first = next(iter(inspect.signature(registry.load("writers", name, "export").write).parameters))
    if first == "result":
        return _results()
    if first == "design":
        return _designs()
    assert name in registry.names("readers"), f"{name}.write({first}, path): nothing is known that is called {first}"
    return tuple(samples.read(spec).instance for spec in samples.of_reader(name))


def _write(name: str, given: Any, folder: pathlib.Path) -> dict[str, bytes] | None:
    """Return the files that a writer makes, by what follows the path given; None where it refuses, having written nothing."""
    folder.mkdir()
    try:
        notes = registry.load("writers", name, "export").write(given, str(folder / "out"))
    except (ExportError, InputError) as error:
        assert "\n" not in str(error)
        assert not list(folder.iterdir()), f"{name} refused with '{error}' but left files"
        return None
    assert all(isinstance(note, str) and "\n" not in note for note in notes or ())
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found and all(file.startswith("out") for file in found)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_writes_whole_files_the_same_each_time_or_nothing(name: str, tmp_path: pathlib.Path) -> None:
    written = 0
    for i, given in enumerate(_written(name)):
        once = _write(name, given, tmp_path / f"{i}")
        assert once == _write(name, given, tmp_path / f"{i} again")
        written += once is not None
    assert written, "no sample could be written"


@pytest.mark.parametrize("name", sorted(set(NAMES) & set(registry.names("readers"))))
def test_what_is_written_is_read_back_by_the_reader_of_the_same_name(name: str, tmp_path: pathlib.Path) -> None:
    read = 0
    for i, given in enumerate(_written(name)):
        if _write(name, given, tmp_path / f"{i}"):
            spec = models.read(str(tmp_path / f"{i}" / "out"), file_format=name)
            assert spec.format == name and spec.graph.ops
            assert registry.load("readers", name, "format").recognises(models.Source(spec.spec))
            if isinstance(given, Result):  # what was read makes the same file again, so nothing that it says is lost
                assert len(spec.graph.ops) == len(given.problem.graph.ops)
                assert len(spec.graph.edges) == len(given.problem.graph.edges)
                again: Any = dataclasses.replace(given, problem=dataclasses.replace(given.problem, model_spec=spec))
            else:
                again = spec.instance
            if type(again) is type(given):
                assert _write(name, again, tmp_path / f"{i} again") == _write(name, given, tmp_path / f"{i} once more")
            read += 1
    assert read


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_file_of_ours_is_the_plan_again(name: str, tmp_path: pathlib.Path) -> None:
    for i, given in enumerate(_written(name)):
        files = _write(name, given, tmp_path / f"{i}") or {}
        if not files.get("out", b"").startswith(b'{"format": "meshwright/plan/1"'):
            return
        assert plan_files.load(str(tmp_path / f"{i}" / "out")).plan == given.plan


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_is_not_there_is_told(name: str, tmp_path: pathlib.Path) -> None:
    told = 0
    for given in _written(name):
        with pytest.raises((InputError, ExportError)) as caught:
            registry.load("writers", name, "export").write(given, str(tmp_path / "no such folder" / "out"))
        assert "\n" not in str(caught.value)
        told += "no such folder" in str(caught.value)
    assert told and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_no_writer_tells_where_the_machine_that_wrote_keeps_its_package(name: str, tmp_path: pathlib.Path) -> None:
    own = str(pathlib.Path(models.__file__).parents[1]).encode()
    for i, given in enumerate(_written(name)):
        for content in (_write(name, given, tmp_path / f"{i}") or {}).values():
            assert own not in content and not re.search(rb"<[\w.]+ object at 0x", content)


def test_json_that_is_written_is_json_that_others_read(tmp_path: pathlib.Path) -> None:
    """Without NaN or Infinity, which only Python accepts."""
    for name in NAMES:
        for i, given in enumerate(_written(name)):
            for content in (_write(name, given, tmp_path / f"{name} {i}") or {}).values():
                if content[:1] in (b"{", b"["):
                    json.loads(content, parse_constant=lambda word, name=name: pytest.fail(f"{name} writes {word}"))
