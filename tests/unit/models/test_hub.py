"""Repositories on huggingface.co by name: which built-in model each is, without the network."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import models
from meshwright.base.errors import InputError
from meshwright.models import hub
from meshwright.models.readers import huggingface


def test_every_repository_stands_for_a_model_that_is_built_in_and_names_it_as_its_source() -> None:
    known = hub.repositories()
    assert set(known.values()) <= set(huggingface.names()) and len(known) >= 60
    assert len({name.lower() for name in known}) == len(known)
    for name in set(known.values()):
        source = huggingface.describe(name).source
        if "huggingface.co/" in source:
            repository = source.partition("huggingface.co/")[2].split()[0].strip("(),;.")
            assert known.get(repository) in (name, None), (name, repository)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"), ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3-mtp"), ("qwen/qwen3-30b-a3b", "qwen3-30b-a3b"),
    ],
)  # fmt: skip
def test_a_repository_is_read_as_the_built_in_model(typed: str, name: str) -> None:
    found, own = models.read(typed, sequence_length=2048), models.read(name, sequence_length=2048)
    assert found.graph == own.graph and found.spec == name and found.name == own.name
    assert found.notes[0].startswith(f"{typed} is read as the built-in model {name}") and found.notes[1:] == own.notes


def test_an_unknown_repository_is_one_line_with_near_names() -> None:
    with pytest.raises(InputError, match=r"meta-llama/Llama-3\.1-9B: no such file.*near.*meta-llama/Llama-3\.1-8B") as caught:
        models.read("meta-llama/Llama-3.1-9B")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(InputError, match=r"no/thing-like-it: no such file"):
        models.read("no/thing-like-it")


def test_files_come_before_repositories_and_are_named_as_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"^some/config\.json: no such file$"):
        models.read("some/config.json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    with pytest.raises(InputError, match="is a folder"):
        models.read("Qwen/Qwen3-8B")
