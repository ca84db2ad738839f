"""Layers split over a tensor axis: what is wrong shows before any process starts, in outputs or in gradients."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.core.plan import Plan, Stage  # noqa: E402
from meshwright.core.strategy import Strategy  # noqa: E402
from meshwright.runtime.job.preflight import check_model  # noqa: E402
from meshwright.runtime.model.sequence import part_of_sequence  # noqa: E402
from meshwright.runtime.parallel import apart, shard_equivalence, tensor_parallel  # noqa: E402


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


class Carries(torch.nn.Module):
    """Carries something of every token that is there to the next one."""

    def __init__(self, scale: float = 1.0, shift: int = 1) -> None:
        super().__init__()
        self.attention, self.shift, self.layer_idx = Attention(32, 4), shift, 0
        self.positions = (0, 1)
        self.share, self.out = torch.nn.Parameter(torch.full((32,), scale)), torch.nn.Parameter(torch.full((32,), scale))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        there = part_of_sequence(mask, 1, *self.positions)[..., None].to(x.dtype)
        carried = torch.nn.functional.pad(x * there, (0, 0, self.shift, 0))[:, : x.shape[1]]
        return (x + self.attention(x) + self.out * (self.share * carried if self.shift else 0.0), mask)


def _mask(n_tokens: int, *, left: bool = False) -> torch.Tensor:
    mask = torch.zeros(2, 16, dtype=torch.long)
    mask[:, 16 - n_tokens if left else 0 : 16 if left else n_tokens] = 1
    return mask


@pytest.mark.parametrize("left", [False, True])
def test_what_is_carried_along_the_sequence_is_refused_though_the_sample_is_padding_where_parts_meet(left: bool) -> None:
    told = "context degree 2: on parts of a sequence, it computes something else than whole"
    with pytest.raises(InputError, match=told):
        shard_equivalence.check_context(Carries(), [torch.randn(2, 16, 32), _mask(3, left=left)], 2, "x")
    shard_equivalence.check_context(Carries(shift=0), [torch.randn(2, 16, 32), _mask(3, left=left)], 2, "x")


def test_what_is_carried_along_the_sequence_is_refused_though_weights_of_zero_leave_nothing_of_it_yet() -> None:
    with pytest.raises(InputError, match="tokens meet outside attention; layers must treat tokens alike"):
        shard_equivalence.check_context(Carries(scale=0.0), [torch.randn(2, 16, 32), _mask(16)], 2, "x")


def test_samples_of_one_piece_have_no_padding_and_begin_once() -> None:
    hidden = torch.randn(1, 6, 4)
    mask, places = torch.tensor([[1, 1, 0, 0, 0, 0]]), torch.tensor([[0, 1, 2, 0, 1, 2]])
    lengths, table = torch.tensor([2]), torch.tensor([[True, False, True, False, True, False]])
    found = apart.unbroken([hidden, mask, places, lengths, table])
    ones = torch.ones(1, 6, dtype=torch.long)
    for values, of_places in zip(found[:2], (ones, torch.arange(6)[None]), strict=True):
        assert torch.equal(values[1], ones) and torch.equal(values[2], of_places)
        assert torch.equal(values[3], torch.tensor([6])) and bool(values[4].all())
    assert len(found) == 3 and found[2][1] is mask
    assert len(apart.unbroken([hidden, ones])) == 1, "what is full is tried once"


def test_layers_of_unlike_settings_are_not_taken_for_alike() -> None:
    assert apart.settings(Carries(), 1) == apart.settings(Carries(), 2) != apart.settings(Carries(shift=2), 5)
    later = Carries()
    later.layer_idx = 7
    assert apart.settings(later, 4) == apart.settings(Carries(), 4)


def test_a_layer_that_keeps_a_state_of_its_last_pass_is_tried_like_others() -> None:
    class Keeps(Direct):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            result = super().forward(x)
            self.state = result[0][:, -1]
            return result

    layer = Keeps(mixes=False)
    layer(torch.randn(2, 8, 32))
    shard_equivalence.check_context(layer, [torch.randn(2, 8, 32)], 2, "x")
    assert layer.state.grad_fn is not None, "the layer itself stays as it is"


@pytest.mark.parametrize("at", [0, 2])
def test_what_a_model_mixes_between_later_layers_is_seen_too_though_they_are_built_alike(at: int) -> None:
    class Mixes(torch.nn.Module):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.layers, self.at = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(5)), at

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, layer in enumerate(self.layers):
                x = layer(x)
                if i == self.at + 1:
                    x = x + x.roll(1, 1)
            return x

    names, sample = [f"layers.{i}" for i in range(5)], (torch.randn(1, 8, 8),)
    plan = Plan((Stage(tuple(range(5)), (0, 1), Strategy(context=2), ("none",) * 5),), 1, 1, "1f1b", 1)
    assert len(check_model(Mixes(-9), names, plan, sample, "x")) == 5
    with pytest.raises(InputError, match=rf"layer 'layers.{at + 1}': context degree 2: on parts of a sequence"):
        check_model(Mixes(at), names, plan, sample, "x")
