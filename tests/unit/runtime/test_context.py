"""Context parallelism: which part of a sequence a rank has, and that attention computes no masked product of it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from meshwright.runtime.model.sequence import in_order, part_of_sequence, ranges_of  # noqa: E402
from meshwright.runtime.parallel.context_parallel import InContext  # noqa: E402


def test_a_rank_has_an_early_and_a_late_chunk() -> None:
    assert [ranges_of(16, rank, 2) for rank in range(2)] == [[(0, 4), (12, 16)], [(4, 8), (8, 12)]]


def test_where_chunks_do_not_divide_a_rank_has_one_range() -> None:
    assert [ranges_of(6, rank, 2) for rank in range(2)] == [[(0, 3)], [(3, 6)]]


@pytest.mark.parametrize(("length", "degree"), [(16, 2), (6, 2), (24, 4), (24, 3), (9, 3), (8, 1)])
def test_parts_put_together_are_the_sequence(length: int, degree: int) -> None:
    whole = torch.arange(2 * length * 3).view(2, length, 3)
    parts = [part_of_sequence(whole, 1, rank, degree) for rank in range(degree)]
    assert {part.shape[1] for part in parts} == {length // degree}
    assert torch.equal(in_order(torch.cat(parts, 1), 1, degree), whole)


@pytest.mark.parametrize(("length", "degree"), [(16, 2), (24, 4), (6, 2)])
def test_causal_attention_of_parts_is_that_of_the_whole_without_masked_products(length: int, degree: int) -> None:
    """Queries of a chunk meet the keys up to its end: as many products on every rank, where chunks divide the sequence."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, length, 8), torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    products: dict[int, int] = {}

    class Attention(torch.nn.Module):
        def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=True)

    def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
        return [part_of_sequence(tensor, 2, rank, degree) for rank in range(degree)]

    wholes = {id(part): torch.cat(parts(whole), 2) for whole in (key, value) for part in [whole]}
    results = []
    for rank in range(degree):
        own = [parts(tensor)[rank] for tensor in (query, key, value)]
        by_identity = {id(own[1]): wholes[id(key)], id(own[2]): wholes[id(value)]}
        layer = InContext(Attention(), lambda given, by=by_identity: by[id(given)], rank, degree)
        with _Counting() as counting:
            results.append(layer(*own))
        products[rank] = counting.n_products
    expected = Attention()(query, key, value)
    assert torch.allclose(in_order(torch.cat(results, 2), 2, degree), expected, atol=1e-6)
    if length % (2 * degree) == 0:
        chunk = length // (2 * degree)
        assert set(products.values()) == {chunk * chunk * (2 * degree + 1)}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_attention_of_parts_takes_the_types_that_autocast_gives_it(kind: torch.dtype) -> None:
    """Rotations leave queries and keys in fp32 beside values of a product: autocast makes them one type before attention."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 8).to(kind)

    class Attention(torch.nn.Module):
        def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)

    def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
        return [part_of_sequence(tensor, 2, rank, 2) for rank in range(2)]

    results = []
    for rank in range(2):
        wholes = iter([torch.cat(parts(tensor), 2).to(kind) for tensor in (key, value)])
        layer = InContext(Attention(), lambda given, wholes=wholes: next(wholes).to(given.dtype), rank, 2)
        with torch.autocast("cpu", dtype=kind):
            results.append(layer(*[parts(tensor)[rank] for tensor in (query, key, value)]))
    with torch.autocast("cpu", dtype=kind):
        expected = Attention()(query, key, value)
    found = in_order(torch.cat(results, 2), 2, 2)
    assert found.dtype == expected.dtype == kind
    assert torch.allclose(found.float(), expected.float(), atol=2e-2)


class _Counting(torch.overrides.TorchFunctionMode):
    """Counts pairs of queries and keys that attention is called with."""

    n_products = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key"), args, strict=False)) | (kwargs or {})
            self.n_products += given["query"].shape[-2] * given["key"].shape[-2]
        return func(*args, **(kwargs or {}))
