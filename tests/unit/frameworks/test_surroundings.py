"""What scripts put to the environment of a run is read, and what frameworks stop at there is said with its line."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Op
from meshwright.core.problem import Batch, Problem
from meshwright.core.run_config import RunConfig
from meshwright.frameworks import _command_line
from meshwright.frameworks.megatron import surroundings, told

QUEUES = surroundings.QUEUES
START = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --micro-batch-size 1 --global-batch-size 8 --bf16"
SPLIT = f"{START} --tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"
FSDP = f"{START} --use-megatron-fsdp --ckpt-format fsdp_dtensor"


def layers(count: int) -> Graph:
    kinds = ["embedding", *["attention_mlp"] * count, "head"]
    return Graph("small", tuple(Op(f"{i}", kind) for i, kind in enumerate(kinds)), (), 128)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export A=1 B=2\nRUN", {"A": ("1", 1), "B": ("2", 1)}),
        ("A=2\nRUN", {}),
        ("A=2\nexport A\nRUN", {"A": ("2", 1)}),
        ("declare -x A=3\nRUN", {"A": ("3", 1)}),
        ("declare A=3\nRUN", {}),
        ("set -a\nA=4\nRUN", {"A": ("4", 2)}),
        ("export A=5\nA=6 RUN", {"A": ("6", 2)}),
        ("export A=5\nunset A\nRUN", {"A": ("", 2)}),
        ("A=7\nB=8 echo --num-layers\nRUN", {}),
        ("#SBATCH --export=ALL,A=9,C=x\nsrun RUN", {"A": ("9", 1), "C": ("x", 1)}),
        ("srun --export=ALL,A=1 RUN", {"A": ("1", 1)}),
        ("mpirun -np 8 -x A=2 -x PATH RUN", {"A": ("2", 1)}),
        ("docker run -e A=3 image RUN", {"A": ("3", 1)}),
        ("env A=4 RUN", {"A": ("4", 1)}),
        ("srun bash -c 'export A=5; RUN'", {"A": ("5", 1)}),
        ("f() {\nlocal A=6\nexport B=7\nRUN\n}\nf", {"B": ("7", 3)}),
        ("RUN\nexport A=8", {}),
    ],
)
def test_what_a_command_finds_in_its_environment(text: str, found: dict[str, tuple[str, int]]) -> None:
    assert dict(_command_line.read(text.replace("RUN", START), "run.sh").environment) == found


@pytest.mark.parametrize(
    ("line", "count", "said"),
    [
        ("torchrun --nproc-per-node gpu", "4", "4 processes are taken for --nproc-per-node"),
        ("torchrun --nproc_per_node=auto", "4", "4 processes are taken"),
        ("torchrun --nproc-per-node 2", "2", ""),
        ("deepspeed --num_gpus 4", "", ""),
        ("deepspeed", "", "4 processes are taken for --num_gpus"),
        ("python", "", "no option says how many processes start"),
    ],
)
def test_devices_that_processes_may_see_are_their_number_where_that_is_left_open(line: str, count: str, said: str) -> None:
    rest = "pretrain_gpt.py --num-layers 4"
    found = _command_line.read(f"CUDA_VISIBLE_DEVICES=0,1,2,3 {line} {rest}", "run.sh")
    assert " ".join(found.options.get("--nproc-per-node", ())) == count
    assert (said in " ".join(found.warnings)) if said else not found.warnings
    free = _command_line.read(f"{line} {rest}", "run.sh")
    assert not free.warnings
    unknown = _command_line.read(f"export CUDA_VISIBLE_DEVICES=$MINE\n{line} {rest}", "run.sh")
    assert "CUDA_VISIBLE_DEVICES is $MINE, which is not known" in " ".join(unknown.warnings)


@pytest.mark.parametrize(
    "line", ["torchrun --nproc-per-node 3", "deepspeed --num_gpus 3", "accelerate launch --num_processes 3"]
)
def test_more_processes_than_devices_seen_are_refused(line: str) -> None:
    text = f"export CUDA_VISIBLE_DEVICES=GPU-1a,GPU-2b\n\n{line} pretrain_gpt.py --num-layers 4"
    with pytest.raises(InputError, match=r"run.sh: line 1: .* names 2 devices of a host, but --n\w+.*is 3 \(line 3\)"):
        _command_line.read(text, "run.sh")
    assert not _command_line.read(text.replace(line, line.replace("3", "2")), "run.sh").warnings
    _command_line.read(text.replace("_DEVICES", "_OTHERS"), "run.sh")


def test_the_devices_seen_are_those_of_the_plan(tmp_path: pathlib.Path) -> None:
    said = read(tmp_path, f"CUDA_VISIBLE_DEVICES=0,1,2,3 {START.replace('node 8', 'node gpu')}")
    assert said.plan.n_devices == 4 and "names 4 devices of a host" in " ".join(said.warnings)


def test_an_option_that_stands_twice_counts_as_it_stands_last_and_is_said() -> None:
    found = _command_line.read(f"{START} \\\n --micro-batch-size 2 --num-layers 4", "run.sh")
    assert found.options["--micro-batch-size"] == ("2",) and found.lines["--micro-batch-size"] == 2
    assert found.warnings == ("run.sh: line 2: --micro-batch-size stands twice, with 1 in line 1; the last counts",)


def read(folder: pathlib.Path, text: str) -> RunConfig:
    path = folder / "run.sh"
    path.write_text(text)
    return told.read(str(path), layers(4), 8)


def problem(cluster: str) -> Problem:
    return api.make_problem("llama-3.2-1b", cluster, framework="megatron", batch=Batch(8, 1, 128))


def test_a_tensor_axis_before_blackwell_needs_one_queue(tmp_path: pathlib.Path) -> None:
    place = f"{tmp_path}/run.sh"
    four, none = read(tmp_path, f"\nexport {QUEUES}=4\n{SPLIT}"), read(tmp_path, SPLIT)
    (reason,), notes = surroundings.on_devices(four, problem("dgx-h100:8"), place)
    assert reason.startswith(f"{place}: line 2: {QUEUES} is 4; beside a tensor axis") and notes == ()
    refusals, (note,) = surroundings.on_devices(none, problem("dgx-h100:8"), place)
    assert refusals == () and note.startswith(f"{place}: {QUEUES} is not set in it; beside a tensor axis")
    one = read(tmp_path, f"{QUEUES}=1 {SPLIT}")
    assert surroundings.on_devices(one, problem("dgx-h100:8"), place) == ((), ())
    assert surroundings.on_devices(four, problem("dgx-b200:8"), place) == ((), ())
    assert surroundings.on_devices(read(tmp_path, f"{QUEUES}=4 {START}"), problem("dgx-h100:8"), place) == ((), ())


def test_megatrons_fsdp_and_ucc_need_more_than_one_queue(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=rf"run\.sh: line 2: {QUEUES} is 1 beside --use-megatron-fsdp.*leave it out"):
        read(tmp_path, f"\nexport {QUEUES}=1\n{FSDP}")
    with pytest.raises(InputError, match=rf"line 1: {QUEUES} is 1 beside --pipeline-model-parallel-comm-backend ucc"):
        read(tmp_path, f"{QUEUES}=1 {START} --pipeline-model-parallel-comm-backend ucc")
    assert read(tmp_path, f"{QUEUES}=8 {FSDP}").plan.stages[0].strategy.shard == 3
    both = read(tmp_path, f"{QUEUES}=8 {FSDP} --tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap")
    _, (note,) = surroundings.on_devices(both, problem("dgx-h100:8"), "run.sh")
    assert "quickest with 1" in note and "FSDP asks for more" in note


def test_a_recipe_that_sets_it_in_python_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "recipe.py"
    parts = ("model.tensor_model_parallel_size = 1", "ddp.use_megatron_fsdp = True", "train.global_batch_size = 8")
    lines = ["import os", f'os.environ["{QUEUES}"] = "1"', *(f"cfg.{part}" for part in parts)]
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=rf"line 2: {QUEUES} is 1 beside ddp\.use_megatron_fsdp"):
        frameworks.load("megatron_bridge").read(str(path), layers(4), 8)


def test_nanotrons_asynchronous_products_need_one_queue(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "model: {model_config: {num_hidden_layers: 4}}\n"
        "parallelism: {dp: 4, pp: 1, tp: 2, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}\n"
        "tokens: {sequence_length: 128, micro_batch_size: 1, batch_accumulation_per_replica: 1}\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(f"export {QUEUES}=8\ntorchrun --nproc-per-node 8 run_train.py --config-file a.yaml\n")
    with pytest.raises(InputError, match=rf"line 1: {QUEUES} is 8 beside parallelism\.tp_linear_async_communication"):
        frameworks.load("nanotron").read(str(path), layers(4), 8)
    path.write_text(path.read_text().replace("=8", "=1", 1))
    assert frameworks.load("nanotron").read(str(path), layers(4), 8).variant == "async_tensor"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"export NVTE_FUSED_ATTN=0\n{START}",
            r"line 1: NVTE_FUSED_ATTN is 0; with --attention-backend auto Megatron-LM stops",
        ),
        (f"NVTE_FLASH_ATTN=1 {START} --attention-backend fused", "NVTE_FLASH_ATTN is 1; with --attention-backend fused"),
    ],
)
def test_kernels_of_attention_are_no_variables(text: str, said: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


def test_what_the_environment_slows_down_is_said(tmp_path: pathlib.Path) -> None:
    text = f"export CUDA_LAUNCH_BLOCKING=1 NCCL_P2P_DISABLE=0 NVTE_FUSED_ATTN=1\n{START}"
    assert [one.partition("run.sh: ")[2] for one in read(tmp_path, text).warnings] == [
        "line 1: CUDA_LAUNCH_BLOCKING is 1; kernels are priced as launched ahead"
    ]


def test_options_that_reach_no_program_and_those_of_other_programs_are_said(tmp_path: pathlib.Path) -> None:
    """A comment between continued lines ends a command."""
    said = read(tmp_path, f"{START} $(cat args.txt) \\\n# --fp16 \\\n--global-batch-size 16")
    assert said.plan.n_microbatches == 2
    printed, twice, begun = said.warnings
    assert "--global-batch-size stands twice" in twice
    assert "line 1: what $(cat args.txt) prints is not known; its options are not read" in printed
    assert "line 3: --global-batch-size begins a command of its own: a comment" in begun
    array = _command_line.read(f"MORE=(--split 1 $(cat args.txt))\n{START} ${{MORE[@]}}", "run.sh")
    assert array.options["--split"] == ("1",) and "line 1: what $(cat args.txt) prints" in array.warnings[0]


def test_a_scale_for_each_block_needs_blackwell(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{START} --fp8-format e4m3 --fp8-recipe mxfp8")
    said = told.read(str(path), layers(4), 8)
    kinds = {name: api.make_problem("gpt2", f"{name}:8", framework="megatron").cluster for name in ("dgx-h100", "dgx-b200")}
    assert kinds["dgx-b200"] is not None and kinds["dgx-b200"].kinds[0].peak(said.precision) > 1e15
    assert kinds["dgx-h100"] is not None and kinds["dgx-h100"].kinds[0].peak("fp8") > 1e15
    with pytest.raises(InputError, match="has no mxfp8 matrix unit"):
        kinds["dgx-h100"].kinds[0].peak(said.precision)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--tensor-model-parallel-size ${TP} --sequence-parallel --tp-comm-overlap",
            r"--tensor-model-parallel-size is '\$\{TP\}'",
        ),
        (
            "--position-embedding-type rope --mtp-num-layers 1",
            "--mtp-num-layers: small has none: layers that predict further tokens are built with experts only",
        ),
    ],
)
def test_what_is_wrong_is_said_of_the_option_that_is(options: str, said: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, f"{START} {options}")
