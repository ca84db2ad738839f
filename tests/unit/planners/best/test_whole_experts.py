"""Experts over the tensor axis too, each whole on its device: part of the space, and of its proofs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pathlib
from unittest import mock

import pytest

from meshwright import api, cli
from meshwright.core.problem import Batch, Problem
from meshwright.planners.best import limits, space
from meshwright.planners.best.check import device_pools
from meshwright.planners.best.check import space as checked
from meshwright.planners.best.limits import Limits

FIXED = {"tensor": "4", "data": "2", "context": "1", "expert": "8", "pipeline": "1", "micro_batch": "1"}


def run(*words: str) -> tuple[int, str, str]:
    """Run one command; return its exit code and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch("sys.argv", ["meshwright", *words]), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stopped,
    ):  # fmt: skip
        cli.main()
    return int(stopped.value.code or 0), out.getvalue(), err.getvalue()


def posed(*, over_tensor: bool) -> Problem:
    """Return a mixture on a node, whose framework spreads experts over its tensor axis or does not."""
    problem = api.make_problem("gpt-oss-20b", "dgx-h100:8", batch=Batch(8, sequence_length=1024))
    own = dataclasses.replace(problem.framework.limits, experts_over_tensor=over_tensor)
    return dataclasses.replace(problem, framework=dataclasses.replace(problem.framework, limits=own))


@pytest.mark.parametrize("over_tensor", [True, False])
def test_search_and_check_have_the_same_meshes(over_tensor: bool) -> None:
    problem = posed(over_tensor=over_tensor)
    pool, other = space.pools(problem.required_cluster)[0], device_pools.pools(problem)[0]
    degrees = limits.allowed_degrees(problem, Limits(), 8)
    found = {
        (own.tensor, own.context, own.expert, own.micro_batch, own.data, own.pipeline)
        for own in space.meshes(pool, n_layers=24, global_batch=8, degrees=degrees)
        if over_tensor or not own.whole_experts
    }
    told = checked.inside(problem, dataclasses.asdict(Limits()))
    meshes = [tuple(own) for own in checked.meshes(problem, other, 24, told)]
    assert len(meshes) == len(set(meshes)) and found == set(meshes)
    whole = {own for own in found if own[4] * own[1] % own[2]}
    assert whole == (
        {own for own in whole if own[0] * own[1] * own[4] % own[2] == own[2] % own[0] == 0} if over_tensor else set()
    )
    assert ((4, 1, 8, 1, 2, 1) in whole) == over_tensor
    apart, over = (space.MeshDegrees(1, data, 1, 4, 8, 1) for data in (8, 2))
    assert apart.layer_shape != over.layer_shape  # what one of them computes is not taken for the other's


@pytest.mark.parametrize("whole", [True, False])
def test_an_answer_is_exported_and_confirmed(whole: bool, tmp_path: pathlib.Path) -> None:
    """Of a framework that has them; of another the same degrees are no plan."""
    plan, script = tmp_path / "plan.json", tmp_path / "train.sh"
    given = [word for name, value in FIXED.items() for word in ("--set", f"{name}={value}")]
    asked = ["--cluster", "dgx-h100:8", "--global-batch", "8", "--sequence-length", "1024", "--no-what-if"]
    word = "megatron"
    if not whole:
        word = str(tmp_path / "own.toml")
        pathlib.Path(word).write_text("[limits]\nexperts_over_tensor = false\n")
    code, _, said = run("plan", "gpt-oss-20b", *asked, *given, "--for", word, "--out", str(plan))
    assert code == (0 if whole else 2), said
    if not whole:
        assert "no combination of degrees divides" in said
        return
    assert run("check", str(plan))[0] == 0
    assert run("export", str(plan), "--to", "megatron_args", "--out", str(script))[0] == 0
    assert "--expert-tensor-parallel-size 1" in script.read_text()
    assert "--expert-model-parallel-size 8" in script.read_text()


@pytest.mark.parametrize("word", ["megatron", "megatron_bridge"])
def test_experts_with_biases_are_never_planned_split(word: str) -> None:
    """Of whatever is found first: a search that is stopped early must not answer with what cannot run."""
    asked = ["--cluster", "dgx-h100:8", "--global-batch", "8", "--sequence-length", "1024", "--no-what-if", "--for", word]
    split = ["--set", "tensor=4", "--set", "data=2", "--set", "context=1", "--set", "pipeline=1"]
    code, _, said = run("plan", "gpt-oss-20b", *asked, *split, "--set", "expert=2")
    assert code == 2 and "experts with biases split over a tensor axis" in said
    code, out, said = run("plan", "gpt-oss-20b", *asked, *split, "--set", "expert=2,8")
    assert code == 0 and "expert 8" in out, said
