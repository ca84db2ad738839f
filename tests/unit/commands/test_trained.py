"""What is trained and how its numbers are held: the same options for every command that plans."""

from __future__ import annotations

from typing import Any

import pytest

ASKED = {
    "plan": ["--cluster", "dgx-h100:8", "--global-batch", "16"],
    "compare": ["--cluster", "dgx-h100:8", "--global-batch", "16", "--searches", "best"],
    "sweep": ["--cluster", "dgx-h100:8", "--global-batches", "16", "--jobs", "1"],
    "size": ["--tokens", "1B", "--kinds", "h100", "--devices", "8", "--global-batch", "16", "--jobs", "1"],
}


def _plan(run: Any, command: str, tiny: str, told: list[str]) -> dict[str, Any]:
    """Return the plan, or the row, that a command prints as JSON."""
    done = run(command, tiny, *ASKED[command], *told, "--json")
    assert done.code == 0, done.err
    if command == "plan":
        return done.json
    listed = done.json[{"compare": "results", "sweep": "rows", "size": "front"}[command]]
    return listed[0]["plan"] if command == "size" else listed[0]


@pytest.mark.parametrize("command", ASKED)
def test_an_optimizer_and_adapters_reach_the_plan(meshwright: Any, tiny: str, command: str) -> None:
    usual, light, adapted = (
        _plan(meshwright, command, tiny, told)
        for told in (
            [],
            ["--optimizer", "lion", "--state-precision", "bf16"],
            ["--lora", "r=4,targets=query", "--base", "4bit"],
        )
    )
    if command != "sweep":  # a row of it has no more than seconds
        assert (usual["training"]["optimizer"], light["training"]["optimizer"]) == ("adamw", "lion")
        assert light["training"]["state_bytes"] == 2
        assert adapted["model"]["n_trained_parameters"] < usual["model"]["n_trained_parameters"]
    assert len({plan["step_seconds"] for plan in (usual, light, adapted)}) == 3


@pytest.mark.parametrize("command", ASKED)
def test_what_is_wrong_is_one_line(meshwright: Any, tiny: str, command: str) -> None:
    for told, message in (
        (["--base", "4bit"], "--base 4bit: is what --lora's frozen weights are held in; give adapters"),
        (["--optimizer", "rmsprop"], "no optimizer called 'rmsprop'"),
        (["--optimizer", "sgd", "--state-precision", "bf16"], "what sgd keeps is held in fp32"),
        (["--precision", "fp9"], "no precision called 'fp9'"),
    ):
        done = meshwright(command, tiny, *ASKED[command], *told)
        assert done.code == 2 and message in done.err and done.err.count("\n") == 1
