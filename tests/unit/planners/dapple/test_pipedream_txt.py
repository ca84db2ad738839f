"""PipeDream's profile text: what is read, what is cleaned, what is refused and how."""

from __future__ import annotations

import pathlib

import pytest

import reference
from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.source import Source
from meshwright.planners.dapple.profile import PipeDreamProfile, cleaned
from meshwright.planners.dapple.readers import pipedream_txt
from meshwright.planners.dapple.writers import pipedream_txt as writer

FIELDS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"


def node(name: str, description: str = "Layer", *, forward="1.5", backward="3", activation="4096", parameter="1024") -> str:
    return f"{name} -- {description} -- {FIELDS.format(forward, backward, activation, parameter)}\n"


CHAIN = node("node1", "Input") + node("node2") + node("node3", activation="[8; 16]") + "\tnode1 -- node2\n\tnode2 -- node3\n"


def test_a_profile_keeps_the_files_own_numbers() -> None:
    profile = pipedream_txt.parse(CHAIN, "a.txt")
    assert [node.name for node in profile.nodes] == ["node1", "node2", "node3"]
    assert profile.edges == ((0, 1), (1, 2))
    assert profile.nodes[2].activation_bytes == (8.0, 16.0)
    assert profile.nodes[2].output_bytes == 24.0
    assert profile.nodes[1].forward_milli_seconds == 1.5
    assert profile.nodes[1].compute_seconds == 0.0045


def test_a_text_written_and_read_again_is_the_same_profile() -> None:
    profile = pipedream_txt.parse(CHAIN + node("node4", "Loss").rstrip() + " -- stage_id=3\n\tnode3 -- node4\n", "a.txt")
    assert profile.nodes[3].stage == 3
    assert pipedream_txt.parse(writer.render(profile), "a.txt") == profile


def test_input_placeholders_and_trailing_indexing_are_no_layers_and_each_pass_runs_once() -> None:
    text = node("a", "Input0") + node("b", "Input of b") + node("c") + node("d", "__getitem__(0)") + node("e", "__getitem__(1)")
    profile = cleaned(pipedream_txt.parse(text + "\ta -- b\n\tb -- c\n\tc -- d\n\td -- e\n", "a.txt"))
    # b becomes a source and d a sink only by the removal, so both stay
    assert [node.name for node in profile.nodes] == ["b", "c", "d"]


def test_the_graph_is_in_topological_order_whatever_the_order_of_lines(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "backwards-pbs-8.txt"
    path.write_text(node("last") + node("first") + "\tfirst -- last\n")
    model_spec = api.read(str(path))
    assert model_spec.format == "pipedream_txt" and model_spec.search == "dapple"
    assert [op.name for op in model_spec.graph.ops] == ["first", "last"]
    assert isinstance(model_spec.instance, PipeDreamProfile) and model_spec.instance.profile_batch == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (node("a") + "b -- Layer\n", "line 2: 2 fields separated by ' -- ' where a node has 3 or 4"),
        (node("a", forward="fast"), "line 1: forward_compute_time is 'fast'; expected a number"),
        (node("a", activation="[1; x]"), "line 1: activation_size is 'x'; expected a number or a list"),
        (node("a", backward="-1"), "line 1: backward_compute_time is -1; must be finite and >= 0"),
        (node("a", parameter="nan"), "line 1: parameter_size is nan"),
        (node("a").replace("parameter_size", "params"), "in this order"),
        (node("a") + "\ta -- b\n", "line 2: edge to or from 'b', which no line before declares"),
        (node("a") + "\ta -- a\n", "line 2: edge from 'a' to itself"),
        (node("a") + "\ta\n", "line 2: 1 fields where an edge has 2"),
        (node("a") + node("a"), "line 2: node 'a' is declared a second time"),
        (node("a").rstrip() + " -- stage_id=two\n", "line 1: the fourth field is 'stage_id=two'"),
        ("\n\n", "holds no layer"),
    ],
)
def test_a_wrong_line_is_answered_by_file_line_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        pipedream_txt.parse(text, "profile.txt")
    assert str(error.value).startswith("profile.txt") and message in str(error.value)


def test_a_cycle_and_a_profile_of_inputs_only_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text(node("a") + node("b") + "\ta -- b\n\tb -- a\n")
    with pytest.raises(InputError, match=r"form a cycle: (a -> b -> a|b -> a -> b)"):
        api.read(str(path))
    path.write_text(node("a", "Input"))
    with pytest.raises(InputError, match="no layer remains"):
        api.read(str(path))


def test_other_text_is_not_taken_for_a_profile(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a -- b\n")
    assert not pipedream_txt.recognises(Source(str(path)))
    assert not pipedream_txt.recognises(Source("llama-3.1-8b"))


@pytest.mark.parametrize("folder", ["dapple", "partitioning/pipedream"])
def test_every_published_profile_comes_back_as_it_was_written(folder: str) -> None:
    files = sorted(reference.path(folder).glob("*.txt"))
    assert len(files) >= 5
    for path in files:
        profile = pipedream_txt.parse(path.read_text(), str(path))
        assert pipedream_txt.parse(writer.render(profile), "again") == profile
