"""Scripts that start MaxText and nanotron are read with the files that they name and what they set over them."""

from __future__ import annotations

import functools
import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.api.advise import framework_of_file
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, Problem
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _command_line

MAXTEXT = """export EXECUTABLE="train"
for ARGUMENT in "$@"; do
    IFS='=' read -r KEY VALUE <<< "$ARGUMENT"
    export "$KEY"="$VALUE"
done
python3 -m maxtext.trainers.pre_train.$EXECUTABLE "${CONFIGS:-$PWD}"//base.yml\\
    ici_fsdp_parallelism=-1 ici_tensor_parallelism=2 per_device_batch_size=1 remat_policy=full weather=3 \\
    max_target_length=128 base_output_directory=$OUTPUT
"""
NANOTRON = """model: {model_config: {num_hidden_layers: 16}}
parallelism: {dp: 4, pp: 1, tp: 2}
tokens: {sequence_length: 128, micro_batch_size: 2, batch_accumulation_per_replica: 3}
"""
SCRIPT = "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node=8 \\\n  run_train.py --config-file configs/mine.yaml\n"


@functools.cache
def posed(name: str) -> Problem:
    return api.make_problem("llama-3.2-1b", "dgx-h100:8", framework=name, batch=Batch(8, 1, 128))


def read(name: str, path: pathlib.Path) -> RunConfig:
    assert framework_of_file(str(path)) == name
    return frameworks.load(name).read(str(path), posed(name).graph, 8)


def test_settings_of_maxtexts_command_line_are_read_with_their_lines(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(MAXTEXT)
    said = read("maxtext", path)
    assert said.plan.stages[0].strategy == Strategy(4, 2, shard=3) and set(said.plan.stages[0].recompute) == {"none", "full"}
    assert (said.plan.micro_batch, said.sequence_length) == (2, 128)
    assert said.warnings == (f"{path}: line 7: nothing is known of weather; it is left out",)
    path.write_text(MAXTEXT.replace("remat_policy=full", "remat_policy=mine"))
    with pytest.raises(InputError, match="remat_policy is mine"):
        read("maxtext", path)
    path.write_text(MAXTEXT + MAXTEXT)
    with pytest.raises(InputError, match="starts MaxText 2 times"):
        read("maxtext", path)


def test_a_file_that_maxtexts_command_names_stands_below_what_it_sets(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python3 MaxText/train.py MaxText/configs/gpu/mine.yml run_name=a per_device_batch_size=2\n")
    with pytest.raises(InputError, match=r"line 1: MaxText/configs/gpu/mine\.yml is not there"):
        read("maxtext", path)
    (tmp_path / "mine.yml").write_text("base_config: base.yml\nper_device_batch_size: 5\nici_data_parallelism: 2\n")
    said = read("maxtext", path)
    assert said.plan.stages[0].strategy == Strategy(8, shard=3, shard_degree=4) and said.plan.micro_batch == 2


def test_nanotrons_script_names_its_file_and_its_processes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    with pytest.raises(InputError, match=r"--config-file is configs/mine\.yaml, which is not there"):
        read("nanotron", path)
    (tmp_path / "mine.yaml").write_text(NANOTRON)
    said = read("nanotron", path)
    assert said.plan.stages[0].strategy == Strategy(4, 2) and (said.plan.micro_batch, said.plan.n_microbatches) == (2, 3)
    path.write_text(SCRIPT.replace("=8", "=4"))
    with pytest.raises(InputError, match="make 8 devices, the command starts 4"):
        read("nanotron", path)


def test_what_nanotrons_launcher_sets_over_its_file_is_read(tmp_path: pathlib.Path) -> None:
    path, launch = tmp_path / "run.sh", "python launcher.py --config-path mine.yaml --run a --slurm --nodes 1 \\\n"
    (tmp_path / "mine.yaml").write_text(NANOTRON)
    path.write_text(
        launch + "  --override tokens.micro_batch_size=5 parallelism.tp=1 parallelism.tp_mode=REDUCE_SCATTER --mine 3\n"
    )
    said = read("nanotron", path)
    assert said.plan.stages[0].strategy == Strategy(4) and said.plan.micro_batch == 5
    assert f"{path}: line 2: nothing is known of --mine; it is left out" in said.warnings
    path.write_text(launch + "  --override optimiser.zero_stage=1\n")
    with pytest.raises(InputError, match=r"line 2: --override optimiser\.zero_stage: the file has no table optimiser"):
        read("nanotron", path)
    path.write_text(launch.replace("--slurm", "") + "  --override tokens.micro_batch_size=5\n")
    said = read("nanotron", path)
    assert said.plan.micro_batch == 2 and any("starts the file as it stands" in one for one in said.warnings)


def test_a_word_in_place_of_a_file_is_no_text_up_to_a_mark() -> None:
    """``<<<`` takes a word; read as ``<<``, it would take all lines that follow."""
    text = 'read -r A <<< "$B"\ntorchrun --nproc-per-node 2 -m train --tensor-model-parallel-size 2\n'
    assert _command_line.options(text, "run.sh") == {"--nproc-per-node": ("2",), "--tensor-model-parallel-size": ("2",)}
