"""YAML is plain data, and no key is lost."""

from __future__ import annotations

import pytest

from meshwright.base import yaml_text
from meshwright.base.errors import InputError


def test_yaml_is_plain_data() -> None:
    assert yaml_text.load("a: [1, x]\nb: {c: true}\n", "a.yaml") == {"a": [1, "x"], "b": {"c": True}}
    assert yaml_text.load("base: &b {x: 1}\nmore: {<<: *b, y: 2}\n", "a.yaml")["more"] == {"x": 1, "y": 2}
    assert yaml_text.load("", "a.yaml") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "the key 'a' is given twice"), ("x: {a: 1, a: 1}", "the key 'a' is given twice"),
        ("a: [", "while parsing"), ("[" * 5000, "a.yaml: is no YAML"), ("!!python/object:os.system {}", "could not determine"),
        ("? [a, b]\n: c\n", "unhashable"), ("a: 2020-13-45", "month"),
    ],
)  # fmt: skip
def test_what_is_none_or_loses_a_key_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        yaml_text.load(text, "a.yaml")
    assert str(caught.value).startswith("a.yaml: is no YAML: ") and said in str(caught.value) and "\n" not in str(caught.value)
