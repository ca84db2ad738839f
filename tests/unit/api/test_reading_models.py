"""What is read where no reader knows the family of a configuration: captured from a file that says which it is, or refused."""

from __future__ import annotations

import json
import pathlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.models.readers.huggingface import UnreadFamilyError

FAMILY = "nobody-reads-this"


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Note what is captured in place of capturing it, which takes transformers."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def read(*args: Any, **kwargs: Any) -> SimpleNamespace:
        calls.append((args, kwargs))
        return SimpleNamespace(name=args[2])

    package, module = ModuleType("meshwright.runtime.capture"), ModuleType("meshwright.runtime.capture.configurations")
    module.read = read  # type: ignore[attr-defined]
    package.configurations = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def _config(folder: pathlib.Path, name: str, **more: Any) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps({"model_type": FAMILY, **more}))
    return str(path)


def test_a_configuration_of_a_family_that_no_reader_knows_is_captured(tmp_path: pathlib.Path, captured: list[Any]) -> None:
    assert api.read(_config(tmp_path / "folder", "config.json"), sequence_length=64).name == "folder"
    assert api.read(_config(tmp_path, "small.json")).name == "small"
    assert api.read(_config(tmp_path, "named.json", _name_or_path="org/of-it/")).name == "of-it"
    (args, kwargs), *_ = captured
    assert args[1] == {"model_type": FAMILY} and kwargs["sequence_length"] == 64
    assert FAMILY in kwargs["refused"] and "; there are: " not in kwargs["refused"]


def test_what_cannot_be_captured_is_refused_as_the_reader_does(tmp_path: pathlib.Path, captured: list[Any]) -> None:
    path = _config(tmp_path, "config.json")
    with pytest.raises(UnreadFamilyError, match=FAMILY):
        api.read(path, file_format="huggingface")
    with pytest.raises(InputError, match=r"--objective dpo: operators of .* are not known by name"):
        api.read(path, objective="dpo")
    with pytest.raises(InputError, match="--freeze and --lora name operators of families that are read"):
        api.read(path, freeze=("embed",))
    assert not captured
