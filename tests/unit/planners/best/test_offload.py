"""Optimizer state on the host as a choice of search best: only where asked for, bounds below, files, frameworks, notes."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from meshwright import api, frameworks, sim
from meshwright.base import options
from meshwright.base.errors import ExportError, InputError, UnknownNameError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.planners.best import virtual
from meshwright.planners.best.check import space as check_space
from meshwright.planners.best.check.proof import BoundProof
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import variants
from meshwright.planners.best.question import Exchanges
from meshwright.planners.best.search import best
from meshwright.planners.best.space import ANY, Config, MeshDegrees, pools
from meshwright.writers import plan_json


def posed(cluster: str = "dgx-h100:8", framework: str = "megatron", model: str = "llama-3.1-8b") -> Problem:
    return api.make_problem(model, cluster, batch=Batch(16, 0, 8192), framework=framework, memory_risk=0.5)


def with_memory(problem: Problem, n_bytes: float) -> Problem:
    kinds = tuple(replace(kind, memory_bytes=n_bytes) for kind in problem.required_cluster.kinds)
    return replace(problem, cluster=replace(problem.required_cluster, kinds=kinds))


def solved(problem: Problem, **settings: str) -> Result:
    return api.plan(problem, search="best", settings={"alternatives": "1", **settings})


def test_what_all_shardings_hold_at_least_is_below_each_with_and_without_the_host() -> None:
    problem, both = posed(), ("none", "optimizer")
    pool, chain = pools(problem.required_cluster)[0], chain_of(problem.graph)
    mesh = MeshDegrees(2, 4, 1, 1, 1, 1)
    for offloads in (("none",), ("optimizer",), both):
        exchanges = Exchanges(problem, (), offloads)
        costs = Costs(problem, pool, chain, exchanges=exchanges)
        any_of = Config(mesh, ANY, 0, "1f1b", 1, "")
        least, seen = costs.rows(any_of, light=True)[0], set()
        for variant in variants(any_of, problem, pool, (0, 1, 2, 3), ("ring",), offloads):
            assert variant.strategy.offload == variant.offload
            for rows in costs.rows(variant):
                assert all(least[key].static_bytes <= load.static_bytes * (1 + 1e-12) for key, load in rows.items()), variant
                seen |= {(key, load.optimizer_bytes == 0.0) for key, load in rows.items() if load.weight_bytes}
        assert {away for _, away in seen} == {place == "optimizer" for place in offloads}  # each has prices of its own


def test_what_virtual_stages_take_is_not_that_of_state_on_the_device() -> None:
    """Bounds of both are asked for one after the other of the same prices, as a search does."""
    problem, mesh = posed(), MeshDegrees(2, 4, 1, 1, 1, 1)
    pool, chain = pools(problem.required_cluster)[0], chain_of(problem.graph)
    ways = [Config(mesh, 1, 0, "interleaved_1f1b", 2, "pipeline", offload=offload) for offload in ("none", "optimizer")]
    exchanges = Exchanges(problem, (), ("none", "optimizer"))

    def prices() -> Costs:
        return Costs(problem, pool, chain, ("none", "full"), 1.0, (1,), exchanges=exchanges)

    shared = prices()
    together = [virtual.bounds_of(shared, way, 4, light=False).tolist() for way in ways]
    assert together == [virtual.bounds_of(prices(), way, 4, light=False).tolist() for way in ways]
    assert together[0] != together[1]


def test_nothing_lies_on_the_host_unless_asked_for_and_then_the_quickest_is_the_answer() -> None:
    """At 26 GB a device 8 B weights fit 8 devices either way; state on the host makes room for less recomputation."""
    problem = with_memory(posed(), 26e9)
    plain, both, only = (solved(problem, **own) for own in ({}, {"offload": "none,optimizer"}, {"offload": "optimizer"}))
    assert plain.plan.stages[0].strategy.offload == "none"
    assert only.plan.stages[0].strategy.offload == "optimizer"
    steps = [own.timeline.step_seconds for own in (plain, only)]
    assert both.timeline.step_seconds == pytest.approx(min(steps), rel=1e-9)
    assert both.answer.bound.value <= min(own.answer.bound.value for own in (plain, only)) * (1 + 1e-9)
    assert "offload" not in plan_json.as_json(plain)["certificate"]["question"]["limits"]
    assert any("on the host, optimizer state and gradients take" in note for note in only.answer.notes)


def test_the_plan_file_says_it_and_another_word_is_refused() -> None:
    result = solved(posed(), offload="optimizer")
    entry = json.loads(json.dumps(plan_json.as_json(result)))
    names = {op.name: i for i, op in enumerate(result.problem.graph.ops)}
    assert {stage["offload"] for stage in entry["stages"]} == {"optimizer"}
    assert plan_json.plan_from_json(entry, names, "file") == result.plan
    entry["stages"][0]["offload"] = "weights"
    with pytest.raises(InputError, match="offload is 'weights'; it must be one of none, optimizer"):
        plan_json.plan_from_json(entry, names, "file")
    fixed = api.plan(posed(), search="best", fix="offload=optimizer,tensor=2")
    assert {stage.strategy.offload for stage in fixed.plan.stages} == {"optimizer"}
    with pytest.raises(UnknownNameError, match="optimizer"):
        api.plan(posed(), search="best", fix="offload=state")


def test_what_has_no_host_or_no_such_framework_is_refused() -> None:
    with pytest.raises(InputError, match="not in framework torchtitan, which has offload none; leave the option out"):
        solved(posed(framework="torchtitan"), offload="none,optimizer")
    with pytest.raises(InputError, match=r"has offload none \(assumed; say --for NAME\); leave"):
        solved(posed(framework=""), offload="optimizer")
    with pytest.raises(InputError, match="nothing is known of the host of H100-SXM-80GB in cluster flat:8"):
        solved(posed("flat:8"), offload="optimizer")


def test_where_nothing_fits_the_answer_says_what_would_with_the_host() -> None:
    for framework, how in (("megatron", "--set offload=none,optimizer"), ("", "with a framework that has it")):
        tight = with_memory(posed(framework=framework), 14e9)
        answer = solved(tight).answer
        note = next(note for note in answer.notes if "state on the host it fits" in note)
        assert answer.plan is None and how in note
    assert solved(with_memory(posed(), 14e9), offload="none,optimizer").plan.stages[0].strategy.offload == "optimizer"
    unlike = solved(with_memory(posed(framework="torchtitan"), 14e9)).answer  # which has nothing like it
    assert unlike.plan is None and not any("on the host" in note for note in unlike.notes)


@pytest.mark.parametrize("offload", ["optimizer", "none,activations"])
def test_nothing_that_would_fit_is_looked_for_on_devices_whose_hosts_are_unknown(offload: str) -> None:
    known = api.make_problem("llama-3.1-8b", "flat:2", batch=Batch(16, 0, 8192), framework="megatron", memory_risk=0.5)
    host = posed().required_cluster.kinds[0].host
    kinds = tuple(replace(kind, host=host, memory_bytes=4e9) for kind in known.required_cluster.kinds)
    answer = solved(replace(known, cluster=replace(known.required_cluster, kinds=kinds)), offload=offload).answer
    assert answer.plan is None and "fits on flat" not in answer.nearest  # flat:4 has no hosts


def planned(problem: Problem, strategy: Strategy) -> Result:
    n = len(problem.graph.ops)
    stage = Stage(tuple(range(n)), tuple(range(strategy.n_devices)), strategy, ("none",) * n)
    return Result(problem, "best", 0, Answer(Plan((stage,), 2, 1, "1f1b", 2 * strategy.data)))


@pytest.mark.parametrize("strategy", [Strategy(8, shard=1), Strategy(1, 8, sequence_parallel=True)])
def test_megatron_is_told_and_reads_it_back(strategy: Strategy, tmp_path: object) -> None:
    result = planned(posed(), replace(strategy, offload="optimizer"))
    path = f"{tmp_path}/plan.sh"
    frameworks.load("megatron").write(result, path)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    words = ("--optimizer-cpu-offload", "--use-distributed-optimizer", "--overlap-cpu-optimizer-d2h-h2d")
    assert all(word in text for word in words)
    said = frameworks.load("megatron").read(path, result.problem.graph)
    assert said.plan == result.plan and not any("offload" in one or "precision-aware" in one for one in said.warnings)
    with pytest.raises(ExportError, match="optimizer state on the host with sharding level 0; it has 1"):
        frameworks.load("megatron").write(planned(posed(), Strategy(8, offload="optimizer")), path)


@pytest.mark.parametrize("name", ["torchtitan", "fsdp2", "deepspeed", "megatron_bridge"])
def test_other_frameworks_refuse_it(name: str, tmp_path: object) -> None:
    result = planned(posed(framework=name), Strategy(8, shard=1, offload="optimizer"))
    with pytest.raises(ExportError, match="optimizer state on the host; it has offload none"):
        frameworks.load(name).write(result, f"{tmp_path}/plan.json")


def long_sequences(cluster: str = "gh200:1") -> Problem:
    """3.2 B weights on one device beside sequences whose activations do not fit; its host is near."""
    return api.make_problem("llama-3.2-3b", cluster, batch=Batch(8, 0, 16384), framework="megatron", memory_risk=0.5)


def test_activations_travel_to_a_near_host_rather_than_be_recomputed_and_the_check_confirms_it() -> None:
    plain, both, only = (
        solved(long_sequences(), **own) for own in ({}, {"offload": "none,activations"}, {"offload": "activations"})
    )
    assert plain.plan.n_offloaded == 0 and plain.plan.recomputes
    n_away = both.plan.n_offloaded
    assert 0 < n_away < 28 and both.plan == only.plan
    assert both.plan.stages[0].recompute == ("none", *("offload",) * n_away, *("none",) * (29 - n_away))
    assert both.timeline.step_seconds < 0.9 * plain.timeline.step_seconds
    assert any("on the host, activations take" in note for note in both.answer.notes)
    assert only.answer.bound.value == pytest.approx(only.timeline.step_seconds, rel=1e-9)
    for result in (both, only):
        entry = json.loads(json.dumps(plan_json.as_json(result)))
        assert best.check_plan(result, entry, "file").valid
    fewer = (*both.plan.stages[0].recompute[:n_away], *("none",) * (30 - n_away))  # one layer less: does not fit
    plan = replace(both.plan, stages=(replace(both.plan.stages[0], recompute=fewer),))
    peaks = sim.simulate(both.problem, plan, analytic.stage_costs(both.problem, plan)).peak_bytes
    assert sim.excess_bytes(both.problem, plan, peaks) > 0.0
    del entry["certificate"]["question"]["limits"]["offload"]
    assert not best.check_plan(only, entry, "file").valid


def test_a_far_host_takes_no_activations_where_recomputing_is_quicker() -> None:
    problem = long_sequences()
    kinds = tuple(replace(kind, host=replace(kind.host, link_bytes_per_second=1e9)) for kind in problem.required_cluster.kinds)
    far = replace(problem, cluster=replace(problem.required_cluster, kinds=kinds))
    assert solved(far, offload="none,activations").plan.n_offloaded == 0
    assert solved(far, offload="activations").plan.n_offloaded > 0


def test_the_check_refutes_no_bound_of_plans_that_recompute_where_activations_may_be_away() -> None:
    problem = long_sequences()
    plain = solved(problem, offload="none")
    for offload, n_open in (("none", 0), ("none,activations", 1)):
        params = options.parse(best.Params, {"offload": offload}, "search best")
        limits = {one.name: getattr(params, one.name) for one in fields(params)}
        proof = BoundProof(plain.problem, check_space.inside(plain.problem, limits), plain.answer.bound.value)
        proof.run()
        assert (len(proof.open) > 0) == n_open


def test_one_layer_at_least_keeps_its_activations() -> None:
    problem = long_sequences()
    peaks = []
    for n_away in (27, 28):
        words = ("none", *("offload",) * n_away, *("none",) * (28 - n_away), "none")
        plan = Plan((Stage(tuple(range(30)), (0,), Strategy(), words),), 8, 1, "1f1b", 8)
        peaks.append(sim.simulate(problem, plan, analytic.stage_costs(problem, plan)).peak_bytes[0])
    for peak, fits in ((peaks[0] * 1.0001, True), (sum(peaks) / 2, False)):
        assert solved(with_memory(problem, peak), offload="activations", micro_batch="1").feasible == fits


@pytest.mark.parametrize(("settings", "why"), [
    ({"pipeline": "2"}, "without a pipeline only"), ({"schedules": "interleaved_1f1b"}, "without a pipeline only"),
    ({"recompute": "full"}, "allow none with --set recompute"), ({"uniform": "true"}, "leave uniform out"),
])  # fmt: skip
def test_what_cannot_stand_beside_activations_on_the_host_is_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=f"offload activations: .*{why}"):
        solved(long_sequences(), offload="activations", **settings)
    with pytest.raises(InputError, match="not in framework torchtitan, which has offload none"):
        solved(posed(framework="torchtitan"), offload="none,activations")
    with pytest.raises(InputError, match="nothing is known of the host of H100-SXM-80GB"):
        solved(posed("flat:8"), offload="activations")


def with_words(n_away: int) -> Result:
    result = planned(posed(), Strategy(8, shard=1))
    words = ("none", *("offload",) * n_away, *("none",) * (32 - n_away), "none")
    return replace(result, answer=Answer(replace(result.plan, stages=(replace(result.plan.stages[0], recompute=words),))))


def test_megatron_is_told_whose_activations_are_on_the_host_and_reads_it_back(tmp_path: object) -> None:
    result, path = with_words(7), f"{tmp_path}/plan.sh"
    megatron = frameworks.load("megatron")
    megatron.write(result, path)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert "--cpu-offloading-num-layers 7" in text and "--recompute" not in text
    assert megatron.read(path, result.problem.graph).plan == result.plan
    with pytest.raises(ExportError, match="on the host than of the first, at most 31 of 32"):
        megatron.write(with_words(32), path)
    for more, why in (
        ("32", "is 32; Megatron-LM asks for less than the 32 layers"), ("7 --recompute-activations", "beside recomputation"),
        ("7 --pipeline-model-parallel-size 2", "beside a pipeline"), ("x", "must be a whole number"),
        ("7 --cuda-graph-impl local", "beside --cuda-graph-impl: Megatron-LM captures no graphs"),
    ):  # fmt: skip
        with open(path, "w", encoding="utf-8") as file:
            other = text.replace("--pipeline-model-parallel-size 1", "") if "pipeline" in more else text
            file.write(other.replace("--cpu-offloading-num-layers 7", f"--cpu-offloading-num-layers {more}"))
        with pytest.raises(InputError, match=why):
            megatron.read(path, result.problem.graph)
    with pytest.raises(ExportError, match="activations on the host; it has offload none"):
        frameworks.load("megatron_bridge").write(result, path)
    assert all(
        "activations" not in frameworks.variant("megatron", one).limits.offloads for one in ("experts_captured", "experts_drop")
    )
