"""What ``validate_args`` and ``TransformerConfig`` stop at is an error with its option and line, and what they take is read."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api
from meshwright.base.errors import ExportError, InputError
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision
from meshwright.core.result import Answer, Result
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import megatron
from meshwright.frameworks.megatron import told

TRAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --micro-batch-size 1 --global-batch-size 8"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
EXPERTS = "--bf16 --disable-bias-linear --num-experts 8 --expert-model-parallel-size 4"
PIPE = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
ZERO = "--use-distributed-optimizer --overlap-grad-reduce"


def read(folder: pathlib.Path, text: str) -> RunConfig:
    path = folder / "run.sh"
    path.write_text(f"{TRAIN} \\\n {text}\n")
    kinds = ["embedding", *["attention_mlp"] * 4, "head"]
    return told.read(str(path), Graph("small", tuple(Op(f"{i}", kind) for i, kind in enumerate(kinds)), (), 128), 8)


CASES = [
    # what is wrong, the option that is named, what stands in its place
    ("--ckpt-format torch_dcp", "--use-torch-fsdp2", "--ckpt-format torch_dist"),
    ("--train-iters 9 --lr-warmup-samples 5", "--lr-warmup-samples", "--train-iters 9 --lr-warmup-iters 5"),
    ("--train-samples 9 --lr-warmup-iters 5", "--lr-warmup-iters", "--train-samples 9 --lr-warmup-samples 5"),
    ("--load-main-params-from-ckpt", "--no-load-optim", "--load-main-params-from-ckpt --no-load-optim"),
    ("--no-position-embedding", "--no-position-embedding", "--no-position-embedding --position-embedding-type rope"),
    (f"{FULL} --recompute-activations", "--recompute-activations", FULL),
    ("--recompute-granularity full --recompute-method uniform", "--recompute-num-layers", FULL),
    ("--recompute-granularity full --recompute-num-layers 1", "--recompute-method", FULL),
    ("--recompute-activations --recompute-num-layers 1", "--recompute-num-layers", "--recompute-activations"),
    ("--recompute-granularity selective --recompute-modules mla_up_proj", "--recompute-modules",
     "--recompute-granularity selective --recompute-modules core_attn"),
    ("--recompute-granularity selective --recompute-modules moe_act", "--moe-grouped-gemm", ""),
    ("--bf16 --fp8-format hybrid --recompute-granularity selective --recompute-modules layernorm", "delayed",
     "--bf16 --fp8-format hybrid --fp8-recipe tensorwise --recompute-granularity selective --recompute-modules layernorm"),
    ("--use-megatron-fsdp", "fsdp_dtensor", "--use-megatron-fsdp --ckpt-format fsdp_dtensor"),
    ("--ckpt-format fsdp_dtensor", "--use-megatron-fsdp", "--ckpt-format torch_dist"),
    ("--use-distributed-optimizer --overlap-param-gather", "--overlap-grad-reduce", f"{ZERO} --overlap-param-gather"),
    ("--use-megatron-fsdp --ckpt-format fsdp_dtensor --overlap-param-gather", "--overlap-grad-reduce",
     "--use-megatron-fsdp --ckpt-format fsdp_dtensor --overlap-grad-reduce --overlap-param-gather"),
    ("--fp8-param-gather", "--fp8-format", f"{ZERO} --bf16 --fp8-format hybrid --fp8-param-gather"),
    ("--bf16 --fp8-format hybrid --fp8-param-gather", "--use-distributed-optimizer", ""),
    ("--bf16 --accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16", "--main-grads-dtype", "--bf16"),
    (f"--cuda-graph-impl local {FULL}", "captured", "--cuda-graph-impl local"),
    ("--cuda-graph-impl local --enable-cuda-graph", "--enable-cuda-graph", "--enable-cuda-graph"),
    ("--cuda-graph-impl full_iteration", "--no-check-for-nan-in-loss-and-grad",
     "--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad"),
    ("--sequence-parallel --tp-comm-overlap", "no tensor axis",
     "--sequence-parallel --tp-comm-overlap --tensor-model-parallel-size 2"),
    ("--seq-length 132 --context-parallel-size 4", "--seq-length 132", "--seq-length 128 --context-parallel-size 4"),
    (f"{PIPE} --no-overlap-p2p-communication", "--no-overlap-p2p-communication", PIPE),
    (f"{PIPE} --num-layers-per-virtual-pipeline-stage 1", "--num-virtual-stages-per-pipeline-rank", PIPE),
    (f"{PIPE} --pipeline-model-parallel-layout 'Et|t|t|tL'", "--pipeline-model-parallel-layout",
     "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|t|t|tL'"),
    ("--context-parallel-size 2 --cp-comm-type p2p p2p", "names 2 exchanges",
     "--context-parallel-size 2 --cp-comm-type p2p p2p p2p p2p"),
    (EXPERTS.replace("bf16", "fp16"), "--fp16", EXPERTS),
    (EXPERTS.replace("size 4", "size 3"), "does not divide", EXPERTS),
    (f"{EXPERTS} --tensor-model-parallel-size 2", "--sequence-parallel",
     f"{EXPERTS} --tensor-model-parallel-size 2 --sequence-parallel"),
    (f"{EXPERTS} --moe-enable-deepep", "flex", f"{EXPERTS} --moe-enable-deepep --moe-token-dispatcher-type flex"),
    (f"{EXPERTS} --moe-router-enable-expert-bias", "sigmoid",
     f"{EXPERTS} --moe-router-enable-expert-bias --moe-router-score-function sigmoid"),
    (f"{EXPERTS} --moe-router-topk 1", "--moe-router-pre-softmax", f"{EXPERTS} --moe-router-topk 1 --moe-router-pre-softmax"),
    (f"{EXPERTS} --moe-shared-expert-intermediate-size 64 --moe-shared-expert-overlap", "alltoall",
     f"{EXPERTS} --moe-shared-expert-intermediate-size 64 --moe-shared-expert-overlap --moe-token-dispatcher-type alltoall"),
    ("--num-experts 8 --bf16 --tensor-model-parallel-size 2", "biases", "--num-experts 8 --bf16"),
    (f"{EXPERTS} --spec a b", "--spec", EXPERTS), ("--moe-ffn-hidden-size 64", "--num-experts", ""),
    (f"{EXPERTS} --overlap-moe-expert-parallel-comm", "alltoall or flex",
     f"{EXPERTS} --overlap-moe-expert-parallel-comm --moe-token-dispatcher-type flex"),
    (f"{EXPERTS} --moe-token-dispatcher-type flex --overlap-moe-expert-parallel-comm {FULL}", "full", EXPERTS),
    ("--hidden-size 64 --num-attention-heads 4", "--max-position-embeddings",
     "--hidden-size 64 --num-attention-heads 4 --max-position-embeddings 128"),
    ("--hidden-size 66 --num-attention-heads 4 --max-position-embeddings 128", "--kv-channels",
     "--hidden-size 66 --num-attention-heads 4 --max-position-embeddings 128 --kv-channels 16"),
    ("--rope-type yarn", "--multi-latent-attention", "--rope-type rope"),
    ("--multi-latent-attention --rope-type rope", "--no-rope-fusion",
     "--multi-latent-attention --rope-type rope --no-rope-fusion"),
    ("--encoder-num-layers 4", "--encoder-num-layers", ""), ("--seq-length 128 --encoder-seq-length 128", "keep one", ""),
    ("--swiglu --squared-relu", "keep one", "--swiglu"), ("--save runs", "--save-interval", "--save runs --save-interval 9"),
    ("--train-iters 9 --lr-decay-samples 9", "keep one", "--train-iters 9 --lr-warmup-iters 0 --lr-warmup-fraction 0.1"),
    ("--mock-data --data-path a", "keep one", "--mock-data"),
    ("--lr 1e-5 --min-lr 1e-4", "--min-lr", "--lr 1e-4 --min-lr 1e-5"),
    ("--weight-decay-incr-style linear --start-weight-decay 0.1", "--end-weight-decay", "--weight-decay 0.1"),
    ("--start-weight-decay 0.1", "linear or cosine", ""),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "named", "right"), CASES)
def test_what_megatron_stops_at_is_one_line_and_what_it_takes_is_read(
    wrong: str, named: str, right: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, wrong)
    text = str(error.value)
    assert "run.sh: line 2: --" in text and named in text and "\n" not in text, text
    assert read(tmp_path, right).plan.n_devices == 8


def test_a_ramp_beside_iterations_is_priced_and_said_to_be_refused(tmp_path: pathlib.Path) -> None:
    """NVIDIA's own script of GPT-3 175B has both, and ``validate_args`` stops at them."""
    warnings = read(tmp_path, "--rampup-batch-size 1 1 9 --train-iters 9").warnings
    assert any("line 2: --rampup-batch-size: Megatron-LM refuses it beside --train-iters" in one for one in warnings), warnings


SPREAD = Strategy(4, 2, 1, 4, True, 1)


@pytest.mark.parametrize(
    ("model", "strategy", "word", "precision", "said"),
    [
        ("llama-3.2-1b", Strategy(8, shard=1), "moe_act", "bf16", "moe_act, which is of mixtures"),
        ("llama-3.2-1b", Strategy(8, shard=1), "mla_up_proj", "bf16", "mla_up_proj, which is of latent attention"),
        ("mixtral-8x7b", Strategy(8, shard=1), "none", "fp16", "experts in fp16"),
        ("mixtral-8x7b", Strategy(4, 2, 1, 4, False, 1), "none", "bf16", "without sequence parallelism"),
        ("gpt-oss-20b", SPREAD, "none", "bf16", "experts with biases split over a tensor axis"),
        ("gpt-oss-20b", Strategy(8, 1, 1, 8, shard=1), "none", "bf16", ""), ("mixtral-8x7b", SPREAD, "moe_act", "bf16", ""),
        ("gpt-oss-20b", Strategy(4, 2, 1, 8, True, 1), "none", "bf16", ""),
    ],
)  # fmt: skip
def test_what_megatron_would_stop_at_is_not_written(
    model: str, strategy: Strategy, word: str, precision: str, said: str, tmp_path: pathlib.Path
) -> None:
    problem = api.make_problem(
        model, "dgx-h100:8", framework="megatron", batch=Batch(8, 1, 512), training=MixedPrecision.of(precision)
    )
    last, path = len(problem.graph.ops) - 1, tmp_path / "run.sh"
    words = ("none", *[word] * (last - 1), "none")
    plan = Plan((Stage(tuple(range(last + 1)), tuple(range(8)), strategy, words),), 2, 1, "1f1b", 2 * strategy.data)
    result = Result(problem, "best", 0, Answer(plan))
    if said:
        with pytest.raises(ExportError, match=said):
            megatron.write(result, str(path))
        assert not path.exists()
    else:
        megatron.write(result, str(path))
        assert megatron.read(str(path), problem.graph).plan == plan
