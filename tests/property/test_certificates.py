"""Answers of best on small random problems: honest ones are confirmed, changed ones refused, no lemma refutes a plan."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pathlib
import random
import sys
from typing import Any

import pytest

from meshwright import api
from meshwright.base import options
from meshwright.base.errors import InputError
from meshwright.commands import check as command
from meshwright.core.strategy import CONTEXT_EXCHANGES
from meshwright.planners.best.check.answers import AnswerVerdict, check_infeasible, check_plan
from meshwright.planners.best.check.proof import BoundProof
from meshwright.planners.best.search import best
from meshwright.writers import plan_json

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "oracle"))
import joint_enumerator as enumerator

N_BLOCKS = 5


def answered(seed: int, folder: pathlib.Path) -> tuple[enumerator.Question, dict[str, Any]] | None:
    """Return a random question with the JSON answer of search best; None where no plan is legal."""
    question = enumerator.random_question(seed, folder, named=True)
    if not enumerator.shapes(question.problem, question.settings):
        return None
    result = enumerator.searched(question, seed)
    return question, json.loads(json.dumps(plan_json.as_json(result)))


def refusal(entry: dict[str, Any], path: pathlib.Path) -> str:
    """Return why a file is refused; empty where it is confirmed."""
    path.write_text(json.dumps(entry))
    try:
        verdict = command._verdict(entry, str(path), "")
    except InputError as error:
        return str(error)
    return verdict.reason if not verdict.valid else ""


def of_sets(entry: dict[str, Any], dice: random.Random) -> None:
    """Remove a set, count it wrong, or raise its value."""
    sets = entry["certificate"]["sets"]
    i = dice.randrange(len(sets))
    kind = dice.choice(("remove", "count", "raise"))
    if kind == "raise" and "seconds" in sets[i]:
        sets[i]["seconds"] *= dice.choice((1.00001, 1.02, 2.0))
    elif kind == "count":
        sets[i]["n_meshes"] += 1
    else:
        del sets[i]


def of_question(entry: dict[str, Any], dice: random.Random) -> None:
    """Change the batch, the micro-batch or the options, in the certificate too or in one place only."""
    asked = entry["certificate"]["question"]
    kind = dice.choice(("batch", "sequence", "option", "both", "shard"))
    if kind == "batch":
        asked["global_batch"] *= 2
    elif kind == "sequence":
        asked["sequence_length"] *= 2
    elif kind == "option":
        entry["settings"]["tensor"] = "8"
    elif kind == "both":
        entry["settings"]["pipeline"], asked["limits"]["pipeline"] = "1000", [1000]
    else:
        asked["limits"]["shard"] = [level for level in (0, 1, 2, 3) if level not in asked["limits"]["shard"][:1]]


def of_claims(entry: dict[str, Any], dice: random.Random) -> None:
    """Change the bound, the gap, the objective, or the plan; or what is said of an infeasible answer."""
    if not entry["feasible"]:
        entry["infeasible_proven"] = False
        return
    kind = dice.choice(("bound", "all bounds", "gap", "objective", "recompute", "schedule", "memory"))
    if kind == "bound":
        entry["bound"]["value"] *= dice.choice((0.9, 1.1))
    elif kind == "all bounds":
        raised = entry["bound"]["value"] * 1.05
        entry["certificate"]["bound_seconds"] = entry["bound"]["value"] = raised
        entry["bound"]["gap_ratio"] = entry["objective"]["value"] / raised - 1.0
    elif kind == "gap":
        entry["bound"]["gap_ratio"] += 0.01
    elif kind == "objective":
        entry["objective"]["value"] *= 0.9
    elif kind == "schedule":
        entry["schedule"]["n_microbatches"] += 1
    elif kind == "memory":
        entry["settings"]["memory_ratio"] = "0.5"
        entry["certificate"]["question"]["limits"]["memory_ratio"] = 0.01
    else:
        stage = entry["stages"][-1]
        words = stage["recompute"] or ["none"] * len(stage["ops"])
        stage["recompute"] = ["none" if word == "full" else "full" for word in words]


def checked(question: enumerator.Question, entry: dict[str, Any], result: api.Result) -> AnswerVerdict | None:
    """Return the check's verdict on an answer whose framework no file can name; None where there is nothing to check."""
    limits = dataclasses.asdict(options.parse(best.Params, dict(question.settings), "search best"))
    if result.feasible:
        return check_plan(result, entry, "answer", limits)
    return check_infeasible(result.problem, entry, "answer", limits) if entry["infeasible_proven"] else None


def test_answers_with_every_context_exchange_are_confirmed(tmp_path: pathlib.Path) -> None:
    """And refused where the certificate is of a space with other exchanges, or the plan has one that it leaves out."""
    used: dict[str, int] = {}
    for seed in range(100, 116):
        question = enumerator.context_question(seed, tmp_path)
        if not enumerator.shapes(question.problem, question.settings):
            continue
        result = enumerator.searched(question, seed)
        entry = json.loads(json.dumps(plan_json.as_json(result)))
        verdict = checked(question, entry, result)
        assert verdict is None or verdict.valid, (question.name, verdict.reason)
        if verdict is None or not result.feasible or result.plan.stages[0].strategy.context == 1:
            continue
        kind = result.plan.stages[0].strategy.context_exchange
        used[kind] = used.get(kind, 0) + 1
        if used[kind] > 1:
            continue
        other = copy.deepcopy(entry)
        other["certificate"]["question"]["limits"]["context_exchange"] = ["ring", "all_to_all", "all_gather"]
        assert not checked(question, other, result).valid, question.name
        old = copy.deepcopy(entry)
        del old["certificate"]["question"]["limits"]["context_exchange"]  # as if of before there was a choice
        if kind != "ring":
            assert not checked(question, old, result).valid, question.name
    assert set(used) == {"ring", "all_gather", "all_to_all"}, used


def test_a_certificate_from_before_context_exchanges_is_confirmed_for_its_space(tmp_path: pathlib.Path) -> None:
    """Where keys and values could only go round; the verdict says so."""
    question = next(
        own for own in (enumerator.context_question(seed, tmp_path) for seed in range(100))
        if own.problem.framework.limits.context_exchanges == CONTEXT_EXCHANGES[:3] and "context_exchange" not in own.settings
    )  # fmt: skip
    rings = dataclasses.replace(question.problem.framework.limits, context_exchanges=("ring",), latent_exchanges=("ring",))
    framework = dataclasses.replace(question.problem.framework, limits=rings, overlaps_gather=False)
    result = api.plan(
        dataclasses.replace(question.problem, framework=framework),
        search="best",
        settings=question.settings | {"alternatives": "1"},
    )
    entry = json.loads(json.dumps(plan_json.as_json(result)))
    asked = entry["certificate"]["question"]
    del asked["limits"]["context_exchange"]
    for name in ("context_exchanges", "latent_exchanges"):
        asked["framework"]["limits"].pop(name, None)
    asked["framework"].pop("overlaps_gather", None)
    verdict = checked(question, entry, dataclasses.replace(result, problem=question.problem))
    assert verdict is not None and verdict.valid, verdict
    assert any("keys and values go round" in line for line in verdict.checked)


def test_answers_that_split_a_context_axis_by_heads_and_by_queries_are_confirmed(tmp_path: pathlib.Path) -> None:
    """And refused where the space of the certificate has no such exchange."""
    n_used = 0
    for seed in range(24):
        question = enumerator.both_ways_question(seed, tmp_path)
        if "all_to_all+ring" not in question.settings.get("context_exchange", ""):
            continue
        if not enumerator.shapes(question.problem, question.settings):
            continue
        result = enumerator.searched(question, seed)
        entry = json.loads(json.dumps(plan_json.as_json(result)))
        verdict = checked(question, entry, result)
        assert verdict is None or verdict.valid, (question.name, verdict.reason)
        if result.feasible and result.plan.stages[0].strategy.context_exchange == "all_to_all+ring":
            n_used += 1
            limits = entry["certificate"]["question"]["limits"]
            limits["context_exchange"] = [kind for kind in limits["context_exchange"] if kind != "all_to_all+ring"]
            assert not checked(question, entry, result).valid, question.name
    assert n_used >= 2


def test_answers_with_state_on_the_host_are_confirmed(tmp_path: pathlib.Path) -> None:
    """And refused where the certificate is of a space without it, which is what one that says nothing of it means."""
    used: set[str] = set()
    for seed in (8, 9, 10, *range(13, 20)):  # in a certificate of 11 and 12 there is nothing to check: they answer nothing
        question = enumerator.offload_question(seed, tmp_path)
        if not enumerator.shapes(question.problem, question.settings):
            continue
        result = enumerator.searched(question, seed)
        entry = json.loads(json.dumps(plan_json.as_json(result)))
        verdict = checked(question, entry, result)
        assert verdict is None or verdict.valid, (question.name, verdict.reason)
        if verdict is None or not result.feasible:
            continue
        place = result.plan.stages[0].strategy.offload
        assert entry["stages"][0].get("offload", "none") == place
        if place not in used and question.settings["offload"] != "none":
            del entry["certificate"]["question"]["limits"]["offload"]
            assert not checked(question, entry, result).valid, question.name
        used.add(place)
    assert used == {"none", "optimizer"}


@pytest.mark.parametrize("block", range(N_BLOCKS))
def test_honest_answers_are_confirmed_and_changed_ones_refused(block: int, tmp_path: pathlib.Path) -> None:
    n_confirmed = 0
    for seed in range(1000 + block, 1010, N_BLOCKS):
        found = answered(seed, tmp_path)
        if found is None or found[1].get("infeasible_proven") is False:
            continue
        question, entry = found
        assert refusal(entry, tmp_path / "plan.json") == "", question.name
        n_confirmed += 1
        dice = random.Random(seed)
        for change in (of_sets, of_question, of_claims):
            changed = copy.deepcopy(entry)
            change(changed, dice)
            assert refusal(changed, tmp_path / "plan.json"), (question.name, change)
    assert n_confirmed >= 1


@pytest.mark.parametrize("block", range(N_BLOCKS))
def test_no_lemma_of_the_check_refutes_a_plan_that_can_be_played(block: int, tmp_path: pathlib.Path) -> None:
    """A bound just above a plan that was played leaves something open, and so does the claim that nothing fits."""
    n_played = 0
    for seed in range(2000 + block, 2015, N_BLOCKS):
        question = enumerator.random_question(seed, tmp_path)
        shapes = enumerator.shapes(question.problem, question.settings)
        if not shapes:
            continue
        player = enumerator.Player(question, 30, seed)
        player.run(shapes)
        if player.best is None:
            continue
        n_played += 1
        limits = dataclasses.asdict(options.parse(best.Params, question.settings, "search best"))
        for bound in (player.best.step_seconds * (1.0 + 1e-6), math.inf):
            proof = BoundProof(question.problem, limits, bound)
            proof.run()
            assert proof.open, (question.name, bound, player.best)
    assert n_played >= 2
