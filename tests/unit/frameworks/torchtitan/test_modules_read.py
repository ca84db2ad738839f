"""Modules in Python are read in the order of their lines; what a condition or a second function sets is never blended in."""

from __future__ import annotations

import pathlib

import pytest

from meshwright.base.errors import InputError
from meshwright.frameworks.torchtitan import fields

ONE = """
def plan():
    config = start()
    if LARGE:
        config.parallelism.tensor_parallel_degree = 8
    config.parallelism.tensor_parallel_degree = 2
    return config
"""
TWO = """
def other():
    config = plan()
    config.parallelism.tensor_parallel_degree = 4
    return config
"""


def test_the_last_line_counts_and_a_condition_is_told(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(ONE)
    found = fields.of_module(str(path))
    assert found.found["parallelism"] == {"tensor_parallel_degree": 2}
    assert found.warnings == [
        f"{path}: line 5: parallelism.tensor_parallel_degree is set under a condition, which is taken to hold"
    ]


def test_two_functions_that_set_fields_are_two_configurations(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(ONE + TWO)
    with pytest.raises(InputError, match="line 11: is of the second of 2 configurations; leave one in a file of its own"):
        fields.of_module(str(path))
