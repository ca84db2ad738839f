"""A training loop of one's own under a plan is that of one process: losses, norms, weights, evaluation.

Samples have very unlike numbers of labels that count, so that a mean of means would be wrong; gradients are clipped, learning
rates scheduled, norms and biases not decayed.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

from runtime_processes import environment, plan_of  # noqa: E402

TOLERANCE = 1e-5

TWO = {
    "replicas of a batch that does not divide": plan_of([(4, [0, 1], {})], global_batch=13, n_microbatches=3),
    "a mean over samples, of a batch that does not divide": plan_of([(4, [0, 1], {})], global_batch=13, n_microbatches=3),
    "optimizer state sharded, read from files": plan_of([(4, [0, 1], {"shard": 1})]),
    "gradients sharded": plan_of([(4, [0, 1], {"shard": 2})]),
    "weights sharded, read from files": plan_of([(4, [0, 1], {"shard": 3, "recompute": ["full"] * 4})]),
    "tensor": plan_of([(4, [0, 1], {"tensor": 2})]),
    "tensor, a loss of DTensors": plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True})]),
    "a pipeline, 1f1b": plan_of([(1, [0], {}), (3, [1], {})]),
    "a pipeline, zero-bubble in a V": plan_of(
        [(1, [0], {}), (1, [1], {}), (1, [1], {}), (1, [0], {})], schedule="zb_v"
    ),
}  # fmt: skip

MASKED = {
    "replicas": plan_of([(4, [0, 1], {"shard": 3, "recompute": ["full"] * 4})]),
    "a pipeline, read from files": plan_of([(2, [0], {}), (2, [1], {"recompute": ["full", "none"]})]),
    "tensor and sequence, read from files": plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True})]),
    "context": plan_of([(4, [0, 1], {"context": 2})]),
}
"""A Llama with attention masks of sentences padded on the left, and their positions."""

ROUTERS = {
    "replicas of sharded weights": plan_of([(4, [0, 1], {"shard": 3, "recompute": ["full"] * 4})]),
    "a pipeline": plan_of([(2, [0], {}), (2, [1], {})]),
    "context": plan_of([(4, [0, 1], {"context": 2})]),
}
"""A mixture whose routers add to its loss, with attention masks."""

ADAPTERS = {
    "replicas": plan_of([(4, [0, 1], {"shard": 2})]),
    "a pipeline behind a frozen stage": plan_of([(2, [0], {}), (2, [1], {})]),
    "tensor": plan_of([(4, [0, 1], {"tensor": 2})]),
}
"""A Llama of which adapters alone are trained; its first layer has none."""

_READER = ["embed", "encoder.0", "encoder.norm", "decoder.0", "decoder.1", "head"]
_STACKS = [("encoder", 1, 2), ("decoder", 2, 3)]
_CAPTURED = ["embed", *[f"{stack}.block.{i}.layer.{j}" for stack, n, parts in _STACKS for i in range(n) for j in range(parts)]]
_CAPTURED[3:3] = ["encoder.final_layer_norm", "decoder.embed_tokens"]
SEQUENCES = {
    "replicas of sharded weights": plan_of([(6, [0, 1], {"shard": 3, "recompute": ["full"] * 6})], names=_READER),
    "a pipeline cut in the encoder": plan_of([(2, [0], {}), (4, [1], {})], names=_READER),
    "a pipeline cut within a layer": plan_of([(9, [0], {}), (3, [1], {})], names=[*_CAPTURED, "head"]),
}
"""A T5 with masks, under plans of its configuration and of its capture."""

ODD = {
    "replicas of sharded weights": plan_of([(4, [0, 1], {"shard": 3, "recompute": ["full"] * 4})]),
    "split products": plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True})]),
    "a pipeline, zero-bubble": plan_of([(2, [0], {}), (2, [1], {})], schedule="zb_h1"),
}
"""Layers with scalar weights that work in place, some of which evaluation leaves out."""

FOUR = {
    "a pipeline of replicas": plan_of([(1, [0, 1], {"shard": 1}), (3, [2, 3], {})]),
    "a pipeline of unlike numbers of replicas": plan_of([(2, [0, 1, 2], {"shard": 3}), (2, [3], {})]),
}


def write_cases(plans: dict[str, Any], folder: pathlib.Path) -> None:
    """Write which loops are run under plans, and alone."""
    kinds = ("masks and positions", "routers", "adapters", "sequences", "odd")
    losses = {
        name: next((kind for kind in kinds if name.startswith(kind)), "mean" if "mean" in name else "token") for name in plans
    }
    cases = {
        name: {
            "plan": plan,
            "loss": losses[name].replace(kinds[0], "masked"),
            "loss_parallel": "DTensors" in name,
            "read": "read from files" in name,
        }
        for name, plan in plans.items()
    }
    (folder / "cases.json").write_text(json.dumps(cases))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """By number of processes, what loops under plans say; all are forked from one that has imported everything."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
    more = {"masks and positions": MASKED, "routers": ROUTERS, "adapters": ADAPTERS, "sequences": SEQUENCES, "odd": ODD}
    two = TWO | {f"{kind}, {name}": plan for kind, found in more.items() for name, plan in found.items()}
    folders = {}
    for n_ranks, plans in ((2, two), (4, FOUR)):
        folders[n_ranks] = tmp_path_factory.mktemp("loops")
        write_cases(plans, folders[n_ranks])
    words = [word for n_ranks, folder in folders.items() for word in (str(folder), str(n_ranks))]
    script = str(pathlib.Path(__file__).with_name("own_loops.py"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *words], env=environment(), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {n_ranks: json.loads((folder / "results.json").read_text()) for n_ranks, folder in folders.items()}


def check(found: dict[str, Any], name: str) -> None:
    """Compare a loop under a plan with the same alone."""
    expected = found["expected"]
    assert found["losses"] == pytest.approx(expected["losses"], abs=TOLERANCE), name
    assert found["norms"] == pytest.approx(expected["norms"], rel=TOLERANCE), name
    assert found["evaluated"] == pytest.approx(expected["evaluated"], abs=TOLERANCE), name
    assert found["weights"] < TOLERANCE, name
    assert max(expected["norms"]) > 0.5 and found["training"], name
    assert found["groups_alike"], name
    first, second = found["again"]  # the same step, once more from the same state
    assert first == pytest.approx(second, rel=1e-6) and first[0] != found["losses"][-1], name


def test_two_processes_train_as_one(results: dict[int, dict[str, Any]]) -> None:
    for name, found in results[2].items():
        check(found, name)
        first, second = found["everyone"]
        assert first["losses"] == second["losses"] and first["groups"] == second["groups"], name
        assert {group["weight_decay"] for group in first["groups"]} == ({0.1} if "adapters" in name else {0.0, 0.1}), name
        ranks, rows = (first["data_rank"], second["data_rank"]), [*first["rows"], *second["rows"]]
        assert ranks == ((0, 1) if found["n_data_ranks"] == 2 else (0, 0)), name
        n_samples = 13 if "divide" in name else 16
        assert sorted(rows if found["n_data_ranks"] == 2 else first["rows"]) == list(range(n_samples)), name
        told = [kind for kind in ("routers", "tensor", "odd, split") if kind in name and "DTensors" not in name]
        frozen = [note for note in found["notes"] if "in evaluation mode, as the model was given" in note]
        assert bool(frozen) == name.startswith("odd") and len(found["notes"]) - len(frozen) == len(told), name
        assert "tensor" not in told or "a loss of your own is given all logits" in found["notes"][0]
        assert "routers" not in name or "times 0.5, is added" in found["notes"][0]


def test_four_processes_train_as_one(results: dict[int, dict[str, Any]]) -> None:
    found = results[4]
    for name, case in found.items():
        check(case, name)
    unlike = found["a pipeline of unlike numbers of replicas"]
    assert unlike["n_data_ranks"] == 1 and "first and last stage have 3 and 1 replicas" in unlike["notes"][0]
    assert [one["data_rank"] for one in found["a pipeline of replicas"]["everyone"]] == [0, 1, 0, 1]
