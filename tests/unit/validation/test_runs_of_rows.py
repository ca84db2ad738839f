"""What a row of a published table becomes: the model, degrees, batch and machine that it states, and nothing else."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import Any

import pytest

from meshwright import validation
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.validation import Skipped, megatron_sc21_weak_scaling
from meshwright.validation._runs import Run


def rows(name: str) -> list[dict[str, str]]:
    with validation.set_file(name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def runs(kind: str, entries: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> dict[int, Run]:
    """Return the run of every row, by place, instead of predicting it."""
    module = registry.load("validation", kind, "measured set")
    found: list[Run] = []

    def kept(run: Run) -> None:
        found.append(run)
        raise InputError(f"kept {len(found) - 1}")

    for name in ("predict", "least_recomputed"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, kept)
    skipped = module.points(entries)
    assert all(isinstance(one, Skipped) and one.row == i for i, one in enumerate(skipped, 1))
    return {i: found[int(one.reason.split()[1])] for i, one in enumerate(skipped) if one.reason.startswith("kept ")}


def number(row: Mapping[str, str], *names: str) -> int:
    """Return the product of the numbers in some columns, the first of each; a cell without one counts 1."""
    product = 1
    for name in names:
        told = re.match(r"\d+", row[name])
        product *= int(told[0]) if told else 1
    return product


def stated(run: Run, row: Mapping[str, str], **columns: str) -> None:
    """Compare a run of GPT-3's family with the columns of its row: degrees, batch, layers, sizes."""
    (strategy,) = run.strategies
    blocks = [op for op in run.graph.ops if op.kind not in ("embedding", "head")]
    has: dict[str, Any] = {
        "tensor": strategy.tensor, "data": strategy.data, "pipeline": run.pipeline, "global_batch": run.global_batch,
        "micro_batch": run.micro_batch, "layers": len(blocks), "sequence": run.graph.sequence_length,
        "hidden": blocks[0].body[0].size("hidden"),
        "heads": next(one.size("heads") for one in blocks[0].body if one.kind in ("attention", "causal_attention")),
    }  # fmt: skip
    for field, column in columns.items():
        assert has[field] == number(row, column), (field, row)
    assert run.training.precision == "fp16" and strategy.context == strategy.expert == 1


def test_vtrains_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = rows("vtrain_a100")[::31]
    found = runs("vtrain", listed, monkeypatch)
    assert len(found) == len(listed)
    for i, run in found.items():
        stated(run, listed[i], tensor="tp", data="dp", pipeline="pp", global_batch="gbs", micro_batch="mbs", layers="layers",
               sequence="seq", hidden="hidden", heads="heads")  # fmt: skip
        assert run.cluster.n_devices == max(8, number(listed[i], "gpus")) and run.recompute == "full" and run.virtual == 1
        weights = 12 * number(listed[i], "layers") * number(listed[i], "hidden") ** 2 + 51200 * number(listed[i], "hidden")
        assert run.graph.n_parameters == pytest.approx(weights, rel=0.01)
    wrong = {**listed[0], "tp": str(2 * number(listed[0], "tp"))}
    assert runs("vtrain", [wrong], monkeypatch) == {}


def test_korthikantis_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = rows("korthikanti_iteration")
    found = runs("korthikanti_iteration", listed, monkeypatch)
    assert len(found) == len(listed) == 8
    for i, run in found.items():
        row = listed[i]
        stated(run, row, tensor="tp", data="dp", pipeline="pp", global_batch="gbs", micro_batch="mbs", layers="layers",
               sequence="seq", hidden="hidden", heads="heads")  # fmt: skip
        assert run.cluster.n_devices == number(row, "tp", "pp", "dp") and run.virtual == number(row, "interleave")
        with_sequence = row["mode"].startswith("SP")
        assert run.strategies[0].sequence_parallel == with_sequence
        assert run.recompute == ("selective" if with_sequence else "full")
        inner = {one.size("out") for op in run.graph.ops for one in op.body if one.name == "mlp.in"}
        assert inner == {number(row, "ffn")}


def test_the_rows_of_weak_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = rows("megatron_sc21_weak_scaling")
    found = runs("megatron_sc21_weak_scaling", listed, monkeypatch)
    assert len(found) == len(listed) == 10
    for i, run in found.items():
        row = listed[i]
        stated(run, row, tensor="tp_INFERRED", data="dp_INFERRED", pipeline="pp_INFERRED", global_batch="gbs", layers="layers",
               sequence="seq", hidden="hidden", heads="heads_INFERRED")  # fmt: skip
        assert run.cluster.n_devices == number(row, "gpus") == number(row, "tp_INFERRED", "dp_INFERRED", "pp_INFERRED")
        assert run.micro_batch == (4 if run.pipeline == 1 else 2 if row["heads_INFERRED"] == "80" else 1)  # 10 heads a device
        stages = run.pipeline * run.virtual
        assert len(run.graph.ops) - 2 == number(row, "layers") and number(row, "layers") % stages == 0
        assert run.graph.n_parameters == pytest.approx(float(row["params_b"]) * 1e9, rel=0.05)
        n_microbatches = run.global_batch // run.strategies[0].data // run.micro_batch
        assert run.virtual == 1 or n_microbatches % run.pipeline == 0


def test_virtual_stages_are_the_fewest_above_one_that_divide_the_layers() -> None:
    virtual = megatron_sc21_weak_scaling._virtual
    assert [virtual(24, 1, 8), virtual(24, 4, 8), virtual(36, 6, 12), virtual(9, 3, 6), virtual(7, 7, 7)] == [1, 2, 2, 3, 1]
    assert virtual(24, 4, 6) == 1  # interleaving needs as many micro-batches as a multiple of the ranks


def test_seconds_of_a_throughput_are_those_of_equation_3() -> None:
    """96 B s l h^2 (1 + s / 6h + V / 16lh): 96 * 2 * 6 * 5 * 16 * (1 + 1/4 + 1/2) FLOP at 161.28 a second."""
    seconds = megatron_sc21_weak_scaling.step_seconds(
        batch=2, sequence=6, layers=5, hidden=4, vocabulary=160, flops_per_second=161.28
    )
    assert seconds == pytest.approx(96 * 2 * 6 * 5 * 16 * 1.75 / 161.28)


def test_the_rows_of_zero_3_against_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = rows("megatron_sc21_zero3_vs_ptd")
    found = runs("megatron_sc21_zero3_vs_ptd", listed, monkeypatch)
    assert len(found) == len(listed) == 12
    for i, run in found.items():
        row, (strategy,) = listed[i], run.strategies
        stated(run, row, global_batch="gbs", micro_batch="mbs")
        assert strategy.n_devices * run.pipeline == run.cluster.n_devices == number(row, "gpus")
        sharded = row["scheme"] == "ZeRO-3"
        assert (strategy.shard, strategy.tensor, run.training.gradient_bytes) == ((3, 1, 2) if sharded else (0, 8, 4))
        assert run.pipeline * strategy.tensor == (1 if sharded else number(row, "mp_size"))
        assert run.graph.n_parameters == pytest.approx(float(row["params_b"]) * 1e9, rel=0.01) and run.recompute == "full"


def test_the_rows_of_megatron_bridge_and_mlperf(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind, gpus in (("megatron_bridge_perf", "megatron_bridge", "n_gpus"), ("mlperf_llm_pretrain", "mlperf", "")):
        listed = rows(name)
        found = runs(kind, listed, monkeypatch)
        assert len(found) > len(listed) // 3
        for i, run in found.items():
            row, (strategy,) = listed[i], run.strategies
            used, size = run.used_of_domain
            n_devices = strategy.n_devices * run.pipeline
            assert run.cluster.n_devices * used == pytest.approx(n_devices * size, rel=0.2) or n_devices < 8
            assert run.global_batch == number(row, "gbs") and strategy.sequence_parallel == (strategy.tensor > 1)
            assert run.virtual == 1 or run.pipeline > 1
            if gpus:
                assert n_devices == number(row, gpus) and run.graph.sequence_length == number(row, "sequence_length")
                assert run.training.gradient_bytes == 2
            if row["tp"].strip():
                assert (strategy.tensor, run.pipeline, strategy.context) == (
                    number(row, "tp"), number(row, "pp"), number(row, "cp"),
                )  # fmt: skip
            assert strategy.shard in ((1, 3) if strategy.data * strategy.context > 1 else (0,))
