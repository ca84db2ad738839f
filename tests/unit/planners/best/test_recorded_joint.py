"""Search best on small questions: its space, prices, bounds, plans and answers are as they were recorded."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from gists import gist
from meshwright import api, schedules, sim
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer
from meshwright.planners.best import (
    bounds,
    certificate,
    incumbents,
    inequalities,
    limits,
    memory,
    plans,
    question,
    ranks,
)
from meshwright.planners.best import space as joint
from meshwright.planners.best.beside import simplest
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.question import impossible
from meshwright.planners.best.search import measured
from meshwright.planners.best.search.best import Params, in_shape
from meshwright.planners.best.space import Config, MeshDegrees
from meshwright.planners.best.virtual import spread
from recorded import Recorded
from small_questions import question as asked_of

CLUSTERS = ("nodes", "kinds", "sorts", "torus")
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "none": {}, "one setting": {"recompute_scope": "plan", "block_recompute": True, "hybrid_shards": (3,)},
    "narrow": {
        "degrees": ("pipeline", "tensor"), "shards": (0, 1, 3), "hybrid_shards": (), "layouts": ("pipeline",),
        "any_order": False, "uneven_stages": False, "schedules": ("1f1b", "interleaved_1f1b", "zb_h2", "gpipe"),
    },
    "flat": {"sequence_parallel": False, "virtual_stages": False, "recompute_scope": "plan"},
}  # fmt: skip
GIVEN: dict[str, Limits] = {
    "usual": Limits(), "given": Limits(tensor=(2,), data=(1, 2), micro_batch=(1, 2), schedules=("1f1b", "zb_v", "looped_bfs")),
    "uniform": Limits(uniform=True, recompute=("none", "full"), shard=(0, 3), schedules=("1f1b", "interleaved_1f1b")),
    "few": Limits(pipeline=(2, 3), context=(1, 2), expert=(1, 4), recompute=("full",)),
}  # fmt: skip


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_space(recorded: Recorded, cluster: str) -> None:
    for (word, framework), (told, given) in itertools.product(FRAMEWORKS.items(), GIVEN.items()):
        problem = asked_of("mixed", cluster, sequence=4096, **framework)
        if (word, told) in (("narrow", "few"), ("flat", "given")):  # degrees that the framework has not
            with pytest.raises(InputError) as error:
                limits.inside_framework(given, problem)
            recorded(str(error.value), f"{word}, {told}")
            continue
        own, n_layers = limits.inside_framework(given, problem), 5
        degrees = limits.allowed_degrees(problem, own, problem.required_cluster.n_devices)
        usual, found = limits.usual(problem, own), []
        counts = certificate.Counts(problem, own, n_layers, (True, True))
        for pool in joint.pools(problem.required_cluster):
            found.append([pool.name, pool.devices, pool.n_devices, pool.in_order, ranks.allowed_pool(pool, problem)])
            for i, mesh in enumerate(joint.meshes(pool, n_layers=n_layers, global_batch=8, degrees=degrees)):
                m = 8 // (mesh.data * mesh.micro_batch)
                every = list(joint.schedules_of(mesh, m, n_layers, own.schedules))
                found.append([mesh, usual(mesh), every, counts.of(pool, mesh, ("ring",))])
                if i % 7 == 0 and every:
                    config = Config(mesh, 0, 0, *every[-1], "pipeline")
                    found.append(
                        [limits.variants(config, problem, pool, own.shard), config.leads(m), config.fitted, config.one_way]
                    )
                    found += [pool.ranks(one) for one in limits.variants(config, problem, pool, (0,))]
        recorded([gist(degrees), gist(own), gist(question.settings(problem, own)), gist(found)], f"{word}, {told}")


def test_what_leaves_nothing_is_refused() -> None:
    narrow = asked_of("mixed", "nodes", **FRAMEWORKS["narrow"])
    with_one = asked_of("mixed", "nodes", micro_batch=2)
    assert limits.allowed_degrees(with_one, Limits(micro_batch=(2,)), 8)["micro_batch"] == (2,)
    with pytest.raises(InputError, match=r"^--micro-batch 2 and --set micro_batch=1,4: say it once$"):
        limits.allowed_degrees(with_one, Limits(micro_batch=(1, 4)), 8)
    word = re.escape(narrow.framework.word)
    for given, message in (
        (
            Limits(expert=(2, 4)),
            rf"^expert degree 2: not in framework {word}, which has no expert parallelism; leave the option out$",
        ),
        (
            Limits(schedules=("zb_v",)),
            rf"^schedules zb_v: not in framework {word}, which has schedules 1f1b, interleaved_1f1b, zb_h2, ",
        ),
        (
            Limits(shard=(2,)),
            rf"^sharding levels \(2,\): not in framework {word}, which has sharding levels \(0, 1, 3\); leave ",
        ),
    ):
        with pytest.raises(InputError, match=message):
            limits.inside_framework(given, narrow)
    with pytest.raises(InputError, match=r"^expert degree 2: not in framework"):  # never dropped without a word
        limits.inside_framework(Limits(expert=(1, 2)), narrow)
    assert limits.inside_framework(Limits(expert=(1,)), narrow).expert == (1,)
    flat = asked_of("mixed", "nodes", recompute=("none", "full"))
    with pytest.raises(
        InputError, match=r"^recompute selective: not in framework .*, which has none, full; leave the option out$"
    ):
        question.settings(flat, Limits(recompute=("selective",)))
    pairs = Limits(schedules=("combined_1f1b",), recompute=("full",))
    with pytest.raises(InputError, match=r"recompute full: that repeats the all-to-alls of experts.* or to recompute none$"):
        question.settings(flat, pairs)
    problem = asked_of("like", "nodes")
    for given, said in (
        (Limits(tensor=(4, 8), pipeline=(3,)), "tensor 4 x pipeline 3 need 12 devices, there are 8"),
        (Limits(data=(16,)), "data 16 needs 16 devices, there are 8"), (Limits(pipeline=(7,)),
        "pipeline 7 needs as many layers, there are 5"),
        (Limits(micro_batch=(3, 5)), "3 samples (data degree x micro-batch) do not divide the batch of 8"),
        (Limits(data=(2, 4), micro_batch=(3, 5)), "6 samples (data degree x micro-batch) do not divide the batch of 8"),
        (Limits(pipeline=(1,), schedules=("zb_v",)), "pipeline 1 runs 1f1b, which is not among the schedules given: zb_v"),
        (Limits(tensor=(8,)), "no combination of degrees divides the batch, the layers and the devices"),
    ):  # fmt: skip
        assert impossible(problem, given, 5) == said


def test_how_many_ranks_a_node_shards_over_and_the_largest_degrees(recorded: Recorded) -> None:
    problem = asked_of("mixed", "nodes", sequence=4096)
    recorded([limits.shard_degrees(problem, size, data) for size in (1, 2, 3, 4) for data in (1, 2, 4, 6, 8, 16)], "degrees")
    recorded([limits.largest_degrees(problem.graph), limits.sample_flops(problem.graph)], "largest")


def test_the_batch_where_none_is_given() -> None:
    problem = asked_of("like", "nodes")
    assert question.default_batch(problem) == 2048 and question.default_batch(asked_of("like", "nodes", sequence=3000)) == 1024
    notes: list[str] = []
    none = dataclasses.replace(problem, batch=Batch(0, 0, 2048))
    assert question.with_batch(none, "best", notes).batch == Batch(2048, 0, 2048)
    assert notes == ["no --global-batch given: 2048 samples of 2048 tokens a step are assumed"]
    assert question.with_batch(problem, "best", notes) is problem and len(notes) == 1
    nowhere = dataclasses.replace(problem, cluster=None)
    with pytest.raises(InputError, match=r"^search best: model like: say where to train it: --cluster dgx-h100:64$"):
        question.with_batch(nowhere, "best", notes)
    empty = Answer(None, notes=("a", "b"))
    said = question.within_limits(empty, "grid")
    assert said.notes == ("a", "search grid: b") and said.nearest == "--search best, which is not bound to this space"
    missing = question.within_limits(dataclasses.replace(empty, missing_bytes=3.0), "grid")
    assert missing.notes == ("a", "b") and missing.nearest == empty.nearest and missing.bound is None


CASES: tuple[tuple[Any, ...], ...] = (  # mesh: pipeline, data, context, tensor, expert, micro-batch; sharding
    ("like", "nodes", (3, 2, 1, 1, 1, 1), 1, "1f1b", 1, "pipeline"), ("like", "nodes", (4, 1, 1, 2, 1, 2),
    0, "gpipe", 1, "pipeline"),
    ("like", "kinds", (4, 2, 1, 1, 1, 1), 3, "zb_h1", 1, "pipeline"), ("mixed", "nodes", (2, 2, 1, 1, 2, 1),
    2, "1f1b", 1, "pipeline"),
    ("mixed", "sorts", (3, 1, 2, 1, 1, 1), 1, "zb_h2", 1, "pipeline"), ("like", "sorts", (5, 1, 1, 1, 1, 1),
    0, "early_backward_b", 1, "pipeline"),
    ("mixed", "kinds", (2, 1, 1, 1, 1, 2), 0, "gpipe", 1, "pipeline"), ("mixed", "nodes", (2, 4, 1, 1, 1, 1),
    3, "zb_h1", 1, "data"),
    ("like", "torus", (1, 1, 1, 1, 1, 1), 0, "1f1b", 1, "pipeline"), ("like", "nodes", (2, 2, 1, 1, 1, 1),
    1, "interleaved_1f1b", 2, "data"),
    ("like", "nodes", (2, 2, 1, 1, 1, 1), 2, "zb_v", 2, "pipeline"), ("mixed", "kinds", (2, 1, 1, 1, 1, 1),
    0, "v_half", 2, "pipeline"),
    ("mixed", "nodes", (2, 1, 1, 1, 1, 2), 0, "looped_bfs", 2, "pipeline"), ("like", "sorts", (2, 1, 1, 1, 1, 1),
    0, "v_min", 2, "pipeline"),
)  # fmt: skip


def posed(case: tuple[Any, ...], gigabytes: float, **how: Any) -> tuple[Costs, Config, int]:
    model, cluster, degrees, shard, schedule, chunks, layout = case
    problem = asked_of(model, cluster, gigabytes=gigabytes)
    costs = Costs(problem, joint.pools(problem.required_cluster)[0], chain_of(problem.graph), **how)
    config = Config(MeshDegrees(*degrees), shard, 0, schedule, chunks, layout)
    return costs, config, 8 // (config.mesh.data * config.mesh.micro_batch)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bounds_and_plans_of_a_configuration(recorded: Recorded, case: int) -> None:
    """With room for everything, and with less and less of it, down to where nothing fits."""
    costs, config, m = posed(CASES[case], 60.0)
    p, n_layers = config.mesh.pipeline, len(costs.chain.layers)
    counts = spread(n_layers, p, config.chunks)
    any_config = dataclasses.replace(config, shard=joint.ANY, layout="")
    even = plans.bare(costs, config, m, counts)
    assert even is not None
    stage_costs = costs.stage_costs(config, even)
    hops = costs.transfer_seconds(config, even, stage_costs)
    timeline = sim.simulate(costs.problem, even, stage_costs)
    step, full = timeline.step_seconds, max(timeline.peak_bytes) * (4 / 3 if CASES[case][1] == "kinds" else 1.0)
    classes = [costs.classes(config), costs.classes(config, light=True), costs.classes(any_config)]
    recorded({
        "classes": gist(classes), "rows": gist(costs.rows(config)), "light": gist(costs.rows(config, light=True)),
        "any": gist(costs.rows(any_config, light=True)), "digests": gist(costs.digests(config, light=False)),
        "stacked": gist(costs.stacked(any_config, light=True)), "peaks": gist(costs.peaks(config, m)),
        "work": gist([costs.least_work(any_config, with_communication=sent) for sent in (False, True)]),
        "mesh": [bounds.of_mesh(costs, config.mesh, m, with_communication=sent) for sent in (False, True)],
        "stages": gist(stage_costs), "hops": hops, "step": step, "kinds": costs.kind_of_rank(config), "full": full,
        "place": gist(incumbents.place_of(even, [costs])), "own": gist(plans.own_peaks(costs, config, even)),
    }, "prices")  # fmt: skip
    for share in (1.1, 0.88, 0.7, 0.5):
        costs, config, m = posed(CASES[case], share * full / 1e9)
        lowest = bounds.of_config(costs, config, m, 50.0 * step, transfer_seconds=hops)
        plan = plans.build(costs, config, m, min(lowest, 5.0 * step))
        found: dict[str, Any] = {
            "bounds": [bounds.of_config(costs, one, m, 50.0 * step, light=light)
                       for one, light in ((any_config, True), (config, True), (config, False))] + [lowest],
            "built": gist(plan), "missing": [plans.missing_bytes(costs, config, m, light=light) for light in (False, True)],
            "even": gist(plans.with_counts(costs, config, m, counts)), "never": plans.never_fits(costs, config, m, counts),
            "uniform": gist(plans.build(costs, config, m, 0.0, uniform=True)) if n_layers % (p * config.chunks) == 0 else None,
            "closest": gist(plans.closest(costs.problem, [costs], [(0, any_config, True)], (0, 1, 3))),
        }  # fmt: skip
        if config.chunks == 1:
            ranks, n_comparable, after = costs.pipeline_ranks(config, m)
            found |= {
                "ranks": gist(ranks, n_comparable, after, *costs.pipeline_ranks(config, m, building=True)),
                "chain": gist(inequalities.chain_to_cut(costs, config, m, hops)),
                "building": gist(inequalities.chain_to_cut(costs, config, m, building=True)),
                "counts": plans.counts_of(costs, config, m, lowest),
            }  # fmt: skip
        recorded(found, f"{share}")
    blocks, config, m = posed(CASES[case], 0.75 * full / 1e9, recompute=("none", "full"), blocks=True)
    one = blocks.recomputing(("full",))
    recorded([gist(plans.with_counts(costs, config, m, counts)) for costs in (blocks, one)], "ways")


def test_stages_without_layers_take_one_of_the_nearest_neighbour_with_most() -> None:
    for counts, pinned, expected in (
        ([3, 0, 2], (False, False), (2, 1, 2)), ([0, 4, 0], (True, True), (0, 4, 0)), ([0, 4, 0], (False, False), (1, 2, 1)),
        ([1, 0, 1], (False, False), (1, 0, 1)), ([5, 1, 0, 1], (False, False), (4, 1, 1, 1)), ([2, 0, 3], (True, True),
        (2, 1, 2)),
    ):  # fmt: skip
        assert plans.without_gaps(list(counts), pinned) == expected, counts


def test_fullest_moments(recorded: Recorded) -> None:
    found = []
    for word, n_ranks, n_chunks, m in (
        ("1f1b", 4, 1, 3), ("gpipe", 3, 1, 5), ("zb_h2", 3, 1, 8), ("interleaved_1f1b", 3, 2, 9),
        ("interleaved_1f1b", 2, 3, 30),
        ("looped_bfs", 2, 2, 5), ("zb_v", 3, 2, 9), ("v_half", 4, 2, 30), ("v_min", 2, 2, 5),
    ):  # fmt: skip
        found.append(gist(memory.least_peaks(word, n_ranks, n_chunks, m)))
        found.append(gist(memory.peaks_of(schedules.load(word).order(n_ranks, n_chunks, min(m, 9), None))))
    recorded(found)


def test_layers_of_a_rank_recompute_as_little_as_fits(recorded: Recorded) -> None:
    found = []
    for seed in range(12):
        dice = np.random.default_rng(seed)
        n, n_stages, words = int(dice.integers(1, 8)), 1 + seed % 2, ("none", "selective", "full")[: 1 + seed % 3]
        shape = (len(words), n)
        kept, extra = np.sort(dice.uniform(1.0, 4.0, shape), axis=0)[::-1], np.sort(dice.uniform(0.0, 2.0, shape), axis=0)
        extra[0] = 0.0
        held, at = dice.integers(0, 4, (2, n_stages)).astype(float), dice.integers(0, n_stages, 2)
        layers = memory.RankLayers(
            words, dice.random(n) < 0.2, np.sort(dice.integers(0, n_stages, n)), dice.uniform(0.0, 2.0, n), kept,
            dice.uniform(0.0, 3.0, shape), dice.uniform(0.0, 1.0, shape), extra, held, at,
        )  # fmt: skip
        most, least = layers.peak_bytes(np.zeros(n, np.int64)), layers.peak_bytes(np.full(n, len(words) - 1))
        rooms = [least + share * (most - least) for share in (-0.2, -0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.01)]
        found.append([most, least, layers.least_bytes, gist([layers.chosen(room) for room in rooms])])
    recorded(found)


ASKED: tuple[tuple[Any, ...], ...] = (
    ("like", "nodes", 4.0, {}), ("like", "nodes", 0.6, {"within_ratio": "0.3", "alternatives": "6"}),
    ("like", "kinds", 0.6, {"schedules": "1f1b,gpipe", "splits": "20"}),
    ("like", "sorts", 0.6, {"uniform": "true", "evaluations": "5"}),
    ("mixed", "torus", 4.0, {"micro_batch": "1", "context": "1", "shard": "1,3", "schedules": "1f1b,zb_h1",
    "pipeline": "2,3"}),
    ("like", "torus", 0.3, {"recompute": "none,full", "memory_ratio": "0.9"}), ("like", "sorts", 0.12, {"tensor": "1"}),
    ("like", "nodes", 0.5, {"evaluations": "2", "splits": "0", "alternatives": "1", "schedules": "1f1b,zb_v,looped_bfs"}),
)  # fmt: skip


@pytest.mark.parametrize("case", range(len(ASKED)))
def test_answers(recorded: Recorded, case: int) -> None:
    model, cluster, gigabytes, settings = ASKED[case]
    limits_of_ours = {"recompute_scope": "plan"} if case == 5 else {}
    answer = api.plan(asked_of(model, cluster, gigabytes=gigabytes, **limits_of_ours), search="best", settings=settings).answer
    told = dict(answer.certificate or {})
    recorded({
        "plan": gist(answer.plan),
        "objective": answer.objective and answer.objective.value, "bound": answer.bound and answer.bound.value,
        "method": answer.bound and answer.bound.method, "missing": answer.missing_bytes, "nearest": answer.nearest,
        "proven": answer.infeasible_proven, "iterations": answer.n_iterations,
        "others": [[gist(one.plan), one.objective.value, one.why] for one in answer.alternatives],
        "notes": [re.sub(r"\\d+\\.\\d{5,}", "#", note) for note in answer.notes], "sets": gist(told["sets"]),
        "limits": gist(told["question"]["limits"]),
        "fastest": gist(json.dumps(sorted(answer.extra.get("fastest") or {}))),
    })  # fmt: skip


@pytest.mark.parametrize("search", ["megatron_grid", "data_parallel"])
def test_answers_of_other_searches(recorded: Recorded, search: str) -> None:
    for gigabytes in (4.0, 0.3):
        answer = api.plan(asked_of("like", "nodes", gigabytes=gigabytes), search=search).answer
        value = answer.objective and answer.objective.value
        recorded([gist(answer.plan), value, answer.bound, answer.missing_bytes, answer.nearest, answer.notes], f"{gigabytes}")


def test_plans_in_words(recorded: Recorded) -> None:
    problem = asked_of("like", "nodes", gigabytes=0.65)
    settings = {"within_ratio": "0.5", "context": "1", "tensor": "1,2"}
    result = api.plan(problem, search="best", settings=settings)
    costs = Costs(result.problem, joint.pools(problem.required_cluster)[0], chain_of(problem.graph))
    found = []
    for plan in (result.plan, *(one.plan for one in result.answer.alternatives)):
        place = incumbents.place_of(plan, [costs])
        assert place is not None
        config = place[1]
        timeline = sim.simulate(problem, plan, costs.stage_costs(config, plan))
        found.append(incumbents.Incumbent(0, config, plan, timeline))
    lines = [
        [incumbents.describe(one.config), incumbents.causes_of_loss(one, found[0]), incumbents.degrees_of(one.config)]
        for one in found
    ]
    ranks = [list(incumbents.rank(one)[:-1]) for one in found]
    known = [
        [simplest.complexity(one), simplest.least_complexity(one.config), simplest.least_complexity(one.config.mesh)]
        for one in found
    ]
    chosen = [found.index(simplest.chosen(found, ratio)) for ratio in (0.0, 0.05, 0.2, 0.5, 1.0)]
    recorded({"lines": lines, "ranks": ranks, "known": known, "chosen": chosen})
    recorded([incumbents.memory_notes(problem, one) for one in found], "notes")


def test_shapes_of_a_plan(recorded: Recorded) -> None:
    problem = asked_of("like", "nodes")
    costs, config, m = posed(CASES[9], 60.0)
    plan = plans.bare(costs, config, m, (1, 2, 1, 1))
    assert plan is not None
    graph, words, found = problem.graph, ("none", "selective", "full"), []
    flat = plans.bare(costs, dataclasses.replace(config, schedule="1f1b", chunks=1), m, (2, 3))
    assert flat is not None
    for own, virtual, split in (
        (plan, 2, (1, 2, 1, 1)), (plan, 2, ()), (plan, 2, (2, 1, 1, 1)), (plan, 1, ()), (flat, 1, ()), (flat, 1, (3, 2)),
        (flat, 2, ()), (flat, 1, (1, 2, 2)),
    ):  # fmt: skip
        every = list(in_shape(graph, own, virtual, split, words))
        found.append(
            [
                [[len(stage.ops) for stage in one.stages], [stage.recompute[:1] for stage in one.stages], one.schedule]
                for one in every
            ]
        )
    recorded(found)


def test_the_search_of_a_profile(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    layers = [
        {"name": f"{i}", "like": f"{i}", "n_parameters": 100, "weight_bytes": 400.0 * (i + 1), "output_bytes": 2e5}
        for i in range(4)
    ]
    measures = [
        {"layer": f"{i}", "rows": rows, "tensor": 1, "forward_seconds": 1e-3 * (i + 1) * rows, "saved_bytes": 1e8 * rows,
         "backward_input_seconds": 1e-3 * rows, "backward_weight_seconds": 5e-4 * (i + 2) * rows}
        for i in range(4) for rows in (1, 8)
    ]  # fmt: skip
    entry = {
        "format": "meshwright/profile/1", "model": "by hand", "sequence_length": 1, "device": "CPU", "n_cores": 4,
        "memory_bytes": 4e9, "optimizer_seconds_per_byte": 1e-6, "layers": layers, "measures": measures,
    }  # fmt: skip
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(entry))
    for gigabytes, settings in (
        (4.0, {"pipeline": "2", "data": "1,2"}),
        (0.9, {"recompute": "none,full", "pipeline": "2,3", "micro_batch": "1,2"}),
        (4.0, {"evaluations": "3", "schedules": "1f1b,zb_h1"}),
        (0.05, {"pipeline": "2", "data": "1"}),
    ):
        problem = api.make_problem(
            str(path), str(pathlib.Path(__file__).parents[3] / "data" / "small" / "sorts.yaml"), batch=Batch(8),
            memory_risk=0.5,
        )  # fmt: skip
        ours = asked_of("like", "sorts", gigabytes=gigabytes)
        problem = dataclasses.replace(problem, cluster=ours.cluster, framework=ours.framework)
        answer = api.plan(problem, search="best", settings=settings).answer
        value = answer.objective and answer.objective.value
        others = [[gist(one.plan), one.objective.value] for one in answer.alternatives]
        told = [gist(answer.plan), value, answer.bound, answer.missing_bytes, answer.n_iterations, answer.notes, others]
        recorded(told, f"{gigabytes}, {settings}")
    params = Params(evaluations=3)
    choices = list(measured._choices(problem, problem.model_spec.instance, params))
    recorded([len(choices), gist(choices), list(measured._moves((2, 1, 3)))], "choices")
    for given, message in (({"context": "2"},
        "search measured: no degrees allowed divide the global batch of 8 samples on 6 devices; "),
                           ({"memory_ratio": "1.5"},
                           "--set memory_ratio=1.5: give a share of the memory, up to 1")):  # fmt: skip
        with pytest.raises(InputError, match=re.escape(message)):
            api.plan(problem, search="best", settings=given)


def test_more_than_all_memory_and_impossible_degrees_are_refused() -> None:
    problem: Problem = asked_of("like", "nodes")
    for settings, message in (
        ({"memory_ratio": "1.2"}, "--set memory_ratio=1.2: more than all of the memory; give a share up to 1"),
        ({"tensor": "3"}, "search best, with these options: "),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            api.plan(problem, search="best", settings=settings)
    with pytest.raises(
        InputError, match=r"^search data_parallel: 6 devices do not divide the global batch of 8 samples; give --global-b"
    ):
        api.plan(asked_of("like", "sorts"), search="data_parallel")
    with pytest.raises(
        InputError, match=r"^search data_parallel: its --set options belong to published graphs; for other models"
    ):
        api.plan(problem, search="data_parallel", settings={"batch": "64"})
