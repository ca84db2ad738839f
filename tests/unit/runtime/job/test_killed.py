"""Processes killed at any moment, in a step or while a checkpoint is written: nothing is lost but steps since the last one."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest
from legs import kill_during, run_leg
from runtime_processes import plan_of

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

PLANS = [
    plan_of([(5, [0], {})]),
    plan_of([(2, [0], {}), (3, [1], {})]),
    plan_of([(5, [0, 1, 2], {"shard": 1})]),
    plan_of([(5, [0, 1], {"shard": 3})]),
    plan_of([(2, [0], {}), (3, [1, 2], {"shard": 2})]),
    plan_of([(5, [0, 1], {"tensor": 2})]),
]


@pytest.mark.slow
def test_twenty_kills_at_random_moments_under_changing_plans_change_no_loss(tmp_path: pathlib.Path) -> None:
    drawn, killed = random.Random(0), 0
    case: dict[str, Any] = {"model": "zoo:shallow", "optimizer": "adamw", "folder": str(tmp_path / "saved"), "save_all": True}
    case |= {"last": 10**6, "log": str(tmp_path / "log")}
    for _ in range(20):
        plan = drawn.choice(PLANS)
        n_ranks = len({device for stage in plan["stages"] for device in stage["devices"]})
        after = drawn.randrange(4), drawn.uniform(0.0, 0.3)
        failed = kill_during({**case, "plan": plan}, n_ranks, tmp_path, after, drawn.randrange(n_ranks))
        killed += bool(failed)
    told = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    reached = max(int(step) for step, _ in told) + 1
    assert killed == 20 and reached > 5
    found = run_leg({"case": {**case, "plan": PLANS[1], "last": reached + 1}}, 2, tmp_path)["case"]
    assert found["first"] >= reached - 1, "a step whose loss was told may be lost, the one before it was saved"
    alone = {**case, "plan": PLANS[0], "last": reached + 1, "folder": "", "state": str(tmp_path / "state.pt")}
    expected = run_leg({"case": alone}, 1, tmp_path)["case"]["losses"]
    for step, loss in [*told, (reached, found["losses"][-1])]:
        assert float(loss) == pytest.approx(expected[int(step)], abs=1e-5), step
    assert not list((tmp_path / "saved").glob(".step-*.partial")), "what was never completed is deleted"
    assert len(list((tmp_path / "saved").glob("step-*"))) == 2
