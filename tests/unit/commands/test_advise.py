"""``meshwright advise``: what people run, read, priced, and made quicker; wrong files in one line."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

SCRIPT = """torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --micro-batch-size 1 \\
  --global-batch-size 32 --seq-length 128 --tensor-model-parallel-size 2 \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
  --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"""
YAML = """# accelerate launch --config_file a.yaml run_clm.py --per_device_train_batch_size 1 --gradient_accumulation_steps 2
distributed_type: FSDP
num_processes: 4
mixed_precision: bf16
fsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true}
"""


def test_a_script_is_priced_and_climbed_up_to_the_best_plan_of_its_framework(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    asked = ("--cluster", "dgx-h100:4", "--model", tiny)
    entry = meshwright("advise", "run.sh", *asked, "--json").json
    assert (entry["framework"], entry["legal"], entry["fits"], entry["warnings"]) == ("megatron", True, True, [])
    (stage,) = entry["stages"]
    assert (stage["tensor"], stage["data"], set(stage["recompute"])) == (2, 2, {"none", "full"})
    assert entry["step_seconds"] > entry["best"]["step_seconds"] == entry["ladder"][-1]["step_seconds"]
    seconds = [entry["step_seconds"], *(rung["step_seconds"] for rung in entry["ladder"])]
    assert seconds == sorted(seconds, reverse=True), "every rung is quicker than the one before"
    for rung in entry["changes"]:
        assert rung["step_seconds"] is None or rung["difference_ratio"] == pytest.approx(
            rung["step_seconds"] / entry["step_seconds"] - 1.0
        )
    assert {"recompute", "tensor"} & {rung["axis"] for rung in entry["changes"]}
    text = meshwright("advise", "run.sh", *asked).out
    assert "legal: yes" in text and "fits: yes" in text and "up to the best plan" in text and "recomputation full -> " in text


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fsdp2", "train.py"),
        ("transformers:deepspeed", "train.json"),
        ("megatron_bridge", "recipe.py"),
        ("maxtext", "train.yml"),
    ],
)
def test_what_advise_says_of_an_exported_plan_is_what_the_plan_said(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path, name: str, file: str
) -> None:
    asked = ("--cluster", "dgx-h100:4")
    question = ("--global-batch", "16", "--sequence-length", "128", "--for", name, "--within", "0", "--json")
    entry = meshwright("plan", tiny, *asked, *question, "--out", "plan.json").json
    assert meshwright("export", "plan.json", "--to", name.partition(":")[0], "--out", file).code == 0
    said = meshwright("advise", file, *asked, "--model", tiny, "--json").json
    assert said["step_seconds"] == entry["step_seconds"] and said["schedule"] == entry["schedule"]
    assert said["framework"] == name and said["legal"]
    assert [stage["devices"] for stage in said["stages"]] == [stage["devices"] for stage in entry["stages"]]


def test_an_illegal_run_says_why_and_an_unknown_entry_is_a_warning(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML.replace("num_processes", "weather: 3\nnum_processes"))
    entry = meshwright("advise", "a.yaml", "--cluster", "dgx-h100:4", "--model", tiny, "--json").json
    assert entry["framework"] == "accelerate" and entry["warnings"] == [
        "a.yaml: line 3: nothing is known of weather; it is left out"
    ]
    (tmp_path / "b.sh").write_text(
        SCRIPT.replace(
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "--recompute-granularity selective --use-megatron-fsdp",
        )
    )
    entry = meshwright("advise", "b.sh", "--cluster", "dgx-h100:4", "--model", tiny, "--json").json
    assert entry["legal"] and entry["stages"][0]["recompute"][1] == "core_attn"


@pytest.mark.parametrize(
    ("name", "text", "words", "said"),
    [
        ("a.yaml", YAML.replace("4", "3"), (), "16"),
        ("a.yaml", YAML, ("--for", "megatron_deepspeed"), "no reader"),
        ("a.txt", "nothing", (), "is no configuration of"),
        ("a.yaml", f"{YAML}# NODES, GPUS_PER_NODE = 1, 2\n", (), "could be of"),
        ("a.sh", SCRIPT.replace("--num-layers 4", "--num-layers 5"), (), "another model?"),
        (
            "a.py",
            "from torchtitan.models.llama3 import model_registry\nc.model_spec = model_registry('8B')\nc.training.seq_len = 8",
            (),
            "llama3 8B has 32 layers",
        ),
        ("a.yaml", YAML, ("--for", "x"), "x"),
        ("a.sh", SCRIPT.replace("size 2", "size 3"), (), "no multiple of"),
        ("a.sh", SCRIPT.replace("node 4", "node 8"), (), "has 4"),
        ("a.sh", None, (), "cannot be read"),
    ],
)
def test_wrong_files_are_one_line(
    name: str, text: str | None, words: tuple[str, ...], said: str, meshwright: Any, tiny: str, tmp_path: pathlib.Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = meshwright("advise", name, "--cluster", "dgx-h100:4", "--model", tiny, *words)
    if said == "16":  # three of four devices are legal: the plan uses some of the cluster
        assert done.code == 0 and "data 3" in done.out
        return
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1 and not done.out
