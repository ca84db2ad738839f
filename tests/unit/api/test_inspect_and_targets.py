"""What is said of a model or a cluster by itself; which frameworks run a plan; why other degrees are not the answer."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api, clusters, frameworks, sim
from meshwright.api import inspect, listing, targets
from meshwright.api.why_not import with_why_not
from meshwright.base import registry
from meshwright.base.errors import InputError, PluginError, PluginWarning
from meshwright.core.framework import Framework
from meshwright.core.result import Result


def test_a_model_is_told_in_runs_of_equal_layers() -> None:
    entry = inspect.describe("gpt2")
    graph = api.read("gpt2").graph
    assert (entry["kind"], entry["n_layers"], entry["n_edges"]) == ("model", len(graph.ops), len(graph.edges))
    embed, blocks, head = entry["layers"]
    assert (embed["n_layers"], blocks["n_layers"], head["n_layers"]) == (1, 12, 1)
    assert (blocks["first"], blocks["last"]) == (graph.ops[1].name, graph.ops[12].name)
    assert (embed["last"], head["first"], blocks["row"]) == (graph.ops[0].name, graph.ops[13].name, 1)
    assert blocks["n_parameters"] == graph.ops[1].n_parameters
    assert entry["n_parameters"] == entry["n_active_parameters"] == graph.n_parameters
    assert inspect.describe("mixtral-8x7b")["n_active_parameters"] < 0.3 * inspect.describe("mixtral-8x7b")["n_parameters"]


def test_a_model_is_told_with_what_its_layers_share_and_what_its_reading_rests_on(tmp_path: pathlib.Path) -> None:
    said = inspect.text(inspect.describe("gpt2")).splitlines()
    assert said[-1].strip() == "38.6 M of these are shared between layers: the total counts them once"
    assert said[2].endswith("39.38 M parameters") and said[3].endswith("parameters each")
    fields = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 100, "attention_chunk_size": 16}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    told = inspect.describe(str(tmp_path / "config.json"))
    assert "attention_chunk_size" in told["notes"][0] and inspect.text(told).splitlines()[-1] == f"  note: {told['notes'][0]}"


def test_layers_that_differ_in_nothing_that_is_shown_are_one_line() -> None:
    said = inspect.text(inspect.describe("gemma-2-9b")).splitlines()
    assert said[3] == "  layers.0 .. layers.41 (42): attention_mlp, 198.2 M parameters each" and len(said) == 6
    assert len(inspect.describe("gemma-2-9b")["layers"]) == 44


def test_a_cluster_is_told_with_its_devices_links_and_levels(tmp_path: pathlib.Path) -> None:
    entry = inspect.describe("dgx-h100:16")
    cluster = api.make_problem("gpt2", "dgx-h100:16").cluster
    assert cluster is not None
    assert (entry["n_devices"], entry["n_switches"], entry["n_links"]) == (16, cluster.n_switches, len(cluster.links))
    assert sum(row["n_links"] for row in entry["links"]) == len(cluster.links)
    assert [row["bytes_per_second"] for row in entry["links"]] == sorted(set(cluster.links.bytes_per_second.tolist()))
    assert entry["n_groups"][0] == 2 and entry["devices"][0]["n_devices"] == 16
    two = inspect.describe(str(pathlib.Path(__file__).resolve().parents[2] / "data" / "two_kinds.yaml"))
    assert len(two["devices"]) == 2 and sum(kind["n_devices"] for kind in two["devices"]) == two["n_devices"]
    with pytest.raises(InputError, match=r"is no model .* and no cluster"):
        inspect.describe("nothing-of-the-kind")


def test_every_list_names_what_the_registry_has_with_a_line_about_each() -> None:
    rooms = listing.rooms()
    for word, room in (("searches", "search"), ("costs", "costs"), ("formats", "readers"), ("exports", "writers")):
        entries = rooms[word]()
        assert [name for name, _ in entries] == list(registry.names(room)) and all(line for _, line in entries)
    names = [name for name, _ in rooms["frameworks"]()]
    assert set(frameworks.names()) <= set(names) and len(names) > len(frameworks.names())
    assert "1f1b" in dict(rooms["schedules"]()) and "two-level" in dict(rooms["topologies"]())


def test_a_plan_says_which_frameworks_run_it_and_why_others_do_not(planned: Result) -> None:
    found = {one.word.partition(":")[0]: one for one in targets.runs_on(planned)}
    assert set(found) == set(frameworks.names())
    for name, one in found.items():
        own = frameworks.for_problem(name, planned.problem.graph, planned.problem.cluster, planned.problem.training.precision)
        assert one.refusals == tuple(frameworks.refusals(own, planned.plan, planned.problem)) and one.word == own.word
        assert (one.step_seconds > 0.0) == (not one.refusals)
        if not one.refusals:
            _, timeline = api.evaluate(replace(planned.problem, framework=own), planned.plan)
            assert timeline is not None and one.step_seconds == timeline.step_seconds
    entry = targets.as_json(tuple(found.values()))
    assert entry["runs_on"] == [one.word for one in found.values() if not one.refusals]
    assert [(row["name"], row["step_seconds"] is None) for row in entry["frameworks"]] == [
        (one.word, bool(one.refusals)) for one in found.values()
    ]
    json.dumps(entry)


def every_near(result: Result, name: str) -> list[tuple[float, str]]:
    """Steps of all plans that `targets.nearest` chooses from and that fit, each simulated, in their order."""
    problem = result.problem
    own = frameworks.for_problem(name, problem.graph, problem.cluster, problem.training.precision)
    posed, found = replace(problem, framework=own), []
    for near, changed in targets._neighbours(own, result.plan, problem):
        if frameworks.refusals(own, near, posed):
            continue
        _, timeline = api.evaluate(posed, near)
        assert timeline is not None
        if sim.excess_bytes(posed, near, timeline.peak_bytes) <= 0.0:
            found.append((timeline.step_seconds, ", ".join(changed)))
    return found


@pytest.mark.parametrize("turned", [False, True])
def test_the_nearest_plan_is_the_quickest_of_all_that_are_near(
    planned: Result, monkeypatch: pytest.MonkeyPatch, turned: bool
) -> None:
    usual = frameworks.for_problem

    def own(*asked: Any) -> Framework:  # settings of recomputation the other way round: the quickest is not the first
        found = usual(*asked)
        return replace(found, limits=replace(found.limits, recompute=found.limits.recompute[::-1])) if turned else found

    monkeypatch.setattr(frameworks, "for_problem", own)
    first, *others = planned.plan.stages
    uneven = replace(first, recompute=("none", *("full",) * (len(first.ops) - 1)))
    odd = replace(planned, answer=replace(planned.answer, plan=replace(planned.plan, stages=(uneven, *others))))
    later = 0
    for name in frameworks.names():
        every, near = every_near(odd, name), targets.nearest(odd, name)
        if near is None:
            assert not every or getattr(frameworks.load(name), "OWN_MODELS", False)
            continue
        assert (near.step_seconds, near.changed) == min(every, key=lambda one: one[0])
        later += every[0][0] > near.step_seconds
    assert later >= 2 * turned


def test_a_plan_is_played_anew_for_figures_that_it_was_not_judged_by(planned: Result) -> None:
    own, timeline = planned.problem.framework, planned.timeline
    assert timeline is not None
    false = replace(planned, timeline=replace(timeline, step_seconds=2.0 * timeline.step_seconds))
    slower = replace(false, problem=replace(planned.problem, framework=replace(own, compute_ratio=0.5)))
    told = [next(one for one in targets.runs_on(result) if one.word == own.word).step_seconds for result in (false, slower)]
    assert told == [2.0 * timeline.step_seconds, timeline.step_seconds]


def test_a_framework_that_cannot_run_a_plan_refuses_it_with_every_reason(planned: Result) -> None:
    own = planned.problem.framework
    limited = replace(own, name="mine", limits=replace(own.limits, schedules=("gpipe",), degrees=()))
    asked = replace(planned, problem=replace(planned.problem, framework=limited, framework_asked="mine"))
    with pytest.raises(InputError, match=r"--for mine: cannot run this plan: pipeline degree 2.*; schedule zb_h1"):
        targets.checked(asked)
    assert targets.checked(replace(asked, problem=replace(asked.problem, framework_asked=""))).plan == planned.plan


def test_degrees_asked_for_stand_beside_the_answer_cause_by_cause(planned: Result) -> None:
    entry = with_why_not(planned, {"pipeline": "1"}).answer.extra["why_not"]
    assert planned.timeline is not None and isinstance(entry, dict)
    assert entry["feasible"] and entry["fixed"] == {"pipeline": "1"}
    other = api.plan(planned.asked or planned.problem, search="best", settings={"pipeline": "1", "alternatives": "1"})
    assert other.timeline is not None and entry["step_seconds"] == other.timeline.step_seconds
    assert entry["slower_ratio"] == pytest.approx(entry["step_seconds"] / planned.timeline.step_seconds - 1.0)
    ours, theirs = (dict(result.timeline.causes) for result in (planned, other) if result.timeline is not None)
    assert {row["cause"] for row in entry["causes"]} == set(ours) | set(theirs)
    for row in entry["causes"]:
        assert row["answer_seconds"] == ours.get(row["cause"], 0.0) and row["seconds"] == theirs.get(row["cause"], 0.0)
        assert row["difference_seconds"] == row["seconds"] - row["answer_seconds"]
    worst_first = [row["difference_seconds"] for row in entry["causes"]]
    assert worst_first == sorted(worst_first, reverse=True)
    nothing = with_why_not(planned, {"tensor": "3"}).answer.extra["why_not"]
    assert isinstance(nothing, dict) and not nothing["feasible"] and nothing["reason"]
    with pytest.raises(InputError, match="name degrees"):
        with_why_not(planned, {"evaluations": "3"})


def test_degrees_asked_for_are_those_of_the_question_as_it_was_asked(planned: Result) -> None:
    """Not of the one that the search made of it by filling what was open."""
    open_ = replace(planned.problem, batch=replace(planned.problem.batch, global_batch=4))
    entry = with_why_not(replace(planned, asked=open_), {"pipeline": "1"}).answer.extra["why_not"]
    other = api.plan(open_, search="best", settings={"pipeline": "1", "alternatives": "1"})
    same = api.plan(planned.problem, search="best", settings={"pipeline": "1", "alternatives": "1"})
    assert other.timeline is not None and same.timeline is not None and isinstance(entry, dict)
    assert entry["step_seconds"] == other.timeline.step_seconds != same.timeline.step_seconds


def test_a_cluster_that_cannot_be_described_is_left_out_of_the_list_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = clusters.describe

    def describe(word: str) -> clusters.Description:
        if word == "torus":
            raise PluginError("topology torus is broken")
        return usual(word)

    before = listing.rooms()["clusters"]()
    monkeypatch.setattr(clusters, "describe", describe)
    registry.warn.cache_clear()
    with pytest.warns(PluginWarning, match="topology torus is broken; it is left out"):
        assert listing.rooms()["clusters"]() == [entry for entry in before if entry[0] != "torus"]
