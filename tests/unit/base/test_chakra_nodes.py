"""Chakra's messages: numbers of any size come back from their bytes."""

from __future__ import annotations

import pytest

from meshwright.base import chakra_nodes


def decoded(data: bytes) -> int:
    """Return a variable-length number of protocol buffers, by its definition."""
    assert all(byte & 128 for byte in data[:-1]) and not data[-1] & 128
    return sum((byte & 127) << 7 * i for i, byte in enumerate(data))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 129, 255, 256, 16383, 16384, 2**40 + 5])
def test_a_number_comes_back_from_its_bytes_and_has_as_few_as_it_needs(value: int) -> None:
    data = chakra_nodes._varint(value)
    assert decoded(data) == value
    assert len(data) == max(1, -(-value.bit_length() // 7))
