"""Counts as people type them, and files with a byte order mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import api
from meshwright.base import files, units
from meshwright.base.errors import InputError


@pytest.mark.parametrize(
    ("text", "decimal", "binary"),
    [("0", 0, 0), ("4096", 4096, 4096), ("32k", 32_000, 32_768), ("1.5K", 1500, 1536), ("2 M", 2 * 10**6, 2**21),
     ("4Ki", 4096, 4096), ("1.5T", 1_500_000_000_000, 3 * 2**39), (7, 7, 7),
     ("1e3", 1000, 1000), ("1.5E+2k", 150_000, 153_600)],
)  # fmt: skip
def test_a_count_may_have_a_prefix(text: str | int, decimal: int, binary: int) -> None:
    assert units.parse_count(text, place="--n") == decimal
    assert units.parse_count(text, place="--n", binary=True) == binary
    assert units.samples(text) == decimal and units.tokens(text) == binary


@pytest.mark.parametrize(
    "text", ["", "k", "32 tokens", "-1", "1e-3", "1e", "1e400", "0.3", "1.0001k", "1,000", "nan", "32kk", "4B"]
)
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="whole number"):
        units.parse_count(text, place="--n")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert files.load_json('\ufeff{"a": 1}') == ({"a": 1}, "")
    file = tmp_path / "config.json"
    file.write_text(
        '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16, '
        '"vocab_size": 10}',
        encoding="utf-8-sig",
    )
    assert api.read(str(file)).graph.sequence_length == 4096
    file.write_text(file.read_text(encoding="utf-8-sig")[:-1] + ', "max_position_embeddings": 0}', encoding="utf-8")
    with pytest.raises(InputError, match="max_position_embeddings is 0; it must be a whole number between 1"):
        api.read(str(file))
