"""Layers split over a tensor axis: what is wrong shows before any process starts, in outputs or in gradients."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.parallel import shard_equivalence, tensor_parallel  # noqa: E402


class Attention(torch.nn.Module):
    """Takes its products apart by numbers of its own, as many modules do."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.width, self.n_heads, self.head = width, n_heads, width // n_heads
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width) for _ in range(4))
        self.norm = torch.nn.LayerNorm(self.head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        sizes = (batch, length, self.n_heads, self.head)
        q, k, v = (layer(x).view(sizes).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(self.norm(q), k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, self.width))


class Residual(torch.nn.Module):
    """Adds to what its attention gives."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(32, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + self.attention(x),)


class Routed(torch.nn.Module):
    """Has a router whose name is also that of a product that others split."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = torch.nn.Linear(32, 4), torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.down(self.up(x).relu()) * self.gate(x).softmax(-1).amax(-1, keepdim=True),)


def check(layer: torch.nn.Module, degree: int, tp_plan: dict[str, str]) -> None:
    """Check one layer on random values."""
    torch.manual_seed(0)
    shard_equivalence.check_sum(layer, [torch.randn(2, 8, 32)], degree, tp_plan, "plan.json: stage 0: layer 'layers.0'")


@pytest.mark.parametrize("degree", [2, 4])
def test_numbers_of_heads_and_features_of_a_module_are_shared_with_its_products(degree: int) -> None:
    check(Residual(), degree, {"norm": "between"})


def test_a_weight_between_split_products_must_be_named_for_ranks_hold_a_part_of_its_gradient() -> None:
    with pytest.raises(
        InputError, match=r"a part only of the gradient of 'attention.norm.weight'.*'attention.norm': 'between'"
    ):
        check(Residual(), 2, {})


def test_a_split_router_is_refused_and_may_be_named_whole() -> None:
    with pytest.raises(
        InputError, match=r"layer 'layers.0': split over 2 ranks .*something else than whole; .*'router': 'whole'"
    ):
        check(Routed(), 2, {})
    check(Routed(), 2, {"gate": "whole"})


def test_products_whose_parts_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="it cannot run: RuntimeError"):
        check(Mixed(), 2, {})


class Mixed(torch.nn.Module):
    """Feeds a row product what no column product gave."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.other = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32), torch.nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.down(self.other(x)) + self.up(x).sum(-1, keepdim=True),)


@pytest.mark.parametrize("degree", [2, 4])
def test_the_parts_of_a_layer_hold_its_weights_once(degree: int) -> None:
    layer = Attention(32, 4)
    held = [shard_equivalence.part_of(layer, rank, degree, {}) for rank in range(degree)]
    assert torch.equal(torch.cat([part.q.weight for part in held]), layer.q.weight)
    assert torch.equal(torch.cat([part.out.weight for part in held], 1), layer.out.weight)
    assert all(torch.equal(part.out.bias, layer.out.bias) for part in held)
    assert layer.n_heads == 4, "the layer itself stays whole"


class Direct(torch.nn.Module):
    """Has products and norm side by side, so that each product gathers its own input; may mix tokens between."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.mixes = mixes

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = self.norm(x.cumsum(1) if self.mixes else x)
        return (x + self.down(self.up(y).relu()),)


@pytest.mark.parametrize("gathered", ["once", "by product"])
def test_layers_work_on_parts_of_sequences_between_their_products(gathered: str) -> None:
    torch.manual_seed(0)
    layer, tp_plan = (Residual(), {"norm": "between"}) if gathered == "once" else (Direct(mixes=False), {})
    assert tensor_parallel.gathers(layer, tp_plan) == (({"attention"}, set()) if gathered == "once" else (set(), {"up"}))
    shard_equivalence.check_sequence(layer, [torch.randn(2, 8, 32)], 2, tp_plan, "x")


def test_layers_that_mix_tokens_are_refused_parts_of_sequences() -> None:
    torch.manual_seed(0)
    values: Any = [torch.randn(2, 8, 32)]
    told = "on parts of a sequence, it computes something else than whole"
    with pytest.raises(InputError, match=f"sequence parallelism of degree 2: {told}"):
        shard_equivalence.check_sequence(Direct(mixes=True), values, 2, {}, "x")
    with pytest.raises(InputError, match=f"context degree 2: {told}"):
        shard_equivalence.check_context(Direct(mixes=True), values, 2, "x")
    shard_equivalence.check_context(Direct(mixes=False), values, 2, "x")
    shard_equivalence.check_context(Residual(), values, 4, "x")
