"""DeepSpeed's files as people have them: what the training script decides, ZeRO++, and batches of another cluster."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import frameworks, models
from meshwright.base.errors import InputError
from meshwright.core.run_config import RunConfig

MODULE, GRAPH = frameworks.load("deepspeed"), models.read("gpt2").graph


def read(folder: pathlib.Path, **said: Any) -> RunConfig:
    path = folder / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 3}, **said}, indent=1))
    config: RunConfig = MODULE.read(str(path), GRAPH, 16)
    return config


def test_what_the_trainer_decides_is_assumed_and_said(tmp_path: pathlib.Path) -> None:
    """As in the file that the pages of transformers start from."""
    auto = {"enabled": "auto"}
    said = read(
        tmp_path, fp16=auto, bf16=auto, gradient_accumulation_steps="auto", train_batch_size="auto",
        train_micro_batch_size_per_gpu="auto",
    )  # fmt: skip
    assert said.precision == "bf16" and (said.plan.n_microbatches, said.plan.micro_batch) == (1, 1)
    text = "\n".join(said.warnings)
    assert "bf16 and fp16: auto" in text and "bf16 is assumed" in text
    assert all(f"{name} is left to the training script's own options; 1 is assumed" in text for name in (
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))  # fmt: skip
    assert read(tmp_path, fp16={"enabled": True}, bf16=auto, train_batch_size=16).precision == "fp16"
    with pytest.raises(InputError, match="keep one"):
        read(tmp_path, fp16={"enabled": True}, bf16={"enabled": True}, train_batch_size=16)


def test_what_is_priced_otherwise_is_said_with_its_line(tmp_path: pathlib.Path) -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": False}
    said = read(tmp_path, zero_optimization=zero, train_batch_size=16, bf16={"enabled": True}, elasticity={}, mine=3)
    text = "\n".join(said.warnings)
    assert "line 4: zero_hpz_partition_size: weights are priced as gathered from all data ranks" in text
    assert "line 5: zero_quantized_weights: weights are priced as gathered without it" in text
    assert "quantized_gradients" not in text and "nothing is known of mine" in text and text.count("nothing is known") == 1


def test_a_sequence_axis_and_batches_of_another_cluster_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="sequence_parallel_size is 2; plans of it have no such axis"):
        read(tmp_path, sequence_parallel_size=2, train_batch_size=16)
    assert read(tmp_path, sequence_parallel_size=1, train_batch_size=16).plan.n_devices == 16
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    with pytest.raises(InputError, match="it is that of 8 devices: give a cluster of so many"):
        read(tmp_path, train_batch_size=64, **sizes)
    with pytest.raises(InputError, match=r"16 data ranks$"):
        read(tmp_path, train_batch_size=65, **sizes)


def test_values_that_change_a_step_are_said(tmp_path: pathlib.Path) -> None:
    zero = {"stage": 3, "overlap_comm": False, "stage3_param_persistence_threshold": 1e10, "stage3_prefetch_bucket_size": 5e7}
    said = read(
        tmp_path, zero_optimization=zero, train_batch_size=16, bf16={"enabled": True, "bf16_optimizer_states": True},
        activation_checkpointing={"number_checkpoints": 12, "cpu_checkpointing": True},
    )  # fmt: skip
    assert [one.partition("ds.json: ")[2] for one in said.warnings] == [
        "line 4: overlap_comm: collectives are priced as overlap_comm true runs them",
        "line 5: stage3_param_persistence_threshold: weights are priced as gathered with DeepSpeed's own 100000",
        "line 11: bf16_optimizer_states: masters, gradients and moments are priced in four bytes",
        "line 15: cpu_checkpointing: what recomputation keeps is priced on the device",
    ]
    scattered = read(tmp_path, zero_optimization={"stage": 2, "reduce_scatter": False}, train_batch_size=16)
    assert any("reduce_scatter: gradients are priced as scattered" in one for one in scattered.warnings)


@pytest.mark.parametrize(
    ("zero", "variant"),
    [
        ({"stage": 0}, ""), ({"stage": 1}, "late_reduce"), ({"stage": 1, "overlap_comm": True}, ""),
        ({"stage": 2, "overlap_comm": False}, "late_reduce"), ({"stage": 2, "overlap_comm": True}, ""), ({"stage": 3}, ""),
        ({"stage": 2, "overlap_comm": 1}, ""), ({"stage": 2, "overlap_comm": 0}, "late_reduce"),
    ],
)  # fmt: skip
def test_gradients_are_priced_after_the_backward_pass_where_deepspeed_reduces_them_so(
    tmp_path: pathlib.Path, zero: dict[str, Any], variant: str
) -> None:
    """As overlap_comm_valid of its configuration says."""
    said = read(tmp_path, zero_optimization=zero, train_batch_size=16)
    assert (said.variant, said.warnings[1:]) == (variant, ())
    trained_by = frameworks.variant("deepspeed", variant)
    assert (trained_by.overlaps_reduce, trained_by.overlaps_scatter) == (not variant, not variant)
    assert zero["stage"] in trained_by.limits.shards and not frameworks.plain("deepspeed").overlaps_whole_reduce
    assert read(tmp_path, zero_optimization=zero, train_batch_size=1, train_micro_batch_size_per_gpu=1,
                tensor_parallel={"autotp_size": 16}).variant == ""  # fmt: skip


def test_buffers_of_another_size_are_said(tmp_path: pathlib.Path) -> None:
    said = read(tmp_path, zero_optimization={"stage": 2, "overlap_comm": True, "reduce_bucket_size": 2e8,
                                             "allgather_bucket_size": 5e8}, train_batch_size=16)  # fmt: skip
    assert [one.partition(": line ")[2] for one in said.warnings if "bucket" in one] == [
        "5: reduce_bucket_size: its buffer is priced with DeepSpeed's own 5e+08 elements"
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"overlap_comm": "yes"}, "overlap_comm is 'yes'; it must be true or false"),
        ({"reduce_bucket_size": "lots"}, "reduce_bucket_size is 'lots'; it must be a number"),
        ({"allgather_bucket_size": -1}, "allgather_bucket_size is -1; it must be a number from 0 on"),
    ],
)
def test_switches_and_sizes_of_another_kind_are_refused(tmp_path: pathlib.Path, entry: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, zero_optimization={"stage": 1} | entry, train_batch_size=16)
    auto = dict.fromkeys(entry, "auto")
    assert read(tmp_path, zero_optimization={"stage": 1} | auto, train_batch_size=16).variant == "late_reduce"
