"""What Megatron-LM is told of sharding, order and pipeline, option by option."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.base.errors import ExportError
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import MixedPrecision, ModelSpec, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks.megatron.writers import megatron_args


def result(stages: tuple[Stage, ...], schedule: str = "1f1b", n_microbatches: int = 8, precision: str = "bf16") -> Result:
    """Return a plan of an embedding, four layers and a head."""
    kinds = ("embedding", *("attention_mlp",) * 4, "head")
    graph = Graph("small", tuple(Op(f"op{i}", kind) for i, kind in enumerate(kinds)), (), 128)
    data = stages[0].strategy.data
    problem = Problem(ModelSpec("small", "huggingface", "small", graph), training=MixedPrecision.of(precision))
    return Result(problem, "best", 0, Answer(Plan(stages, n_microbatches, 1, schedule, n_microbatches * data)))


def flags(*arguments: object, **more: object) -> list[str]:
    return [" ".join(words) for words in megatron_args.arguments(result(*arguments, **more))]  # type: ignore[arg-type]


def one(strategy: Strategy) -> tuple[Stage, ...]:
    return (Stage(tuple(range(6)), tuple(range(strategy.n_devices)), strategy),)


def two(strategy: Strategy, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[Stage, ...]:
    return (Stage((0, 1, 2), first, strategy), Stage((3, 4, 5), second, strategy))


@pytest.mark.parametrize(("data", "degree", "instances"), [(8, 2, 4), (8, 4, 2), (12, 4, 3)])
def test_the_instances_of_the_distributed_optimizer_are_the_replicas_of_a_shard(data: int, degree: int, instances: int) -> None:
    """Optimizer state sharded over `degree` of `data` ranks stands `data / degree` times: Megatron-LM asks for that number."""
    said = flags(one(Strategy(data=data, shard=1, shard_degree=degree)))
    assert f"--num-distributed-optimizer-instances {instances}" in said


@pytest.mark.parametrize("degree", [0, 8])
def test_sharding_over_all_ranks_has_one_instance_which_is_not_said(degree: int) -> None:
    said = flags(one(Strategy(data=8, shard=1, shard_degree=degree)))
    assert not any("instances" in words for words in said)
    assert {"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"} <= set(said)


def test_gradients_and_weights_are_sharded_by_megatrons_fsdp() -> None:
    for shard, word in ((2, "optim_grads"), (3, "optim_grads_params")):
        said = flags(one(Strategy(data=8, shard=shard)))
        assert {"--use-megatron-fsdp", f"--data-parallel-sharding-strategy {word}", "--no-gradient-accumulation-fusion"} <= set(
            said
        )
        assert "--overlap-grad-reduce" not in said
    assert flags(one(Strategy(data=8))).count("--overlap-grad-reduce") == 1  # the plan hides the reduction
    assert "--overlap-grad-reduce" not in flags(one(Strategy(tensor=8)))
    assert "--use-distributed-optimizer" not in flags(one(Strategy(data=8)))
    assert "--use-distributed-optimizer" not in flags(one(Strategy(tensor=8, shard=1)))  # nobody to shard over
    assert "--use-distributed-optimizer" in flags(one(Strategy(context=2, shard=1)))


def test_degrees_are_said_where_they_are_more_than_one() -> None:
    said = flags(one(Strategy(data=2, tensor=2, context=2, sequence_parallel=True)))
    assert said[:4] == [
        "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 1", "--context-parallel-size 2", "--sequence-parallel",  # noqa: E501
    ]  # fmt: skip
    assert not any(words.startswith(("--context", "--expert", "--sequence")) for words in flags(one(Strategy(data=2))))
    assert "--expert-model-parallel-size 2" in flags(one(Strategy(data=2, expert=2)))


def test_precision_is_said_in_megatrons_words() -> None:
    last = {precision: flags(one(Strategy()), precision=precision)[4:] for precision in ("bf16", "fp16", "fp8", "mxfp8", "fp4")}
    assert last == {
        "bf16": ["--bf16"],
        "fp16": ["--fp16", "--accumulate-allreduce-grads-in-fp32"],
        "fp8": ["--bf16", "--fp8-format hybrid --fp8-recipe tensorwise"],
        "mxfp8": ["--bf16", "--fp8-format e4m3 --fp8-recipe mxfp8"],
        "fp4": ["--bf16", "--fp4-format e2m1 --fp4-recipe nvfp4"],
    }
    assert flags(one(Strategy()), precision="fp32")[-1] == "--global-batch-size 8"


def test_bytes_that_megatron_does_not_hold_are_refused_and_those_of_gradients_said() -> None:
    plain = result(one(Strategy()))
    for training, said in (
        (MixedPrecision(gradient_bytes=2), "--grad-reduce-in-bf16"), (MixedPrecision(optimizer_bytes=8), ""),
        (MixedPrecision(weight_bytes=4), ""),
    ):  # fmt: skip
        asked = replace(plain, problem=replace(plain.problem, training=training))
        if said:
            assert (said,) in megatron_args.arguments(asked)
        else:
            with pytest.raises(ExportError, match="bytes"):
                megatron_args.arguments(asked)


def test_experts_are_split_over_the_tensor_axis_unless_they_are_spread_over_it() -> None:
    """Four experts over two data ranks: each split in two; over two data and two tensor ranks: whole on their devices."""
    assert not [words for words in flags(one(Strategy(data=2, tensor=2, expert=2))) if "expert-tensor" in words]
    assert "--expert-tensor-parallel-size 1" in flags(one(Strategy(data=2, tensor=2, expert=4)))


def test_the_order_of_devices_is_pipeline_outermost_or_data_outermost() -> None:
    """Two stages of data 2 and tensor 2 on eight devices: a stage's ranks are neighbours, or every other pair."""
    strategy = Strategy(data=2, tensor=2)
    assert "--use-tp-pp-dp-mapping" not in flags(two(strategy, (0, 1, 2, 3), (4, 5, 6, 7)))
    assert "--use-tp-pp-dp-mapping" in flags(two(strategy, (0, 1, 4, 5), (2, 3, 6, 7)))
    with pytest.raises(ExportError, match="out of order"):
        flags(two(strategy, (0, 1, 6, 7), (2, 3, 4, 5)))


def test_interleaving_deals_stages_out_in_turn_and_needs_whole_rounds_of_micro_batches() -> None:
    devices = ((0,), (1,), (0,), (1,))
    stages = tuple(Stage(ops, on) for ops, on in zip(((0, 1), (2,), (3,), (4, 5)), devices, strict=True))
    assert "--num-virtual-stages-per-pipeline-rank 2" in flags(stages, "interleaved_1f1b")
    with pytest.raises(ExportError, match="multiple of the 2 ranks"):
        flags(stages, "interleaved_1f1b", 7)
    with pytest.raises(ExportError, match="1f1b over virtual stages"):
        flags(stages, "1f1b")
    folded = tuple(Stage(stage.ops, on) for stage, on in zip(stages, ((0,), (1,), (1,), (0,)), strict=True))
    with pytest.raises(ExportError, match="in turn"):
        flags(folded, "interleaved_1f1b")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (("none", "full", "none"), ("full", "none", "none"), "--recompute-method block --recompute-num-layers 1"),
        (("none", "full", "full"), ("full", "full", "none"), "--recompute-method uniform --recompute-num-layers 1"),
        (("none", "mlp", "mlp"), ("mlp", "mlp", "none"), "--recompute-modules mlp"),
        (("none", "mlp+moe", "mlp+moe"), ("mlp+moe", "mlp+moe", "none"), "--recompute-modules mlp moe"),
        (("none", "none", "none"), (), ""),
    ],
)  # fmt: skip
def test_a_setting_of_recomputation_is_said_exactly(first: tuple[str, ...], second: tuple[str, ...], said: str) -> None:
    stages = (Stage((0, 1, 2), (0,), recompute=first), Stage((3, 4, 5), (1,), recompute=second))
    told = " ".join(words for words in flags(stages) if words.startswith("--recompute-") and "granularity" not in words)
    assert told == said


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("none", "full", "none"), ("none", "none", "none")), (("none", "none", "full"), ("none", "full", "none")),
        (("none", "mlp", "none"), ("mlp", "mlp", "none")), (("none", "full", "mlp"), ("full", "mlp", "none")),
        (("full", "full", "full"), ("full", "full", "none")), (("none", "selective", "selective"), ("none", "none", "none")),
    ],
)  # fmt: skip
def test_what_no_setting_recomputes_is_refused(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    stages = (Stage((0, 1, 2), (0,), recompute=first), Stage((3, 4, 5), (1,), recompute=second))
    with pytest.raises(ExportError, match="recomput"):
        flags(stages)
