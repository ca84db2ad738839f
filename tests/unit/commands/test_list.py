"""``meshwright list``: every list of the interface, each entry a name that other commands take."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw

LISTS = ["models", "clusters", "searches", "costs", "schedules", "topologies", "frameworks", "formats", "measured"]


@pytest.mark.parametrize("kind", LISTS)
def test_every_list_is_not_empty_and_says_a_line_about_each_entry(meshwright: Any, kind: str) -> None:
    done = meshwright("list", kind, "--json")
    assert done.code == 0
    assert done.json[kind] and all(line.strip() for line in done.json[kind].values())
    text = meshwright("list", kind).out
    assert all(name in text for name in done.json[kind])


def test_the_models_that_must_be_there_are(meshwright: Any) -> None:
    known = set(meshwright("list", "models", "--json").json["models"])
    assert known >= {
        *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "gpt3-175b", "megatron-22b", "megatron-175b", "megatron-530b"),
        *("megatron-1t", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3", "qwen3-235b-a22b", "bert-large", "vit-large"),
    }


def test_every_schedule_listed_is_known_by_that_word(meshwright: Any) -> None:
    from meshwright import schedules

    for name in meshwright("list", "schedules", "--json").json["schedules"]:
        assert schedules.load(name) is not None


def test_every_cluster_figure_has_a_source(meshwright: Any) -> None:
    for name, line in meshwright("list", "clusters", "--json").json["clusters"].items():
        for figure in line.split("\n    ")[1:]:
            assert figure.rstrip().endswith(")") and "(" in figure, f"{name}: {figure}"


def test_the_program_says_its_version(meshwright: Any) -> None:
    done = meshwright("--version")
    assert (done.code, done.out, done.err) == (0, f"meshwright {mw.__version__}\n", "")


def test_what_is_missing_is_told_with_its_meaning(meshwright: Any) -> None:
    found = meshwright("list")
    assert found.code == 2
    assert "Missing argument 'kind': models, clusters" in found.err and "[required]" not in found.err
    assert "'--tokens': Tokens of the whole run" in meshwright("size", "gpt2").err
