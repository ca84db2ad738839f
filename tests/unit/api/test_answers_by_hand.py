"""What is made of answers that searches and the simulator are said to have given: targets, shapes, claims, sizes, rungs."""

from __future__ import annotations

import functools
import math
import pathlib
import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edited import answer
from meshwright import api, frameworks
from meshwright.api import (
    answers,
    arguments,
    executors,
    fixing,
    inspect,
    plan_files,
    sensitivity,
    sweep,
    targets,
    why_not,
)
from meshwright.api.advise import climbing
from meshwright.api.sizes import effective, size_search, sizing
from meshwright.base.errors import InputError, PluginError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem, Stop
from meshwright.core.result import Answer, Bound, Objective, Result
from meshwright.core.strategy import Strategy
from meshwright.sizing.points import LeftOut, Outlay
from recorded import Recorded

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


@functools.cache
def posed(cluster: str = "flat:8", framework: str = "meshwright") -> Problem:
    return api.make_problem(TINY, cluster, batch=Batch(16), framework=framework)


def dealt(strategy: Strategy, n_ranks: int = 1, chunks: int = 1, schedule: str = "1f1b", word: str = "none") -> Plan:
    """Return the four layers dealt evenly to stages."""
    n, stages, size = n_ranks * chunks, [], strategy.n_devices
    for i in range(n):
        ops = tuple([0] * (i == 0) + [1 + i * 4 // n + k for k in range(4 // n)] + [5] * (i == n - 1))
        rank = i % n_ranks
        words = tuple("none" if op in (0, 5) else word for op in ops)
        stages.append(Stage(ops, tuple(range(rank * size, (rank + 1) * size)), strategy, words))
    return Plan(tuple(stages), 16 // strategy.data, 1, schedule, 16)


def played(plan: Plan, salt: str = "") -> Any:
    """Return a timeline whose figures follow from a plan's words: every plan another."""
    words = [
        (one.ops, one.devices, one.recompute, one.ring, one.strategy.shard, one.strategy.shard_degree) for one in plan.stages
    ]
    sum_of = zlib.crc32(f"{words} {plan.schedule} {salt}".encode()) % 997
    causes = (("compute", 0.5), ("bubble", sum_of / 1000), ("tensor" if sum_of % 2 else "reduce", 0.25))
    seconds = 0.75 + sum_of / 1000
    return SimpleNamespace(step_seconds=seconds, causes=causes, peak_bytes=(1e9 * (1 + sum_of % 7),) * len(plan.ranks()))


def result_of(plan: Plan | None, problem: Problem | None = None, **said: Any) -> Result:
    problem = problem or posed()
    timeline = None if plan is None else played(plan)
    objective = None if timeline is None else Objective("step_seconds", timeline.step_seconds)
    found = Answer(plan, objective, **said)
    return Result(problem, "best", 0, found, (), timeline)


def test_the_nearest_plan_of_every_framework_is_as_before(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    monkeypatch.setattr(targets, "evaluate", lambda problem, plan: ((), played(plan, problem.framework.word)))
    monkeypatch.setattr(targets, "stage_costs_of", lambda problem, plan: (plan,))
    monkeypatch.setattr(targets, "simulate", lambda problem, plan, stage_costs: played(plan, problem.framework.word))
    monkeypatch.setattr("meshwright.sim.least_seconds", lambda problem, plan, stage_costs: 0.0)
    plans = {
        "one": dealt(Strategy(8, shard=1)),
        "tensor": dealt(Strategy(2, 4, 1, 1, True, 2)),
        "full": dealt(Strategy(8), word="full"),
        "piped": dealt(Strategy(4), 2),
        "zero bubble": dealt(Strategy(4, shard=3), 2, 1, "zb_h1", "selective"),
        "virtual": dealt(Strategy(4, shard=1), 2, 2, "interleaved_1f1b"),
        "hybrid": dealt(Strategy(8, shard=1, shard_degree=4)),
    }
    plans["rings"] = replace(plans["one"], stages=(replace(plans["one"].stages[0], ring=tuple(range(8))),))
    plans["mixed"] = replace(plans["one"], stages=(replace(plans["one"].stages[0], recompute=("none", "full", *["none"] * 4)),))
    for key, plan in plans.items():
        found = targets.runs_on(replace(result_of(plan), timeline=None))  # judged anew for every framework
        recorded(
            {
                one.word: [
                    round(one.step_seconds, 3),
                    len(one.refusals),
                    one.near and [one.near.changed, round(one.near.step_seconds, 3)],
                ]
                for one in found
            },
            key,
        )
        if key in ("one", "zero bubble"):
            recorded(targets.as_json(found[:3]), f"{key} as JSON")
        if key in ("one", "virtual"):
            asked = replace(posed(), framework=frameworks.plain("deepspeed"), framework_asked="deepspeed")
            for name, own in (
                ("assumed", replace(posed(), framework_asked="")),
                ("asked", asked),
                ("none", replace(posed(), framework=targets.Framework())),
            ):
                recorded(targets.with_targets(replace(result_of(plan, own), timeline=None)).answer.notes, f"{key} notes {name}")
    tight = replace(posed(), cluster=api.make_problem(TINY, "flat:8").cluster)
    monkeypatch.setattr(targets, "stage_costs_of", lambda problem, plan: ())
    assert targets.nearest(result_of(plans["piped"], tight), "fsdp2") is None
    assert targets.with_targets(result_of(None)).answer.notes == ()


def test_what_costs_and_frameworks_do_not_know_is_refused_word_by_word(recorded: Recorded) -> None:
    frozen = api.make_problem(TINY, "flat:8", lora="r=4,targets=query")
    told: dict[str, str] = {}
    empty, knows = SimpleNamespace(), SimpleNamespace(FROZEN=True, STATES=True)
    for name, module in (("empty", empty), ("knows", knows)):
        told[f"frozen {name}"] = answer(lambda _, m=module: targets.whole_only(frozen.graph, m, "search x"), "")  # type: ignore[misc]
        told[f"whole {name}"] = answer(lambda _, m=module: targets.whole_only(posed().graph, m, "search x", "do y"), "")  # type: ignore[misc]
        for training in (MixedPrecision(), MixedPrecision().updated_by("sgd"), MixedPrecision().updated_by(state_bytes=2)):
            key = f"{training.optimizer} {training.state_bytes} {name}"
            told[key] = answer(lambda _, m=module, t=training: targets.states_known(t, m, "costs x"), "")  # type: ignore[misc]
    limits = replace(posed().framework.limits, optimizers=("adamw",), quantised_base=False)
    own = replace(posed().framework, limits=limits)
    sgd = replace(posed(), framework=own, framework_asked="own", training=MixedPrecision().updated_by("sgd"))
    quantised = api.make_problem(TINY, "flat:8", lora="r=4,targets=query,base=4bit")
    for key, problem in (
        ("sgd", sgd),
        ("sgd unasked", replace(sgd, framework_asked="")),
        ("adamw", replace(sgd, training=MixedPrecision())),
        ("4bit", replace(quantised, framework=own, framework_asked="own")),
        ("4bit unasked", replace(quantised, framework=own)),
        ("4bit had", replace(quantised, framework_asked="own")),
        ("lora", replace(frozen, framework=own, framework_asked="own")),
    ):
        told[f"trainable {key}"] = answer(lambda _, p=problem: targets.trainable(p) is p, "")  # type: ignore[misc]
    spec = posed().model_spec
    plain = MixedPrecision()
    for word, costs, of in (
        ("", "analytic", spec),
        ("megatron", "analytic", spec),
        ("nobody", "analytic", spec),
        ("megatron", "piper", spec),
        ("", "piper", spec),
        ("megatron_deepspeed", "analytic", frozen.model_spec),
    ):
        said = answer(lambda _, w=word, c=costs, s=of: targets.framework_of(w, s, posed().cluster, c, plain).word, "")  # type: ignore[misc]
        told[f"{word} {costs} {of is spec}"] = said[:200]
    recorded(told)


def test_causes_stand_side_by_side_the_worst_first() -> None:
    one = SimpleNamespace(causes=(("compute", 3.0), ("bubble", 2.0), ("tensor", 0.5)))
    other = SimpleNamespace(causes=(("compute", 3.5), ("bubble", 0.5), ("reduce", 0.25)))
    rows = why_not.by_cause(one, other)  # type: ignore[arg-type]
    assert [(row["cause"], row["seconds"], row["free_seconds"], row["difference_seconds"]) for row in rows] == [
        ("bubble", 2.0, 0.5, 1.5),
        ("tensor", 0.5, 0.0, 0.5),
        ("reduce", 0.0, 0.25, -0.25),
        ("compute", 3.0, 3.5, -0.5),
    ]


def test_degrees_that_are_asked_for_are_answered_as_before(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    result = result_of(dealt(Strategy(8)), bound=Bound(0.5, "b"))
    asked: list[Any] = []

    def searched(problem: Problem, **words: Any) -> Result:
        asked.append({key: words[key] for key in sorted(words) if key != "stop"})
        kind = words["settings"].get("tensor", words["settings"].get("pipeline"))
        if kind == "3":
            raise InputError("search best: no plan with these options: tensor 3 divides nothing")
        if kind == "5":
            raise InputError("--set tensor: is wrong")
        if kind == "4":
            return result_of(None, missing_bytes=5.0, nearest="near", infeasible_proven=True)
        if kind == "6":
            return result_of(None, notes=("a", "no legal plan"))
        return result_of(dealt(Strategy(4), 2), bound=Bound(0.7, "b"))

    monkeypatch.setattr(why_not.searching, "searched", searched)
    found = {}
    for fixed in ({"tensor": "2"}, {"tensor": "3"}, {"tensor": "4"}, {"tensor": "6"}, {"pipeline": "2", "tensor": "1"}):
        found[str(fixed)] = answer(lambda _, f=fixed: why_not.with_why_not(result, f).answer.extra["why_not"], "")  # type: ignore[misc]
    found["no timeline"] = str(why_not.with_why_not(replace(result, timeline=None), {"tensor": "2"}).answer.extra["why_not"])
    found["no bound"] = str(
        why_not.with_why_not(replace(result, settings={"tensor": "9", "x": "y"}), {"pipeline": "1"}).answer.extra
    )
    for name in ("alternatives", "evaluations", "memory_ratio", "splits", "within_ratio"):
        with pytest.raises(InputError, match=f"--why-not {name}: says how the search goes"):
            why_not.with_why_not(result, {name: "1"})
    found["wrong"] = answer(lambda _: why_not.with_why_not(result, {"tensor": "5"}), "")
    recorded([found, asked])


def test_a_plan_with_given_parts_stands_beside_the_best_as_before(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    asked: list[Any] = []
    kinds = {"tensor=2": result_of(dealt(Strategy(4, 2))), "free": result_of(dealt(Strategy(8)), bound=Bound(0.1, "b"))}

    def searched(problem: Problem, **words: Any) -> Result:
        asked.append({key: words[key] for key in sorted(words) if key != "stop"})
        return kinds["tensor=2" if "tensor" in words["settings"] or "pipeline" in words["settings"] else "free"]

    monkeypatch.setattr(fixing.searching, "searched", searched)
    monkeypatch.setattr(fixing.shaping, "shaped", lambda result, virtual, split: asked.append([virtual, split]) or result)
    for fix, settings, within in (
        ("tensor=2", {}, 0.05),
        ("pipeline=2,virtual=2", {"alternatives": "30"}, 0.05),
        ("split=1,3", {"alternatives": "x"}, 0.0),
        ("pipeline=2,virtual=1", {"alternatives": "3"}, 0.1),
        ("split=1,3", {"evaluations": "9"}, 0.0),
    ):
        found = fixing.plan(posed(), fixing.parse(fix, posed()), settings=settings, seed=3, within=within)
        asked.append([found.settings, found.answer.extra["fixed"]])
    with pytest.raises(InputError, match="--fix tensor and --set tensor=4: say it once"):
        fixing.plan(posed(), fixing.parse("tensor=2", posed()), settings={"tensor": "4"})
    kinds["free"] = result_of(None)
    asked.append(fixing.plan(posed(), fixing.parse("tensor=2", posed())).answer.extra["fixed"])
    kinds["free"], kinds["tensor=2"] = kinds["tensor=2"], result_of(None)
    asked.append(fixing.plan(posed(), fixing.parse("tensor=2", posed())).answer.extra["fixed"])
    recorded(asked)


def test_answers_that_cannot_be_are_refused_one_by_one(recorded: Recorded) -> None:
    plan, problem = dealt(Strategy(8)), posed()
    other = api.make_problem(TINY, "flat:4", batch=Batch(16))
    found: dict[str, str] = {}
    for key, answered in {
        "same": problem,
        "filled": replace(problem, batch=Batch(16, 2)),
        "batch": replace(problem, batch=Batch(8)),
        "training": replace(problem, training=MixedPrecision.of("fp16")),
        "risk": replace(problem, memory_risk=0.1),
        "framework": replace(problem, framework=frameworks.plain("megatron")),
        "cluster": replace(problem, cluster=other.cluster),
        "equal cluster": replace(problem, cluster=replace(problem.required_cluster)),
        "no cluster": replace(problem, cluster=None),
        "model": replace(problem, model_spec=api.read("gpt2")),
        "kind": 3,
    }.items():
        found[key] = answer(lambda _, a=answered: answers.same_question(problem, a, "best") is a, "")  # type: ignore[misc, arg-type]
    links = problem.required_cluster.links
    slower = replace(problem.required_cluster, links=replace(links, latency_seconds=links.latency_seconds * 2))
    found["links"] = answer(lambda _: answers.same_question(problem, replace(problem, cluster=slower), "best"), "")
    open_one = replace(problem, cluster=None)
    found["open"] = answer(lambda _: answers.same_question(open_one, problem, "best") is problem, "")
    found["extra"] = answer(lambda _: answers.check_extra(Answer(plan, extra={"mine": 1, "step_seconds": 3}), "best"), "")
    found["no extra"] = answer(lambda _: answers.check_extra(Answer(plan, extra={"mine": 1}), "best"), "")
    found["plan"] = answer(lambda _: answers.check_plan(other, plan, "best"), "")
    found["global batch"] = answer(lambda _: answers.check_plan(replace(problem, batch=Batch(8)), plan, "best"), "")
    found["open batch"] = answer(lambda _: answers.check_plan(replace(problem, batch=Batch()), plan, "best"), "")
    recorded(found)
    base = result_of(plan)
    seconds = base.timeline.step_seconds  # type: ignore[union-attr]
    claims: dict[str, str] = {}
    for name in ("step_seconds", "simulated_seconds_per_sample", "speedup", "cost"):
        for value in (seconds, seconds * 0.9991, seconds * 0.9989, seconds / 16, seconds / 17, math.inf, math.nan, -1.0, 0.0):
            for bound in (None, value * 0.5, value * 1.0005, value * 1.0011, value * 2.0, math.inf):
                own = replace(base.answer, objective=Objective(name, value), bound=None if bound is None else Bound(bound, "b"))
                said = answer(lambda _, o=own: answers.check_claims(replace(base, answer=o)), "")  # type: ignore[misc]
                claims[f"{name} {value / seconds:.4f} {bound}"] = f"{len(said)}"
    recorded(" ".join(claims.values()), "claims")
    for own, said in (
        (replace(base.answer, objective=None), "()"),
        (replace(base.answer, objective=None, bound=Bound(1.0, "b")), "without an objective"),
    ):
        assert said in answer(lambda _, o=own: answers.check_claims(replace(base, answer=o)), "")  # type: ignore[misc]
    low = replace(base, answer=replace(base.answer, objective=Objective("step_seconds", seconds / 2)))
    assert "counts step_seconds" in answers.check_claims(low)[0]
    with pytest.raises(PluginError, match="an objective of this name may not be below it"):
        answers.check_claims(replace(low, search="nobody"))
    assert answers.check_claims(replace(low, timeline=None)) == ()


def test_arguments_of_the_wrong_kind_are_answered_with_the_right_call(recorded: Recorded) -> None:
    calls = {
        "model": (3, None),
        "cluster": ("gpt2", 16),
        "cluster 2": ("gpt2", -1),
        "cluster 3": ("gpt2", [1]),
        "good": ("gpt2", "flat:8"),
    }
    found = {key: answer(lambda _, w=words: arguments.check(*w), "") for key, words in calls.items()}  # type: ignore[misc]
    for words in (
        {"search": 1},
        {"costs": None},
        {"lora": 2},
        {"optimizer": 2},
        {"state_precision": 1},
        {"framework": "x" * 99 and 1.5},
    ):
        found[str(words)] = answer(lambda _, w=words: arguments.check("gpt2", None, **w), "")  # type: ignore[misc]
    for settings in ("a", {"tensor": 2}, {2: "a"}, {"tensor": "2"}, {"a" * 70: ["b" * 70]}):
        found[str(settings)] = answer(lambda _, s=settings: arguments.check("gpt2", None, s), "")  # type: ignore[misc]
    for freeze in ("embed", 3, ["embed"], ()):
        found[f"freeze {freeze}"] = answer(lambda _, f=freeze: arguments.check("gpt2", None, freeze=f), "")  # type: ignore[misc]
    for batch in (
        (None, 0, 0, 0),
        (Batch(4), 0, 0, 0),
        (Batch(4), 8, 0, 0),
        (7, 0, 0, 0),
        ("a", 0, 0, 0),
        (None, "1k", 2, "4k"),
        (None, True, 0, 0),
        (None, 0, 2.0, 0),
        (None, 0, 0, 128),
        (None, 64, 0, 0),
    ):
        found[f"batch {batch}"] = answer(lambda _, b=batch: arguments.batch_of(*b), "")  # type: ignore[misc]
    recorded(found)


def test_sizes_of_sweeps_and_jobs_are_read_as_before(recorded: Recorded) -> None:
    texts = (
        "64",
        "64,128",
        "1:5",
        "1:9:4",
        "2:1",
        "0",
        "1:5:0",
        "a",
        "1:2:3:4",
        "",
        " 3 : 5 ",
        "1:100000",
        "1:100001",
        "1:99999,1",
        "5:5",
    )
    found: dict[str, Any] = {}
    for text in texts:
        said = answer(lambda _, t=text: sweep.batches(t), "")  # type: ignore[misc]
        found[text] = said[:60] + str(len(said))
    for jobs, backend in ((1, "loky"), (0, "loky"), (-1, "loky"), (-2, "loky"), (2, "x")):
        found[f"{jobs} {backend}"] = answer(lambda _, w=(jobs, backend): executors.check(*w), "")  # type: ignore[misc]
    with executors.workers(1, "loky") as run:
        assert run(lambda a, b: a - b, [(5, 3), (1, 2)]) == [2, -1]
    recorded(found)
    alone = {"one_device_seconds": 6.0, "baselines": {"data_parallel": 3.0, "data_parallel_overlap": 2.0}}
    plain = Answer(dealt(Strategy(8)), Objective("step_seconds", 1.5), extra=alone)
    assert sweep._ratios(plain) == (2.0, 3.0, 4.0)
    assert sweep._ratios(replace(plain, objective=None)) == (2.0, 3.0, None)
    assert sweep._ratios(replace(plain, extra={})) == (None, None, None)
    assert sweep._ratios(replace(plain, extra={**alone, "one_device_seconds": None})) == (None, None, None)
    published = {"baselines": {"dp_no_overlap": 5.0, "dp_ga_normal_overlap": 7.0}}
    assert sweep._ratios(replace(plain, objective=Objective("speedup", 9.0), extra=published)) == (5.0, 7.0, 9.0)


def test_rows_of_a_sweep_hold_what_was_answered(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    asked: list[Any] = []

    def planned(problem: Problem, **words: Any) -> Result:
        asked.append([problem.batch.global_batch, words["search"], words["settings"], words["seed"], words["stop"].seconds])
        if problem.batch.global_batch == 1:
            raise InputError("too small")
        if problem.batch.global_batch in (2, 3):
            return result_of(None, missing_bytes=3.0 * 2**30, infeasible_proven=problem.batch.global_batch == 2)
        found = result_of(dealt(Strategy(4), 2))
        return replace(found, timeline=None) if problem.batch.global_batch == 5 else found

    monkeypatch.setattr(sweep.api, "plan", planned)
    rows = sweep.sweep(posed(), (1, 2, 3, 4, 5), search="best", settings={"a": "b"}, seed=7, time_limit_seconds=2.0)
    recorded([rows, [row.plan for row in rows], asked])
    with pytest.raises(InputError, match="--set global_batch contradicts"):
        sweep.sweep(posed(), (1,), search="best", settings={"global_batch": "4"})
    with pytest.raises(InputError, match="--time-limit: search piper cannot stop early"):
        sweep.sweep(posed(), (1,), search="piper", time_limit_seconds=1.0)


def test_changes_and_settings_near_a_plan_are_as_before(recorded: Recorded) -> None:
    plan = dealt(Strategy(2, 2), 2, 2, "interleaved_1f1b")
    recorded([sensitivity.near(posed(), plan), sensitivity.near(posed(), dealt(Strategy(8, context=1)))])
    variants = sensitivity._variants(posed(), posed().required_cluster)
    assert [name for name, _ in variants][1:] == ["twice the memory", "twice the batch"] and len(variants) == 3
    cluster, links = posed().required_cluster, posed().required_cluster.links
    assert variants[2][1].batch.global_batch == 32
    assert variants[1][1].required_cluster.kinds[0].memory_bytes == 2 * cluster.kinds[0].memory_bytes
    slowest = links.bytes_per_second == links.bytes_per_second.min()
    faster = variants[0][1].required_cluster.links.bytes_per_second
    assert np.array_equal(faster, np.where(slowest, 2.0, 1.0) * links.bytes_per_second)
    two = api.make_problem(TINY, "dgx-h100:16").required_cluster
    name = sensitivity._variants(posed(), two)[0][0]
    assert name == f"the slowest links ({two.links.bytes_per_second.min() / 1e9:.3g} GB/s) twice as fast"
    doubled = sensitivity._of_batch(plan, replace(posed(), batch=Batch(48)))
    assert (doubled.global_batch, doubled.n_microbatches) == (48, 3 * plan.n_microbatches)
    for other in (
        replace(result_of(plan), search="piper"),
        replace(result_of(plan), timeline=None),
        replace(result_of(plan), problem=replace(posed(), costs="piper")),
        result_of(plan, extra={"fixed": {"values": {"split": "1"}}}),
        result_of(plan, extra={"fixed": {"values": {"virtual": "2"}}}),
    ):
        assert sensitivity.changes(other) == ()
    assert sensitivity.changes(result_of(plan), Stop(asked=lambda: True)) == ()


def test_a_way_up_takes_the_change_that_helps_most_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = result_of(dealt(Strategy(8), word="full"))
    best = result_of(dealt(Strategy(2, 2, 1, 1, True, 1), 2))
    gains = {"tensor": 0.1, "pipeline": 0.3, "shard": -0.2, "recompute": 0.2}
    here = {**climbing._values(own.plan, posed())}
    assert here == {
        "tensor": "1",
        "context": "1",
        "expert": "1",
        "pipeline": "1",
        "micro_batch": "1",
        "shard": "0",
        "recompute": "full",
        "schedules": "1f1b",
    }

    def with_values(problem: Problem, values: Any, data: int) -> Any:
        assert data == 8 // (int(values["tensor"]) * int(values["context"]) * int(values["pipeline"]))
        changed = [axis for axis in gains if values[axis] != here[axis]]
        if "shard" in changed:
            return "not legal"
        seconds = 2.0 - sum(gains[axis] for axis in changed)
        return replace(own, timeline=SimpleNamespace(step_seconds=seconds, peak_bytes=(1.0,), causes=()))

    monkeypatch.setattr(climbing, "_with", with_values)
    slow = replace(own, timeline=SimpleNamespace(step_seconds=2.0, peak_bytes=(1.0,), causes=()))  # type: ignore[arg-type]
    single, ladder = climbing.climb(slow, 0.0, best)
    assert [(rung.axis, rung.before, rung.after, rung.reason) for rung in single] == [
        ("pipeline", "1", "2", ""),
        ("recompute", "full", "none", ""),
        ("tensor", "1", "2", ""),
        ("shard", "0", "1", "not legal"),
    ]
    assert [rung.axis for rung in ladder] == ["pipeline", "recompute", "tensor", "shard"] and ladder[-1].result is best
    fast = replace(own, timeline=SimpleNamespace(step_seconds=1.7, peak_bytes=(1.0,), causes=()))  # type: ignore[arg-type]
    single, ladder = climbing.climb(fast, 0.0, best)  # no change helps by itself
    assert len(single) == 4 and [rung.axis for rung in ladder] == ["rest"]
    assert ladder[0].before == "tensor 1, pipeline 1, shard 0, recompute full" and ladder[0].after.startswith(
        "tensor 2, pipeline 2, "
    )
    assert [rung.axis for rung in climbing.climb(fast, 1.0, best)[1]] == ["pipeline", "recompute", "tensor", "shard"]
    only = result_of(dealt(Strategy(8)))
    single, ladder = climbing.climb(own, 0.0, only)
    assert single == ladder and [(rung.axis, rung.before, rung.after) for rung in ladder] == [("recompute", "full", "none")]


def test_options_of_one_rung_leave_out_what_its_degrees_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def planned(problem: Problem, *, search: str, settings: dict[str, str]) -> Result:
        asked.append(settings)
        if settings["tensor"] == "4":
            raise InputError("no")
        return result_of(None, nearest="near" if settings["tensor"] == "2" else "")

    monkeypatch.setattr(climbing.api, "plan", planned)
    values = {**climbing._values(dealt(Strategy(8)), posed()), "recompute": "mlp+moe", "shard": "3", "schedules": "zb_h1"}
    assert climbing._with(posed(), values, 1) == "does not fit, or no such plan is legal"
    assert climbing._with(posed(), values | {"tensor": "2", "context": "2", "pipeline": "2"}, 1) == "no such plan fits; near"
    assert climbing._with(posed(), values | {"tensor": "4"}, 2) == "no"
    assert [(one["schedules"], one["shard"], one["recompute"], one["alternatives"]) for one in asked] == [
        ("1f1b", "0", "mlp,moe", "1"),
        ("zb_h1", "3", "mlp,moe", "1"),
        ("1f1b", "3", "mlp,moe", "1"),
    ]


def test_candidates_are_left_out_planned_and_ranked_as_before(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    problem = api.make_problem("llama-3.2-1b", "dgx-h100:8", batch=Batch(64))
    kinds = [SimpleNamespace(name=name, devices_per_node=8) for name in ("a", "b")]
    tariff = SimpleNamespace(dollars_per_hour=2.0, watts=1000.0, pue_ratio=1.1)

    def upkeep(ratio: float) -> Any:
        return SimpleNamespace(
            of=lambda n_bytes, n, per: SimpleNamespace(effective_ratio=ratio if n < 512 else 0.0, spare_nodes=n // 64)
        )

    monkeypatch.setattr(
        size_search.Outlay,
        "of",
        classmethod(
            lambda cls, name, seconds, n_paid, tariff: Outlay(
                name,
                seconds,
                seconds * n_paid,
                None if tariff.dollars_per_hour is None else seconds * n_paid / 3600 * tariff.dollars_per_hour,
                None,
            )
        ),
    )
    found: list[Any] = []
    for within, budget in ((math.inf, math.inf), (40000.0, math.inf), (math.inf, 300.0), (9000.0, 100.0)):
        state = size_search.SizeSearch(within, budget, 1000, {"x": "y"}, 5, True)
        state.consider(kinds[0], tariff, (1, 8, 64, 512), problem, 2.0, upkeep(0.9))  # type: ignore[arg-type]
        state.consider(kinds[1], tariff, (8, 16), problem, 1.0, upkeep(0.5))  # type: ignore[arg-type]
        unpriced = SimpleNamespace(dollars_per_hour=None, watts=None, pue_ratio=1.0)
        state.consider(kinds[1], unpriced, (8,), problem, 1.0, upkeep(1.0))  # type: ignore[arg-type]
        calls: list[Any] = []

        def run(function: Any, arguments: Any, calls: list[Any] = calls) -> list[Any]:
            calls.append([argument[1:] for argument in arguments])
            return [
                "does not fit"
                if argument[1] == "a:8"
                else {
                    "step_seconds": 3.0,
                    "interval": None if argument[1] == "b:8" else (2.5, 3.5),
                    "causes": (("compute", 2.0), ("idle", 1.0)),
                    "description": "d",
                    "gap_ratio": 0.1,
                    "utilization": 0.4,
                    "plan": {},
                }
                for argument in arguments
            ]

        monkeypatch.setattr(size_search.points, "shares", lambda causes, step, good: causes)
        state.plan_all(run)
        near = state.nearest(run)
        found.append(
            [
                [[one.cluster, round(one.least.seconds)] for one in state.beyond],
                [[p.cluster, round(p.outlay.seconds), p.low_seconds > 0] for p in state.planned],
                [[one.cluster, one.reason[:40]] for one in state.left_out if isinstance(one, LeftOut)],
                near and near.cluster,
                calls,
            ]
        )
    recorded(found)
    assert size_search._gap_ratio(result_of(dealt(Strategy(8)))) == 0.0
    wide = [SimpleNamespace(cluster="a:8", gap_ratio=0.051), SimpleNamespace(cluster="b:8", gap_ratio=0.05)]
    assert sizing._gaps(wide, [])[0].endswith("by at most: a:8 5%; --set evaluations=120 looks longer")  # type: ignore[arg-type]
    assert not sizing._gaps(wide[1:], [])  # type: ignore[arg-type]
    late = sizing._gaps(wide[1:], ["b:16", "a:8"])  # type: ignore[arg-type]
    assert late == ("time was up for 2 sizes, whose best plan so far counts: a:8, b:16",)


def test_failures_are_not_counted_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of(dealt(Strategy(8)))
    for own in (replace(result, timeline=None), replace(result, problem=replace(posed(), cluster=None))):
        with pytest.raises(InputError, match="--mtbf: costs analytic do not say"):
            effective.goodput_of(own)
    assert effective.with_goodput(result_of(None), "1h").answer.extra == {}
    asked: list[Any] = []
    monkeypatch.setattr(effective, "upkeep", lambda mtbf, recovery: SimpleNamespace(of=lambda *words: asked.append(words)))
    effective.goodput_of(replace(result, problem=api.make_problem(TINY, "dgx-h100:16", batch=Batch(16))))
    assert asked[0][1:] == (8, 8) and asked[0][0] > 0
    for ratio in (0.5, 0.0):
        monkeypatch.setattr(effective, "goodput_of", lambda *_, ratio=ratio: SimpleNamespace(effective_ratio=ratio))
        monkeypatch.setattr(effective, "goodput_json", lambda good: {"x": 1})
        if ratio:
            extra = effective.with_goodput(result, "1h").answer.extra
            assert result.timeline is not None
            assert extra == {"goodput": {"x": 1}, "effective_step_seconds": result.timeline.step_seconds / 0.5}
        else:
            with pytest.raises(InputError, match="--mtbf 1h: failures this frequent leave less than 1%"):
                effective.with_goodput(result, "1h")


def test_what_a_name_holds_is_said_as_before(recorded: Recorded) -> None:
    small = {
        "kind": "plan",
        "plan": {
            "model": {"name": "m"},
            "search": "best",
            "costs": "analytic",
            "feasible": True,
            "step_seconds": 1.5,
            "samples_per_second": 4.0,
            "schedule": {"name": "1f1b", "n_microbatches": 1, "micro_batch": 2},
            "stages": [
                {
                    "ops": ["a", "b", "c"],
                    "devices": [0, 1],
                    "data": 2,
                    "tensor": 1,
                    "context": 2,
                    "expert": 1,
                    "shard": level,
                    "shard_degree": level,
                    "recompute": ["none", "full", "full"],
                    "peak_bytes": 2.0**30 if level else None,
                }
                for level in range(4)
            ]
            + [{"ops": [], "devices": [0], "data": 1, "tensor": 1}, {"ops": ["z"], "devices": [], "data": 1, "tensor": 2}],
        },
    }
    many = {"kind": "plan", "plan": {**small["plan"], "step_seconds": None, "stages": small["plan"]["stages"][:1] * 66}}  # type: ignore[dict-item, index]
    none = {"kind": "plan", "plan": {**small["plan"], "feasible": False, "missing_bytes": 3.0, "nearest": "n"}}  # type: ignore[dict-item]
    proven = {"kind": "plan", "plan": {**none["plan"], "infeasible_proven": True}}
    model = inspect.describe(TINY)
    long = {
        **model,
        "layers": [{**model["layers"][0], "n_layers": 1 + i % 2} for i in range(42)],
        "n_active_parameters": 5,
        "n_trained_parameters": 7,
    }
    texts = [inspect.text(entry).splitlines() for entry in (small, many, none, proven, long, {**long, "n_parameters": 0})]
    recorded([[len(text), *text[:9], *text[-2:]] for text in texts])
    cluster = inspect.describe("flat:8")
    lines = inspect.text(cluster).splitlines()
    assert (
        lines[0] == f"cluster flat:8: 8 devices, 1 switch, {cluster['n_links']} directed links" and cluster["n_switches"] == 1
    )
    for wrong in ("", "x" * 300, "a:8", "a.yaml"):
        with pytest.raises(InputError):
            inspect.describe(wrong)


def test_parts_of_plan_files_are_refused_word_by_word() -> None:
    entry = {"batch": {"asked_global_batch": 32}}
    with pytest.raises(InputError, match=r"p: batch.asked_global_batch is 32, but schedule.global_batch is 16"):
        plan_files._as_asked(entry, Batch(16), "p")
    for fine in ({}, {"batch": {}}, {"batch": {"asked_global_batch": 0}}, {"batch": {"asked_global_batch": 16}}):
        plan_files._as_asked(fine, Batch(16), "p")
    said = {"objective": {"name": "n", "value": 3}, "bound": {"value": 2, "method": "m"}, "mine": 1, "step_seconds": 9.0}
    found = plan_files._answer(said, Answer(None), "p")
    assert found.objective == Objective("n", 3.0) and found.bound == Bound(2.0, "m") and dict(found.extra) == {"mine": 1}
    assert plan_files._answer({}, Answer(None), "p").objective is None
    for wrong in ({"objective": {"name": "n"}}, {"bound": {"value": "x", "method": "m"}}, {"objective": 3}):
        with pytest.raises(InputError, match="p: a field is missing or of the wrong kind"):
            plan_files._answer(wrong, Answer(None), "p")
    assert plan_files.missing_bytes(replace(result_of(dealt(Strategy(8))), timeline=None)) == 0.0
