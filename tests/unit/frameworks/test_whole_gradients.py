"""The Trainer and Accelerate leave FSDP's gradients whole between micro-batches unless told: what is written tells them, what is read is
priced as it runs.
"""  # noqa: E501

from __future__ import annotations

import functools
import json
import pathlib

import pytest
import yaml

from meshwright import api, frameworks
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.validation import own_runs

SYNCHRONISED = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}


@functools.cache
def posed(word: str) -> Problem:
    return api.make_problem("llama-3.2-1b", "dgx-h100:8", framework=word, batch=Batch(64, 1))


def planned(problem: Problem, n: int, shard: int = 3) -> Plan:
    ops = tuple(range(len(problem.graph.ops)))
    return Plan((Stage(ops, tuple(range(8)), Strategy(8, shard=shard)),), n, 1, "1f1b", 8 * n)


def written(word: str, plan: Plan, path: pathlib.Path) -> None:
    frameworks.load(word.partition(":")[0]).write(Result(posed(word), "best", 0, Answer(plan)), str(path))


@pytest.mark.parametrize(("word", "n", "shard", "told"), [
    ("transformers", 4, 3, True), ("transformers", 4, 2, True), ("transformers", 1, 3, False), ("transformers", 4, 0, False),
    ("transformers:no_sync", 4, 3, False),
])  # fmt: skip
def test_arguments_keep_gradients_sharded_where_they_would_not_be(
    word: str, n: int, shard: int, told: bool, tmp_path: pathlib.Path
) -> None:
    problem = posed(word)
    path = tmp_path / "a.json"
    written(word, planned(problem, n, shard), path)
    entry = json.loads(path.read_text())
    assert entry.get("accelerator_config") == (SYNCHRONISED if told else None)
    said = frameworks.load("transformers").read(str(path), problem.graph, 8)
    assert said.variant == ("+no_sync" if word.endswith("no_sync") else "")


def test_a_script_that_does_not_say_it_is_read_as_whole_and_told_so(tmp_path: pathlib.Path) -> None:
    problem, path = posed("transformers"), tmp_path / "a.json"
    written("transformers", planned(problem, 4), path)
    entry = json.loads(path.read_text())
    for config in (None, {}, {"gradient_accumulation_kwargs": {"sync_each_batch": False}}):
        path.write_text(json.dumps(entry | {"accelerator_config": config}))
        said = frameworks.load("transformers").read(str(path), problem.graph, 8)
        assert said.variant == "+no_sync" and "4 micro-batches without sync_each_batch" in said.warnings[-1]


def test_accelerates_command_says_it_and_is_read_with_and_without(tmp_path: pathlib.Path) -> None:
    problem, path = posed("accelerate"), tmp_path / "a.yaml"
    written("accelerate", planned(problem, 4), path)
    text = path.read_text()
    option = f" --accelerator_config '{json.dumps(SYNCHRONISED)}'"
    assert option in text and yaml.safe_load(text)["distributed_type"] == "FSDP"
    assert frameworks.load("accelerate").read(str(path), problem.graph).variant == ""
    path.write_text(text.replace(option, ""))
    said = frameworks.load("accelerate").read(str(path), problem.graph)
    assert said.variant == "+no_sync" and "every device holds whole gradients" in said.warnings[-1]


def test_whole_gradients_take_two_bytes_of_every_weight_and_are_scattered_once_a_step() -> None:
    plain, whole = posed("transformers"), posed("transformers:no_sync")
    plan = planned(plain, 4)
    (each,), (once,) = (analytic.stage_costs(problem, plan) for problem in (plain, whole))
    n_weights = sum(op.n_parameters for op in plain.graph.ops) - plain.graph.n_shared_parameters
    assert each.gradient_bytes == pytest.approx(4 * n_weights / 8, rel=1e-3)
    assert once.gradient_bytes == pytest.approx(2 * n_weights, rel=1e-3)
    assert each.reduce_seconds == 0.0 < once.reduce_seconds
    gathered = [dict(load.backward_communication).get("gather", 0.0) for load in (each, once)]
    assert gathered[1] < gathered[0]
    assert once.optimizer_seconds == each.optimizer_seconds  # of shards in both


def test_a_run_of_ones_own_without_a_configuration_ran_as_by_default() -> None:
    row = {
        "model": "llama-3.2-1b", "cluster": "dgx-h100:8", "global_batch": "64", "micro_batch": "2", "data": "8", "tensor": "1",
        "pipeline": "1", "step_seconds": "1", "shard": "3", "framework": "transformers",
    }  # fmt: skip

    def ran(**changes: str) -> str:
        (own,) = own_runs.told([row | changes])
        assert isinstance(own, own_runs.OwnRun)
        assert ("no configuration says sync_each_batch" in own.note) == own.run.framework.whole_gradients
        return own.run.framework.variant

    assert ran() == "no_sync" == ran(framework="accelerate")
    assert ran(global_batch="16") == ran(shard="0") == ran(framework="fsdp2") == ""


def test_over_one_data_rank_every_sharding_level_is_the_same_run() -> None:
    row = {
        "model": "llama-3.2-1b", "cluster": "dgx-h100:8", "global_batch": "8", "micro_batch": "1", "data": "1", "tensor": "2",
        "pipeline": "4", "step_seconds": "1", "framework": "torchtitan",
    }  # fmt: skip
    points = own_runs.points([row | {"shard": str(shard)} for shard in range(4)])
    assert len({(one.predicted_seconds, one.predicted_bytes) for one in points if not isinstance(one, own_runs.Skipped)}) == 1
