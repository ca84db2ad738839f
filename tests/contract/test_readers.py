"""Every reader keeps the promises of its room: recognises its samples alone, reads them alike, answers wrong ones in one line."""  # noqa: E501

from __future__ import annotations

import copy
import json
import math
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import samples

from meshwright import models
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source

NAMES = registry.names("readers")
PAIRS = [(name, spec) for name in NAMES for spec in samples.of_reader(name)]
OBJECTS = [(name, spec) for name, spec in PAIRS if spec.endswith(".json")]
FOREIGN = (None, -1, 0, 1e308, 10**400, math.nan, True, "x", [], {})
HOSTILE = (
    b"",
    b"\0",
    b"\xff\xfe\x00",
    b"[]",
    b"{}",
    b"null",
    b"1",
    b'"x"',
    b"[" * 100_000,
    b'{"nodes": 1}',
    b'{"nodes": [1], "edges": {}}',
    b'{"format": []}',
    b'{"model_type": []}',
    b'{"measurements": 0, "batch_size": {}}',
    b'{"a": {"ops": 0}}',
    b"\n\n\n",
    b"1\n\t\t\t\t\n",
    b"9" * 5000,
    b" -- " * 1000,
    b"\x04\0\0\0" * 32,
    b"\xff" * 128,
    b"<xml/>",
    b"NaN",
    b'{"a": 1e999}',
    b"- a\n- b\n",
    "é\r\r\n".encode(),
)


def _ids(pair: tuple[str, str]) -> str:
    return pathlib.Path(pair[1]).name


def _same(one: ModelSpec, other: ModelSpec) -> bool:
    return pickle.dumps(one) == pickle.dumps(other)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_brings_a_sample(name: str) -> None:
    assert samples.of_reader(name), f"no tests/data/readers/{name}.*, and {name} has no EXAMPLE"


def test_every_sample_belongs_to_a_reader() -> None:
    assert {path.name.partition(".")[0] for path in samples.FOLDER.iterdir()} <= set(NAMES)


@pytest.mark.parametrize("pair", PAIRS, ids=_ids)
def test_a_sample_is_recognised_by_its_own_reader_alone(pair: tuple[str, str]) -> None:
    name, spec = pair
    assert [other for other, module in registry.each("readers", "format") if module.recognises(Source(spec))] == [name]


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pathlib.Path(pair[1]).is_file()], ids=_ids)
def test_a_file_is_recognised_under_another_name_too(pair: tuple[str, str], tmp_path: pathlib.Path) -> None:
    """By its content: its ending may be that of many formats."""
    name, spec = pair
    path = tmp_path / "a file"
    path.write_bytes(pathlib.Path(spec).read_bytes())
    assert registry.load("readers", name, "format").recognises(Source(str(path)))


@pytest.mark.parametrize("pair", PAIRS, ids=_ids)
def test_a_sample_is_read_alike_each_time_and_by_the_readers_name(pair: tuple[str, str]) -> None:
    name, spec = pair
    first = models.read(spec)
    assert first.format == name and first.spec == spec and first.name
    assert _same(first, models.read(spec)) and _same(first, models.read(spec, file_format=name))
    assert first.costs in registry.names("costs") and first.search in registry.names("search")
    assert first.graph.ops


@pytest.mark.parametrize("name", NAMES)
def test_recognising_never_raises(name: str, tmp_path: pathlib.Path) -> None:
    recognises = registry.load("readers", name, "format").recognises
    path = tmp_path / "hostile"
    contents = (*HOSTILE, *(pathlib.Path(spec).read_bytes()[: pathlib.Path(spec).stat().st_size // 2] for _, spec in OBJECTS))
    for content in contents:
        path.write_bytes(content)
        assert recognises(Source(str(path))) in (True, False), content[:40]
    for spec in ("#", "a#b", "/", "no/such/file.json", "a:b:c", "\0", "ключ"):
        assert recognises(Source(spec)) in (True, False), spec[:40]


def _objects(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of objects with fields: those of values of several types, one of them a list or in a list.

    Others may be tables of names that the user chose, where an unknown name is nothing wrong.
    """
    if isinstance(content, dict):
        kinds = {type(value) for value in content.values()}
        if len(kinds) > 1 and (not path or isinstance(path[-1], int) or list in kinds):
            yield path
        for key, value in content.items():
            yield from _objects(value, (*path, key))
    elif isinstance(content, list):
        for i, value in enumerate(content):
            yield from _objects(value, (*path, i))


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of everything inside."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*path, key))


def _changed(content: Any, path: tuple[Any, ...], key: Any, value: Any) -> str:
    """Return the JSON with one value put at a key of what lies at a place."""
    content = inside = copy.deepcopy(content)
    for step in path:
        inside = inside[step]
    inside[key] = value
    return json.dumps(content)


@pytest.mark.parametrize("pair", OBJECTS, ids=_ids)
def test_an_unknown_field_is_refused_wherever_it_stands(pair: tuple[str, str], tmp_path: pathlib.Path) -> None:
    name, spec = pair
    content = json.loads(pathlib.Path(spec).read_text())
    path = tmp_path / "changed.json"
    for place in _objects(content):
        path.write_text(_changed(content, place, "not_a_field", 1))
        if getattr(registry.load("readers", name, "format"), "OTHER_FIELDS", False):
            models.read(str(path), file_format=name)
            continue
        with pytest.raises(InputError) as caught:
            models.read(str(path), file_format=name)
        assert "not_a_field" in str(caught.value) and str(path) in str(caught.value), place


@pytest.mark.parametrize("pair", OBJECTS, ids=_ids)
def test_a_wrong_value_anywhere_is_read_or_refused_in_one_line(pair: tuple[str, str], tmp_path: pathlib.Path) -> None:
    name, spec = pair
    content = json.loads(pathlib.Path(spec).read_text())
    path = tmp_path / "changed.json"
    refused = 0
    for place in _places(content):
        for value in FOREIGN:
            path.write_text(_changed(content, place[:-1], place[-1], value))
            try:
                models.read(str(path), file_format=name)
            except InputError as error:
                refused += 1
                assert "\n" not in str(error), (place, value)
    assert refused


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pathlib.Path(pair[1]).is_file()], ids=_ids)
def test_a_file_cut_off_anywhere_is_read_or_refused_in_one_line(pair: tuple[str, str], tmp_path: pathlib.Path) -> None:
    name, spec = pair
    content = pathlib.Path(spec).read_bytes()
    path = tmp_path / pathlib.Path(spec).name
    for size in range(0, len(content), max(1, len(content) // 50)):
        path.write_bytes(content[:size])
        try:
            models.read(str(path), file_format=name)
        except InputError as error:
            assert "\n" not in str(error), size


@pytest.mark.parametrize("spec", ["", "x" * 5000, "no/such/file.json", "no_such_model", ".", "a:b", "#"])
def test_what_is_nothing_is_answered_in_one_line(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        models.read(spec)
    assert "\n" not in str(caught.value)
