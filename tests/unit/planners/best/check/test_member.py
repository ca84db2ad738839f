"""What a plan of the space may recompute: nothing in embedding and head, in pinned layers only what all layers do."""

from __future__ import annotations

import dataclasses
import json

import pytest

from meshwright import api
from meshwright.core.plan import Plan
from meshwright.core.problem import Batch, Problem
from meshwright.planners.best import plans
from meshwright.planners.best import space as joint
from meshwright.planners.best.check import member, space
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.search.best import Params
from meshwright.planners.best.space import Config, MeshDegrees

USUAL = dataclasses.asdict(Params())


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Problem, Plan]:
    """Six layers of which four are frozen, so that two trained ones are pinned to the end, on two ranks."""
    path = tmp_path_factory.mktemp("member") / "model.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    }))  # fmt: skip
    frozen = ("*embed*", "layers.0", "layers.1", "layers.2", "layers.3")
    problem = api.make_problem(str(path), "flat:2", batch=Batch(4, 1, 1024), memory_risk=0.5, freeze=frozen)
    chain = chain_of(problem.graph)
    assert (chain.prefix, chain.layers, chain.suffix) == ((0,), (1, 2, 3, 4), (5, 6, 7))
    costs = Costs(problem, joint.pools(problem.required_cluster)[0], chain)
    config = Config(MeshDegrees(2, 1, 1, 1, 1, 1), 0, 0, "1f1b", 1, "pipeline")
    plan = plans.bare(costs, config, 4, (2, 2))
    assert plan is not None
    return problem, plan


@pytest.mark.parametrize(("words", "changes", "why"), [
    ("nnn nnnnn", {}, ""), ("nff nnnnn", {}, ""), ("nnf nsfnn", {}, "layers pinned to its ends recompute (full, none), "),
    ("fnn nnnnn", {}, "its embedding or head recomputes, which is no part of the space"),
    ("nnn nnnnf", {}, "its embedding or head recomputes, which is no part of the space"),
    ("nnf nnnnn", {"uniform": True}, "its layers recompute differently (full, none), and uniform was asked for"),
    ("nff ffnnn", {"uniform": True}, ""), ("nff ffffn", {"uniform": True}, ""),
    ("nff ffsnn", {"uniform": True}, "layers pinned to its ends recompute (none, selective), "),
    ("nff ffffn", {"recompute": ("full",)}, ""),
    ("nff fnffn", {"recompute": ("full",)}, "it recomputes what is not allowed (full, none; allowed: full)"),
    ("nss ssnnn", {"recompute": ("none", "full")}, "it recomputes what is not allowed (selective; allowed: none and full)"),
])  # fmt: skip
def test_what_a_plan_of_the_space_may_recompute(
    asked: tuple[Problem, Plan], words: str, changes: dict[str, object], why: str
) -> None:
    problem, plan = asked
    told = [tuple({"n": "none", "s": "selective", "f": "full"}[letter] for letter in own) for own in words.split()]
    stages = tuple(dataclasses.replace(stage, recompute=own) for stage, own in zip(plan.stages, told, strict=True))
    said = member.outside(problem, dataclasses.replace(plan, stages=stages), space.inside(problem, USUAL | changes))
    assert said.startswith(why) and bool(said) == bool(why)


def test_stages_that_say_nothing_recompute_nothing(asked: tuple[Problem, Plan]) -> None:
    problem, plan = asked
    stages = tuple(dataclasses.replace(stage, recompute=()) for stage in plan.stages)
    bare = dataclasses.replace(plan, stages=stages)
    assert member.outside(problem, bare, space.inside(problem, USUAL)) == ""
    assert member.outside(problem, bare, space.inside(problem, USUAL | {"recompute": ("full",)})).startswith("it recomputes")


def test_values_given_twice_count_once(asked: tuple[Problem, Plan]) -> None:
    own = space.inside(asked[0], USUAL | {"schedules": ("1f1b", "zb_v", "1f1b"), "shard": (3, 0, 3), "tensor": (2, 2)})
    assert (own["schedules"], own["shard"], own["tensor"]) == (("1f1b", "zb_v"), (3, 0), (2,))
