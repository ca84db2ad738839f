"""Goodput of jobs as it was when this was written, for rates and recovery that the test states."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.cluster import Device
from meshwright.core.framework import Framework
from meshwright.core.graph import Graph, Op, Operator
from meshwright.core.problem import MixedPrecision
from meshwright.sizing import lower_bounds
from meshwright.sizing.failures import FailureRates
from meshwright.sizing.goodput import Recovery, Upkeep, daly_interval, effective, goodput, spares_needed
from recorded import Recorded

DAY = 86400.0
RATES = FailureRates(20000 * DAY, 9000 * DAY, 30000 * DAY, 50000 * DAY, 12, "own")
RECOVERY = Recovery(300.0, 2e10, 1e10)


def said(rates: FailureRates, recovery: Recovery, state: float, n_devices: int, storage: float = 0.0) -> Any:
    try:
        return goodput(rates, recovery, state, n_devices, 8, storage)
    except InputError as error:
        return str(error)


def test_jobs_train_for_as_long_as_before(recorded: Recorded) -> None:
    repaired = replace(RECOVERY, repair_seconds=2 * DAY)
    many = replace(RATES, device_seconds=50 * DAY)
    beside = replace(RECOVERY, asynchronous=True)
    slow = replace(beside, storage_bytes_per_second=1e9)
    found = {
        "plain": said(RATES, RECOVERY, 1e12, 1000), "small": said(RATES, RECOVERY, 1e9, 5),
        "storage": said(RATES, RECOVERY, 1e12, 1000, 1e11), "beside": said(RATES, beside, 1e12, 1000),
        "slow": said(RATES, slow, 1e12, 1000), "never": said(FailureRates(math.inf), RECOVERY, 1e12, 64),
        "hopeless": said(many, replace(RECOVERY, restart_seconds=1e5), 1e15, 10**5),
        "repair": said(RATES, repaired, 1e12, 1000),
        "spares": said(RATES, replace(repaired, spare_nodes=1), 1e12, 4000),
        "enough": said(RATES, replace(repaired, spare_nodes=-1), 1e12, 4000),
        "away": said(many, replace(repaired, repair_seconds=1e8), 1e9, 10**4),
        "replan": said(RATES, replace(repaired, replan_seconds=60.0), 1e12, 4000),
        "replan with spares": said(RATES, replace(repaired, replan_seconds=0.0, spare_nodes=2), 1e12, 4000),
        "many spares": said(RATES, replace(repaired, replan_seconds=9.0, spare_nodes=151), 1e12, 4000),
    }  # fmt: skip
    recorded(found)
    upkeep = Upkeep(RATES, RECOVERY, storage_per_device=False)
    recorded([upkeep.of(1e12, 100, 8), replace(upkeep, storage_per_device=True).of(1e12, 100, 8)], "upkeep")


def test_parts_of_goodput_are_as_before(recorded: Recorded) -> None:
    pairs = [(1.0, 100.0), (10.0, 100.0), (199.0, 100.0), (200.0, 100.0), (300.0, 100.0), (5.0, math.inf), (0.0, 10.0)]
    recorded([daly_interval(*pair) for pair in pairs], "daly")
    spans = [
        (90.0, 10.0, 5.0, 1000.0), (90.0, 10.0, 5.0, 20.0), (1.0, 99.0, 5.0, 1e6), (0.9, 99.0, 5.0, 1e6),
        (90.0, 10.0, 5.0, 0.1),
        (9.0, 1.0, 5001.0, 10.0), (9.0, 1.0, 500.0, 1.0), (5.0, 1.0, 2.0, math.inf),
    ]  # fmt: skip
    recorded([effective(*span) for span in spans], "effective")
    recorded([spares_needed(mean, most) for mean in (0.0, 0.005, 0.1, 1.0, 7.5, 300.0) for most in (0.01, 0.3)], "spares")
    recorded([[RATES.per_second(n, 8), RATES.hardware_per_second(n, 8)] for n in (1, 8, 9, 12, 13, 100)], "rates")


def test_the_least_of_each_operator_is_as_before(recorded: Recorded) -> None:
    """An own device and framework; each kind of operator by itself, trained, frozen, and without a gradient of its input."""
    peaks = (("bf16", 1e13), ("fp32", 1e12), ("fp8", 2e13))
    device = Device("own", peaks, 1e10, 1e11, source="own", matmul_ratio=0.5, attention_ratio=0.625, memory_ratio=0.25)
    framework = Framework(name="own", memory_passes_ratio=3.0, compute_ratio=1.25)
    heads = {"sequence": 64, "key_sequence": 32, "heads": 4, "kv_heads": 4, "head": 8, "value": 8}
    wide = {"sequence": 64, "hidden": 32}
    sizes = {
        "matmul": {"sequence": 64, "in": 32, "out": 16}, "attention": heads, "causal_attention": heads, "norm": wide,
        "grouped_matmul": {"sequence": 64, "top_k": 2, "experts": 4, "in": 8, "out": 4}, "elementwise": wide, "softmax": wide,
        "other": {"sequence": 4}, "convolution": {"sequence": 64, "in": 3, "out": 5}, "embedding": wide,
    }  # fmt: skip
    found: dict[str, Any] = {}
    for kind, dims in sizes.items():
        n_parameters = 512 if "matmul" in kind or kind in ("norm", "convolution") else 0
        plain = Operator(kind, kind, dims=tuple(dims.items()), n_parameters=n_parameters, flops=1e6 if kind == "other" else 0.0)
        fixed = replace(plain, input_gradient=False)
        frozen = replace(plain, n_frozen_parameters=n_parameters)
        for name, operator in {"": plain, "no gradient of the input": fixed, "frozen": frozen}.items():
            graph = Graph("own", (Op("a", "layer", body=(operator,)), Op("b", "layer", body=(operator,), like=0)), ())
            for precision in ("bf16", "fp8"):
                seconds = lower_bounds.device_seconds(graph, device, MixedPrecision.of(precision), framework)
                found[f"{kind} {name} {precision}"] = seconds
            found[f"{kind} {name} bytes"] = lower_bounds.least_state_bytes(graph, MixedPrecision.of("bf16"))
    recorded(found)
