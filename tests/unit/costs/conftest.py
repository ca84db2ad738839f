"""A small GPT, a device with round figures, and a network whose collectives are one formula:
cases that can be computed by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import MixedPrecision, ModelSpec, Problem
from meshwright.network import Network

SEQUENCE, HIDDEN, HEADS, VOCABULARY = 512, 1024, 16, 4096


class _Axis:
    """Every collective takes the bytes of its ring at 100 GB/s."""

    def __init__(self, size: int) -> None:
        self.size = size

    def seconds(self, kind: str, n_bytes: float) -> float:
        return (2.0 if kind == "all_reduce" else 1.0) * (self.size - 1) / self.size * n_bytes / 100e9


@pytest.fixture(autouse=True)
def plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "axis", lambda network, groups: _Axis(groups.shape[1]))


def device(**figures: float) -> Device:
    return Device("plain", (("bf16", 100e12), ("fp16", 100e12), ("fp8", 200e12)), 80e9, 1e12,
    **{"launch_seconds": 0.0, "memory_ratio": 1.0, "matmul_ratio": 1.0, **figures})  # type: ignore[arg-type]  # fmt: skip


def cluster(n_devices: int, *kinds: Device) -> Cluster:
    ids = np.arange(n_devices)
    switch = np.full(n_devices, n_devices)
    links = Links(np.r_[ids, switch], np.r_[switch, ids], np.full(2 * n_devices, 1e11), np.zeros(2 * n_devices))
    kinds = kinds or (device(),)
    return Cluster("plain", kinds, ids * len(kinds) // n_devices, 1, links, np.zeros((1, n_devices), dtype=np.int64))


def product(name: str, n_in: int, n_out: int, axis: str, saved: int = 0) -> Operator:
    dims = (("sequence", SEQUENCE), ("in", n_in), ("out", n_out))
    return Operator(name, "matmul", dims, axis, n_in * n_out, saved_elements=SEQUENCE * saved)


def stream(name: str, kind: str, saved_tensors: int, masks: int = 0) -> Operator:
    elements = SEQUENCE * HIDDEN
    dims = (("sequence", SEQUENCE), ("hidden", HIDDEN), *((("inputs", 2),) if kind == "elementwise" else ()))
    return Operator(
        name, kind, dims, "sequence", 2 * HIDDEN if kind == "norm" else 0, saved_elements=saved_tensors * elements,
        saved_extra_bytes=masks * elements, saved_axis="sequence",
    )  # fmt: skip


def gpt_layer() -> tuple[Operator, ...]:
    """A layer as in Korthikanti et al., section 4: it keeps s b h (34 + 5 a s / h) bytes."""
    s, h, a = SEQUENCE, HIDDEN, HEADS
    core = (("sequence", s), ("key_sequence", s), ("heads", a), ("kv_heads", a), ("head", h // a), ("value", h // a))
    square = a * s * s
    return (
        stream("attention.norm", "norm", 2),
        product("attention.query_key_value", h, 3 * h, "out", 3 * h),
        Operator("attention.core", "attention", core, "heads", selective=True),
        Operator("attention.softmax", "softmax", (("sequence", s), ("hidden", a * s)), "hidden", saved_elements=2 * square,
                 saved_extra_bytes=square, selective=True),
        product("attention.output", h, h, "in", h),
        stream("attention.residual", "elementwise", 0, 1),
        stream("mlp.norm", "norm", 2),
        product("mlp.in", h, 4 * h, "out", 4 * h),
        Operator("mlp.activation", "elementwise", (("sequence", s), ("hidden", 4 * h), ("inputs", 1)), "hidden",
                 saved_elements=4 * s * h),
        product("mlp.out", 4 * h, h, "in"),
        stream("mlp.residual", "elementwise", 0, 1),
    )  # fmt: skip


def moe_layer(n_experts: int = 8, top_k: int = 2) -> tuple[Operator, ...]:
    """A feed-forward layer of routed experts."""
    s, h = SEQUENCE, HIDDEN
    token = (("sequence", s), ("top_k", top_k))
    return (
        stream("norm", "norm", 1),
        Operator("dispatch", "dispatch", (*token, ("hidden", h))),
        Operator("experts.in", "grouped_matmul", (*token, ("experts", n_experts), ("in", h), ("out", h)), "out",
                 n_experts * h * h, expert=True, saved_elements=s * top_k * h),
        Operator("experts.out", "grouped_matmul", (*token, ("experts", n_experts), ("in", h), ("out", h)), "in",
                 n_experts * h * h, expert=True, saved_elements=s * top_k * h),
        Operator("combine", "combine", (*token, ("hidden", h))),
    )  # fmt: skip


def graph(n_layers: int = 4, layer: Callable[[], tuple[Operator, ...]] = gpt_layer) -> Graph:
    embedding = Operator("table", "embedding", (("sequence", SEQUENCE), ("vocabulary", VOCABULARY), ("hidden", HIDDEN)),
                         "vocabulary",
                         VOCABULARY * HIDDEN)  # fmt: skip
    head = (
        product("logits", HIDDEN, VOCABULARY, "out"),
        Operator("loss", "cross_entropy", (("sequence", SEQUENCE), ("vocabulary", VOCABULARY)), "vocabulary",
                 saved_extra_bytes=4 * SEQUENCE * VOCABULARY),
    )  # fmt: skip
    ops = (
        Op("embed", "embedding", (embedding,), 0),
        *(Op(f"layers.{i}", "attention_mlp", layer(), 1) for i in range(n_layers)),
        Op("head", "head", head, n_layers + 1),
    )
    return Graph("small", ops, tuple(Edge(i, i + 1, SEQUENCE * HIDDEN) for i in range(n_layers + 1)), SEQUENCE)


def problem(n_devices: int = 8, training: MixedPrecision | None = None, **parts: object) -> Problem:
    model = graph(**parts)  # type: ignore[arg-type]
    training = training or MixedPrecision(fragmentation_ratio=0.0)  # so that bytes are those of the tensors
    return Problem(ModelSpec("small", "test", "small", model), cluster(n_devices), training=training)
