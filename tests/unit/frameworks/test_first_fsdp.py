"""Accelerate's files of PyTorch's first FSDP, which ``accelerate config`` wrote for years, are priced as its second."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import frameworks, models
from meshwright.base.errors import InputError
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy

FILE = """distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_use_orig_params: true
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


def read(folder: pathlib.Path, text: str) -> RunConfig:
    path = folder / "fsdp.yaml"
    path.write_text(text)
    said: RunConfig = frameworks.load("accelerate").read(str(path), models.read("gpt2").graph, 16)
    return said


@pytest.mark.parametrize(
    ("word", "strategy"),
    [
        ("FULL_SHARD", Strategy(16, shard=3)), ("SHARD_GRAD_OP", Strategy(16, shard=2)), ("NO_SHARD", Strategy(16)),
        ("HYBRID_SHARD", Strategy(16, shard=3, shard_degree=8)), ("5", Strategy(16, shard=2, shard_degree=8)),
    ],
)  # fmt: skip
def test_what_it_shards_is_a_word(word: str, strategy: Strategy, tmp_path: pathlib.Path) -> None:
    said = read(tmp_path, FILE.replace("FULL_SHARD", word))
    assert said.plan.stages[0].strategy == strategy and set(said.plan.stages[0].recompute[1:-1]) == {"full"}
    assert sum("is priced as its second" in one for one in said.warnings) == 1
    assert not [one for one in said.warnings if "nothing is known" in one]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("FULL_SHARD", "SOME_SHARD", "fsdp_sharding_strategy is SOME_SHARD; it must be"),
        ("num_machines", "parallelism_config: {parallelism_config_dp_shard_size: 16}\nnum_machines", "of fsdp_version 2"),
        ("FULL_SHARD\n", "HYBRID_SHARD\n  fsdp_version: 1\n", ""),
        ("distributed_type: FSDP", "distributed_type: DEEPSPEED", "is read from DeepSpeed's own JSON file"),
    ],
)  # fmt: skip
def test_what_contradicts_it_is_one_line(old: str, new: str, told: str, tmp_path: pathlib.Path) -> None:
    text = FILE.replace(old, new).replace("num_machines: 2", "num_machines: 3" if not told else "num_machines: 2")
    with pytest.raises(InputError, match=told or "lie on 3 hosts") as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_layers_that_are_not_wrapped_and_weights_not_fetched_ahead_are_said(tmp_path: pathlib.Path) -> None:
    text = FILE.replace("TRANSFORMER_BASED_WRAP", "NO_WRAP\n  fsdp_backward_prefetch: NO_PREFETCH")
    told = [one.partition("fsdp.yaml: ")[2] for one in read(tmp_path, text).warnings]
    assert "line 3: fsdp_auto_wrap_policy is NO_WRAP; layers are priced as sharded one by one" in told
    assert "line 4: fsdp_backward_prefetch is NO_PREFETCH; weights are priced as gathered ahead" in told
    assert not [one for one in read(tmp_path, FILE).warnings if "_prefetch is" in one or "_policy is" in one]
