"""``plan --optimizer``: search, simulator and check price it alike, and files say it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")
ASKED = ("plan", TINY, "--cluster", "dgx-h100:4", "--global-batch", "16")


@pytest.mark.parametrize("optimizer", ["muon", "adam-8bit"])
def test_search_simulator_and_check_price_it_alike(optimizer: str, meshwright: Callable[..., Any]) -> None:
    planned = meshwright(*ASKED, "--optimizer", optimizer, "--out", "plan.json", "--json")
    assert planned.code == 0, planned.err
    assert planned.json["training"]["optimizer"] == optimizer
    played = meshwright("simulate", "plan.json", "--json").json
    assert played["step_seconds"] == planned.json["step_seconds"]
    assert played["stages"][0]["memory"]["optimizer"] > 0.0
    assert meshwright("check", "plan.json").code == 0
    entry = json.loads(pathlib.Path("plan.json").read_text())
    entry["training"] |= {"optimizer": "adafactor", "state_bytes": 4}
    pathlib.Path("plan.json").write_text(json.dumps(entry))
    refused = meshwright("check", "plan.json")
    assert refused.code == 2 and "training.optimizer" in refused.out + refused.err
    entry["training"]["optimizer"] = "shampoo"
    pathlib.Path("plan.json").write_text(json.dumps(entry))
    refused = meshwright("simulate", "plan.json")
    assert refused.code == 2 and "plan.json: training.optimizer is 'shampoo'; there are" in refused.err


def test_state_precision_is_part_of_the_plan(meshwright: Callable[..., Any]) -> None:
    wide, narrow = (
        meshwright(*ASKED, *more, "--json").json for more in ((), ("--state-precision", "moments=bf16,gradients=bf16"))
    )
    assert (narrow["training"]["state_bytes"], narrow["training"]["gradient_bytes"], narrow["training"]["optimizer_bytes"]) == (
        2,
        2,
        8,
    )
    assert narrow["step_seconds"] < wide["step_seconds"]


def test_nonsense_is_one_line(meshwright: Callable[..., Any]) -> None:
    for option, value, said in (
        ("--optimizer", "adamx", "did you mean 'adam'"),
        ("--state-precision", "fp64", "moments is fp64; it must be fp32 or bf16"),
    ):
        refused = meshwright(*ASKED, option, value)
        assert refused.code == 2 and said in refused.err and refused.err.count("\n") == 1


def test_adapters_beside_four_bits_are_planned_played_and_confirmed(meshwright: Callable[..., Any]) -> None:
    asked = ("plan", TINY, "--cluster", "dgx-h100:2", "--global-batch", "4", "--lora", "r=4,targets=query", "--base", "4bit")
    planned = meshwright(*asked, "--out", "plan.json", "--json")
    assert planned.code == 0, planned.err
    assert planned.json["model"]["lora"] == "r=4,targets=query,base=4bit"
    assert meshwright("simulate", "plan.json", "--json").json["step_seconds"] == planned.json["step_seconds"]
    assert meshwright("check", "plan.json").code == 0
    refused = meshwright(*asked[:6], "--base", "4bit")
    assert refused.code == 2 and "give adapters" in refused.err
