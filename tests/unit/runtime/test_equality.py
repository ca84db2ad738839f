"""Every way to run a plan trains as one process does: same losses step after step, and same weights after them.

Steps are of plain gradient descent with a rate of 0.3, so that weights differ by as much as a third of what gradients do.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from runtime_processes import plan_of, run_all

from meshwright import schedules
from meshwright.base.errors import InputError

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

TOLERANCE = 2e-5
"""Dropping one weight's gradient moves the losses by more than ten times as much."""

TWO = {
    "uneven stages, 1f1b": ("zoo:shallow", plan_of([(2, [0], {}), (3, [1], {})])),
    "uneven stages, gpipe, recomputation by layer": (
        "zoo:shallow",
        plan_of(
            [(2, [1], {"recompute": ["none", "selective"]}), (3, [0], {"recompute": ["full"] * 3})], schedule="gpipe"
        ),
    ),
    "zero-bubble": ("zoo:shallow", plan_of([(2, [0], {}), (3, [1], {})], schedule="zb_h1")),
    "interleaved": ("zoo:shallow",
    plan_of([(1, [0], {}), (1, [1], {}), (2, [0], {}), (1, [1], {})], schedule="interleaved_1f1b")),
    "zero-bubble in a V": ("zoo:shallow", plan_of([(1, [0], {}), (1, [1], {}), (2, [1], {}), (1, [0], {})], schedule="zb_v")),
    "replicas of a batch that does not divide": ("zoo:shallow", plan_of([(5, [0, 1], {})], global_batch=13, n_microbatches=3)),
    "optimizer state sharded": ("zoo:double", plan_of([(4, [0, 1], {"shard": 1})])),
    "gradients sharded": ("zoo:double", plan_of([(4, [0, 1], {"shard": 2})])),
    "weights sharded": ("zoo:double", plan_of([(4, [0, 1], {"shard": 3, "recompute": ["full"] * 4})])),
    "tensor parallel": ("zoo:double", plan_of([(4, [0, 1], {"tensor": 2})])),
    "sequence parallel": (
        "zoo:double", plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True, "recompute": ["full"] * 4})]),
    ),
    "products of several parts, split": (
        "zoo:Fused", plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True, "recompute": ["full"] * 4})]),
    ),
    "compiled layers, tensor": ("zoo:compiled", plan_of([(4, [0, 1], {"tensor": 2})])),
    "compiled layers, context": ("zoo:compiled", plan_of([(4, [0, 1], {"context": 2, "recompute": ["none", "full"] * 2})])),
    "attention that makes tensors from its input, sequence parallel": (
        "zoo:Makes", plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True, "recompute": ["full"] * 4})]),
    ),
    "a chain of linear layers": ("perceptron",
    plan_of([(1, [0], {}), (3, [1], {})], names=["0", "1", "2", "3"], sequence_length=1)),
    "heads by number, split": (
        "fragile:heads_by_number", plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True})]),
    ),
    "context": ("zoo:double", plan_of([(4, [0, 1], {"context": 2, "recompute": ["full"] * 2 + ["selective"] * 2})])),
    "context, a mask handed on": ("zoo:Masked", plan_of([(6, [0, 1], {"context": 2})])),
    "cuts inside layers": (
        "zoo:double",
        plan_of(
            [(2, [0], {}), (4, [1], {})],
            names=["embed", *[f"layers.{i}.{part}" for i in range(2) for part in ("attention", "feed_forward")], "head"],
        ),
    ),
}  # fmt: skip

FOUR: dict[str, Any] = {
    "three replicas, then one": ("zoo:shallow", plan_of([(3, [0, 1, 2], {}), (2, [3], {})])),
    "one, two, one": ("zoo:shallow", plan_of([(1, [3], {}), (3, [0, 1], {}), (1, [2], {})], schedule="zb_h1")),
    "placed out of order": ("zoo:shallow", plan_of([(2, [2, 0], {"shard": 2}), (3, [3, 1], {"shard": 1})], global_batch=20)),
    "hybrid sharding": ("zoo:double", plan_of([(4, [0, 1, 2, 3], {"shard": 3, "shard_degree": 2})])),
    "optimizer state sharded in groups": ("zoo:double", plan_of([(4, [0, 1, 2, 3], {"shard": 1, "shard_degree": 2})])),
    "weights sharded under a zero-bubble schedule": (
        "zoo:shallow",
        plan_of([(2, [0, 1], {"shard": 3}), (3, [2, 3], {"shard": 3})], schedule="zb_h1"),
    ),
    "tensor parallel inside data parallel": ("zoo:double", plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "shard": 3})])),
    "tensor degrees differ": (
        "zoo:shallow",
        plan_of([(2, [0, 1], {"tensor": 2, "sequence_parallel": True}), (3, [2, 3], {"tensor": 1})], schedule="zb_h1"),
    ),
    "table and head shared by sharded stages": (
        "zoo:Plain", plan_of([(3, [0, 1], {"shard": 3}), (3, [2, 3], {"shard": 3})]),
    ),
    "context inside replicas, weights sharded": ("zoo:double", plan_of([(4, [0, 1, 2, 3], {"context": 2, "shard": 3})])),
    "context inside replicas, optimizer state sharded": ("zoo:double",
    plan_of([(4, [0, 1, 2, 3], {"context": 2, "shard": 1})])),
    "context, tensor and sequence": (
        "zoo:double", plan_of([(4, [0, 1, 2, 3],
        {"context": 2, "tensor": 2, "sequence_parallel": True, "recompute": ["full"] * 4})], n_microbatches=1),
    ),
    "context and tensor, stage by stage": (
        "zoo:shallow", plan_of([(2, [0, 1], {"context": 2}), (3, [2, 3], {"tensor": 2})], schedule="zb_h1"),
    ),
    "a mask handed on to more replicas, and back to fewer": (
        "zoo:Masked", plan_of([(2, [0], {}), (2, [1, 2], {}), (2, [3], {})], n_microbatches=3),
    ),
    "attention with sinks and biases, experts, tensor": (
        "zoo:Sinks", plan_of([(4, [0, 1, 2, 3], {"tensor": 2, "expert": 2, "shard": 3})]),
    ),
    "attention with sinks and biases, whole experts, tensor and sequence": (
        "zoo:Sinks", plan_of([(2, [0, 1], {"tensor": 2, "sequence_parallel": True, "recompute": ["full"] * 2}), (2, [2, 3],
        {"tensor": 2})], schedule="zb_h1"),
    ),
    "a layer at two depths, split": (
        "fragile:repeated",
        plan_of([(5, [0, 1, 2, 3], {"tensor": 2, "shard": 1, "sequence_parallel": True})], n_microbatches=1),
    ),
}  # fmt: skip

EXPERTS: dict[str, Any] = {
    f"experts, {name}": ("zoo:Collapsed" if "none" in name else "zoo:Mixture", plan_of(stages, **options))
    for name, stages, options in [
        ("fully sharded, none for some, recomputation",
        [(6, [0, 1, 2, 3], {"expert": 2, "shard": 3, "recompute": ["full"] * 6})], {}),
        ("optimizer state sharded", [(6, [0, 1, 2, 3], {"expert": 2, "shard": 1})], {}),
        ("gradients sharded, stages", [(2, [0, 1], {"expert": 2, "shard": 2}), (4, [2, 3], {"expert": 2})],
        {"schedule": "zb_h1"}),
        ("three ranks with two each, then whole", [(3, [1, 0, 2], {"expert": 3}), (3, [3], {})], {}),
        ("context", [(6, [0, 1, 2, 3], {"expert": 2, "context": 2, "recompute": ["selective"] * 6})], {"n_microbatches": 1}),
        ("tensor", [(6, [0, 1, 2, 3], {"expert": 2, "tensor": 2})], {}),
        ("tensor and sequence",
        [(6, [0, 1, 2, 3], {"expert": 2, "tensor": 2, "sequence_parallel": True, "shard": 3})], {"n_microbatches": 1}),
        ("virtual stages",
         [(1, [0, 1], {"expert": 2}), (2, [2, 3], {"expert": 2}), (1, [0, 1], {}), (2, [2, 3], {"expert": 2})],
         {"schedule": "interleaved_1f1b"}),
    ]
}  # fmt: skip

HUGGING_FACE = {
    "deepseek, tensor": ("zoo:latent", plan_of([(5, [0, 1], {"tensor": 2, "recompute": ["full"] * 5})])),
    "deepseek, stages": ("zoo:latent", plan_of([(2, [0], {}), (3, [1], {})])),
    "gpt2, tensor": ("gpt2", plan_of([(6, [0, 1], {"tensor": 2})])),
    "phi3, tensor and sequence": ("zoo:phi3", plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True})])),
    "bert, tensor": ("zoo:bert", plan_of([(5, [0, 1], {"tensor": 2})])),
    "llama in two stages": ("llama", plan_of([(2, [0], {}), (4, [1], {})])),
    "llama, sequence parallel": (
        "llama",
        plan_of([(6, [0, 1], {"tensor": 2, "sequence_parallel": True, "recompute": ["none", "full", *["none"] * 4]})]),
    ),
    "gpt2, table and head share weights": ("gpt2", plan_of([(2, [0], {}), (4, [1], {})])),
    "gpt2, table and head on one rank": (
        "gpt2", plan_of([(2, [0], {}), (1, [1], {}), (1, [1], {}), (2, [0], {})], schedule="zb_v"),
    ),
}  # fmt: skip

MIXTRAL = {
    "mixtral: stages, experts, sharding, recomputation": (
        "zoo:mixtral",
        plan_of([(2, [0, 1], {"expert": 2, "shard": 1}), (4, [2, 3], {"expert": 2, "shard": 3, "recompute": ["full"] * 4})]),
    ),
    "qwen 2 with experts: context": (
        "zoo:qwen_of_experts",
        plan_of([(6, [0, 1, 2, 3], {"expert": 4, "context": 2, "shard": 2})]),
    ),
    "gpt-oss: tensor, sequence, context and experts": (
        "zoo:gpt_oss",
        plan_of(
            [(6, [0, 1, 2, 3], {"expert": 2, "context": 2, "tensor": 2, "sequence_parallel": True, "recompute": ["full"] * 6})],
        ),
    ),
    "gpt-oss: context and experts, then tensor, fully sharded": (
        "zoo:gpt_oss",
        plan_of([(2, [0, 1], {"context": 2, "expert": 2}), (4, [2, 3], {"tensor": 2, "shard": 3})], schedule="zb_h1"),
    ),
    "mixtral: experts over all ranks of tensor groups": (
        "zoo:mixtral",
        plan_of([(6, [0, 1, 2, 3], {"expert": 4, "tensor": 2, "sequence_parallel": True})]),
    ),
}

ALL_AXES = {
    "llama: pipeline, tensor and fully sharded data parallel": (
        "llama",
        plan_of([(2, [4], {}), (4, [0, 1, 2, 3], {"tensor": 2, "shard": 3, "sequence_parallel": True})]),
    ),
}  # fmt: skip


EIGHT = {
    "two virtual stages on each of two ranks of four": (
        "zoo:shallow",
        plan_of(
            [
                (1, [0, 1, 2, 3], {"tensor": 2, "shard": 2}), (1, [4, 5, 6, 7], {"shard": 3, "shard_degree": 2}),
                (1, [0, 1, 2, 3], {"tensor": 2, "shard": 2}), (2, [4, 5, 6, 7], {"shard": 3, "shard_degree": 2}),
            ],
            schedule="interleaved_1f1b",
        ),
    ),
    "experts over data and tensor axes, folded": (
        "zoo:Mixture",
        plan_of(
            [
                (2, [0, 1], {"tensor": 2, "recompute": ["full"] * 2}),
                (4, [2, 3, 4, 5, 6, 7], {"tensor": 2, "sequence_parallel": True, "expert": 6, "shard": 3}),
            ],
            n_microbatches=2,
        ),
    ),
}  # fmt: skip

AXES: dict[str, dict[str, Any]] = {
    "replicas": {"shard": 0},
    "optimizer state sharded": {"shard": 1},
    "gradients sharded": {"shard": 2, "recompute": "selective"},
    "weights sharded": {"shard": 3, "recompute": "full"},
    "tensor": {"tensor": 2},
    "tensor and sequence": {"tensor": 2, "sequence_parallel": True, "recompute": "full"},
}


def under(word: str, options: dict[str, Any], n_each: int = 1) -> dict[str, Any]:
    """Return a plan of uneven stages under a schedule, two to each of two ranks where it runs so many, else one.

    `n_each`: processes of a rank.
    """
    try:
        sizes = (1, 1, 2, 1)
        schedules.ordered(word, 2, 2, 4)
    except InputError:
        sizes = (2, 3)
    ranks = schedules.load(word).placement(2, len(sizes) // 2).tolist()
    how = options.get("recompute", "none")
    stages = [
        (size, [n_each * rank + i for i in range(n_each)], {**options, "recompute": [how] * size})
        for size, rank in zip(sizes, ranks, strict=True)
    ]
    return plan_of(stages, schedule=word)


def every_schedule_with_every_axis() -> dict[str, Any]:
    """Return plans of uneven stages on two pipeline ranks of two processes each."""
    words = schedules.words()
    return {f"{word}, {name}": ("zoo:shallow", under(word, how, 2)) for word in words for name, how in AXES.items()}


def every_other_schedule() -> dict[str, Any]:
    """Return a plan of uneven stages on two processes under each schedule that none of the plans above has."""
    known = {plan["schedule"]["name"] for _, plan in (*TWO.values(), *FOUR.values(), *EXPERTS.values())}
    return {word: ("zoo:shallow", under(word, {})) for word in schedules.words() if word not in known}


def _cases(given: dict[str, Any]) -> dict[str, dict]:
    return {
        name: {"model": model if ":" in model else f"models:{model}", "plan": plan} for name, (model, plan) in given.items()
    }


ZOO: dict[str, tuple[str, dict]] = {
    "cannot be traced, but runs a list of layers": (
        "fragile:Encoder", plan_of([(3, [0], {}), (5, [1], {"recompute": ["full"] * 5})], schedule="zb_h1"),
    ),
    "results besides the loss's": ("Returns", plan_of([(2, [0], {}), (4, [1], {})])),
    "layers of unlike depth": ("UnlikeDepths", plan_of([(4, [0], {}), (2, [1], {})], schedule="zb_h1")),
    "a layer at two depths in two stages": ("SharedLayers", plan_of([(3, [0], {}), (3, [1], {})])),
    "a layer at two depths in one stage": ("SharedLayers", plan_of([(6, [0, 1], {"shard": 2})])),
    "a layer at two depths, table and head shared, all sharded": ("SharedLayers", plan_of([(6, [0, 1], {"shard": 3})])),
    "a dictionary of modules": ("Dictionary", plan_of([(2, [0], {}), (4, [1], {"recompute": ["full"] * 4})])),
    "a dictionary, sharded": ("Dictionary", plan_of([(6, [0, 1], {"shard": 3})])),
    "products that gather their own input": ("Direct", plan_of([(6, [0, 1], {"tensor": 2, "sequence_parallel": True})])),
    "skips over stages": (
        "Skips", plan_of([(2, [0], {}), (2, [1], {}), (1, [0], {}), (3, [1], {})], schedule="interleaved_1f1b"),
    ),
    "pairs handed on": ("Pairs", plan_of([(4, [0], {}), (2, [1], {})], schedule="gpipe")),
    "a mask handed on": ("Masked", plan_of([(2, [0], {}), (4, [1], {})])),
    "batch norms": ("images", plan_of([(3, [0], {}), (3, [1], {})])),
    "a stage without weights": ("images", plan_of([(1, [0], {}), (5, [1], {})])),
    "names without the beginning that all share": (
        "UnlikeDepths", plan_of([(4, [0], {}), (5, [1], {})],
        names=["embed", "0.0", "1.0", "1.1", "1.2", "2.0", "2.1", "3.0", "head"]),
    ),
    "options left out": ("Options", plan_of([(3, [0], {}), (3, [1], {})])),
    "two inputs": ("two_inputs", plan_of([(3, [0], {}), (3, [1], {})])),
    "two inputs, replicas": ("two_inputs", plan_of([(6, [0, 1], {})], n_microbatches=3)),
    "micro-batches that do not divide": ("Plain", plan_of([(5, [0], {}), (1, [1], {})], n_microbatches=3, global_batch=14)),
}  # fmt: skip


def test_models_as_people_write_them_train_as_in_one_process(tmp_path: pathlib.Path) -> None:
    cases = {
        name: {"model": model if ":" in model else f"zoo:{model}", "plan": plan, "parts": plan["schedule"]["n_microbatches"]}
        for name, (model, plan) in ZOO.items()
    }
    results = run_all(cases, 2, tmp_path, n_steps=2)
    for name, found in results.items():
        assert found["losses"] == pytest.approx(found["reference_losses"], abs=TOLERANCE), name
        assert found["weights"] < TOLERANCE, name


def test_products_in_shorter_types_train_as_in_one_process_and_not_as_in_fp32(tmp_path: pathlib.Path) -> None:
    uneven = [(1, [0], {}), (3, [1], {"recompute": ["full"] * 3})]
    plans = {
        "1f1b": plan_of(uneven),
        "zb_h1": plan_of(uneven, schedule="zb_h1"),
        "sharded": plan_of([(4, [0, 1], {"shard": 3})]),
        "tensor": plan_of([(4, [0, 1], {"tensor": 2})]),
    }
    cases = {
        f"{word}, {name}": {"model": "zoo:double", "plan": plan, "precision": word}
        for word in ("bf16", "fp16")
        for name, plan in plans.items()
    }
    results = run_all({**cases, "fp32": {"model": "zoo:double", "plan": plans["1f1b"]}}, 2, tmp_path, n_steps=2)
    exact = results["fp32"]["reference_losses"]
    for name in cases:
        losses, expected = results[name]["losses"], results[name]["reference_losses"]
        near, least, most = (5e-4, 1e-5, 0.05) if name.startswith("bf16") else (1e-4, 3e-7, 0.005)
        assert losses == pytest.approx(expected, abs=near), name  # other rows at once round otherwise
        assert least < max(abs(a - b) for a, b in zip(losses, exact, strict=True)) < most, name
        assert not results[name]["skipped"], name


def test_a_step_whose_gradients_overflow_in_fp16_is_skipped_by_all_ranks_as_one_process_skips_it(
    tmp_path: pathlib.Path,
) -> None:
    names = ["0", "1", "2", "3"]
    plans = {  # and the parts of a step, on which it depends what overflows
        "a pipeline": (plan_of([(1, [0], {}), (3, [1], {})], names=names, sequence_length=1), 4),
        "optimizer state sharded": (plan_of([(4, [0, 1], {"shard": 1})], names=names, sequence_length=1, n_microbatches=4), 8),
        "weights sharded": (plan_of([(4, [0, 1], {"shard": 3})], names=names, sequence_length=1, n_microbatches=4), 8),
    }
    cases = {
        name: {"model": "fragile:steep", "plan": plan, "precision": "fp16", "parts": parts}
        for name, (plan, parts) in plans.items()
    }
    for name, found in run_all(cases, 2, tmp_path, n_steps=8).items():
        assert 1 <= len(found["skipped"]) <= 6, name
        assert found["losses"] == pytest.approx(found["reference_losses"], rel=2e-3), name
        assert min(found["losses"]) < 0.5 * found["losses"][0], name


def _check(given: dict[str, Any], n_ranks: int, folder: pathlib.Path, n_steps: int = 3, rules: str = "") -> None:
    results = run_all(_cases(given), n_ranks, folder, n_steps, rules)
    far = {}
    for name in given:
        losses, expected = results[name]["losses"], results[name]["reference_losses"]
        assert abs(expected[0] - expected[-1]) > 1e-3, "training must move the loss, or equality says nothing"
        furthest = max(results[name]["weights"], *(abs(a - b) for a, b in zip(losses, expected, strict=True)))
        if furthest > TOLERANCE:
            far[name] = furthest
        if results[name]["norms"] != pytest.approx(results[name]["reference_norms"], rel=1e-4):
            far[f"{name}: norm of the gradient"] = (results[name]["norms"], results[name]["reference_norms"])
    assert not far


def test_two_processes_train_as_one_does_under_every_plan(tmp_path: pathlib.Path) -> None:
    _check({**TWO, **every_other_schedule()}, 2, tmp_path, n_steps=2, rules="lazy")


CLIPPED = {
    "stages": plan_of([(2, [0], {}), (2, [1], {})], schedule="zb_h1"),
    "replicas": plan_of([(4, [0, 1], {})]),
    "optimizer state sharded": plan_of([(4, [0, 1], {"shard": 1})]),
    "weights sharded": plan_of([(4, [0, 1], {"shard": 3})]),
    "tensor and sequence": plan_of([(4, [0, 1], {"tensor": 2, "sequence_parallel": True})]),
    "context": plan_of([(4, [0, 1], {"context": 2})]),
}


def test_gradients_are_scaled_down_to_a_norm_as_in_one_process(tmp_path: pathlib.Path) -> None:
    cases = {name: {"model": "zoo:double", "plan": plan, "clip_norm": 0.05} for name, plan in CLIPPED.items()}
    halves = {"fp16": {"model": "zoo:double", "plan": CLIPPED["stages"], "precision": "fp16", "clip_norm": 0.05}}
    for name, found in run_all({**cases, **halves}, 2, tmp_path, n_steps=2).items():
        assert min(found["norms"]) > 0.1, "what is never scaled down shows nothing"
        assert found["norms"] == pytest.approx(found["reference_norms"], rel=1e-2 if name == "fp16" else 1e-4), name
        assert found["losses"] == pytest.approx(found["reference_losses"], abs=1e-4 if name == "fp16" else 1e-5), name
        assert name == "fp16" or found["weights"] < 1e-5, name


def test_four_processes_train_as_one_does_under_every_plan(tmp_path: pathlib.Path) -> None:
    _check({**FOUR, **EXPERTS}, 4, tmp_path, n_steps=2, rules="eager")


def test_eight_processes_train_as_one_does(tmp_path: pathlib.Path) -> None:
    _check(EIGHT, 8, tmp_path, n_steps=2, rules="eager")


@pytest.mark.slow
def test_every_schedule_trains_as_one_process_does_with_every_axis_and_sharding(tmp_path: pathlib.Path) -> None:
    _check(every_schedule_with_every_axis(), 4, tmp_path, n_steps=2, rules="lazy")


@pytest.mark.slow
def test_hugging_face_models_train_as_in_one_process(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
    _check(HUGGING_FACE, 2, tmp_path)
    _check(MIXTRAL, 4, tmp_path)


@pytest.mark.slow
def test_a_hugging_face_model_trains_as_in_one_process_over_three_axes_at_once(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
    _check(ALL_AXES, 5, tmp_path, rules="eager")
