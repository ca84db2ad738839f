"""Attention from a decoder's tokens to those of an encoder that are more, or fewer."""

from __future__ import annotations

from meshwright.core.flops import forward_flops
from meshwright.models.dense_blocks import Block, cross_attention


def test_keys_and_values_are_of_the_encoders_tokens_and_all_else_of_the_decoders() -> None:
    block = Block(sequence=6, hidden=8, heads=2, kv_heads=1, head=4, width=16, key_sequence=10, causal=False)
    sizes = {one.name.removeprefix("cross_attention."): dict(one.dims) for one in cross_attention(block)}
    assert sizes["query"] == {"sequence": 6, "in": 8, "out": 8}
    assert sizes["key_value"] == {"sequence": 10, "in": 8, "out": 8}
    assert sizes["output"] == {"sequence": 6, "in": 8, "out": 8}
    assert (sizes["core"]["sequence"], sizes["core"]["key_sequence"]) == (6, 10)
    (product,) = [one for one in cross_attention(block) if one.name.endswith("key_value")]
    assert product.saved_elements == 10 * 2 * 4 and forward_flops(product) == 2.0 * 10 * 8 * 8
