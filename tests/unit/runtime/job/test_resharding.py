"""A checkpoint of one plan goes on under any other: the losses are those of a training that was never interrupted, and plain
PyTorch reads the weights that this one ends with.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from legs import run_leg
from runtime_processes import plan_of

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

STEPS = 1
"""Of each leg: the next one's begins with what this one saved, and the last one's result is looked at whole."""

CHAINS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "one process, two stages, ZeRO-1 of three": (
        "zoo:double", "adamw",
        [plan_of([(4, [0], {})]), plan_of([(1, [0], {}), (3, [1], {})]), plan_of([(4, [0, 1, 2], {"shard": 1})])],
    ),
    "ZeRO-2 of four, tensor parallel, one process": (
        "zoo:double", "momentum",
        [plan_of([(4, [0, 1, 2, 3], {"shard": 2})]), plan_of([(4, [0, 1], {"tensor": 2})]), plan_of([(4, [0], {})])],
    ),
    "unequal replicas, fully sharded and split, unequal again": (
        "zoo:double", "adamw",
        [
            plan_of([(3, [0, 1, 2], {}), (1, [3], {})]), plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "shard": 3})]),
            plan_of([(2, [0], {}), (2, [1, 2], {"shard": 1})]),
        ],
    ),
    "a table and head that share, over stages, whole, fully sharded": (
        "zoo:Plain", "adamw",
        [plan_of([(3, [0, 1], {"shard": 3}), (3, [2, 3], {"shard": 2})]), plan_of([(6, [0, 1], {"shard": 3})]),
         plan_of([(2, [0], {}), (4, [1], {})])],
    ),
    "products of several parts: ZeRO-1 of parts, fully sharded parts, ZeRO-2 of parts": (
        "zoo:Fused", "adamw",
        [plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "shard": 1})]), plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "shard": 3})]),
         plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "shard": 2})])],
    ),
    "attention with sinks: split, whole, split and fully sharded": (
        "zoo:Sinks", "adamw",
        [plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "expert": 2, "shard": 1})]), plan_of([(4, [0], {})]),
         plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "shard": 3, "sequence_parallel": True})])],
    ),
    "experts divided, whole, divided and sharded": (
        "zoo:Mixture", "adamw",
        [plan_of([(3, [1, 0, 2], {"expert": 3}), (3, [3], {})]), plan_of([(6, [0], {})]),
         plan_of([(6, [0, 1, 2, 3], {"expert": 2, "shard": 1})])],
    ),
}  # fmt: skip

MORE: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "hybrid sharding, contexts, zero-bubble in a V": (
        "zoo:shallow", "momentum",
        [plan_of([(5, [0, 1, 2, 3], {"shard": 3, "shard_degree": 2})]), plan_of([(5, [0, 1], {"context": 2})]),
         plan_of([(1, [0], {}), (1, [1], {}), (2, [1], {}), (1, [0], {})], schedule="zb_v")],
    ),
    "groups of ZeRO-1 placed out of order, interleaved, sequence parallel": (
        "zoo:shallow", "sgd",
        [plan_of([(2, [2, 0], {"shard": 2}), (3, [3, 1], {"shard": 1})]),
         plan_of([(1, [0], {}), (1, [1], {}), (2, [0], {}), (1, [1], {})], schedule="interleaved_1f1b"),
         plan_of([(5, [0, 1, 2, 3], {"tensor": 2, "sequence_parallel": True, "shard": 1})])],
    ),
    "experts over all ranks, with contexts, over stages": (
        "zoo:Mixture", "momentum",
        [plan_of([(6, [0, 1, 2, 3], {"expert": 2, "tensor": 2, "sequence_parallel": True, "shard": 3})]),
         plan_of([(6, [0, 1, 2, 3], {"expert": 2, "context": 2})]),
         plan_of([(2, [0, 1], {"expert": 2, "shard": 2}), (4, [2, 3], {"expert": 2})])],
    ),
    "contexts inside replicas, optimizer state in groups, one layer at two places": (
        "zoo:SharedLayers", "adamw",
        [plan_of([(6, [0, 1, 2, 3], {"shard": 1, "shard_degree": 2})]), plan_of([(6, [0, 1], {"shard": 3})]),
         plan_of([(6, [0, 1, 2], {"shard": 2})], global_batch=16)],
    ),
    "gpt-oss over tensor and sequence, over contexts and experts, over stages": (
        "zoo:gpt_oss", "adamw",
        [plan_of([(6, [0, 1, 2, 3], {"tensor": 2, "sequence_parallel": True, "shard": 3})]),
         plan_of([(6, [0, 1, 2, 3], {"context": 2, "expert": 2, "tensor": 2})]), plan_of([(2, [0], {}), (4, [1], {})])],
    ),
    "gpt2 over stages, whole, on one rank in two stages": (
        "models:gpt2", "adamw",
        [plan_of([(2, [0], {}), (4, [1], {})]), plan_of([(6, [0, 1], {"shard": 1})]),
         plan_of([(2, [0], {}), (1, [1], {}), (1, [1], {}), (2, [0], {})], schedule="zb_v")],
    ),
}  # fmt: skip


def _n_ranks(plan: dict[str, Any]) -> int:
    return len({device for stage in plan["stages"] for device in stage["devices"]})


def undisturbed(chains: dict[str, Any], folder: pathlib.Path) -> dict[str, list[float]]:
    """Train what chains train by plain PyTorch, leaving weights and state in files; return the losses of each."""
    cases = {}
    for i, (name, (model, optimizer, plans)) in enumerate(chains.items()):
        case = {"model": model, "optimizer": optimizer, "plan": plans[0], "last": STEPS * len(plans), "folder": ""}
        cases[name] = {**case, "state": str(folder / f"plain-{i}.pt")}
    return {name: found["losses"] for name, found in run_leg(cases, 1, folder).items()}


def run_chains(chains: dict[str, Any], folder: pathlib.Path) -> dict[str, list[float]]:
    """Train chains leg by leg; return all losses of each."""
    losses: dict[str, list[float]] = {name: [] for name in chains}
    for leg in range(max(len(plans) for *_, plans in chains.values())):
        by_ranks: dict[int, dict[str, dict]] = {}
        for i, (name, (model, optimizer, plans)) in enumerate(chains.items()):
            if leg < len(plans):
                case = {"model": model, "optimizer": optimizer, "plan": plans[leg], "last": STEPS * (leg + 1)}
                by_ranks.setdefault(_n_ranks(plans[leg]), {})[name] = {**case, "folder": str(folder / f"saved-{i}")}
        for n_ranks, cases in by_ranks.items():
            for name, found in run_leg(cases, n_ranks, folder).items():
                assert found.get("first") == STEPS * leg, (name, found)
                losses[name] += found["losses"]
    return losses


def check_chains(chains: dict[str, Any], folder: pathlib.Path) -> None:
    """Compare chains with trainings that were never interrupted: losses, and weights and state as plain PyTorch reads them."""
    losses, expected = run_chains(chains, folder), undisturbed(chains, folder)
    for i, (name, (_, _, plans)) in enumerate(chains.items()):
        assert losses[name] == pytest.approx(expected[name], abs=1e-5), name
        plain = torch.load(folder / f"plain-{i}.pt")
        whole = folder / f"whole-{i}.pt"
        dcp_to_torch_save(folder / f"saved-{i}" / f"step-{STEPS * len(plans)}", whole)
        read = torch.load(whole, weights_only=False)
        assert read.keys() == {*plain["weights"], "optimizer", "random"}, name
        for weight, value in plain["weights"].items():
            assert float((read[weight] - value).abs().max()) < 2e-5, (name, weight)
        assert [group["params"] for group in read["optimizer"]["param_groups"]] == [
            group["params"] for group in plain["optimizer"]["param_groups"]
        ]
        assert read["optimizer"].get("state", {}).keys() == plain["optimizer"]["state"].keys(), name
        for weight, state in plain["optimizer"]["state"].items():
            for key, value in state.items():
                found = read["optimizer"]["state"][weight][key]
                assert torch.allclose(found, value, rtol=0, atol=2e-5) and found.dtype == value.dtype, (name, weight, key)


def test_every_plan_goes_on_from_the_checkpoint_of_every_other(tmp_path: pathlib.Path) -> None:
    check_chains(CHAINS, tmp_path)


@pytest.mark.slow
def test_more_plans_go_on_from_the_checkpoints_of_others(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
    check_chains(MORE, tmp_path)
