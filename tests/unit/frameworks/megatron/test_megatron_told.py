"""What Megatron-LM's options say is read back: the same plan, whatever it is; wrong options in one line."""

from __future__ import annotations

import pathlib
import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.errors import ExportError, InputError
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _command_line
from meshwright.frameworks.megatron import options, pipeline, told

WORDS = ("none", "core_attn", "mlp", "core_attn+mlp", "layernorm+moe_act", "moe", "full", "block")


def posed(n_layers: int, n_ahead: int = 0) -> Problem:
    kinds = ["embedding", *["attention_mlp"] * n_layers, *["moe"] * n_ahead, "head"]
    names = ["embed", *(f"layers.{i}" for i in range(n_layers)), *(f"mtp.{i}" for i in range(n_ahead)), "head"]
    graph = Graph("small", tuple(Op(name, kind) for name, kind in zip(names, kinds, strict=True)), (), 128)
    return Problem(ModelSpec("small", "huggingface", "small", graph))


@st.composite
def plans(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """Return any plan that Megatron-LM runs: degrees, sharding, uneven and virtual stages, either layout, a setting of all."""
    n_ranks, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    chunks = chunks if n_ranks > 1 else 1
    counts = draw(st.lists(st.integers(0, 4), min_size=n_ranks * chunks, max_size=n_ranks * chunks))
    if not sum(counts):
        counts[0] = 1
    if n_ranks * chunks > 2:
        counts[1:-1] = [max(1, count) for count in counts[1:-1]]
    degree = st.sampled_from((1, 2, 3, 4))
    data, tensor, context = draw(degree), draw(degree), draw(st.sampled_from((1, 2)))
    expert = draw(st.sampled_from([d for d in (1, 2, 4) if (data * context) % d == 0 or (data * context * tensor) % d == 0]))
    shard = draw(st.integers(0, 3)) if data * context > 1 else 0
    degrees = [0, *(d for d in (1, 2) if d < data and data % d == 0)] if shard else [0]
    strategy = Strategy(
        data, tensor, context, expert, draw(st.booleans()) and tensor > 1, shard, draw(st.sampled_from(degrees))
    )
    n_microbatches = n_ranks * draw(st.integers(1, 3))
    ahead = draw(st.integers(0, 1))
    word, n_first = draw(st.sampled_from(WORDS[:-1] if ahead else WORDS)), draw(st.integers(1, 4))
    outermost = draw(st.booleans()) and n_ranks > 1
    width, size = tensor * context, strategy.n_devices
    stages, first = [], 1
    for i, count in enumerate(counts):
        ops = [0] * (i == 0) + list(range(first, first + count))
        if i == len(counts) - 1:
            ops += [*range(first + count, first + count + ahead), first + count + ahead]
        inner = iter(range(len(ops)))
        ends = (0, sum(counts) + ahead + 1)
        words = tuple(
            "none" if op in ends else word if word != "block" else "full" if next(inner) < n_first else "none" for op in ops
        )
        first += count
        r = i % n_ranks
        devices = tuple(range(r * size, (r + 1) * size))
        if outermost:
            devices = tuple(d * width * n_ranks + r * width + k for d in range(data) for k in range(width))
        stages.append(Stage(tuple(ops), devices, strategy, words))
    micro = draw(st.sampled_from((1, 2)))
    schedule = "interleaved_1f1b" if chunks > 1 else "1f1b"
    return posed(sum(counts), ahead), Plan(tuple(stages), n_microbatches, micro, schedule, n_microbatches * micro * data)


@settings(max_examples=300, deadline=None)
@given(plans())
def test_every_plan_that_is_told_is_read_back_the_same(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    result = Result(problem, "best", 0, Answer(plan))
    model = [("--num-layers", str(sum(op.name.startswith("layers.") for op in problem.graph.ops)))]
    if any(op.name.startswith("mtp.") for op in problem.graph.ops):
        model.append(("--mtp-num-layers", "1"))
    launch = [("--nnodes", "1"), ("--nproc-per-node", str(plan.n_devices))]
    said = "\n".join(shlex.join(words) for words in (*launch, *model, *options.arguments(result)))
    assert told.plan_of(_command_line.options(said, "said"), "said") == plan


GOOD = "--nproc-per-node 4 --num-layers 4 --micro-batch-size 1 --global-batch-size 8"


def plan_of(text: str) -> Plan:
    return told.plan_of(_command_line.options(text, "run.sh"), "run.sh")


def test_a_command_line_of_ones_own_is_read_with_its_defaults(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"# trains\ntorchrun {GOOD} \\\n  --tensor-model-parallel-size=2 # by hand\n")
    plan = told.read(str(path), posed(4).graph).plan
    assert plan.stages[0].strategy == Strategy(data=2, tensor=2) and plan.n_microbatches == 4
    assert plan.stages[0].recompute == ("none",) * 6


def test_scripts_as_people_write_them_are_read(tmp_path: pathlib.Path) -> None:
    """Variables, options in strings and arrays, values after them that are none, options that nobody knows."""
    path = tmp_path / "run.sh"
    path.write_text(
        "#!/bin/bash\nGPUS_PER_NODE=4\nexport TP=${TP:-2}\nTP_SIZE=2\n"
        'MODEL_ARGS="--num-layers 4 --seq-length 128"\nTRAIN=(\n  --micro-batch-size 1\n  --global-batch-size 8 --bf16\n)\n'
        "torchrun --nproc_per_node $GPUS_PER_NODE \\\n  --nnodes ${NNODES:-1} pretrain_gpt.py ${MODEL_ARGS} ${TRAIN[@]} \\\n"
        '  --tensor-model-parallel-size ${TP_SIZE} --recompute-activations --overlap-grad-reduce "$@"\n--weather fine\n'
    )
    said = told.read(str(path), posed(4).graph)
    assert said.plan.stages[0].strategy == Strategy(data=2, tensor=2) and (said.precision, said.sequence_length) == (
        "bf16",
        128,
    )
    assert said.plan.stages[0].recompute[1] == "core_attn"
    own, left = said.warnings
    assert own.startswith(f"{path}: line 13: --weather begins a command of its own: a comment, an empty line or no backslash")
    assert left == f"{path}: line 13: --weather is no option of Megatron-LM that is known; it is left out"
    with pytest.raises(InputError, match="another model"):
        told.read(str(path), posed(5).graph)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--tensor-model-parallel-size 3", "no multiple of tensor x context x pipeline = 3"),
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size is 'two'"),
        ("--global-batch-size 9", "no multiple of --micro-batch-size"), ("--num-layers", "--num-layers has no value"),
        ("--recompute-granularity half", "'half'; it must be"), ("--recompute-granularity full", "uniform of 1"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", "uniform of 1"),
        ("--recompute-granularity selective --recompute-modules nothing", "nothing"),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|t|t|tt'", "E comes first"),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|t|t|ttL'", "do not make 4"),
        ("--pipeline-model-parallel-size 4 --num-layers 5", "no multiple of 4 stages"),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 3", "does not divide"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy all", "'all'"),
        ("--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1", "expert-tensor"),
        ("--num-layers '4", "line 1"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_line_with_the_option(more: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        plan_of(f"{GOOD} {more}")
    assert str(error.value).startswith("run.sh: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("more", "sizes"),
    [
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 --num-layers 8", [2] * 4),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3 --num-layers 8", [3, 5]),
        ("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 2 --num-layers 8", [2, 2, 2, 2]),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2 --num-layers 8 --nproc-per-node 8 "
         "--decoder-last-pipeline-num-layers 4 --num-virtual-stages-per-pipeline-rank 1", [2, 1, 1, 4]),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 4 --num-layers 12 "
         "--decoder-last-pipeline-num-layers 4 --num-virtual-stages-per-pipeline-rank 2", [2, 1, 1, 2] * 2),
        ("--pipeline-model-parallel-size 2 --num-layers 6 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2", [1, 2, 2, 1]),
        ("--pipeline-model-parallel-size 2 --num-layers 5 --account-for-loss-in-pipeline-split", [3, 2]),
        ("--pipeline-model-parallel-size 2 --num-layers 12 --num-virtual-stages-per-pipeline-rank 2 "
         "--num-layers-per-virtual-pipeline-stage 3", [3] * 4),
    ],
)  # fmt: skip
def test_every_way_to_cut_layers_is_read(more: str, sizes: list[int]) -> None:
    words = _command_line.options(f"{GOOD} {more}", "run.sh")
    plan = told.plan_of(words, "run.sh")
    inner = [[op for op in stage.ops if 0 < op <= sum(sizes)] for stage in plan.stages]
    assert [len(ops) for ops in inner] == sizes and [op for ops in inner for op in ops] == list(range(1, sum(sizes) + 1))
    assert plan.schedule == ("interleaved_1f1b" if len(sizes) > len(plan.ranks()) else "1f1b")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--num-layers-per-virtual-pipeline-stage 3", "does not divide the 4 layers"),
        ("--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 4", "into 4 virtual stages"),
        ("--num-layers-per-virtual-pipeline-stage 2 --decoder-first-pipeline-num-layers 2", "beside ends of their own"),
        ("--decoder-first-pipeline-num-layers 2 --account-for-loss-in-pipeline-split", "both say the ends"),
        ("--decoder-first-pipeline-num-layers 3 --num-virtual-stages-per-pipeline-rank 2", "3 layers of a rank are no"),
        ("--decoder-first-pipeline-num-layers 9", "no multiple of 1 stages"),
        ("--account-for-loss-in-pipeline-split", "9 layers are no multiple of 2 stages"),
        ("--pipeline-model-parallel-layout Et*4|t*4L --decoder-first-pipeline-num-layers 4", "both say how layers are cut"),
        ("--pipeline-model-parallel-size 1 --num-virtual-stages-per-pipeline-rank 2", "size above 1"),
    ],
)
def test_cuts_that_contradict_each_other_are_refused(more: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_of(f"{GOOD} --num-layers 8 --pipeline-model-parallel-size 2 {more}")


def _read(tmp_path: pathlib.Path, more: str) -> tuple[str, ...]:
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun {GOOD} --overlap-grad-reduce \\\n  {more}\n")
    return tuple(text.removeprefix(f"{path}: ") for text in told.read(str(path), posed(4).graph).warnings)


def test_what_is_priced_otherwise_is_said_and_what_has_no_plan_is_refused(tmp_path: pathlib.Path) -> None:
    assert _read(tmp_path, "--bf16") == ()
    assert _read(tmp_path, "--rampup-batch-size 8 8 100") == (
        "line 2: --rampup-batch-size: the global batch after the ramp is priced",
    )
    assert _read(tmp_path, "--use-distributed-optimizer") == (), "weights are priced as gathered after the update anyhow"
    with pytest.raises(InputError, match="activations on the host; plans have nothing like it"):
        _read(tmp_path, "--fine-grained-activation-offloading")
    with pytest.raises(InputError, match="say --num-layers alone"):
        _read(tmp_path, "--encoder-num-layers 3")


def test_an_overlap_that_is_not_set_is_not_priced(tmp_path: pathlib.Path) -> None:
    path, split = tmp_path / "run.sh", "--tensor-model-parallel-size 2 --sequence-parallel"
    bare, good = GOOD, f"{GOOD} --overlap-grad-reduce"
    zero = "--use-megatron-fsdp --ckpt-format fsdp_dtensor"
    for text, variant in (
        (f"{good} {split}", "plain"), (f"{good} {split} --tp-comm-overlap", ""), (f"{good} --tensor-model-parallel-size 2", ""),
        (bare, "late_reduce"), (f"{bare} {split}", "plain+late_reduce"), (f"{bare} {zero}", ""),
        (f"{bare} --pipeline-model-parallel-size 4", ""),  # no data axis
    ):  # fmt: skip
        path.write_text(f"{text}\n")
        assert told.read(str(path), posed(4).graph).variant == variant


def test_megatrons_fsdp_shards_all_unless_told() -> None:
    assert plan_of(f"{GOOD} --use-distributed-optimizer --use-megatron-fsdp").stages[0].strategy == Strategy(4, shard=3)
    plain = "--data-parallel-sharding-strategy no_shard"
    assert plan_of(f"{GOOD} --use-megatron-fsdp {plain}").stages[0].strategy == Strategy(4)


def test_a_plan_of_layers_in_another_order_is_refused() -> None:
    problem = posed(4)
    plan = Plan((Stage((0, 1, 3), (0,)), Stage((2, 4, 5), (1,))), 2, 1, "1f1b", 2)
    with pytest.raises(ExportError, match="do not follow each other"):
        options.arguments(Result(problem, "best", 0, Answer(plan)))
    with pytest.raises(ExportError, match="do not make"):
        options.arguments(Result(problem, "best", 0, Answer(replace(plan, global_batch=3, stages=(plan.stages[0],)))))


HOSTED = "--optimizer-cpu-offload --use-distributed-optimizer --use-precision-aware-optimizer "
HOSTED += "--overlap-grad-reduce --overlap-param-gather"


def test_state_on_the_host_is_read_with_what_is_priced_otherwise(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{GOOD} {HOSTED} --overlap-cpu-optimizer-d2h-h2d\n")
    one = told.read(str(path), posed(4).graph).plan.stages[0].strategy
    assert (one.data, one.shard, one.offload) == (4, 1, "optimizer")
    assert _read(tmp_path, f"{HOSTED} --overlap-cpu-optimizer-d2h-h2d") == ()
    assert _read(tmp_path, HOSTED) == (
        "--overlap-cpu-optimizer-d2h-h2d is not set; transfers are priced beside the host's update",
    )
    with pytest.raises(InputError, match=r"--optimizer-offload-fraction is 0\.5; plans have all of the state on the host"):
        _read(tmp_path, f"{HOSTED} --optimizer-offload-fraction 0.5")
    with pytest.raises(InputError, match="asks for --use-precision-aware-optimizer beside it"):
        _read(tmp_path, "--optimizer-cpu-offload --use-distributed-optimizer")


def test_a_message_names_the_line_and_what_is_spelt_much_like_a_missing_option(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"

    def said(text: str) -> str:
        path.write_text(f"# a script\n{text}\n")
        with pytest.raises(InputError) as wrong:
            told.read(str(path), posed(4).graph)
        return str(wrong.value).removeprefix(f"{path}: ")

    wrong = GOOD.replace("--micro-batch-size", "--micro-batchsize")
    assert said(wrong).endswith("from 1 on; line 2 has --micro-batchsize, which is no option of Megatron-LM")
    assert said(f"{GOOD} --micro-batch-size=").startswith("line 2: --micro-batch-size has no value; it must be")
    assert said(f"{GOOD} \\\n --tensor-model-parallel-size x").startswith(
        "line 3: --tensor-model-parallel-size is 'x'; it must"
    )
    path.write_text(f"{GOOD} --tensor-model-parallelsize 2\n")
    assert told.read(str(path), posed(4).graph).warnings[0].endswith("left out (did you mean --tensor-model-parallel-size?)")
    assert _read(tmp_path, "--recompute-modules mlp") == (
        "line 2: --recompute-modules is not taken without --recompute-granularity selective; nothing is recomputed",
    )
    assert _read(tmp_path, "--recompute-activations --recompute-modules mlp") == ()


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        ("Et*3|(tt|)*2,m|L", [(0, 1, 2, 3), (4, 5), (6, 7), (8,), (9,)]),
        ("E|(t|)*3,tttt|mL", [(0,), (1,), (2,), (3,), (4, 5, 6, 7), (8, 9)]),
        ("E,(t*2|)*3,t|m|L", [(0, 1, 2), (3, 4), (5, 6), (7,), (8,), (9,)]),
    ],
)
def test_layouts_are_read_with_their_multiplications_and_commas(layout: str, sizes: list[tuple[int, ...]]) -> None:
    words = {"--num-layers": ("7",), "--mtp-num-layers": ("1",), "--pipeline-model-parallel-layout": (layout,)}
    assert pipeline.stages(words, "run.sh", 1)[0] == sizes
    with pytest.raises(InputError, match="E comes first, L last"):
        pipeline.stages({**words, "--pipeline-model-parallel-layout": ("(tt|)*2E|tttL",)}, "run.sh", 1)
