"""Launch scripts are followed: branches, defaults, functions, files; every option of the parser is read, neutral or said."""

from __future__ import annotations

import json
import pathlib

import pytest

import reference
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Op
from meshwright.core.problem import MixedPrecision
from meshwright.core.run_config import RunConfig
from meshwright.frameworks import _command_line
from meshwright.frameworks.megatron import aside, parser, shape, told

ARGUMENTS = json.loads(reference.path("megatron/megatron_arguments.json").read_text())
NAMES = sorted(name for entry in ARGUMENTS for name in entry["option"] if name.startswith("--"))
GOOD = "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --micro-batch-size 1 --global-batch-size 8 --bf16"
FOLDER = pathlib.Path(aside.__file__).parent


def graph() -> Graph:
    kinds = ["embedding", *["attention_mlp"] * 4, "head"]
    return Graph("small", tuple(Op(f"{i}", kind) for i, kind in enumerate(kinds)), (), 128)


def read(folder: pathlib.Path, text: str) -> RunConfig:
    path = folder / "run.sh"
    path.write_text(text)
    return told.read(str(path), graph(), 4)


def said(folder: pathlib.Path, text: str) -> list[str]:
    return [one.removeprefix(f"{folder}/run.sh: ") for one in read(folder, text).warnings]


def test_every_option_of_the_parser_is_in_one_table_and_what_is_read_is_read() -> None:
    content = parser._content()
    tables = [set(content[name]) for name in ("read", "neutral", "refused", "unpriced")]
    assert set(NAMES) <= set.union(*tables) and sum(map(len, tables)) == len(set.union(*tables))
    sources = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    assert [name for name in content["read"] if f'"{name}"' not in sources] == []


@pytest.mark.parametrize("name", sorted({*parser._content()["unpriced"]}))
def test_an_option_that_is_not_priced_is_named_with_its_line(name: str, tmp_path: pathlib.Path) -> None:
    entry = next(entry for entry in ARGUMENTS if name in entry["option"])
    usual = parser.table("without_effect").get(name, ())
    choice = next((str(one) for one in parser.table("choices").get(name, ()) if one not in usual), "7")
    value = "" if entry["nargs"] == 0 else choice
    sharded, graph_of_experts = "--overlap-grad-reduce --use-distributed-optimizer", "--num-experts 4 --disable-bias-linear"
    spread = f"{graph_of_experts} --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"
    beside = {
        "--overlap-param-gather-with-optimizer-step":
            f"{sharded} --overlap-param-gather --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
        "--fp8-param-gather": f"{sharded} --fp8-format hybrid", "--fp4-param-gather": "--fp4-format e2m1",
        "--moe-pad-expert-input-to-capacity": f"{graph_of_experts} --moe-expert-capacity-factor 1.5",
        "--overlap-moe-expert-parallel-comm": spread,
        "--delay-wgrad-compute": f"{spread} --overlap-moe-expert-parallel-comm",
        "--distribute-saved-activations":
            "--tensor-model-parallel-size 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    }  # fmt: skip
    line = GOOD.replace("bf16", "fp16") if name == "--fp16-lm-cross-entropy" else GOOD
    found = said(tmp_path, f"{line} {beside.get(name, '')} \\\n {name} {value}\n")
    assert any(one.startswith(f"line 2: {name}") for one in found), found


def test_options_with_a_price_are_priced(tmp_path: pathlib.Path) -> None:
    assert read(tmp_path, GOOD).training is None
    assert read(tmp_path, f"{GOOD} --grad-reduce-in-bf16").training == MixedPrecision.of("bf16").updated_by(gradient_bytes=2)
    half = read(tmp_path, GOOD.replace("bf16", "fp16")).training
    assert half is not None and half.gradient_bytes == 2
    assert read(tmp_path, GOOD.replace("--bf16", "--fp16 --accumulate-allreduce-grads-in-fp32")).training is None
    assert read(tmp_path, f"{GOOD} --moe-layer-recompute").plan.stages[0].recompute[1] == "moe"
    assert read(tmp_path, GOOD.replace("--global-batch-size 8", "")).plan.global_batch == 4


@pytest.mark.parametrize(
    ("more", "attention"),
    [("--attention-backend unfused", "unfused"), ("--transformer-impl local", "unfused"), ("--attention-backend flash", ""),
     ("--transformer-impl local --use-flash-attn", "unfused"),
     ("--transformer-impl local --use-flash-attn --use-legacy-models", "")],
)  # fmt: skip
def test_attention_is_priced_as_it_runs(more: str, attention: str, tmp_path: pathlib.Path) -> None:
    assert read(tmp_path, f"{GOOD} {more}").attention == attention
    path = tmp_path / "run.sh"
    path.write_text(f"{GOOD} --hidden-size 256 --num-attention-heads 4 --vocab-size 512 --seq-length 512 {more}")
    saved = sum(operator.saved_elements for op in shape.model_of(str(path), 0).graph.ops for operator in op.body)
    path.write_text(path.read_text().replace(more, ""))
    plain = sum(operator.saved_elements for op in shape.model_of(str(path), 0).graph.ops for operator in op.body)
    assert (saved > plain) == bool(attention)


def test_what_layers_of_megatron_core_itself_do_not_do_is_said(tmp_path: pathlib.Path) -> None:
    said = "\n".join(read(tmp_path, f"{GOOD} --transformer-impl local --use-flash-attn --fp8-format hybrid").warnings)
    assert "--use-flash-attn is not taken beside --transformer-impl local" in said and "multiply in 16 bits" in said
    assert "local" not in "\n".join(read(tmp_path, f"{GOOD} --use-flash-attn --fp8-format hybrid").warnings)


def test_words_that_pad_by_over_a_hundredth_and_a_fused_loss_are_said(tmp_path: pathlib.Path) -> None:
    said = "\n".join(
        read(tmp_path, f"{GOOD} --vocab-size 50257 --tensor-model-parallel-size 4 --cross-entropy-loss-fusion").warnings
    )
    assert "vocabulary" not in said and "--cross-entropy-loss-fusion: the loss is priced the same" in said  # 50,688 words
    more = f"{GOOD} --vocab-size 50257 --tensor-model-parallel-size 4 --make-vocab-size-divisible-by 512"
    text = "--make-vocab-size-divisible-by is 512, which pads the vocabulary to 51,200 words; 50,257 are priced"
    assert text in "\n".join(read(tmp_path, more).warnings)
    assert "vocabulary" not in "\n".join(read(tmp_path, f"{more} --disable-pad-vocab-size").warnings)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--fp16", "--fp16 beside --bf16"), ("--yaml-cfg a.yaml", "--yaml-cfg"),
        ("--sequence-parallel false", "takes no value"),
        ("--recompute-activations --recompute-granularity full --recompute-method uniform", "keep one"),
        ("--recompute-granularity selective --recompute-method block", "keep one"), ("--batch-size 3", "--micro-batch-size"),
        ("--overlap-param-gather", "--use-distributed-optimizer"), ("--attention-backend fast", "one of flash"),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "--sequence-parallel"),
        ("--expert-model-parallel-size 2", "no experts"), ("--seq-length 64 --max-position-embeddings 32", "less than"),
        ("--is-hybrid-model", "state-space"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_one_line(more: str, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path, f"{GOOD} {more}\n")
    assert "\n" not in str(error.value) and "run.sh" in str(error.value)


SCRIPT = """TP=2
if [[ $TP -gt 1 && -n "$TP" ]]; then
  MORE=(--sequence-parallel)
elif [ $TP = 4 ]; then
  MORE=(--fp16)
else
  MORE=()
fi
A=1; B=2
SEQ=${SEQ:-"128"}
case $TP in
  1) R=full;;
  2|3) R=selective ;;
esac
options() {
  EXTRA="--tensor-model-parallel-size $1 \\
    --recompute-granularity $R"
}
options $TP
[ -z "$UNHEARD" ] && A=4
UNUSED="--fp8-format hybrid"
echo "torchrun pretrain_gpt.py --num-layers 9"
torchrun --nproc_per_node $((A * 1)) pretrain_gpt.py ${MORE[@]} $EXTRA --num-layers 4 --bf16 \\
  --seq-length $SEQ --micro-batch-size $A --global-batch-size $((B * 8)) "$@" 2>&1 | tee log
"""


def test_branches_defaults_functions_and_sums_are_followed(tmp_path: pathlib.Path) -> None:
    found = read(tmp_path, SCRIPT)
    one = found.plan.stages[0].strategy
    assert (one.tensor, one.data, one.sequence_parallel, found.precision, found.sequence_length) == (2, 2, True, "bf16", 128)
    assert (found.plan.micro_batch, found.plan.global_batch, found.plan.stages[0].recompute[1]) == (4, 16, "core_attn")
    warnings = said(tmp_path, SCRIPT)

    def at(word: str) -> int:
        return SCRIPT.count("\n", 0, SCRIPT.index(word)) + 1

    assert any(f'line {at("[ -z")}: [ -z "$UNHEARD" ]' in one and one.endswith("taken to hold") for one in warnings)
    assert any(f"line {at('UNUSED')}: UNUSED holds options" in one for one in warnings)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ('if [ "$FP8" = 1 ]; then X=(--fp8-format hybrid); fi', "line 1: [ \"$FP8\" = 1 ]: $FP8 is not set in the script"),
        ("if grep -q a b; then X=1; fi", "the script does not decide it; it is taken not to hold"),
        ("source ./env.sh", "line 1: source ./env.sh: there is no such file"),
        ("case $Q in a) X=1;; esac", "case $Q: $Q is not set in the script; the branch of an empty word is taken"),
        ("case ${Q:-a} in a) X=1;; esac", "case ${Q:-a}: $Q is not set in the script; that of a is taken"),
        ("while [[ $# -gt 0 ]]; do X=$1; shift; done", "how often the loop runs; it is taken not to run"),
        ("cat <<E > a\n--tensor-model-parallel-size 8\nE", "options in a here-document"),
    ],
)  # fmt: skip
def test_what_a_script_leaves_open_is_said_with_its_line(before: str, message: str, tmp_path: pathlib.Path) -> None:
    assert any(message in one for one in said(tmp_path, f"{before}\n{GOOD}\n"))
    assert any("$MORE_ARGS is not set" in one for one in said(tmp_path, f"{GOOD} $MORE_ARGS\n"))


def test_files_that_are_sourced_are_read_and_two_trainings_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "env.sh").write_text("TP=4\n")
    assert read(tmp_path, f"source env.sh\n{GOOD} --tensor-model-parallel-size $TP\n").plan.stages[0].strategy.tensor == 4
    with pytest.raises(InputError, match="line 2: starts a training once more, beside that of line 1"):
        read(tmp_path, f"{GOOD}\n{GOOD}\n")


def test_a_mark_of_byte_order_and_ends_of_lines_of_windows_are_passed_over(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"\xef\xbb\xbf" + SCRIPT.replace("\n", "\r\n").encode())
    assert told.read(str(tmp_path / "run.sh"), graph(), 4).plan == read(tmp_path, SCRIPT).plan


def test_a_scheduler_and_a_quoted_command_are_looked_through() -> None:
    text = '#SBATCH --nodes=4\nO="--num-layers 4"\nsrun --mem 0 sh -c "cd a && python pretrain_gpt.py $O && true"\n'
    assert _command_line.options(text, "a") == {"--num-layers": ("4",)}


def test_a_number_of_hosts_that_slurm_gives_is_open_whatever_its_default(tmp_path: pathlib.Path) -> None:
    line = GOOD.replace("--nproc-per-node 4", "--nproc-per-node 2 --nnodes $NNODES")
    found = read(tmp_path, f"NNODES=${{SLURM_NNODES:-1}}\n{line}\n")
    assert found.plan.n_devices == 4 and "--nnodes is ${SLURM_NNODES:-1}, which is not known" in found.warnings[0]
    asked = read(tmp_path, f"#SBATCH --nodes=1\nNNODES=${{SLURM_NNODES:-2}}\n{line}\n")
    assert asked.plan.n_devices == 2 and not any("--nnodes" in one for one in asked.warnings)
