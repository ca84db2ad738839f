"""The suite is fixed: its problems, their files and its check sum; what a planner is told is enough to plan."""

from __future__ import annotations

import pathlib

import pytest

from meshwright.base.errors import InputError
from meshwright.core.flops import model_flops
from meshwright.suite import questions

ALL = {one.id: one for one in questions.load()}


def test_suite_one_is_what_it_was() -> None:
    """Another number or check sum is another suite: give it a new version."""
    count = {family: sum(one.family == family for one in ALL.values()) for family in {one.family for one in ALL.values()}}
    assert count == {"piper": 9, "pase": 7, "dapple": 6, "partition": 15, "generated": 16, "models": 360}
    assert (questions.VERSION, questions.digest()) == (1, "e5c74b1c8b43dcb7")


def test_the_default_is_a_few_of_every_family() -> None:
    quick = questions.chosen("")
    assert len(quick) == 15 and {one.family for one in quick} == {one.family for one in ALL.values()}
    assert questions.chosen("quick") == quick


@pytest.mark.parametrize(
    ("select", "n"),
    [("full", 413), ("pase", 7), ("pase,dapple", 13), ("models/llama-3.1-8b@*", 12), ("*@dgx-h100:8", 30), ("pase,pase/*", 7),
     (" pase/alexnet-8 ", 1)],
)  # fmt: skip
def test_words_choose_problems_in_the_order_of_the_suite(select: str, n: int) -> None:
    found = [one.id for one in questions.chosen(select)]
    assert len(found) == n and found == [name for name in ALL if name in found]


@pytest.mark.parametrize("select", ["Pase", "pase,,", "models/none*"])
def test_a_word_that_names_none_is_refused(select: str) -> None:
    with pytest.raises(InputError, match="names no problem"):
        questions.chosen(select)


@pytest.mark.parametrize("name", [one.id for one in ALL.values() if one.family != "models" and "10000" not in one.id])
def test_every_published_and_generated_problem_can_be_posed_and_told(name: str, tmp_path: pathlib.Path) -> None:
    question = questions.generate(ALL[name], str(tmp_path))
    told = questions.problem_json(question, 30.0)
    n = len(told["layers"])
    assert told["problem"] == name and n and all(0 <= u < n and 0 <= v < n for u, v in told["edges"])
    assert told["n_devices"] is None or told["n_devices"] >= 4
    if question.family not in ("pase",):
        assert any(layer["seconds"] for layer in told["layers"])


@pytest.mark.parametrize("name", ["models/qwen3-8b@gh200:16", "models/megatron-530b@dgx-b200:64"])
def test_a_model_is_told_with_operations_weights_and_devices(name: str) -> None:
    told = questions.problem_json(ALL[name], 30.0)
    assert (told["global_batch"], told["sequence_length"]) == (256, 2048)
    assert told["n_devices"] == int(name.rpartition(":")[2]) and told["memory_bytes"] > 8e10
    graph = questions.posed(ALL[name]).graph
    assert sum(layer["flops"] for layer in told["layers"]) == pytest.approx(model_flops(graph))
    assert sum(layer["n_parameters"] for layer in told["layers"]) >= graph.n_parameters


def test_every_model_and_every_cluster_of_the_suite_is_there() -> None:
    models = {one.spec for one in ALL.values() if one.family == "models"}
    clusters = {one.cluster for one in ALL.values() if one.family == "models"}
    assert (len(models), len(clusters)) == (30, 12)
    for spec in models:
        assert questions.posed(next(one for one in ALL.values() if one.spec == spec)).graph.ops
    for cluster in clusters:
        place = questions.posed(next(one for one in ALL.values() if one.cluster == cluster)).cluster
        assert place is not None and place.n_devices == int(cluster.rpartition(":")[2])
