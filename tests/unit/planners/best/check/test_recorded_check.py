"""The check of search best on small questions: its space, prices, bounds and verdicts are as they were recorded."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import random
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from gists import gist
from meshwright import api, sim
from meshwright.base import options
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem
from meshwright.planners.best.check import answers, device_pools, member, space
from meshwright.planners.best.check.plays import Plays
from meshwright.planners.best.check.prices import LayerPrices, PricedLayer
from meshwright.planners.best.check.proof import BoundProof
from meshwright.planners.best.check.rank_memory import least_repeated
from meshwright.planners.best.check.rank_ways import RankWays
from meshwright.planners.best.check.virtual_stages import Spreads, VirtualStages, stage_rows
from meshwright.planners.best.check.whole_stages import WholeStages
from meshwright.planners.best.search.best import Params
from meshwright.writers import plan_json
from recorded import Recorded
from small_questions import question

USUAL = dataclasses.asdict(Params())

LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "one setting": {"recompute_scope": "plan", "block_recompute": True, "hybrid_shards": (3,)},
    "narrow": {
        "degrees": ("pipeline", "tensor"), "shards": (0, 1, 3), "hybrid_shards": (), "layouts": ("pipeline",),
        "any_order": False, "uneven_stages": False, "schedules": ("1f1b", "interleaved_1f1b", "zb_h2", "gpipe"),
    },
    "flat": {"sequence_parallel": False, "virtual_stages": False, "recompute_scope": "plan", "block_recompute": False},
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {}, "given": {"tensor": (2,), "data": (1, 2), "micro_batch": (1, 2), "schedules": ("1f1b", "zb_v", "looped_bfs")},
    "uniform": {"uniform": True, "recompute": ("none", "full"), "shard": (0, 3), "schedules": ("1f1b", "interleaved_1f1b")},
    "few": {"pipeline": (2, 3), "context": (1, 2), "expert": (1, 4), "recompute": ("full",), "memory_ratio": 0.9},
}  # fmt: skip


@pytest.mark.parametrize("cluster", ["nodes", "kinds", "sorts", "torus"])
def test_the_space(recorded: Recorded, cluster: str) -> None:
    for (word, limits), (told, asked) in itertools.product(LIMITS.items(), OPTIONS.items()):
        model = "like" if word == told == "none" or told == "few" else "mixed"
        problem = question(model, cluster, sequence=4096, micro_batch=1 if told == "few" else 0, **limits)
        own = space.inside(problem, USUAL | asked)
        chain, found = space.chain_of(problem.graph), []
        kept = device_pools.pools(problem)
        for pool in kept:
            for i, mesh in enumerate(space.meshes(problem, pool, len(chain.layers), own)):
                m = problem.batch.global_batch // (mesh.data * mesh.micro_batch)
                found.append([*mesh, mesh.rank_size, *space.forms(mesh, m, len(chain.layers), own)])
                if i % 5 == 0:
                    for strategy, layout in space.strategies(problem, mesh, own, len(pool.devices)):
                        found.append([strategy, layout, *space.ranks_of(pool, mesh, layout)])
        recorded(
            [gist(kept), gist(chain), chain.is_equal, gist(own), gist(space.recompute_spaces(problem, own)), gist(found)],
            f"{model}, {word}, {told}",
        )


def test_divisors_leads_and_even_counts() -> None:
    assert space._divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36] and space._divisors(1) == [1]
    assert [space.Form(word, 1).lead(2) for word in ("1f1b", "zb_h1", "zb_h2", "early_backward_b")] == [3, 3, 5, 5]
    split = [word for word in space._ALL_SCHEDULES if space.Form(word, 1).is_split]
    assert split == ["zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe_v", "combined_dualpipe_v"]
    assert space.even_counts(7, 2) == [4, 3] and space.even_counts(5, 1) == [5] and space.even_counts(9, 4) == [2, 3, 2, 2]


CASES: tuple[tuple[Any, ...], ...] = (  # mesh: tensor, context, expert, micro-batch, data, pipeline
    ("like", "nodes", (1, 1, 1, 1, 2, 3), "1f1b", 1), ("like", "nodes", (2, 1, 1, 2, 1, 4), "gpipe", 1),
    ("like", "kinds", (1, 1, 1, 1, 2, 4), "zb_h1", 1), ("mixed", "nodes", (1, 1, 2, 1, 2, 2), "1f1b", 1),
    ("mixed", "sorts", (1, 2, 1, 1, 1, 3), "zb_h2", 1), ("like", "sorts", (1, 1, 1, 1, 1, 5), "early_backward_b", 1),
    ("mixed", "kinds", (1, 1, 1, 2, 1, 2), "gpipe", 1), ("mixed", "nodes", (1, 1, 1, 1, 4, 2), "zb_h1", 1),
    ("like", "torus", (1, 1, 1, 1, 1, 1), "1f1b", 1),
    ("like", "nodes", (1, 1, 1, 1, 2, 2), "interleaved_1f1b", 2), ("like", "nodes", (1, 1, 1, 1, 2, 2), "zb_v", 2),
    ("mixed", "kinds", (1, 1, 1, 1, 1, 2), "v_half", 2), ("mixed", "nodes", (1, 1, 1, 2, 1, 2), "looped_bfs", 2),
    ("like", "sorts", (1, 1, 1, 1, 1, 2), "v_min", 2),
)  # fmt: skip


def posed(
    case: tuple[Any, ...], gigabytes: float, **limits: Any
) -> tuple[BoundProof, LayerPrices, space.CheckedMesh, space.Form]:
    """Return the parts of a check of one configuration."""
    model, cluster, degrees, schedule, n_chunks = case
    problem = question(model, cluster, sequence=2048, gigabytes=gigabytes, **limits)
    own = space.inside(problem, USUAL)
    proof = BoundProof(problem, own, math.inf)
    prices = LayerPrices(problem, device_pools.pools(problem)[0], proof.chain, own, space.recompute_spaces(problem, own)[0])
    return proof, prices, space.CheckedMesh(*degrees), space.Form(schedule, n_chunks)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bounds_of_a_configuration(recorded: Recorded, case: int) -> None:
    """With room for everything, and with less and less of it, down to where nothing fits."""
    proof, prices, mesh, form = posed(CASES[case], 60.0)
    variants = list(space.strategies(prices.problem, mesh, USUAL, len(prices.pool.devices)))
    strategy, layout = variants[(3 * case) % len(variants)]
    tables, of_rank, kinds = prices.of_ranks(mesh, strategy, layout, inside_only=False)
    inside = prices.of_ranks(mesh, strategy, layout, inside_only=True)
    recorded({
        "variants": gist(variants), "tables": [gist(tables), of_rank, kinds], "inside": gist(*inside),
        "compute": gist(prices.compute(mesh, 0)),
        "any": gist(*prices.any_sharding(mesh, frozenset())),
        "unsharded": gist(prices.unsharded(mesh)), "words": prices.words(tables[0]),
        "work": [proof._work(prices, mesh, sends=sends) for sends in (False, True)], "flops": proof.flops,
        "pinned": [prices.pinned_word(row) for row in (*proof.chain.prefix, *proof.chain.suffix)],
    }, "prices")  # fmt: skip
    held = proof._held(mesh, form)
    plays = Plays(prices, mesh, form, strategy, layout, (tables, of_rank, kinds))
    counts = space.even_counts(proof.n_layers, mesh.pipeline * form.n_chunks)
    hops = plays.hop_seconds(counts)
    free = step_of(plays, counts)
    recorded({"held": gist(held), "hops": hops, "step": free, "rows": gist(stage_rows(prices, counts))}, "orders")
    full = max(peaks_of(plays, counts)) * (4 / 3 if CASES[case][1] == "kinds" else 1.0)  # the second kind has less
    for share in (1.1, 0.88, 0.7, 0.5):
        proof, prices, mesh, form = posed(CASES[case], share * full / 1e9)
        priced = prices.of_ranks(mesh, strategy, layout, inside_only=False)
        plays = Plays(prices, mesh, form, strategy, layout, priced)
        if form.n_chunks > 1:
            spreads = Spreads(prices, mesh, form, priced, [tuple(counts)])
            stages = VirtualStages(prices, form, spreads, 0, priced, held)
            found: dict[str, Any] = {
                "stages": gist(stages.stages, counts),
                "excess": gist([stages.excess(rank) for rank in range(mesh.pipeline)]),
                "repeated": [stages.repeated(rank) for rank in range(mesh.pipeline)],
                "reduced": [stages._reduced(own) for own in stages.stages],
                "told": [VirtualStages.n_told(form, mesh.pipeline, m) for m in (1, 4, 30)],
            }  # fmt: skip
            bound = None
        else:
            stages = bound = WholeStages(prices, mesh, form, *priced, hops)
            n, p = proof.n_layers, mesh.pipeline
            pieces = [(r, a, b) for r in range(p) for a, b in itertools.combinations_with_replacement(range(n + 1), 2)]
            plain = (
                bound.held,
                bound.lead,
                bound.arrives,
                bound.passes,
                bound.returns,
                bound.there,
                bound.trip,
                bound.least_end,
            )
            names = ("words", "exposed", "saved", "extra", "any_saved", "overhead_bytes", "worth")
            sums = [getattr(own, name) for own in bound.sums for name in names]
            found = {} if share < 1.0 else {"plain": gist(*plain), "sums": gist(*sums)}
            found |= {
                "repeated": gist([bound.repeated(*piece) for piece in pieces]),
                "seconds": gist([bound.seconds(*piece, 0.1 * free) for piece in pieces]),
                "again": gist([bound.seconds(*piece, 0.0, 0.01 * free, 0.02 * free) for piece in pieces]),
                "cuts": [gist(list(bound.cuts(ratio * free))) for ratio in (1.01, 1.3, 2.0)],
            }  # fmt: skip
        found["refuted"] = "".join("01"[stages.refuted(0.97 * 1.07**i * free)] for i in range(-6, 14))
        splits = (
            [counts] if bound is None else [counts, *([list(own) for own in bound.cuts(1.5 * free) if plays.plan(own)][:3])]
        )
        found["played"] = [
            [plays.refuted(own, bound, held, ratio * free) for ratio in (0.9, 1.05, 1.3, 2.0)] + [plays._never_fits(own, held)]
            + [gist(plays._least_work(own, held)), gist(plays._least_blocks(own, held))]
            for own in splits
        ]  # fmt: skip
        recorded(found, f"{share}")


def step_of(plays: Plays, counts: list[int]) -> float:
    plan = plays.plan(counts, plays._least_words(counts))
    assert plan is not None
    return sim.simulate(plays.problem, plan, plays.prices.model.stage_costs(plays.problem, plan)).step_seconds


def peaks_of(plays: Plays, counts: list[int]) -> list[float]:
    plan = plays.plan(counts, plays._least_words(counts))
    assert plan is not None
    return list(sim.simulate(plays.problem, plan, plays.prices.model.stage_costs(plays.problem, plan)).peak_bytes)


def test_layers_of_a_rank_by_the_rule(recorded: Recorded) -> None:
    for case in (0, 3, 9, 11):
        proof, prices, mesh, form = posed(CASES[case], 60.0)
        strategy, layout = next(space.strategies(prices.problem, mesh, USUAL, len(prices.pool.devices)))
        tables, of_rank, kinds = prices.of_ranks(mesh, strategy, layout, inside_only=False)
        plays = Plays(prices, mesh, form, strategy, layout, (tables, of_rank, kinds))
        rows, held = (
            stage_rows(prices, space.even_counts(proof.n_layers, mesh.pipeline * form.n_chunks)),
            proof._held(mesh, form),
        )
        found = []
        for rank in range(mesh.pipeline):
            own = [rows[stage] for stage in range(len(rows)) if plays.rank_of_stage[stage] == rank]
            ways = RankWays(prices, own, tables[of_rank[rank]], held[rank])
            full = ways.peak(np.zeros(len(ways.at), dtype=np.int64))
            least = ways.peak(np.full(len(ways.at), len(ways.words) - 1))
            rules = [ways.rule(least + share * (full - least)) for share in (-0.1, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.05)]
            found.append([full, least, ways.static, gist(*rules)])
        recorded(found, str(case))


def test_what_is_recomputed_at_least_of_several_sorts(recorded: Recorded) -> None:
    found = []
    for seed in range(40):
        dice = random.Random(seed)
        sorts = []
        for _ in range(dice.randint(1, 4)):
            kept, again = (
                sorted((dice.uniform(0.0, 4.0) for _ in range(3)), reverse=True),
                sorted(dice.uniform(0.0, 2.0) for _ in range(3)),
            )
            ways = [
                PricedLayer(
                    1.0, 2.0, 1.0, again[i] if i else 0.0, 0.0, kept[i], dice.uniform(0.0, 3.0), 0.0, 0.0, 0.0, 1.0, True
                )
                for i in range(1 + (seed + len(sorts)) % 3)
            ]
            sorts.append((dice.randint(0, 4), ways))
        found.append([
            least_repeated(sorts, room * sum(n for n, _ in sorts) + pinned, held, pinned)
            for room in (0.5, 1.5, 3.0, 6.0, 10.0) for held in (1.0, 3.0) for pinned in (0.0, 2.5)
        ])  # fmt: skip
    recorded([gist(*found[i : i + 4]) for i in range(0, 40, 4)])


FEW = ("like", "nodes", 4.0, ("context", "1"), ("micro_batch", "1"), ("tensor", "1"))


@cache
def planned(
    model: str, cluster: str, gigabytes: float, *settings: tuple[str, str]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a result, its file, and the options of the search."""
    result = api.plan(question(model, cluster, gigabytes=gigabytes), search="best", settings=dict(settings))
    entry = json.loads(json.dumps(plan_json.as_json(result)))
    return result, entry, dataclasses.asdict(options.parse(Params, dict(settings), "search best"))


def sets_of(proof: BoundProof) -> list[dict[str, Any]]:
    """Return the sets of a proof as a certificate holds them."""
    names = ("pool", "tensor", "context", "expert", "micro_batch", "by")
    return [
        {**dict(zip(names, shape, strict=True)), "n_meshes": own.n_meshes, "n_configurations": own.n_configurations}
        | ({"seconds": own.seconds} if own.seconds < math.inf else {})
        for shape, own in proof.sets.items()
    ]


def verdict_of(entry: dict[str, Any], limits: dict[str, Any], result: Any) -> answers.AnswerVerdict:
    return answers.check_plan(result, entry, "a.json", limits)


def test_an_answer_is_confirmed_and_said_so(recorded: Recorded) -> None:
    for key in (
        ("like", "nodes", 4.0),
        ("like", "sorts", 0.6, *FEW[3:]),
        ("mixed", "nodes", 4.0, ("schedules", "zb_v,1f1b"), *FEW[3:]),
    ):
        result, entry, limits = planned(*key)
        verdict = verdict_of(entry, limits, result)
        assert verdict.valid and verdict.reason == "" and verdict.not_checked == answers._NOT_CHECKED
        assert verdict.value == entry["step_seconds"] and verdict.bound_value == entry["bound"]["value"]
        said = [re.sub(r"\d+\.\d{6,}(e-\d+)?", "#", text) for text in verdict.checked]
        proof = BoundProof(result.problem, space.inside(result.problem, limits), verdict.bound_value)
        proof.run()
        sets = {str(shape): [own.n_meshes, own.seconds, own.n_configurations] for shape, own in proof.sets.items()}
        assert not proof.open
        recorded([said, proof.n_played, proof.limit / verdict.bound_value, len(sets), gist(sets)], f"{key[0]}, {key[1]}")


CHANGES: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    (("certificate",), None, "certificate: there is none, so neither the bound nor that nothing fits can be checked; "),
    (("certificate", "format"), "other", "certificate.format is 'other', not 'meshwright/certificate/best/1'"),
    (("certificate", "question", "limits"), [], "certificate.question.limits: must be an object"),
    (("certificate", "question", "limits", "tensor"), [2], r"certificate.question.limits.tensor is \[2\], by the "),
    (("certificate", "question", "global_batch"),
    16, "schedule.global_batch is 8; the certificate is of a question where it is 1"),
    (("batch", "asked_global_batch"), 7, "batch.asked_global_batch is 7; the certificate is of a question where it is 8"),
    (("batch", "asked_micro_batch"), 3, "batch.asked_micro_batch is 3; the certificate is of a question where it is 0"),
    (("training", "gradient_bytes"), 2, "training.gradient_bytes is 2; the certificate is of a question where it is 4"),
    (("certificate", "question", "framework", "compute_ratio"), 0.5,
     "the framework of the question: compute_ratio is 1.0; the certificate is of a question where it is 0.5"),
    (("objective", "name"), "seconds", "objective: the plan takes .* seconds, not "),
    (("objective", "value"), 1.0, "objective: the plan takes .* seconds, not 1.0"),
    (("step_seconds",), 1.0, "step_seconds: the plan takes .* seconds, not 1.0"),
    (("step_seconds",), "1", "step_seconds: the plan takes .* seconds, not '1'"),
    (("bound", "value"), 1e-3, "bound.value is 0.001, and certificate.bound_seconds "),
    (("bound", "gap_ratio"), 0.5, "bound.gap_ratio is 0.5; of this objective and bound it is 0.0"),
    (("certificate", "sets"), [], r"certificate.sets: \d+ sets of the space are missing, the first: pool 0, tensor 1, "),
)  # fmt: skip


@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_a_changed_answer_is_refused_with_what_is_wrong(change: int) -> None:
    result, entry, limits = planned(*FEW)
    entry, (path, value, reason) = copy.deepcopy(entry), CHANGES[change]
    *before, last = path
    place = entry
    for name in before:
        place = place[name]
    place[last] = value
    verdict = verdict_of(entry, limits, result)
    assert not verdict.valid and math.isnan(verdict.bound_value) and verdict.not_checked == answers._NOT_CHECKED
    assert re.match(reason, verdict.reason), verdict.reason


def test_sets_are_compared_one_by_one() -> None:
    result, entry, limits = planned(*FEW)

    def reason(change: Any) -> str:
        changed = copy.deepcopy(entry)
        change(changed["certificate"]["sets"])
        return verdict_of(changed, limits, result).reason

    first = entry["certificate"]["sets"][0]
    degrees = f"tensor {first['tensor']}, context {first['context']}, expert 1, micro-batch {first['micro_batch']}"
    words = f"pool 0, {degrees}, by {first['by']}"
    n, configurations = first["n_meshes"], first.get("n_configurations", 0)
    assert (
        reason(lambda sets: sets.append(sets[0]))
        == f"certificate.sets[{len(entry['certificate']['sets'])}]: {words} are there twice"
    )
    assert reason(lambda sets: sets[0].update(tensor=64)).startswith(
        "certificate.sets[0]: no mesh is closed so here: pool 0, tensor 64, "
    )
    said = f"certificate.sets[0]: {words}: {n + 1} meshes of {configurations} configurations, not {n} of {configurations}"
    assert reason(lambda sets: sets[0].update(n_meshes=n + 1)) == said
    timed = next(i for i, one in enumerate(entry["certificate"]["sets"]) if "seconds" in one)
    seconds = entry["certificate"]["sets"][timed]["seconds"]
    assert reason(lambda sets: sets[timed].update(seconds=seconds * (1 + 1e-10))) == ""
    assert reason(lambda sets: sets[timed].update(seconds=seconds * (1 + 1e-8))).startswith(f"certificate.sets[{timed}]: ")
    with pytest.raises(InputError, match=r"^a\.json: certificate\.sets: a field is missing or of the wrong kind: 'by'$"):
        reason(lambda sets: sets[0].pop("by"))
    with pytest.raises(InputError, match=r"^a\.json: a field is missing or of the wrong kind: 'bound'$"):
        changed = {name: value for name, value in entry.items() if name != "bound"}
        verdict_of(changed, limits, result)
    with pytest.raises(
        InputError, match=r"^a\.json: certificate\.question: a field is missing or of the wrong kind: 'training'$"
    ):
        changed = copy.deepcopy(entry)
        del changed["certificate"]["question"]["training"]
        verdict_of(changed, limits, result)


def test_a_bound_that_is_too_high_is_open_and_the_next_lower_one_is_said(recorded: Recorded) -> None:
    """Of a plan that is slower than the best one, and said to be the best."""
    result, entry, limits = planned("like", "nodes", 4.0, ("pipeline", "2"), ("schedules", "1f1b"), *FEW[3:])
    limits, entry = {**limits, "pipeline": ()}, copy.deepcopy(entry)
    entry["certificate"]["question"]["limits"]["pipeline"] = []
    proof = BoundProof(result.problem, space.inside(result.problem, limits), entry["bound"]["value"])
    proof.run()
    assert proof.open
    entry["certificate"]["sets"] = sets_of(proof)
    verdict = verdict_of(entry, limits, result)
    assert not verdict.valid and verdict.value == entry["step_seconds"]
    assert verdict.checked == ("the plan: its step, its memory, its place in the space",)
    assert verdict.not_checked == ("the bound claimed", *answers._NOT_CHECKED)
    recorded([verdict.bound_value, len(proof.open), re.sub(r"\d+\.\d{6,}(e-\d+)?", "#", verdict.reason)])


def test_that_nothing_fits_is_confirmed_or_refused(recorded: Recorded) -> None:
    problem, settings = question("like", "sorts", gigabytes=0.12), {"context": "1", "tensor": "1", "micro_batch": "1,2"}
    result = api.plan(problem, search="best", settings=settings)
    entry = json.loads(json.dumps(plan_json.as_json(result)))
    limits = dataclasses.asdict(options.parse(Params, settings, "search best"))
    good = answers.check_infeasible(problem, entry, "a.json", limits)
    assert good.valid and math.isnan(good.value) and math.isnan(good.bound_value)
    assert good.not_checked == ("how much memory is missing, and what would fit", *answers._NOT_CHECKED[1:])
    recorded([good.checked, entry["missing_bytes"]])
    says = "says that nothing fits, and holds an objective, a bound, a step or stages"
    for change in ({"bound": 1.0}, {"objective": {}}, {"stages": [1]}):
        assert answers.check_infeasible(problem, {**entry, **change}, "a.json", limits).reason == says
    verdict = answers.check_infeasible(problem, {**entry, "infeasible_proven": False}, "a.json", limits)
    assert verdict.reason.startswith("says itself that it is not proven") and verdict.not_checked == ("whether anything fits",)
    changed = copy.deepcopy(entry)
    changed["certificate"]["bound_seconds"] = 1.0
    verdict = answers.check_infeasible(problem, changed, "a.json", limits)
    assert verdict.reason == "certificate.bound_seconds: there is no bound where nothing fits" and not verdict.valid
    roomy = question("like", "sorts", gigabytes=0.9)
    proof = BoundProof(roomy, space.inside(roomy, limits), math.inf)
    proof.run()
    changed["certificate"]["bound_seconds"], changed["certificate"]["sets"] = None, sets_of(proof)
    verdict = answers.check_infeasible(roomy, changed, "a.json", limits)
    assert not verdict.valid and verdict.reason.startswith("that nothing fits is not confirmed: ")
    assert verdict.not_checked[:2] == ("whether these fit", "how much memory is missing, and what would fit")
    recorded([len(proof.open), verdict.reason], "open")


def test_plans_outside_the_space_are_told_why() -> None:
    result, _, limits = planned("like", "nodes", 4.0, ("pipeline", "2"), ("schedules", "1f1b"), ("data", "2"))
    problem, plan = result.problem, result.plan
    own = space.inside(problem, limits)
    assert member.outside(problem, plan, own) == ""
    first, last = plan.stages

    def why(limits: dict[str, Any] = own, problem: Problem = problem, **changes: Any) -> str:
        return member.outside(problem, dataclasses.replace(plan, **changes), limits)

    other = dataclasses.replace(first, strategy=dataclasses.replace(first.strategy, shard=3 - first.strategy.shard))
    assert why(stages=(other, last)) == "its stages have different degrees, which are no part of the space"
    batch = dataclasses.replace(problem.batch, global_batch=16)
    said = "its micro-batches are not those of a batch of 16 samples"
    assert why(problem=dataclasses.replace(problem, batch=batch)) == said
    swapped = tuple(dataclasses.replace(stage, ops=stage.ops[::-1], recompute=stage.recompute[::-1]) for stage in plan.stages)
    assert why(stages=swapped) == "its layers are not in the order of the model"
    unlike = "its stages do not hold equally many layers, and uniform was asked for"
    assert why({**own, "uniform": True}) == unlike or len(first.ops) == len(last.ops)
    words = ("full",) * len(first.ops)
    said = "it recomputes what is not allowed (full, none; allowed: none)"
    none = ("none",) * len(last.ops)
    stages = (dataclasses.replace(first, recompute=words), dataclasses.replace(last, recompute=none))
    assert why({**own, "recompute": ("none",)}, stages=stages) == said
    assert why({**own, "schedules": ("zb_h1",)}) == "schedule 1f1b with 1 stages per rank is not allowed here"
    said = "its degrees, its sharding or its devices are not those of any mesh that the options allow"
    assert why({**own, "data": (1,)}) == said and why({**own, "shard": (3 - first.strategy.shard,)}) == said
    moved = tuple(dataclasses.replace(stage, devices=stage.devices[::-1]) for stage in plan.stages)
    assert why(stages=moved) == said
    framework = dataclasses.replace(
        problem.framework, limits=dataclasses.replace(problem.framework.limits, degrees=("tensor",))
    )
    assert why(problem=dataclasses.replace(problem, framework=framework)).startswith("framework own does not run it: ") or why(
        problem=dataclasses.replace(problem, framework=framework)
    ).startswith("own does not run it: ")


@pytest.mark.parametrize("case", [case for case in CASES if case[2][5] == 2 and case[4] == 1])
def test_a_hop_takes_the_quicker_of_its_two_ways(case: tuple[Any, ...]) -> None:
    """Links lead one way: slower ones out of the first rank alone leave the way back as it was."""
    proof, prices, mesh, form = posed(case, 60.0)
    counts = space.even_counts(proof.n_layers, mesh.pipeline)
    strategy, layout = next(iter(space.strategies(prices.problem, mesh, USUAL, len(prices.pool.devices))))
    cluster = prices.problem.required_cluster

    def hops(slowed: np.ndarray) -> list[float]:
        rates = np.where(slowed, cluster.links.bytes_per_second / 4.0, cluster.links.bytes_per_second)
        own = dataclasses.replace(cluster, links=dataclasses.replace(cluster.links, bytes_per_second=rates))
        there = LayerPrices(
            dataclasses.replace(prices.problem, cluster=own), device_pools.pools(prices.problem)[0], proof.chain, prices.limits,
            prices.recompute,
        )  # fmt: skip
        return Plays(
            there, mesh, form, strategy, layout, there.of_ranks(mesh, strategy, layout, inside_only=False)
        ).hop_seconds(counts)

    first = Plays(prices, mesh, form, strategy, layout, prices.of_ranks(mesh, strategy, layout, inside_only=False)).devices[0]
    out, back = np.isin(cluster.links.source, first), np.isin(cluster.links.target, first)
    usual = hops(out & False)
    assert usual[0] > 0.0 and hops(out) == hops(back) == usual
    assert hops(out | back)[0] > usual[0]
