"""``meshwright advise``: what people run, read, priced, and made quicker; wrong files in one line."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import pytest

from meshwright.api.advise import climbing

SCRIPT = """torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --micro-batch-size 1 \\
  --global-batch-size 32 --seq-length 128 --tensor-model-parallel-size 2 \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
  --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"""
UNSET = (
    "run.sh: CUDA_DEVICE_MAX_CONNECTIONS is not set in it; beside a tensor axis Megatron-LM stops before Blackwell unless it "
    "is 1"
)
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
    assert (entry["framework"], entry["legal"], entry["fits"], entry["warnings"]) == ("megatron", True, True, [UNSET])
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
    (tmp_path / "run.sh").write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS=4\n{SCRIPT}")
    other = meshwright("advise", "run.sh", *asked, "--json").json
    assert not other["legal"] and other["warnings"] == []
    assert other["refusals"][-1].startswith("run.sh: line 1: CUDA_DEVICE_MAX_CONNECTIONS is 4; beside a tensor axis")


def test_ctrl_c_between_two_changes_keeps_the_best_plan(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    looked, searched = [], climbing._with

    def pressed(*change: Any) -> Any:
        looked.append(change)
        signal.raise_signal(signal.SIGINT)
        return searched(*change)

    monkeypatch.setattr(climbing, "_with", pressed)
    done = meshwright("advise", "run.sh", "--cluster", "dgx-h100:4", "--model", tiny, "--json")
    assert done.code == 0 and len(looked) == 1 and "stopping; the best plan so far" in done.err
    (rung,) = done.json["ladder"]
    assert (rung["axis"], rung["step_seconds"]) == ("rest", done.json["best"]["step_seconds"])


def test_a_search_that_was_stopped_is_not_said_to_have_seen_all(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    words = ("advise", "run.sh", "--cluster", "dgx-h100:4", "--model", tiny)
    stopped, whole = meshwright(*words, "--time-limit", "1us").out, meshwright(*words).out
    assert "stopped before its end, as asked" in stopped and "stopped before its end" not in whole
    assert "no plan of this framework fits here" not in stopped


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
    first, second = entry["warnings"]
    assert first == "a.yaml: line 3: nothing is known of weather; it is left out"
    assert entry["framework"] == "accelerate:no_sync" and "every device holds whole gradients" in second
    (tmp_path / "b.sh").write_text(
        SCRIPT.replace(
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "--recompute-granularity selective --use-megatron-fsdp --ckpt-format fsdp_dtensor",
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


def test_a_change_that_names_nothing_else_takes_what_is_said_when_it_is_made_by_hand(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path
) -> None:
    edits = {
        "tensor": ("--tensor-model-parallel-size {}", "--tensor-model-parallel-size {}"),
        "micro_batch": ("--micro-batch-size {}", "--micro-batch-size {}"),
        "recompute": ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", ""),
    }
    script = SCRIPT.replace("model-parallel-size 2", "model-parallel-size 2 --sequence-parallel --tp-comm-overlap")
    (tmp_path / "run.sh").write_text(script)
    entry = meshwright("advise", "run.sh", "--cluster", "dgx-h100:4", "--model", tiny, "--json").json
    tried = 0
    for rung in entry["changes"]:
        if rung["also"] or rung["step_seconds"] is None or (rung["axis"], rung["after"]) == ("recompute", "full,none"):
            continue
        old, new = (text.format(rung[which]) for text, which in zip(edits[rung["axis"]], ("before", "after"), strict=True))
        assert old in script
        edited = script.replace(old, new).replace(
            "--sequence-parallel --tp-comm-overlap" if (rung["axis"], rung["after"]) == ("tensor", "1") else "!", ""
        )
        (tmp_path / "edited.sh").write_text(edited)
        again = meshwright("advise", "edited.sh", "--cluster", "dgx-h100:4", "--model", tiny, "--json").json
        assert again["step_seconds"] == rung["step_seconds"], rung
        tried += 1
    assert tried >= 2


def test_changes_of_a_run_on_part_of_a_cluster_use_no_more_devices_than_it_does(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    asked = ("--model", tiny, "--json")
    whole = meshwright("advise", "run.sh", "--cluster", "dgx-h100:4", *asked).json
    part = meshwright("advise", "run.sh", "--cluster", "dgx-h100:16", *asked).json
    assert part["warnings"] == ["run.sh: runs on 4 of the 16 devices of dgx-h100:16; so do the changes below", UNSET]
    assert (part["step_seconds"], part["ladder"]) == (whole["step_seconds"], whole["ladder"])
    assert {device for stage in part["best"]["stages"] for device in stage["devices"]} == {0, 1, 2, 3}


def test_a_change_names_what_else_its_plan_has_otherwise(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    """Without sequence parallelism a script is not among what is searched: every plan with a tensor axis has it."""
    (tmp_path / "run.sh").write_text(SCRIPT.replace("--seq-length 128", "--seq-length 512"))
    entry = meshwright("advise", "run.sh", "--cluster", "dgx-h100:4", "--model", tiny, "--json").json
    found = {rung["axis"]: rung["also"] for rung in entry["changes"] if rung["step_seconds"] is not None}
    what = "with sequence parallelism and tensor communication beside products"
    assert found["tensor"] == [] and found["recompute"] == [what], found
    text = meshwright("advise", "run.sh", "--cluster", "dgx-h100:4", "--model", tiny).out
    assert f"({what}): " in text


def test_a_plan_that_no_devices_can_run_is_one_line_with_the_file(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.yaml").write_text(
        YAML.replace(
            "num_processes: 4",
            "num_processes: 4\nparallelism_config: {parallelism_config_tp_size: 3, parallelism_config_dp_shard_size: 1}",
        )
    )
    done = meshwright("advise", "a.yaml", "--cluster", "dgx-h100:4", "--model", tiny)
    assert done.code == 2 and done.err.startswith("meshwright: a.yaml: ") and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(("micro", "told"), [(4, "yes"), (16, "exactly as predicted it fits"), (28, "GiB")])
def test_a_run_that_lacks_only_the_room_for_what_predictions_miss_says_so(
    micro: int, told: str, tmp_path: pathlib.Path
) -> None:
    """A device that is 76 % full beside "lacks 3.7 GiB" alone contradicts itself."""
    from meshwright.api import advise
    from meshwright.commands.advise import text_of
    from meshwright.core.problem import Stop

    path = tmp_path / "ds.json"
    path.write_text(
        f'{{"zero_optimization": {{"stage": 3}}, "bf16": {{"enabled": true}}, "train_batch_size": {8 * micro}, '
        f'"train_micro_batch_size_per_gpu": {micro}}}'
    )
    advice = advise.advise(str(path), "dgx-h100:8", "gpt2-xl", stop=Stop(seconds=0.05))
    (fits,) = [line for line in text_of(advice, str(path)).splitlines() if line.startswith("fits: ")]
    assert fits.endswith(told) and ("room that predicted peaks have to leave" in fits) == (micro == 16)


def test_a_plan_of_ours_is_advised_on_within_its_framework(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    asked = ("--cluster", "dgx-h100:4")
    question = ("--global-batch", "16", "--sequence-length", "512", "--for", "megatron", "--set", "recompute=full", "--json")
    entry = meshwright("plan", tiny, *asked, *question, "--out", "plan.json").json
    said = meshwright("advise", "plan.json", *asked, "--json").json
    assert (said["framework"], said["legal"], said["step_seconds"]) == (entry["framework"], True, entry["step_seconds"])
    assert said["best"]["step_seconds"] < said["step_seconds"] and "recompute" in {rung["axis"] for rung in said["ladder"]}
    other = meshwright("advise", "plan.json", *asked, "--for", "fsdp2")
    assert other.code == 2 and other.err.startswith("meshwright: --for fsdp2: cannot run this plan: sharding level 1")
    (tmp_path / "plan.json").write_text((tmp_path / "plan.json").read_text().replace('"stages"', '"stairs"'))
    wrong = meshwright("advise", "plan.json", *asked)
    assert wrong.code == 2 and wrong.err.startswith("meshwright: plan.json: ") and wrong.err.count("\n") == 1


def test_degrees_of_a_log_that_are_other_ones_than_the_scripts_are_said(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path
) -> None:
    arguments = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "micro_batch_size": 4, "world_size": 4}
    arguments |= {"global_batch_size": 32, "seq_length": 128, "num_layers": 4, "bf16": True}
    told = "\n".join(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items())
    step = "elapsed time per iteration (ms): 20.0 | learning rate: 1E-5 | global batch size:    32 | lm loss: 7.1E+00 |"
    steps = "\n".join(
        f" [2025-11-01 10:00:{k:02d}] iteration {k:8d}/ 100 | consumed samples: {k * 32} | {step}" for k in range(1, 9)
    )
    (tmp_path / "run.log").write_text(f"------ arguments ------\n{told}\n------ end of arguments ------\n{steps}\n")
    (tmp_path / "run.sh").write_text(SCRIPT)
    asked = ("--cluster", "dgx-h100:4", "--model", tiny, "--against", "run.log", "--json")
    notes = meshwright("advise", "run.sh", *asked).json["against"]["notes"]
    for what in ("tensor 1, for a configuration with 2", "pipeline 2, for a configuration with 1", "micro-batch 4, for a"):
        assert any(f"run.log: {what}" in note for note in notes), (what, notes)
